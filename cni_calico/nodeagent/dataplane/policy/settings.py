"""PURE: what the policy engine's rules depend on beside policies: this node's parameters, one value."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

DEFAULT_LOG_PREFIX = "calico-packet"


@dataclass(frozen=True, slots=True)
class LogRate:
    """``count`` lines per ``per_s`` seconds, after a burst of five."""

    count: int
    per_s: int
    burst: int = 5


@dataclass(frozen=True, slots=True)
class FilterSettings:
    """``prefixes``: what the names of workloads' interfaces begin with.

    ``to_host``: DROP, RETURN or ACCEPT, for what the policies of a workload let through to the host itself.
    ``spoofing``: workloads may send from the prefixes they ask for. ``service_networks`` are those whose packets must
    not be forwarded when nobody translated them; ``service_action`` is Drop, Reject or Disabled. ``pass_mark`` is one
    bit.
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
    service_networks: tuple[IPv4Network | IPv6Network, ...] = ()
    service_action: str = "Drop"


def pass_mark_of(mask: int) -> int:
    """The bit of ``mask`` that says "passed on to the next tier": its lowest."""
    return mask & -mask
