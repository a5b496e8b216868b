"""The MTU of the interfaces of the current network namespace, read with the hand-encoded netlink of the call path."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from cni_calico.deadline import Deadline
from cni_calico.kernel.netlink.addresses import decode_address, list_addresses
from cni_calico.kernel.netlink.links import decode_link, get_link
from cni_calico.kernel.netlink.routes import decode_route, list_routes
from cni_calico.kernel.netlink.socket import Rtnl


def mtu_of_address(address: IPv4Address | IPv6Address, deadline: Deadline) -> int:
    """The MTU of the interface that has ``address``; 0 if none has it. Raises KernelError."""
    with Rtnl() as rtnl:
        for payload in rtnl.dump(list_addresses(0), deadline):
            found = decode_address(payload)
            if found.address == address:
                return decode_link(rtnl.one(get_link(found.ifindex), deadline)).mtu
    return 0


def mtu_of_default_route(deadline: Deadline) -> int:
    """The MTU of the interface of the default route, IPv4's first; 0 if there is none. Raises KernelError."""
    with Rtnl() as rtnl:
        for version in (4, 6):
            for payload in rtnl.dump(list_routes(version), deadline):
                route = decode_route(payload)
                if route.dst.prefixlen == 0 and route.oif:
                    return decode_link(rtnl.one(get_link(route.oif), deadline)).mtu
    return 0
