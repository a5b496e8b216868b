"""The boot table of this host: who loads it, who takes it away, and the file that says that it is there.

Rule: it is loaded only before the agent has decided anything since the host started. Later it would cut off workloads
that the agent's rules guard, also while an agent that has started again is undecided, and nobody might take it away;
so whoever has loaded it asks once more. The agent tells its decision before it looks for the table: whichever of the
two comes second sees the other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from cni_calico import directories
from cni_calico.daemon.settings_table import TRUE
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.kernel.files import Files
from cni_calico.kernel.filter.boot_table import ensure_boot_table, remove_boot_table
from cni_calico.kernel.filter.nf_tables.filter import NfTables
from cni_calico.log import Log
from cni_calico.nodeagent.context.felix import parse_felix
from cni_calico.nodeagent.context.open import read_environment
from cni_calico.nodeagent.policing.tables.touched import TABLES
from cni_calico.plugin.policy_decision import UNDECIDED, read_decision

_LOAD_S, _OFF_S = 30.0, 60.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """``by``: the packet filter that has the table now; "": none, for the reason ``why_not``."""

    prefixes: tuple[str, ...]
    by: str = ""
    why_not: str = ""


def load_boot_table(environ: Mapping[str, str], log: Log) -> Loaded:
    """Close the workloads' interfaces, unless that is needless. Raises KernelError."""
    environ = read_environment(environ)
    prefixes = parse_felix(environ).settings.interface_prefixes
    run_dir = directories.run_dir(environ)
    if why_not := _needless(environ, run_dir):
        return Loaded(prefixes, why_not=why_not)
    by = ensure_boot_table(prefixes, Deadline.after(_LOAD_S))
    path = f"{run_dir}/{directories.BOOT_TABLE}"
    try:
        files = Files()
        files.make_directory(run_dir, 0o755)
        files.write_atomic(path, f"{by}\n".encode(), 0o644, durable=False)
    except OSError as e:
        log.warning(f"cannot write {path}, so containers start without waiting for calico-node: {e.strerror or e}")
    if why_not := _decided(run_dir):
        switch_off(run_dir)
        return Loaded(prefixes, why_not=why_not)
    return Loaded(prefixes, by)


def _needless(environ: Mapping[str, str], run_dir: str) -> str:
    if environ.get("CALICO_DISABLE_FELIX", "").strip().lower() in TRUE:
        return "another agent maintains the data plane (CALICO_DISABLE_FELIX)"
    if why_not := _decided(run_dir):
        return why_not
    try:
        with NfTables() as kernel:
            there = any(kernel.has_table(table, Deadline.after(_LOAD_S)) for table in TABLES)
    except CalicoError:
        there = False  # a kernel without nf_tables
    return "calico-node's own rules are in force already" if there else ""


def _decided(run_dir: str) -> str:
    """Says so, if an agent that lives has."""
    decision = read_decision(Files(), f"{run_dir}/{directories.POLICY_DECISION}")
    return "calico-node runs, and has decided already" if decision.lives and decision.state != UNDECIDED else ""


def switch_off(run_dir: str) -> bool:
    """Open the interfaces again; returns whether they were closed. Raises KernelError."""
    found = remove_boot_table(Deadline.after(_OFF_S))
    with suppress(OSError):  # it was not there, or its directory is gone; the table is what counts
        os.unlink(f"{run_dir}/{directories.BOOT_TABLE}")
    return found
