"""PURE: what a pod's network must look like.

Rule: a PodPlan decides everything; plugin/network/setup.py only carries out what these functions say, and CHECK
(differences.py) compares with the same functions. Source: tests/golden/vectors/k8s-pod-netstate.txt.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from cni_calico.model import names
from cni_calico.model.resources import Address, Network

Sysctl = tuple[tuple[str, ...], str]  # path below /proc/sys/net, value

GATEWAY_V4 = IPv4Address(names.GATEWAY_V4)
GATEWAY_V6 = IPv6Address(names.HOST_LINK_LOCAL)
DEFAULT_V4 = IPv4Network("0.0.0.0/0")
DEFAULT_V6 = IPv6Network("::/0")


@dataclass(frozen=True, slots=True)
class PodPlan:
    """The network of one attachment.

    ``mac`` None lets the kernel choose; ``extra_routes`` (of a delegated IPAM) take the place of the default routes
    unless ``include_default_routes``. All routes of the pod lead to the host, whatever gateway an IPAM names.
    ``digests`` prove whose the host interface is (ownership.py); its alias gets the first of them, and ``owner``, the
    workload (names.owner_text). ``routed`` False: the addresses are still another pod's, so the host gets no routes.
    """

    host_ifname: str
    pod_ifname: str
    mtu: int
    addresses: tuple[Address, ...]
    mac: bytes | None = None
    num_queues: int = 1
    include_default_routes: bool = False
    extra_routes: tuple[Network, ...] = ()
    allow_ip_forwarding: bool = False
    digests: tuple[str, ...] = ()
    owner: str = ""
    routed: bool = True

    @property
    def routed_addresses(self) -> tuple[Address, ...]:
        """Those to which the host has a route."""
        return self.addresses if self.routed else ()

    @property
    def alias(self) -> str:
        """The alias of the host interface; "": none."""
        return names.signed_alias(self.digests[0], self.owner) if self.digests else ""

    @property
    def has_v4(self) -> bool:
        return any(address.version == 4 for address in self.addresses)

    @property
    def has_v6(self) -> bool:
        return any(address.version == 6 for address in self.addresses)


@dataclass(frozen=True, slots=True)
class PodRoute:
    """A unicast route of the main table; ``via`` None means the destination is on the link itself."""

    dst: Network
    via: Address | None = None

    def __str__(self) -> str:
        return f"{self.dst} via {self.via}" if self.via else f"{self.dst} on link"


def host_network(address: Address) -> Network:
    """The /32 or /128 of one address."""
    return IPv4Network(address) if isinstance(address, IPv4Address) else IPv6Network(address)


def random_mac(random: bytes) -> bytes:
    """A locally administered unicast MAC from six random bytes."""
    return bytes((random[0] & 0xFC | 0x02,)) + random[1:6]


def desired_pod_routes(plan: PodPlan) -> tuple[PodRoute, ...]:
    """The routes in the order in which they can be added: the on-link route to the gateway before those that use it."""
    routes: list[PodRoute] = []
    if plan.has_v4:
        routes.append(PodRoute(host_network(GATEWAY_V4)))
        routes += [PodRoute(dst, GATEWAY_V4) for dst in _destinations(plan, 4)]
    if plan.has_v6:
        routes += [PodRoute(dst, GATEWAY_V6) for dst in _destinations(plan, 6)]
    return tuple(routes)


def _destinations(plan: PodPlan, version: int) -> tuple[Network, ...]:
    # an IPAM that returns routes replaces both families' default routes, as in upstream
    extra = tuple(dst for dst in plan.extra_routes if dst.version == version)
    default: Network = DEFAULT_V4 if version == 4 else DEFAULT_V6
    if plan.extra_routes and not plan.include_default_routes:
        return tuple(dict.fromkeys(extra))
    return tuple(dict.fromkeys((*extra, default)))


def desired_host_sysctls(plan: PodPlan) -> tuple[Sysctl, ...]:
    return host_sysctls(plan.host_ifname, v4=plan.has_v4, v6=plan.has_v6)


def host_sysctls(ifname: str, *, v4: bool, v6: bool) -> tuple[Sysctl, ...]:
    """The sysctls of a workload's host interface, which the node agent repairs. accept_dad comes before anything that
    could bring the link up with a tentative address.
    """
    conf4, conf6 = ("ipv4", "conf", ifname), ("ipv6", "conf", ifname)
    wanted: list[Sysctl] = [((*conf6, "accept_ra"), "0")]
    if v4:
        wanted += [
            ((*conf4, "route_localnet"), "1"),
            ((*conf4, "proxy_arp"), "1"),
            ((*conf4, "forwarding"), "1"),
            (("ipv4", "neigh", ifname, "proxy_delay"), "0"),
        ]
    if v6:
        wanted += [
            # the pod's IPv6 gateway is the link-local address derived from the host MAC: eui64, whatever the node's
            # default
            ((*conf6, "addr_gen_mode"), "0"),
            ((*conf6, "disable_ipv6"), "0"),
            ((*conf6, "accept_dad"), "0"),
            ((*conf6, "proxy_ndp"), "1"),
            ((*conf6, "forwarding"), "1"),
        ]
    return tuple(wanted)


def desired_pod_sysctls(plan: PodPlan) -> tuple[Sysctl, ...]:
    forwarding = "1" if plan.allow_ip_forwarding else "0"
    wanted: list[Sysctl] = []
    if plan.has_v4:
        wanted.append((("ipv4", "ip_forward"), forwarding))
    if plan.has_v6:
        v6 = ("ipv6", "conf")
        wanted += [((*v6, name, "disable_ipv6"), "0") for name in ("all", "default", "lo", plan.pod_ifname)]
        wanted.append(((*v6, plan.pod_ifname, "accept_dad"), "0"))
        wanted.append(((*v6, "all", "forwarding"), forwarding))
    return tuple(wanted)


def optional_sysctl(plan: PodPlan, name: tuple[str, ...]) -> bool:
    """Whether a kernel without IPv6 may lack this one."""
    return name[0] == "ipv6" and not plan.has_v6


def format_mac(mac: bytes) -> str:
    return mac.hex(":")
