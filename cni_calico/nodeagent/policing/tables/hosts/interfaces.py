"""PURE: which interface gets which host endpoint.

Rule: an interface gets the host endpoint that names it, or that names none and expects one of its addresses; if there
are several, the one with the smallest name. All other interfaces get the host endpoint whose interfaceName is "*". A
name counts before its interface exists, so that an interface that appears is policed from its first packet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from cni_calico.model.interface_patterns import is_excluded
from cni_calico.model.keys import ResourceKey
from cni_calico.policy.hosts import ALL_INTERFACES
from cni_calico.policy.wanted import Packed, WantedHost

InterfaceAddresses = Mapping[str, frozenset[Packed]]  # by the names of the existing interfaces


@dataclass(frozen=True, slots=True)
class HostInterfaces:
    """``everywhere``: the host endpoint of all interfaces without one of their own; ``excluded``: existing interfaces
    that get none.

    ``idle``: why a host endpoint has no interface, or not yet.
    """

    by_name: Mapping[str, ResourceKey] = field(default_factory=dict)
    everywhere: ResourceKey | None = None
    excluded: tuple[str, ...] = ()
    idle: Mapping[ResourceKey, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.by_name) or self.everywhere is not None


def select_interfaces(
    hosts: Iterable[WantedHost], there: InterfaceAddresses, patterns: Sequence[str]
) -> HostInterfaces:
    """``patterns``: the interfaces that never get one."""
    ordered = sorted(hosts, key=lambda host: host.key.name)
    by_name: dict[str, ResourceKey] = {}
    everywhere: ResourceKey | None = None
    idle: dict[ResourceKey, str] = {}
    for host in ordered:
        if host.interface == ALL_INTERFACES:
            if everywhere is None:
                everywhere = host.key
            else:
                idle[host.key] = f"HostEndpoint {everywhere.name} is for all interfaces too, and its name comes first"
            continue
        names = [host.interface] if host.interface else sorted(_expected_at(host, there, patterns))
        taken = {name: by_name[name] for name in names if name in by_name}
        if host.interface and is_excluded(host.interface, patterns):
            idle[host.key] = f"InterfaceExclude names its interface, {host.interface}"
            continue
        by_name.update((name, host.key) for name in names if name not in taken)
        if not names:
            idle[host.key] = "no interface of this node has one of its expectedIPs"
        elif len(taken) == len(names):
            other = next(iter(taken.values()))
            idle[host.key] = f"HostEndpoint {other.name} has its interface, {names[0]}: its name comes first"
        elif host.interface and host.interface not in there:
            idle[host.key] = f"there is no interface {host.interface}; it is policed once there is"
    plain = (pattern for pattern in patterns if not pattern.startswith("/"))
    found = (name for name in there if is_excluded(name, patterns))
    return HostInterfaces(by_name, everywhere, tuple(sorted({*plain, *found})), idle)


def _expected_at(host: WantedHost, there: InterfaceAddresses, patterns: Sequence[str]) -> Iterator[str]:
    for name, addresses in there.items():
        if not addresses.isdisjoint(host.expected) and not is_excluded(name, patterns):
            yield name
