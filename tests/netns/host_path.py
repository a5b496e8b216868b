"""The path of a packet through the stages of a host and its workloads, written down once more from its definition
(docs/policy.md), with the naive evaluator's verdict in each stage: the oracle of verdict tests about hosts.

Rule: nothing of the product's is used. An interface is a workload's or one of the host's own (``own``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from tests.unit.policy.naive import Naive

Address = IPv4Address | IPv6Address
Port = tuple[int, int]  # protocol and number
HERE = ""  # where a packet comes out that reaches the host itself


@dataclass
class HostPath:
    """``routes``: the interface behind which an address is. ``workloads``: whose address it is; None: of an interface
    that has no endpoint. ``incoming`` and ``outgoing``: what is translated, for others and for the host.
    """

    naive: Naive
    node: str
    own: Mapping[str, frozenset[Address]]
    routes: Mapping[Address, str]
    workloads: Mapping[Address, tuple[str, str, str] | None]
    failsafe_in: frozenset[Port]
    failsafe_out: frozenset[Port]
    incoming: Mapping[tuple[Address, Port], tuple[Address, int]] = field(default_factory=dict)
    outgoing: Mapping[tuple[Address, Port], tuple[Address, int]] = field(default_factory=dict)

    def host_of(self, interface: str, stage: str) -> Any:
        """The key of the host endpoint that decides in a stage at an interface."""
        addresses = {str(address) for address in self.own.get(interface, ())}
        named, rest = [], []
        for key, document in self.naive.kind("HostEndpoint"):
            spec = document["spec"]
            name = spec.get("interfaceName")
            if spec["node"] != self.node:
                continue
            if name == "*":
                rest.append(key)
            elif name == interface or (not name and addresses & set(spec.get("expectedIPs", ()))):
                named.append(key)
        own, all_interfaces = min(named, default=None), min(rest, default=None)
        if stage == "raw":
            return own
        if stage == "beforeNat" and own is not None and not self.naive.has_policies(own, stage):
            return all_interfaces
        return own or all_interfaces

    def decided(self, interface: str, stage: str, direction: str, packet: dict[str, Any]) -> bool | None:
        key = self.host_of(interface, stage)
        if key is None or (stage in ("raw", "own") and interface not in self.own):
            return None
        open_ports, answered = (self.failsafe_in, self.failsafe_out)[:: 1 if direction == "ingress" else -1]
        failsafe = (packet["protocol"], packet["dport"]) in open_ports
        if stage == "raw" and packet["protocol"] != 1:
            failsafe = failsafe or (packet["protocol"], packet["sport"]) in answered
        if packet.get("invalid") and stage != "raw":  # before failsafe ports, too
            asked = stage != "beforeNat" or self.naive.has_policies(key, stage)
            return False if asked else None
        if failsafe and stage != "forward":
            return None
        verdict: bool | None = self.naive.host_verdict(key, stage, direction, packet)
        return verdict

    def workload(self, address: Address, direction: str, packet: dict[str, Any]) -> bool:
        key = self.workloads[address]
        return key is not None and not packet.get("invalid") and bool(self.naive.verdict(key, direction, packet))

    def passes_in(self, packet: dict[str, Any]) -> tuple[str, bool]:
        """(the interface it comes out of, or HERE; whether it does), of a packet from outside or of a workload."""
        incoming = self.routes[packet["source"]]
        raw = self.decided(incoming, "raw", "ingress", packet)
        first = raw if raw is not None else self.decided(incoming, "beforeNat", "ingress", packet)
        if first is False:
            return HERE, False
        early = first is True
        packet = tracked(packet, self.incoming, untracked=bool(raw))
        if any(packet["destination"] in addresses for addresses in self.own.values()):
            if incoming not in self.own:
                return HERE, self.workload(packet["source"], "egress", packet)
            return HERE, early or self.decided(incoming, "own", "ingress", packet) is not False
        outgoing = self.routes[packet["destination"]]
        verdicts = [
            early or self.decided(incoming, "forward", "ingress", packet) is not False,
            incoming in self.own or self.workload(packet["source"], "egress", packet),
            outgoing in self.own or self.workload(packet["destination"], "ingress", packet),
            self.decided(outgoing, "forward", "egress", packet) is not False,
        ]
        return outgoing, all(verdicts)

    def passes_out(self, packet: dict[str, Any]) -> tuple[str, bool]:
        """The same of a packet of the host's own."""
        raw = self.decided(self.routes[packet["destination"]], "raw", "egress", packet)
        packet = tracked(packet, self.outgoing, untracked=bool(raw))
        outgoing = self.routes[packet["destination"]]
        if raw is not None:
            return outgoing, raw
        return outgoing, outgoing not in self.own or self.decided(outgoing, "own", "egress", packet) is not False


def tracked(
    packet: dict[str, Any], by: Mapping[tuple[Address, Port], tuple[Address, int]], *, untracked: bool
) -> dict[str, Any]:
    """After connection tracking: what is not tracked is neither translated nor invalid, what is invalid is not
    translated.
    """
    if untracked:
        return {**packet, "invalid": False}
    return packet if packet.get("invalid") else translated(packet, by)


def translated(packet: dict[str, Any], by: Mapping[tuple[Address, Port], tuple[Address, int]]) -> dict[str, Any]:
    to = by.get((packet["destination"], (packet["protocol"], packet["dport"])))
    return packet if to is None else {**packet, "destination": to[0], "dport": to[1]}
