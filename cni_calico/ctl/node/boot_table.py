"""``calicoctl node boot-table``: opens workloads' interfaces where no agent comes to do it, or shows whether they are
closed since the host's start.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping

from cni_calico import directories
from cni_calico.deadline import Deadline
from cni_calico.kernel.filter.boot_table import read_boot_table
from cni_calico.nodeagent.boot_table import switch_off

OFF = "off"


def run(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Raises KernelError."""
    if arguments.state == OFF:
        if switch_off(directories.run_dir(environ)):
            return "The boot table is gone: workloads are open until calico-node enforces policies.\n"
        return "There was no boot table.\n"
    if found := read_boot_table(Deadline.after(arguments.timeout)):
        return f"Workloads are closed by the boot table ({', '.join(found)}) until calico-node has decided.\n"
    return "There is no boot table.\n"
