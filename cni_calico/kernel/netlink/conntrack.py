"""Removes the connection tracking entries of one address: when a workload is gone, its connections must be gone too.

Rule: never send a delete that names no address, which would remove every entry of the host. Two requests for each
address: entries whose original source it is, and entries whose replies come from it (connections translated to it). A
kernel that cannot filter (before about 6.13) refuses, and for IPv6 none is asked: the kernel compares IPv6 addresses
the wrong way round (seen on 6.18) and would remove everybody else's entries. Then all entries are listed once for many
addresses, filtered here, and removed one by one. That takes time in proportion to the number of the host's entries:
never do it in a thread that others wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
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
_DESTINATIONS = {4: 2, 16: 4}
_IPV6_BYTES = 16
_FAMILIES = {4: "ip", 16: "ip6"}
_BY_SOURCE = 1  # in a filter's flags
_DOING = "remove connection tracking entries"


def remove_entries(netlink: Nfnetlink, address: bytes, deadline: Deadline) -> bool:
    """Remove every entry in whose tuples the packed ``address`` is the source. None is success. Raises KernelError.

    Returns False if this kernel cannot filter, and for every IPv6 address, see ``remove_listed``.
    """
    _require_address(address)
    if len(address) == _IPV6_BYTES:
        return False
    try:
        faults.before(REMOVE)
        for side in (_ORIGINAL, _REPLY):
            if not _remove_chosen(netlink, address, side, deadline):
                return False
        faults.after(REMOVE)
    except faults.Injected as e:
        raise KernelError(f"cannot {_DOING}: {e}", errno=e.errno or 0) from e
    return True


def remove_listed(
    netlink: Nfnetlink,
    addresses: Collection[bytes],
    deadline: Deadline,
    may_go: Callable[[bytes], bool] = lambda address: True,
) -> None:
    """Remove the entries of these addresses that are listed now, if ``may_go`` allows their address then. Raises
    KernelError.

    ``may_go`` is called when the list is complete: a workload that has been given an address since has connections in
    the list too.
    """
    for address in addresses:
        _require_address(address)
    for size, family in _FAMILIES.items():
        wanted = {address for address in addresses if len(address) == size}
        if wanted:
            _remove_listed(netlink, family, wanted, deadline, may_go, _both_sources)


def remove_translated(netlink: Nfnetlink, addresses: Collection[bytes], deadline: Deadline) -> None:
    """Remove the listed entries of connections that were made to one of these addresses, whoever answers them. Raises
    KernelError.
    """
    for address in addresses:
        _require_address(address)
    for size, family in _FAMILIES.items():
        wanted = {address for address in addresses if len(address) == size}
        if wanted:
            _remove_listed(netlink, family, wanted, deadline, lambda address: True, _destination)


def _require_address(address: bytes) -> None:
    if len(address) not in _FAMILIES:
        raise KernelError(f"cannot {_DOING}: that is not an address", errno=EINVAL)


def _remove_chosen(netlink: Nfnetlink, address: bytes, side: int, deadline: Deadline) -> bool:
    """Remove the entries with the address on this side; returns False if this kernel cannot filter."""
    source = nested(side, nested(_IP, attribute(_SOURCES[len(address)], address)))
    flags = [wire.u32(number, _BY_SOURCE if number == side else 0) for number in (_ORIGINAL, _REPLY)]
    body = general(_FAMILIES[len(address)]) + source + nested(_FILTER, *flags)
    try:
        netlink.request(_DELETE, 0, body, _DOING, deadline)
    except KernelError as e:
        if e.errno in (EOPNOTSUPP, EINVAL):
            return False
        if e.errno != ENOENT:
            raise
    return True


def _remove_listed(
    netlink: Nfnetlink,
    family: str,
    wanted: set[bytes],
    deadline: Deadline,
    may_go: Callable[[bytes], bool],
    read: Callable[[dict[int, bytes], int], set[bytes]],
) -> None:
    size = 4 if family == "ip" else 16
    chosen: list[tuple[set[bytes], bytes]] = []

    def choose(payload: bytes) -> None:
        found = wire.attributes(payload, GENERAL_BYTES)
        mine = read(found, size) & wanted
        if mine:
            parts = [attribute(_ORIGINAL | wire.NLA_F_NESTED, found[_ORIGINAL])]
            parts += [attribute(kind, found[kind]) for kind in (_ID, _ZONE) if kind in found]
            chosen.append((mine, general(family) + b"".join(parts)))

    netlink.dump_each(_GET, general(family), choose, "list connection tracking entries", deadline)
    going = {address for address in wanted if may_go(address)}
    for mine, body in chosen:
        if not mine & going:
            continue
        try:
            netlink.request(_DELETE, 0, body, _DOING, deadline)
        except KernelError as e:
            if e.errno != ENOENT:  # the connection has ended by itself
                raise


def _both_sources(found: dict[int, bytes], size: int) -> set[bytes]:
    return {source for side in (_ORIGINAL, _REPLY) if (source := _end(found, side, _SOURCES[size])) is not None}


def _destination(found: dict[int, bytes], size: int) -> set[bytes]:
    end = _end(found, _ORIGINAL, _DESTINATIONS[size])
    return set() if end is None else {end}


def _end(found: dict[int, bytes], side: int, which: int) -> bytes | None:
    ip = wire.attributes(found.get(side, b"")).get(_IP, b"")
    return wire.attributes(ip).get(which)
