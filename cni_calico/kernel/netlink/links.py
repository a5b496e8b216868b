"""PURE: requests about interfaces and namespaces' ids, encoded by hand, and their answers decoded.

Rule: no socket here; kernel/netlink/socket.py sends what these functions build. The tests compare the results with
those of pyroute2, which is too slow to import on the call path. Layouts: linux/if_link.h, veth.h, net_namespace.h.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from cni_calico import faults
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.wire import NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, Request, attribute, nested, text, u32

LINK_CREATE = faults.declare("netlink.link-create")
LINK_SET = faults.declare("netlink.link-set")
LINK_DELETE = faults.declare("netlink.link-delete")

AF_INET, AF_INET6 = 2, 10
RTM_NEWLINK, RTM_DELLINK, RTM_GETLINK, RTM_SETLINK = 16, 17, 18, 19
RTM_GETNSID = 90

IFF_UP = 0x1
IFLA_ADDRESS, IFLA_IFNAME, IFLA_MTU, IFLA_LINK, IFLA_TXQLEN, IFLA_LINKINFO, IFLA_IFALIAS = 1, 3, 4, 5, 13, 18, 20
IFLA_AF_SPEC, IFLA_GROUP, IFLA_NET_NS_FD, IFLA_EXT_MASK = 26, 27, 28, 29
IFLA_NUM_TX_QUEUES, IFLA_NUM_RX_QUEUES, IFLA_LINK_NETNSID = 31, 32, 37
IFLA_INFO_KIND, IFLA_INFO_DATA, VETH_INFO_PEER = 1, 2, 1
IFLA_INET_CONF, IFLA_INET6_CONF, IFLA_INET6_ADDR_GEN_MODE = 1, 2, 8
SKIP_STATISTICS = 8  # RTEXT_FILTER_SKIP_STATS
NETNSA_NSID, NETNSA_FD = 1, 3

_IFINFO = Struct("=BxHiII")  # family, device type, index, flags, change mask


def _link(index: int = 0, flags: int = 0, change: int = 0) -> bytes:
    return _IFINFO.pack(0, 0, index, flags, change)


def create_veth(
    name: str,
    peer: str,
    peer_netns_fd: int,
    *,
    mtu: int,
    mac: bytes | None = None,
    peer_mac: bytes | None = None,
    queues: int = 1,
) -> Request:
    """A veth whose peer is created in its namespace: moving it there later would take 37 ms.

    The host's end gets transmit queue length 0, as in upstream. IFF_UP cannot be requested here: ENOTCONN for the peer.
    """
    ends = [b"", b""]
    for i, (ifname, address) in enumerate(((name, mac), (peer, peer_mac))):
        parts = [text(IFLA_IFNAME, ifname), u32(IFLA_MTU, mtu)]
        parts += [u32(IFLA_NUM_TX_QUEUES, queues), u32(IFLA_NUM_RX_QUEUES, queues)]
        if address:
            parts.append(attribute(IFLA_ADDRESS, address))
        ends[i] = b"".join(parts)
    data = nested(VETH_INFO_PEER, _link(), ends[1], u32(IFLA_NET_NS_FD, peer_netns_fd))
    info = nested(IFLA_LINKINFO, text(IFLA_INFO_KIND, "veth"), nested(IFLA_INFO_DATA, data))
    body = _link() + ends[0] + u32(IFLA_TXQLEN, 0) + info
    return Request(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body, f"create interface {name} (peer {peer})", LINK_CREATE)


def create_ifb(name: str, mtu: int) -> Request:
    """A device through which what comes in from another one can be queued; up at once."""
    body = _link(flags=IFF_UP, change=IFF_UP) + text(IFLA_IFNAME, name) + u32(IFLA_MTU, mtu)
    body += nested(IFLA_LINKINFO, text(IFLA_INFO_KIND, "ifb"))
    return Request(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body, f"create interface {name}", LINK_CREATE)


def create_wireguard(name: str, mtu: int) -> Request:
    """A device without keys, down; loads the kernel's module. A kernel that has none answers EOPNOTSUPP."""
    body = _link() + text(IFLA_IFNAME, name) + u32(IFLA_MTU, mtu)
    body += nested(IFLA_LINKINFO, text(IFLA_INFO_KIND, "wireguard"))
    return Request(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL, body, f"create interface {name}", LINK_CREATE)


def get_link(which: str | int) -> Request:
    """Get a link by name or index; the answer is ENODEV if there is none."""
    skip = u32(IFLA_EXT_MASK, SKIP_STATISTICS)
    if isinstance(which, int):
        return Request(RTM_GETLINK, 0, _link(which) + skip, f"read interface number {which}")
    return Request(RTM_GETLINK, 0, _link() + skip + text(IFLA_IFNAME, which), f"read interface {which}")


def list_links() -> Request:
    return Request(RTM_GETLINK, NLM_F_DUMP, _link() + u32(IFLA_EXT_MASK, SKIP_STATISTICS), "list interfaces")


def set_link(
    index: int,
    label: str,
    *,
    up: bool | None = None,
    mac: bytes | None = None,
    mtu: int | None = None,
    group: int | None = None,
    alias: str = "",
) -> Request:
    """``label`` is the interface's name in error texts. The kernel sets an alias ("": unchanged) before it brings the
    interface up, in one step.
    """
    flags, change = (IFF_UP if up else 0), (0 if up is None else IFF_UP)
    body = _link(index, flags, change)
    if mac is not None:
        body += attribute(IFLA_ADDRESS, mac)
    if mtu is not None:
        body += u32(IFLA_MTU, mtu)
    if group is not None:
        body += u32(IFLA_GROUP, group)
    if alias:
        body += text(IFLA_IFALIAS, alias)
    return Request(RTM_SETLINK, 0, body, f"set interface {label}", LINK_SET)


def delete_link(index: int, label: str) -> Request:
    return Request(RTM_DELLINK, 0, _link(index), f"delete interface {label}", LINK_DELETE)


def delete_group(group: int) -> Request:
    """Delete every interface of the group at once: the kernel waits once instead of once for each."""
    body = _link() + u32(IFLA_GROUP, group)
    return Request(RTM_DELLINK, 0, body, f"delete the interfaces of group {group}", LINK_DELETE)


_LISTED = (IFLA_IFNAME, IFLA_MTU)


class Link(NamedTuple):
    """``peer`` is the index of a veth's other end (0: none), ``peer_netns`` its namespace's id here (-1: this one).

    ``inet`` and ``inet6`` are the interface's configuration as 32-bit numbers in the kernel's order (see devconf).
    """

    ifindex: int
    name: str
    up: bool
    mac: bytes
    mtu: int
    kind: str
    peer: int
    peer_netns: int
    group: int
    inet: bytes
    inet6: bytes
    addr_gen_mode: int
    alias: str = ""


def decode_link(payload: bytes) -> Link:
    """Raises KernelError for anything except an RTM_NEWLINK payload."""
    if len(payload) < _IFINFO.size:
        raise wire.malformed("an interface", f"{len(payload)} bytes")
    _family, _type, index, flags, _change = _IFINFO.unpack_from(payload)
    found = wire.attributes(payload, _IFINFO.size)
    info = wire.attributes(found.get(IFLA_LINKINFO, b""))
    spec = wire.attributes(found.get(IFLA_AF_SPEC, b""))
    inet, inet6 = wire.attributes(spec.get(AF_INET, b"")), wire.attributes(spec.get(AF_INET6, b""))
    mode = inet6.get(IFLA_INET6_ADDR_GEN_MODE, b"\0")
    return Link(
        ifindex=index,
        name=wire.name(found.get(IFLA_IFNAME)),
        up=bool(flags & IFF_UP),
        mac=found.get(IFLA_ADDRESS, b""),
        mtu=wire.number(found.get(IFLA_MTU)),
        kind=wire.name(info.get(IFLA_INFO_KIND)),
        peer=wire.number(found.get(IFLA_LINK)),
        peer_netns=wire.signed(found.get(IFLA_LINK_NETNSID), -1),
        group=wire.number(found.get(IFLA_GROUP)),
        inet=inet.get(IFLA_INET_CONF, b""),
        inet6=inet6.get(IFLA_INET6_CONF, b""),
        addr_gen_mode=mode[0] if mode else 0,
        alias=wire.name(found.get(IFLA_IFALIAS)),
    )


class ListedLink(NamedTuple):
    """The part of a Link that is needed to look through all links of a host."""

    ifindex: int
    name: str
    up: bool
    mtu: int


def decode_listed(payload: bytes) -> ListedLink:
    """A third of decode_link's work, because the kernel tells these first. Raises KernelError."""
    if len(payload) < _IFINFO.size:
        raise wire.malformed("an interface", f"{len(payload)} bytes")
    _family, _type, index, flags, _change = _IFINFO.unpack_from(payload)
    found = wire.some_attributes(payload, _IFINFO.size, _LISTED)
    return ListedLink(index, wire.name(found.get(IFLA_IFNAME)), bool(flags & IFF_UP), wire.number(found.get(IFLA_MTU)))


def decode_group(payload: bytes) -> tuple[int, int]:
    """(index, group) of a link: the part of decode_link that is needed to look through all links of a host."""
    if len(payload) < _IFINFO.size:
        raise wire.malformed("an interface", f"{len(payload)} bytes")
    return _IFINFO.unpack_from(payload)[2], wire.number(wire.attributes(payload, _IFINFO.size).get(IFLA_GROUP))


# Position of a setting in Link.inet and Link.inet6: linux/ip.h (counted from 1 there) and linux/ipv6.h
_INET = {"forwarding": 0, "proxy_arp": 2, "route_localnet": 25}
_INET6 = {"forwarding": 0, "accept_ra": 3, "proxy_ndp": 22, "disable_ipv6": 26, "accept_dad": 27}


def devconf(link: Link, family: str, setting: str) -> int | None:
    """The value of ``net.<family>.conf.<link>.<setting>`` from the link's description; None if it is not in it."""
    if family == "ipv6" and setting == "addr_gen_mode":
        return link.addr_gen_mode if link.inet6 else None
    values, positions = (link.inet, _INET) if family == "ipv4" else (link.inet6, _INET6)
    at = positions.get(setting, -1) * 4
    if at < 0 or len(values) < at + 4:
        return None
    return wire.signed(values[at : at + 4], 0)


def get_netns_id(netns_fd: int) -> Request:
    """The id by which this namespace knows another one (-1: none yet), which tells where a veth's peer is."""
    return Request(RTM_GETNSID, 0, b"\0\0\0\0" + u32(NETNSA_FD, netns_fd), "read the id of a network namespace")


def decode_netns_id(payload: bytes) -> int:
    return wire.signed(wire.attributes(payload, 4).get(NETNSA_NSID), -1)
