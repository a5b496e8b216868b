"""Random host endpoints, policies of all stages and a change of them; flows as a recorder tells them, and what becomes
of each by the naive evaluator. Nothing of the product says what is expected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from cni_calico.ctl.policy.at_hosts.facts import KnownHosts
from cni_calico.ctl.policy.host_records import HostRecords
from cni_calico.ctl.policy.interfaces import NodeHosts
from cni_calico.ctl.policy.records import PolicyRecords
from cni_calico.ctl.policy.replayed import Replay
from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.context.felix import parse_felix
from cni_calico.policy.hosts import parse_host
from cni_calico.policy.wanted import Wanted
from tests.netns.host_path import HERE, HostPath, tracked
from tests.unit.policy.cluster import NODE, documents_for, graph_of, keys, record_of

UPLINK = "uplink"
_NAMES = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmp6", 132: "sctp"}
_WORDS = {6: "tcp", 17: "udp"}
_ALWAYS = ("HostEndpoint", "GlobalNetworkPolicy")
_CHANGEABLE = [key for key in keys() if key[0].endswith("Policy") or key[0] in ("Tier", "Profile")]
CLUSTERS = st.fixed_dictionaries(
    {key: documents_for(key) for key in keys() if key[0] in _ALWAYS},
    optional={key: documents_for(key) for key in keys() if key[0] not in _ALWAYS},
)
CHANGES = st.fixed_dictionaries({}, optional={key: documents_for(key) for key in _CHANGEABLE})


def wanted_of(documents: Mapping[Any, Any]) -> Wanted:
    graph = graph_of(documents)
    graph.flush()
    return graph.wanted()


def facts_of(documents: Mapping[Any, Any], before: HostPath, *, to_host: str) -> KnownHosts:
    """As of a Node that lists its interfaces."""
    ports = {
        name: ",".join(f"{_WORDS[protocol]}:{port}" for protocol, port in its) or "none"
        for name, its in (("INBOUND", before.failsafe_in), ("OUTBOUND", before.failsafe_out))
    }
    environ = {f"FELIX_FAILSAFE{name}HOSTPORTS": text for name, text in ports.items()}
    felix = parse_felix({**environ, "FELIX_DEFAULTENDPOINTTOHOSTACTION": to_host}).settings
    hosts = {}
    for key in sorted(key for key in documents if key[0] == "HostEndpoint"):
        record = record_of(key, documents[key])
        if documents[key]["spec"]["node"] == NODE:
            hosts[ResourceKey(key[0], key[2])] = parse_host(record)
    own = [(address, device) for device, its in before.own.items() for address in its]
    view = NodeHosts(HostRecords(hosts), felix, tuple(address for address, _ in own), dict(own))
    at = {address.packed: NODE for address, _ in own}
    return KnownHosts({NODE: view}, at, frozenset({NODE}), ())


def recorded(path: HostPath, packet: dict[str, Any], *, own: bool) -> tuple[dict[str, Any] | None, bool]:
    """(the document of its flow, None if there is none; whether it passes). ``own``: the host itself sends it."""
    side, direction = ("destination", "egress") if own else ("source", "ingress")
    at = path.routes[packet[side]]
    first = path.decided(at, "raw", direction, packet)
    if first:
        return None, True  # what is not tracked is not recorded
    if first is None and not own:
        first = path.decided(at, "beforeNat", direction, packet)
    where, passes = path.passes_out(packet) if own else path.passes_in(packet)
    if own and where not in path.own:
        return None, passes  # nobody decides about what a host sends to its own workloads
    translations = path.outgoing if own else path.incoming
    seen = packet if first is False else tracked(packet, translations, untracked=False)
    ends: dict[str, Any] = {one: {"kind": "address", "ip": str(seen[one])} for one in ("source", "destination")}
    found: dict[str, Any] = {**ends, "protocol": _NAMES[packet["protocol"]], "decided": [], "node": NODE}
    found |= {"verdict": "allowed" if passes else "denied", "last": "2026-11-26T14:02:11.403+00:00", "reporter": "dst"}
    if packet["protocol"] in (1, 58):
        found["icmp"] = dict(zip(("type", "code"), packet["icmp"], strict=True))
        return found, passes
    ends["source"]["port"], ends["destination"]["port"] = packet["sport"], seen["dport"]
    if passes:
        found["bytes"] = {"in": 60, "out": 0}
        translated = seen["destination"] != packet["destination"]
        asked = {"ip": str(packet["destination"]), "port": packet["dport"]}
        ends["destination"]["asked"] = asked if translated else None
    return found, passes


@dataclass
class ReplayedPackets:
    """A change of policy, replayed; ``counts``: packets by what was said."""

    documents: Mapping[Any, Any]
    changed: Mapping[Any, Any]
    before: HostPath
    to_host: str = "RETURN"
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        after = wanted_of(self.changed)
        records = {ResourceKey(key[0], key[2], key[1]): record_of(key, self.changed[key]) for key in self.changed}
        facts = facts_of(self.documents, self.before, to_host=self.to_host)
        self.replay = Replay(PolicyRecords(records=records), wanted_of(self.documents), after, facts)

    def predict(self, packet: dict[str, Any], *, own: bool, summed: bool = False) -> bool | None:
        """Whether it would pass after the change; None: that is uncertain, or it is not recorded. ``summed``: told as a
        sum, without source port, and without where it was sent.
        """
        document, passes = recorded(self.before, packet, own=own)
        if document is None:
            self.counts["not recorded"] += 1
            return None
        if summed:
            document.pop("bytes", None)
            document["source"].pop("port", None)
            document["destination"].pop("asked", None)
        self.replay.changed, same, unsure = {}, self.replay.same, sum(self.replay.uncertain.values())
        self.replay.add(document)
        if summed and self.replay.drifted:  # by its source port it was an answer from a failsafe port
            assert (packet["protocol"], packet["sport"]) in self.before.failsafe_in | self.before.failsafe_out
            self.replay.drifted = {}
            return None
        assert not self.replay.drifted, (packet, document, self.replay.drifted)
        if sum(self.replay.uncertain.values()) > unsure:
            self.counts["uncertain sum" if summed else "uncertain"] += 1
            return None
        is_same = self.replay.same > same
        assert is_same != bool(self.replay.changed)
        if any(one.at for row in self.replay.changed.values() for one in (row.before, row.after)):
            self.counts["changed by a host endpoint"] += 1
        said = "as before" if is_same else "denied" if passes else "allowed"
        self.counts[f"{said} sum" if summed else said] += 1
        return passes if is_same else not passes


def wrong(
    replayed: ReplayedPackets, after: HostPath, packets: Iterator[tuple[dict[str, Any], bool]]
) -> list[tuple[Any, ...]]:
    """Packets of which something else was said than becomes of them."""
    found = []
    for packet, own in packets:
        where, passes = after.passes_out(packet) if own else after.passes_in(packet)
        for summed in (False, True):
            said = replayed.predict(packet, own=own, summed=summed)
            if said is not None and said is not passes:
                found.append((packet, "of the host" if own else where or HERE, f"summed: {summed}, said: {said}"))
    return found
