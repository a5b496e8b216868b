"""Connection tracking entries of one address, removed: when a workload is gone, its connections are.

Rule: never a delete that names no address, which would remove every entry of the host. Two requests for each address:
entries whose original source it is, and entries whose replies come from it (what was translated to it). A kernel that
cannot choose (before about 6.13) refuses; then they are listed, chosen here, and removed one by one.
"""

from __future__ import annotations

from errno import EINVAL, ENOENT, EOPNOTSUPP

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.nfnetlink import CTNETLINK, GENERAL_BYTES, Nfnetlink, general
from cni_calico.kernel.netlink.wire import attribute, nested

REMOVE = faults.declare("conntrack.remove")
_GET, _DELETE = CTNETLINK << 8 | 1, CTNETLINK << 8 | 2
_ORIGINAL, _REPLY, _ID, _ZONE, _FILTER = 1, 2, 12, 18, 25
_IP = 1  # in a tuple
_SOURCES = {4: 1, 16: 3}  # attribute of the source, by the length of an address
_FAMILIES = {4: "ip", 16: "ip6"}
_BY_SOURCE = 1  # in a filter's flags


def remove_entries(netlink: Nfnetlink, address: bytes, deadline: Deadline, *, one_by_one: bool = False) -> None:
    """Every entry in whose tuples the packed ``address`` is the source. None is success. Raises KernelError.

    ``one_by_one`` does it as on a kernel that cannot choose.
    """
    if len(address) not in _FAMILIES:
        raise KernelError("cannot remove connection tracking entries: that is no address", errno=EINVAL)
    doing = "remove connection tracking entries"
    try:
        faults.before(REMOVE)
        for side in (_ORIGINAL, _REPLY):
            if one_by_one or not _remove_chosen(netlink, address, side, doing, deadline):
                _remove_listed(netlink, address, doing, deadline)
                break
        faults.after(REMOVE)
    except faults.Injected as e:
        raise KernelError(f"cannot {doing}: {e}", errno=e.errno or 0) from e


def _remove_chosen(netlink: Nfnetlink, address: bytes, side: int, doing: str, deadline: Deadline) -> bool:
    """False when this kernel cannot do that."""
    source = nested(side, nested(_IP, attribute(_SOURCES[len(address)], address)))
    flags = [wire.u32(number, _BY_SOURCE if number == side else 0) for number in (_ORIGINAL, _REPLY)]
    body = general(_FAMILIES[len(address)]) + source + nested(_FILTER, *flags)
    try:
        netlink.request(_DELETE, 0, body, doing, deadline)
    except KernelError as e:
        if e.errno in (EOPNOTSUPP, EINVAL):
            return False
        if e.errno != ENOENT:
            raise
    return True


def _remove_listed(netlink: Nfnetlink, address: bytes, doing: str, deadline: Deadline) -> None:
    family = _FAMILIES[len(address)]
    for payload in netlink.dump(_GET, general(family), "list connection tracking entries", deadline):
        found = wire.attributes(payload, GENERAL_BYTES)
        if address not in (_source(found, _ORIGINAL, len(address)), _source(found, _REPLY, len(address))):
            continue
        parts = [attribute(_ORIGINAL | wire.NLA_F_NESTED, found[_ORIGINAL])]
        parts += [attribute(kind, found[kind]) for kind in (_ID, _ZONE) if kind in found]
        try:
            netlink.request(_DELETE, 0, general(family) + b"".join(parts), doing, deadline)
        except KernelError as e:
            if e.errno != ENOENT:  # it ended by itself
                raise


def _source(found: dict[int, bytes], side: int, size: int) -> bytes | None:
    ip = wire.attributes(found.get(side, b"")).get(_IP, b"")
    return wire.attributes(ip).get(_SOURCES[size])
