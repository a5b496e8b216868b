"""Tunnel devices, their permanent neighbours and forwarding entries: read, created, changed, removed; with pyroute2.

Rule: a device is found by its name; what can be changed in place is changed; if anything else differs, the caller
decides whether to remove the device and create it again. tunl0 belongs to its driver and cannot be removed: down and
without addresses counts as absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from errno import EADDRNOTAVAIL, EEXIST, ENODEV, ENOENT
from ipaddress import ip_address
from typing import Any

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.interfaces import read_interfaces
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.addresses import add_address, set_neighbour
from cni_calico.kernel.netlink.links import IFLA_INFO_DATA, IFLA_LINKINFO, get_link, set_link
from cni_calico.kernel.netlink.socket import Rtnl
from cni_calico.model.host import ForwardingEntry, HostInterface, NeighbourEntry, TunnelDevice

CREATE = faults.declare("netlink.tunnel-create")
DELETE = faults.declare("netlink.tunnel-delete")
ADDR_DELETE = faults.declare("netlink.tunnel-addr-del")
FDB_SET = faults.declare("netlink.fdb-set")
FDB_DEL = faults.declare("netlink.fdb-del")
NEIGH_DEL = faults.declare("netlink.neigh-del")

_IFINFOMSG_BYTES = 16
_ID, _LINK, _LOCAL, _LEARNING, _PORT, _LOCAL6 = 1, 3, 4, 7, 15, 17  # linux/if_link.h, IFLA_VXLAN_*
_NUD_PERMANENT = 0x80
_NTF_SELF = 0x02


@contextmanager
def _opened(doing: str, tolerated: Iterable[int] = ()) -> Iterator[Any]:
    """A pyroute2 socket in this namespace; its errors become KernelError naming what was being done."""
    from pyroute2 import IPRoute
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        with IPRoute() as ip:
            yield ip
    except NetlinkError as e:
        if e.code not in tolerated:
            raise KernelError(f"cannot {doing}: {e.args[-1] if e.args else e}", errno=e.code or 0) from e
    except OSError as e:
        raise KernelError(f"cannot {doing}: {e.strerror or e}", errno=e.errno or 0) from e


# -- devices ----------------------------------------------------------------------------------------------------------


def read_tunnels(names: Iterable[str], deadline: Deadline) -> dict[str, TunnelDevice]:
    """The devices with these names that exist, of whatever kind they are. Raises KernelError."""
    interfaces = {interface.name: interface for interface in read_interfaces(deadline)}
    by_index = {interface.index: interface.name for interface in interfaces.values()}
    found = {}
    for name in names:
        interface = interfaces.get(name)
        if interface is not None:
            data = _vxlan_data(interface.index, deadline) if interface.kind == "vxlan" else {}
            device = _device(interface, data, by_index)
            if interface.kind != "ipip" or device.up or device.address:
                found[name] = device
    return found


def _vxlan_data(index: int, deadline: Deadline) -> dict[int, bytes]:
    """A VXLAN device's settings, read without pyroute2: the agent does this after every event, and opening pyroute2's
    sockets would take half of the time.
    """
    with Rtnl() as rtnl:
        found = wire.attributes(rtnl.one(get_link(index), deadline), _IFINFOMSG_BYTES)
    return wire.attributes(wire.attributes(found.get(IFLA_LINKINFO, b"")).get(IFLA_INFO_DATA, b""))


def _device(interface: HostInterface, data: dict[int, bytes], by_index: dict[int, str]) -> TunnelDevice:
    held = [address.ip for address in interface.addresses if not address.ip.is_link_local]
    vxlan = interface.kind == "vxlan"
    local = data.get(_LOCAL) or data.get(_LOCAL6)
    return TunnelDevice(
        name=interface.name,
        kind=interface.kind,
        mtu=interface.mtu,
        address=held[0] if held else None,
        more_addresses=len(held) > 1,
        parent=by_index.get(wire.number(data.get(_LINK)), ""),
        local=ip_address(local) if local else None,
        vni=wire.number(data.get(_ID)),
        port=int.from_bytes(data.get(_PORT, b""), "big"),
        mac=interface.mac if vxlan else "",
        learning=any(data.get(_LEARNING, b"")),
        up=interface.up,
    )


def create_tunnel(device: TunnelDevice, deadline: Deadline) -> None:
    """Create the device, with its settings and address. Raises KernelError."""
    interfaces = {interface.name: interface.index for interface in read_interfaces(deadline)}
    arguments: dict[str, Any] = {"ifname": device.name, "kind": device.kind}
    if device.kind == "vxlan":
        if device.parent not in interfaces:
            raise KernelError(f"cannot make {device.name}: no interface {device.parent}", errno=ENODEV)
        arguments |= {
            "mtu": device.mtu,
            "address": device.mac,
            "vxlan_id": device.vni,
            "vxlan_link": interfaces[device.parent],
            "vxlan_local" if device.local is None or device.local.version == 4 else "vxlan_local6": str(device.local),
            "vxlan_port": device.port,
            "vxlan_learning": False,
        }
    # the ipip driver creates tunl0 by itself when the request loads it, and then refuses the request
    with _opened(f"make {device.name}", (EEXIST,) if device.kind == "ipip" else ()) as ip:
        faults.before(CREATE)
        ip.link("add", **arguments)
        faults.after(CREATE)
    change_tunnel(device, deadline)


def change_tunnel(device: TunnelDevice, deadline: Deadline) -> None:
    """Change MTU, MAC, addresses and state to those of ``device``. Raises KernelError."""
    interfaces = {interface.name: interface for interface in read_interfaces(deadline)}
    there = interfaces.get(device.name)
    if there is None:
        raise KernelError(f"cannot change {device.name}: it is gone", errno=ENODEV)
    wanted = device.address
    with Rtnl() as rtnl:
        mac = bytes.fromhex(device.mac.replace(":", "")) if device.mac and device.mac != there.mac else None
        mtu = device.mtu if device.mtu != there.mtu else None
        if mac is not None or mtu is not None or not there.up:
            rtnl.one(set_link(there.index, device.name, up=True, mac=mac, mtu=mtu), deadline)
        if wanted is not None and all(held.ip != wanted for held in there.addresses):
            rtnl.one(add_address(there.index, device.name, wanted), deadline)
    for held in there.addresses:
        if held.ip != wanted and not held.ip.is_link_local:
            _remove_address(there.index, device.name, str(held.ip), held.network.prefixlen)


def _remove_address(index: int, name: str, address: str, length: int) -> None:
    with _opened(f"remove address {address} from {name}", (EADDRNOTAVAIL, ENODEV)) as ip:
        faults.before(ADDR_DELETE)
        ip.addr("del", index=index, address=address, prefixlen=length)
        faults.after(ADDR_DELETE)


def remove_tunnel(name: str, deadline: Deadline) -> None:
    """Absent is success. Raises KernelError."""
    for interface in read_interfaces(deadline):
        if interface.name != name:
            continue
        if interface.kind == "ipip":
            _silence(interface, deadline)
            return
        with _opened(f"remove {name}", (ENODEV,)) as ip:
            faults.before(DELETE)
            ip.link("del", index=interface.index)
            faults.after(DELETE)


def _silence(interface: HostInterface, deadline: Deadline) -> None:
    for held in interface.addresses:
        _remove_address(interface.index, interface.name, str(held.ip), held.network.prefixlen)
    with Rtnl() as rtnl:
        rtnl.one(set_link(interface.index, interface.name, up=False), deadline)


# -- neighbours and forwarding entries --------------------------------------------------------------------------------


def read_vteps(names: Iterable[str], deadline: Deadline) -> tuple[set[NeighbourEntry], set[ForwardingEntry]]:
    """Permanent neighbours and static forwarding entries of these devices. Raises KernelError."""
    indexes = {i.index: i.name for i in read_interfaces(deadline) if i.name in set(names)}
    neighbours: set[NeighbourEntry] = set()
    entries: set[ForwardingEntry] = set()
    if not indexes:
        return neighbours, entries
    with _opened("read neighbours") as ip:
        for index, name in indexes.items():
            for message in ip.neigh("dump", ifindex=index):
                address, mac = message.get_attr("NDA_DST"), message.get_attr("NDA_LLADDR")
                if message["ifindex"] == index and message["state"] & _NUD_PERMANENT and address and mac:
                    neighbours.add(NeighbourEntry(name, ip_address(address), mac))
            for message in ip.fdb("dump", ifindex=index):
                remote, mac = message.get_attr("NDA_DST"), message.get_attr("NDA_LLADDR")
                if message["ifindex"] == index and remote and mac:
                    entries.add(ForwardingEntry(name, mac, ip_address(remote)))
    # multicast groups that the kernel joins by itself appear as permanent neighbours
    return {entry for entry in neighbours if not entry.address.is_multicast}, entries


def apply_vteps(
    neighbours: tuple[Sequence[NeighbourEntry], Sequence[NeighbourEntry]],
    entries: tuple[Sequence[ForwardingEntry], Sequence[ForwardingEntry]],
    deadline: Deadline,
) -> list[KernelError]:
    """Of both pairs, set the members of the first part and remove those of the second; returns every failure. A device
    that is gone takes its entries with it.
    """
    failures: list[KernelError] = []
    indexes = {interface.name: interface.index for interface in read_interfaces(deadline)}
    with Rtnl() as rtnl, _opened("open a netlink socket") as ip:
        for change, items in (
            (_remove_entry, entries[1]),  # a MAC that has moved to another node is set again below
            (_remove_neighbour, neighbours[1]),
            (_set_entry, entries[0]),
        ):
            for item in items:
                if item.device in indexes:
                    _collect(failures, change, ip, indexes[item.device], item)
        for neighbour in neighbours[0]:
            if neighbour.device in indexes:
                mac = bytes.fromhex(neighbour.mac.replace(":", ""))
                index = indexes[neighbour.device]
                request = set_neighbour(index, neighbour.device, neighbour.address, mac)
                outcome = rtnl.submit((request,), deadline)[0]
                failures += [outcome.error] if outcome.error is not None else []
    return failures


def _collect(failures: list[KernelError], change: Callable[..., None], ip: Any, index: int, item: Any) -> None:
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        change(ip, index, item)
    except NetlinkError as e:
        if change is _set_entry or e.code not in (ENOENT, ENODEV):
            failures.append(KernelError(f"cannot change where {item.device} sends: {e}", errno=e.code or 0))
    except OSError as e:
        failures.append(KernelError(f"cannot change where {item.device} sends: {e}", errno=e.errno or 0))


def _set_entry(ip: Any, index: int, entry: ForwardingEntry) -> None:
    """Replaces the entry of that MAC."""
    faults.before(FDB_SET)
    ip.fdb("replace", ifindex=index, lladdr=entry.mac, dst=str(entry.remote), flags=_NTF_SELF, state=_NUD_PERMANENT)
    faults.after(FDB_SET)


def _remove_entry(ip: Any, index: int, entry: ForwardingEntry) -> None:
    faults.before(FDB_DEL)
    ip.fdb("del", ifindex=index, lladdr=entry.mac, dst=str(entry.remote), flags=_NTF_SELF)
    faults.after(FDB_DEL)


def _remove_neighbour(ip: Any, index: int, entry: NeighbourEntry) -> None:
    faults.before(NEIGH_DEL)
    ip.neigh("del", dst=str(entry.address), ifindex=index)
    faults.after(NEIGH_DEL)
