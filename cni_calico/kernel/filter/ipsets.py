"""IP sets (of iptables): reads their names, removes one; by netlink, so that the ipset program is not needed.

Rule: a kernel without support for IP sets has none, and reading must not load the module. Removing an absent set is
success. Layouts: linux/netfilter/ipset/ip_set.h; every kernel since 2.6.39 speaks version 6 of its protocol.
"""

from __future__ import annotations

import os
from errno import EBUSY, ENOENT

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.nfnetlink import GENERAL_BYTES, Nfnetlink, general

DESTROY = faults.declare("ipset.destroy")
_MODULE = "/sys/module/ip_set"
_BUSY = 4100  # IPSET_ERR_BUSY
_SUBSYSTEM, _DESTROY, _LIST = 6 << 8, 3, 7
_PROTOCOL, _SETNAME, _FLAGS = wire.attribute(1, b"\x06"), 2, 6 | 1 << 14  # the last in network byte order
_NAMES_ONLY = 1 << 1  # IPSET_FLAG_LIST_SETNAME: without the members, of which there may be thousands


def read_ipsets(deadline: Deadline) -> list[str]:
    """The names of all sets of this namespace. Raises KernelError, DeadlineExceeded."""
    if not os.path.isdir(_MODULE):
        return []
    body = general("ip") + _PROTOCOL + wire.attribute(_FLAGS, _NAMES_ONLY.to_bytes(4, "big"))
    with Nfnetlink() as kernel:
        found = kernel.dump(_SUBSYSTEM | _LIST, body, "read IP sets", deadline)
    names = (wire.attributes(reply, GENERAL_BYTES).get(_SETNAME, b"") for reply in found)
    return sorted(name.rstrip(b"\0").decode(errors="replace") for name in names if name)


def remove_ipset(name: str, deadline: Deadline) -> None:
    """Raises KernelError, with EBUSY while a rule or another set uses it; DeadlineExceeded."""
    doing = f"remove IP set {name}"
    body = general("ip") + _PROTOCOL + wire.text(_SETNAME, name)
    try:
        with Nfnetlink() as kernel:
            faults.before(DESTROY)
            kernel.request(_SUBSYSTEM | _DESTROY, 0, body, doing, deadline)
            faults.after(DESTROY)
    except faults.Injected as e:
        raise KernelError(f"cannot {doing}: {e}", errno=e.errno or 0) from e
    except KernelError as e:
        if e.errno == ENOENT:
            return
        if e.errno != _BUSY:
            raise
        raise KernelError(f"cannot {doing}: a rule or another set uses it", errno=EBUSY) from e
