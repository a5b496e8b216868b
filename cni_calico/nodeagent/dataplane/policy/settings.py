"""PURE: what the policy engine's rules depend on besides policies: this node's parameters, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

from cni_calico.policy.failsafe import INBOUND, OUTBOUND, FailsafePort

DEFAULT_LOG_PREFIX = "calico-packet"


@dataclass(frozen=True, slots=True)
class LogRate:
    """``count`` lines per ``per_s`` seconds, after a burst of five."""

    count: int
    per_s: int
    burst: int = 5


@dataclass(frozen=True, slots=True)
class FilterSettings:
    """``prefixes``: prefixes of the names of workloads' interfaces.

    ``to_host``: DROP, RETURN or ACCEPT, for packets to the host itself that the policies of a workload let through.
    ``spoofing``: workloads may send from the prefixes they ask for. ``service_networks``: packets to these must not be
    forwarded if they were not translated; ``service_action`` is Drop, Reject or Disabled. ``pass_mark`` and
    ``host_mark`` are one bit each. ``excluded``: names of interfaces, or /expressions/, that never get a host endpoint.
    ``by_iptables``: the packet filter is legacy iptables. ``report_group``: what standing rules drop is reported
    to this group; 0: it is not.
    """

    prefixes: tuple[str, ...] = ("cali",)
    to_host: str = "DROP"
    reject: bool = False
    drop_invalid: bool = True
    allow_vxlan: bool = False
    allow_ipip: bool = False
    vxlan_port: int = 4789
    ipv6: bool = True
    spoofing: bool = False
    log_prefix: str = DEFAULT_LOG_PREFIX
    log_rate: LogRate | None = None
    pass_mark: int = 0x10000
    host_mark: int = 0x20000
    failsafe_in: tuple[FailsafePort, ...] = INBOUND
    failsafe_out: tuple[FailsafePort, ...] = OUTBOUND
    excluded: tuple[str, ...] = ("kube-ipvs0",)
    health_port: int = 9099
    service_networks: tuple[IPv4Network | IPv6Network, ...] = ()
    service_action: str = "Drop"
    by_iptables: bool = False
    report_group: int = 0


def pass_mark_of(mask: int) -> int:
    """The bit of ``mask`` that means "passed on to the next tier": its lowest."""
    return mask & -mask


def host_mark_of(mask: int) -> int:
    """The bit of ``mask`` that means "the stages of hosts have decided": its second."""
    return pass_mark_of(mask ^ pass_mark_of(mask))
