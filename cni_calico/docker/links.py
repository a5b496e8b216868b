"""The veth of an endpoint: made with both ends on the host, because Docker moves the container's end itself.

Rule: the host's end has an alias that proves whose it is, and nothing of another alias is removed. It has no IPv4
address: removing one would remove the container's route to it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from errno import EEXIST, EHOSTUNREACH, ENETUNREACH
from ipaddress import IPv4Network, IPv6Address, ip_address

from cni_calico.deadline import Deadline
from cni_calico.docker.documents import host_name, peer_name
from cni_calico.errors import CalicoError, KernelError, LinkConflict
from cni_calico.kernel import sysctl
from cni_calico.kernel.netlink import addresses as kernel_addresses
from cni_calico.kernel.netlink import links, routes
from cni_calico.kernel.netlink.links import Link
from cni_calico.log import Log
from cni_calico.model import names
from cni_calico.model.identity import LIBNETWORK
from cni_calico.model.resources import Address
from cni_calico.plugin.network import host_routes
from cni_calico.plugin.network.host import Host, read_link
from cni_calico.plugin.network.plan import host_sysctls

_LOOK_S = 0.001
GATEWAY_NETWORK = IPv4Network(f"{names.GATEWAY_V4}/24", strict=False)  # every network of a container has one of it


def alias_of(endpoint: str) -> str:
    """PURE: the alias of the host's end."""
    digest = names.attachment_digest(LIBNETWORK, endpoint, "")
    return names.signed_alias(digest, names.owner_text(LIBNETWORK, LIBNETWORK, LIBNETWORK))


def is_own(link: Link, endpoint: str) -> bool:
    """PURE: whether an interface of the host is this endpoint's."""
    digest = names.attachment_digest(LIBNETWORK, endpoint, "")
    return names.digest_in(link.alias) == digest or (
        not link.alias and not link.up and link.mac == names.HOST_MAC_BYTES
    )


def make_link(host: Host, endpoint: str, mac: bytes, mtu: int, families: Collection[int], deadline: Deadline) -> int:
    """Make the veth, up on the host's side; returns the index of that end. Raises LinkConflict, KernelError."""
    name = host_name(endpoint)
    remove_link(host, endpoint, deadline)  # of a Join that a crash has ended
    made = links.create_veth(name, peer_name(endpoint), host.home, mtu=mtu, mac=names.HOST_MAC_BYTES, peer_mac=mac)
    outcome = host.rtnl.submit((made,), deadline)[0]
    if outcome.error is not None:
        if outcome.error.errno == EEXIST:
            raise LinkConflict(f"cannot create interface {name}: it or {peer_name(endpoint)} exists", errno=EEXIST)
        raise outcome.error
    link = read_link(host.rtnl, name, deadline)
    if link is None:
        raise LinkConflict(f"cannot use interface {name}: somebody has removed it")
    for path, value in host_sysctls(name, v4=4 in families, v6=6 in families):
        sysctl.ensure(path, value, optional=path[0] == "ipv6" and 6 not in families)
    host.rtnl.run((links.set_link(link.ifindex, name, up=True, alias=alias_of(endpoint)),), deadline)
    return link.ifindex


def add_next_hop(host: Host, endpoint: str, index: int, hop: IPv6Address, deadline: Deadline) -> None:
    """The gateway of a further network, on the host's end; IPv4 has its by proxy ARP. Raises KernelError."""
    host.rtnl.run((kernel_addresses.add_address(index, host_name(endpoint), hop),), deadline)


def ensure_routes(
    host: Host, endpoint: str, index: int, addresses: list[Address], deadline: Deadline, log: Log
) -> None:
    """The host's routes to the container. Raises RouteConflict, KernelError."""
    for address in addresses:
        # the address is held under our handle, so a route of a dead workload may go
        host_routes.ensure_route(host.rtnl, address, index, host_name(endpoint), deadline, lambda _: True, log)


def ensure_gateway(host: Host, deadline: Deadline) -> bool:
    """The kernel answers for a container's gateway only if it has a route to it, which on a host without a default
    route is through ``lo``; whether it had to be made. Raises KernelError.
    """
    found = host.rtnl.submit((routes.match_route(ip_address(names.GATEWAY_V4)),), deadline)[0]
    if found.error is None:
        return False
    if found.error.errno not in (ENETUNREACH, EHOSTUNREACH):
        raise found.error
    loopback = read_link(host.rtnl, "lo", deadline)
    if loopback is None:
        return False
    wanted = routes.Route(GATEWAY_NETWORK, loopback.ifindex, scope=routes.SCOPE_LINK)
    host.rtnl.run((routes.add_route(wanted, "lo", replace=True),), deadline)
    return True


def remove_link(host: Host, endpoint: str, deadline: Deadline, *, former: bool = False) -> None:
    """Remove the veth, and with it the routes; absent, or somebody else's, is success. ``former``: upstream's plugin
    has made it, without an alias. Raises KernelError.
    """
    link = read_link(host.rtnl, host_name(endpoint), deadline)
    if link is not None and (is_own(link, endpoint) or (former and not link.alias)):
        _VethRemoval(link, deadline).run(host)


class _VethRemoval:
    """The kernel answers some ten milliseconds after the link is gone for everybody; nobody waits for that."""

    def __init__(self, link: Link, deadline: Deadline) -> None:
        self._link, self._deadline = link, deadline
        self._ended = threading.Event()
        self._error: CalicoError | None = None

    def run(self, host: Host) -> None:
        """Raises KernelError, DeadlineExceeded."""
        try:
            threading.Thread(target=self._remove, name="remove-link", daemon=True).start()
        except RuntimeError:  # short of threads
            self._remove()
        while not self._ended.wait(_LOOK_S):
            if self._is_gone(host):
                return
        if not self._is_gone(host):
            raise self._error or KernelError(f"cannot remove interface {self._link.name}: it is still there")

    def _is_gone(self, host: Host) -> bool:
        return read_link(host.rtnl, self._link.ifindex, self._deadline) is None

    def _remove(self) -> None:
        try:
            with Host() as own:
                request = links.delete_link(self._link.ifindex, self._link.name)
                self._error = own.rtnl.submit((request,), self._deadline)[0].error
        except CalicoError as e:
            self._error = e
        finally:
            self._ended.set()


def is_attached(host: Host, endpoint: str, deadline: Deadline) -> bool:
    """Whether the veth is there, and its other end in another namespace. Raises KernelError."""
    link = read_link(host.rtnl, host_name(endpoint), deadline)
    return link is not None and is_own(link, endpoint) and link.peer_netns != -1
