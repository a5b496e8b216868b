"""Tunnel devices, their permanent neighbours and forwarding entries: read, created, changed, removed; with pyroute2.

Rule: a device is found by its name; what can be changed in place is changed; if anything else differs, the caller
decides whether to remove the device and create it again. tunl0 belongs to its driver and cannot be removed: down and
without addresses counts as absent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from errno import EADDRNOTAVAIL, EEXIST, ENODEV, ENOENT
from functools import partial
from ipaddress import ip_address
from typing import Any

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.interfaces import read_interface_name, read_interfaces, read_named_interfaces
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.addresses import ADDR_ADD, IFA_F_NODAD, set_neighbour
from cni_calico.kernel.netlink.links import IFLA_INFO_DATA, IFLA_LINKINFO, LINK_SET, get_link
from cni_calico.kernel.netlink.pyroute import PyrouteSocket, iproute
from cni_calico.kernel.netlink.socket import Rtnl
from cni_calico.model.host import ForwardingEntry, HostInterface, NeighbourEntry, TunnelDevice
from cni_calico.model.resources import Address, Interface

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


# -- devices ----------------------------------------------------------------------------------------------------------


def read_tunnels(names: Collection[str], deadline: Deadline) -> dict[str, TunnelDevice]:
    """The devices with these names that exist, of whatever kind they are. Raises KernelError."""
    found = {}
    for interface in read_named_interfaces(names, deadline):
        data = _vxlan_data(interface.index, deadline) if interface.kind == "vxlan" else {}
        parent = wire.number(data.get(_LINK))
        device = _device(interface, data, read_interface_name(parent, deadline) if parent else "")
        if interface.kind != "ipip" or device.up or device.address:
            found[interface.name] = device
    return found


def _vxlan_data(index: int, deadline: Deadline) -> dict[int, bytes]:
    """A VXLAN device's settings, read without pyroute2: the agent does this after every event, and opening pyroute2's
    socket would take half of the time.
    """
    with Rtnl() as rtnl:
        found = wire.attributes(rtnl.one(get_link(index), deadline), _IFINFOMSG_BYTES)
    return wire.attributes(wire.attributes(found.get(IFLA_LINKINFO, b"")).get(IFLA_INFO_DATA, b""))


def _device(interface: HostInterface, data: dict[int, bytes], parent: str) -> TunnelDevice:
    held = [address.ip for address in interface.addresses if not address.ip.is_link_local]
    vxlan = interface.kind == "vxlan"
    local = data.get(_LOCAL) or data.get(_LOCAL6)
    return TunnelDevice(
        name=interface.name,
        kind=interface.kind,
        mtu=interface.mtu,
        address=held[0] if held else None,
        more_addresses=len(held) > 1,
        parent=parent,
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
    tolerated = (EEXIST,) if device.kind == "ipip" else ()
    with iproute() as kernel:
        make = f"make {device.name}"
        kernel.call(make, lambda ip: ip.link("add", **arguments), deadline, point=CREATE, tolerated=tolerated)
    change_tunnel(device, deadline)


def change_tunnel(device: TunnelDevice, deadline: Deadline) -> None:
    """Change MTU, MAC, addresses and state to those of ``device``. Raises KernelError."""
    interfaces = {interface.name: interface for interface in read_interfaces(deadline)}
    there = interfaces.get(device.name)
    if there is None:
        raise KernelError(f"cannot change {device.name}: it is gone", errno=ENODEV)
    settings: dict[str, Any] = {} if there.up else {"state": "up"}
    settings |= {"address": device.mac} if device.mac and device.mac != there.mac else {}
    settings |= {"mtu": device.mtu} if device.mtu != there.mtu else {}
    wanted = device.address
    with iproute() as kernel:
        if settings:
            _set_link(kernel, there, settings, deadline)
        if wanted is not None and all(held.ip != wanted for held in there.addresses):
            _add_address(kernel, there, wanted, deadline)
        for held in there.addresses:
            if held.ip != wanted and not held.ip.is_link_local:
                _remove_address(kernel, there, held, deadline)


def _set_link(kernel: PyrouteSocket, there: HostInterface, settings: dict[str, Any], deadline: Deadline) -> None:
    doing = f"set interface {there.name}"
    kernel.call(doing, lambda ip: ip.link("set", index=there.index, **settings), deadline, point=LINK_SET)


def _add_address(kernel: PyrouteSocket, there: HostInterface, address: Address, deadline: Deadline) -> None:
    what = {"index": there.index, "address": str(address), "prefixlen": address.max_prefixlen}
    flags = IFA_F_NODAD if address.version == 6 else 0  # otherwise it could not be used at once
    doing = f"add address {address} to {there.name}"
    kernel.call(doing, lambda ip: ip.addr("replace", **what, flags=flags), deadline, point=ADDR_ADD)


def _remove_address(kernel: PyrouteSocket, there: HostInterface, held: Interface, deadline: Deadline) -> None:
    kernel.call(
        f"remove address {held.ip} from {there.name}",
        lambda ip: ip.addr("del", index=there.index, address=str(held.ip), prefixlen=held.network.prefixlen),
        deadline,
        point=ADDR_DELETE,
        tolerated=(EADDRNOTAVAIL, ENODEV),
    )


def remove_tunnel(name: str, deadline: Deadline) -> None:
    """Absent is success. Raises KernelError."""
    there = next((interface for interface in read_interfaces(deadline) if interface.name == name), None)
    if there is None:
        return
    with iproute() as kernel:
        if there.kind == "ipip":
            for held in there.addresses:
                _remove_address(kernel, there, held, deadline)
            _set_link(kernel, there, {"state": "down"}, deadline)
            return
        remove = f"remove {name}"
        kernel.call(remove, lambda ip: ip.link("del", index=there.index), deadline, point=DELETE, tolerated=(ENODEV,))


# -- neighbours and forwarding entries --------------------------------------------------------------------------------


def read_vteps(names: Iterable[str], deadline: Deadline) -> tuple[set[NeighbourEntry], set[ForwardingEntry]]:
    """Permanent neighbours and static forwarding entries of these devices. Raises KernelError."""
    asked = set(names)
    indexes = {i.index: i.name for i in read_named_interfaces(asked, deadline)} if asked else {}
    neighbours: set[NeighbourEntry] = set()
    entries: set[ForwardingEntry] = set()
    if not indexes:
        return neighbours, entries
    with iproute() as kernel:
        for index, name in indexes.items():
            for message in kernel.call("read neighbours", partial(_neighbours, index=index), deadline):
                address, mac = message.get_attr("NDA_DST"), message.get_attr("NDA_LLADDR")
                if message["ifindex"] == index and message["state"] & _NUD_PERMANENT and address and mac:
                    neighbours.add(NeighbourEntry(name, ip_address(address), mac))
            for message in kernel.call("read forwarding entries", partial(_entries, index=index), deadline):
                remote, mac = message.get_attr("NDA_DST"), message.get_attr("NDA_LLADDR")
                if message["ifindex"] == index and remote and mac:
                    entries.add(ForwardingEntry(name, mac, ip_address(remote)))
    # multicast groups that the kernel joins by itself appear as permanent neighbours
    return {entry for entry in neighbours if not entry.address.is_multicast}, entries


def _neighbours(ip: Any, index: int) -> Any:
    return ip.neigh("dump", ifindex=index)


def _entries(ip: Any, index: int) -> Any:
    return ip.fdb("dump", ifindex=index)


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
    with Rtnl() as rtnl, iproute() as kernel:
        for change, items in (
            (_remove_entry, entries[1]),  # a MAC that has moved to another node is set again below
            (_remove_neighbour, neighbours[1]),
            (_set_entry, entries[0]),
        ):
            for item in items:
                if item.device in indexes:
                    try:
                        change(kernel, indexes[item.device], item, deadline)
                    except KernelError as e:
                        failures.append(e)
        for neighbour in neighbours[0]:
            if neighbour.device in indexes:
                mac = bytes.fromhex(neighbour.mac.replace(":", ""))
                index = indexes[neighbour.device]
                request = set_neighbour(index, neighbour.device, neighbour.address, mac)
                outcome = rtnl.submit((request,), deadline)[0]
                failures += [outcome.error] if outcome.error is not None else []
    return failures


def _set_entry(kernel: PyrouteSocket, index: int, entry: Any, deadline: Deadline) -> None:
    """Replaces the entry of that MAC."""
    where = {"ifindex": index, "lladdr": entry.mac, "dst": str(entry.remote), "flags": _NTF_SELF}
    kernel.call(
        f"change where {entry.device} sends",
        lambda ip: ip.fdb("replace", **where, state=_NUD_PERMANENT),
        deadline,
        point=FDB_SET,
    )


def _remove_entry(kernel: PyrouteSocket, index: int, entry: Any, deadline: Deadline) -> None:
    where = {"ifindex": index, "lladdr": entry.mac, "dst": str(entry.remote), "flags": _NTF_SELF}
    doing = f"change where {entry.device} sends"
    kernel.call(doing, lambda ip: ip.fdb("del", **where), deadline, point=FDB_DEL, tolerated=(ENOENT, ENODEV))


def _remove_neighbour(kernel: PyrouteSocket, index: int, entry: Any, deadline: Deadline) -> None:
    where = {"ifindex": index, "dst": str(entry.address)}
    doing = f"change where {entry.device} sends"
    kernel.call(doing, lambda ip: ip.neigh("del", **where), deadline, point=NEIGH_DEL, tolerated=(ENOENT, ENODEV))
