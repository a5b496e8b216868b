"""PURE: connections without which a node does not work, and host endpoints whose policies block them. Rule: such
policies are put into force nevertheless; a report names the connection and the rule that would allow it. Only certain
cases are reported: a server that is given by name, or an address that is translated on the way, cannot be judged here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Address
from cni_calico.policy.explain import Packet, asked_host, decide_host
from cni_calico.policy.failsafe import FailsafePort, is_failsafe
from cni_calico.policy.hosts import ALL_INTERFACES
from cni_calico.policy.wanted import Direction, PolicyReach, Wanted

TCP, UDP = 6, 17
_NAMES = {TCP: "TCP", UDP: "UDP"}
_SOURCE_PORT, KUBELET_PORT = 49152, 10250
_DEFAULT_PORTS = {"http": 80, "https": 443}
_STAGES: tuple[PolicyReach, ...] = ("raw", "beforeNat", "own")


@dataclass(frozen=True, slots=True)
class Lifeline:
    """A connection without which the node does not work: from the host to ``other`` (egress), or the reverse
    (ingress). ``also``: ports that the same rule should allow. ``alone``: it is needed, whatever else there is for the
    same purpose.
    """

    what: str
    direction: Direction
    other: Address
    port: int
    protocol: int = TCP
    also: tuple[int, ...] = ()
    alone: bool = False

    @property
    def purpose(self) -> tuple[str, Direction | None]:
        return self.what, self.direction if self.alone else None

    @property
    def shown(self) -> str:
        return f"{_NAMES[self.protocol]} {self.port}"

    def packet(self, own: Address) -> Packet:
        ends = (own, self.other) if self.direction == "egress" else (self.other, own)
        return Packet(*ends, self.protocol, _SOURCE_PORT, self.port)


def parse_endpoints(what: str, urls: Iterable[str]) -> Iterator[Lifeline]:
    """Connections to those servers whose URLs contain an address instead of a name."""
    for url in urls:
        parts = urlsplit(url if "://" in url else f"//{url}")
        try:
            yield Lifeline(what, "egress", ip_address(parts.hostname or ""), parts.port or _DEFAULT_PORTS[parts.scheme])
        except (ValueError, KeyError):
            continue


def describe_cuts(
    wanted: Wanted,
    lifelines: Iterable[Lifeline],
    ports: Callable[[Direction], Iterable[FailsafePort]],
    find_host: Callable[[Address], tuple[ResourceKey, Address] | None],
    everywhere: ResourceKey | None = None,
) -> Iterator[str]:
    """A sentence for each lifeline that is cut. ``find_host`` returns, for another end's address, the host endpoint on
    the way to it and this host's own address; ``everywhere`` is the one of all interfaces. If there are several
    lifelines for the same purpose, it is enough that one is not cut.
    """
    cut: dict[object, tuple[Lifeline, ResourceKey]] = {}
    alive: set[object] = set()
    for line in lifelines:
        found = find_host(line.other)
        if found is None:
            continue
        key, own = found
        packet = line.packet(own)
        stages = _STAGES[wanted.hosts[key].interface == ALL_INTERFACES :]  # there doNotTrack does not apply
        asked = [asked_host(wanted, key, everywhere, stage) for stage in stages]
        verdicts = [decide_host(wanted, *one, line.direction, packet) for one in zip(asked, stages, strict=True)]
        decided = ((one, whose) for one, whose in zip(verdicts, asked, strict=True) if one is not None)
        decision, whose = next(decided, (None, key))
        is_open = is_failsafe(ports(line.direction), line.direction, packet)
        if is_open or decision is None or decision.verdict == "Allow":
            alive.add(line.purpose)
        else:
            cut.setdefault(line.purpose, (line, whose))
    for purpose, (line, key) in cut.items():
        if purpose not in alive:
            yield describe_cut(line, key)


def describe_cut(line: Lifeline, key: ResourceKey, node: str = "this node") -> str:
    """A sentence: what the host endpoint ``key`` cuts ``node`` off from, and the rule that is missing."""
    bits, protocol = line.other.max_prefixlen, _NAMES[line.protocol]
    ports = ", ".join(map(str, (line.port, *line.also)))
    if line.direction == "egress":
        at = "" if str(line.other) in line.what else f" at {line.other}"
        way, side = f"from {line.what}{at}", f"nets: [{line.other}/{bits}], ports: [{ports}]"
        setting = f"FailsafeOutboundHostPorts: {protocol.lower()}:{line.port}"
    else:
        way, side = f"off for {line.what}", f"ports: [{ports}]"
        setting = f"FailsafeInboundHostPorts: {protocol.lower()}:{line.port}"
    rule = f"{{action: Allow, protocol: {protocol}, destination: {{{side}}}}}"
    return (
        f"HostEndpoint {key.name} cuts {node} {way} ({line.shown}): give a policy that selects it the "
        f"{line.direction} rule {rule}, before what denies it; or {setting} besides the ports that are open now"
    )
