"""IP sets (of iptables): reads their names, removes one; with pyroute2, so that the ipset program is not needed.

Rule: a kernel without support for IP sets has none, and reading must not load the module. Removing an absent set is
success.
"""

from __future__ import annotations

import os
from errno import EBUSY, ENOENT

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.netlink.pyroute import ipset

DESTROY = faults.declare("ipset.destroy")
_MODULE = "/sys/module/ip_set"
_BUSY = 4100  # IPSET_ERR_BUSY
_NAMES_ONLY = 1 << 1  # IPSET_FLAG_LIST_SETNAME: without the members, of which there may be thousands


def read_ipsets(deadline: Deadline) -> list[str]:
    """The names of all sets of this namespace. Raises KernelError, DeadlineExceeded."""
    if not os.path.isdir(_MODULE):
        return []
    with ipset() as kernel:
        found = kernel.call("read IP sets", lambda sets: sets.list(flags=_NAMES_ONLY), deadline)
    return sorted(message.get_attr("IPSET_ATTR_SETNAME") for message in found)


def remove_ipset(name: str, deadline: Deadline) -> None:
    """Raises KernelError, with EBUSY while a rule or another set uses it; DeadlineExceeded."""
    doing = f"remove IP set {name}"
    try:
        with ipset() as kernel:
            kernel.call(doing, lambda sets: sets.destroy(name), deadline, point=DESTROY, tolerated=(ENOENT,))
    except KernelError as e:
        if e.errno != _BUSY:
            raise
        raise KernelError(f"cannot {doing}: a rule or another set uses it", errno=EBUSY) from e
