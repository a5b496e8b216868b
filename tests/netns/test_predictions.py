"""What ``calicoctl policy replay`` says that a change would do, and what the kernel does once it is applied."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
from hypothesis import strategies as st

from cni_calico.ctl.policy.records import PolicyRecords
from cni_calico.ctl.policy.replayed import Replay
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.policy.explain import decide
from cni_calico.policy.wanted import Direction, Packed, Wanted, WantedEndpoint
from tests.fixtures.seeds import Drawing
from tests.netns.test_verdicts import TRIED
from tests.netns.wire import UPLINK, Wire, open_wire
from tests.unit.policy.cluster import as_packet, documents_for, graph_of, keys, record_of

pytestmark = [pytest.mark.netns, pytest.mark.never_excused]
_KEYS = [key for key in keys() if key[0] != "HostEndpoint"]
_CHANGEABLE = [key for key in _KEYS if key[0].endswith("Policy") or key[0] in ("Tier", "Profile")]
_clusters = st.fixed_dictionaries({}, optional={key: documents_for(key) for key in _KEYS})
_changes = st.fixed_dictionaries({}, optional={key: documents_for(key) for key in _CHANGEABLE})
_SIDES: tuple[tuple[Direction, str], ...] = (("egress", "source"), ("ingress", "destination"))
_NAMES = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmp6", 132: "sctp"}


def wanted_of(documents: dict[Any, Any]) -> Wanted:
    graph = graph_of(documents)
    graph.flush()
    return graph.wanted()


def owners_of(wanted: Wanted) -> dict[Packed, WantedEndpoint]:
    """Of the addresses that one workload has."""
    counts = Counter(packed for endpoint in wanted.endpoints.values() for packed in endpoint.addresses)
    every = ((packed, endpoint) for endpoint in wanted.endpoints.values() for packed in endpoint.addresses)
    return {packed: endpoint for packed, endpoint in every if counts[packed] == 1}


def is_denied(wanted: Wanted, owners: dict[Packed, WantedEndpoint], raw: dict[str, Any]) -> bool:
    packet, sides = as_packet(raw), ((direction, owners.get(raw[side].packed)) for direction, side in _SIDES)
    return any(one is not None and decide(wanted, one.key, way, packet).verdict == "Deny" for way, one in sides)


def flow_of(raw: dict[str, Any], *, denied: bool) -> dict[str, Any]:
    """As it is recorded, by its addresses."""
    ends = {side: {"kind": "address", "ip": str(raw[side])} for _, side in _SIDES}
    protocol = _NAMES.get(raw["protocol"], str(raw["protocol"]))
    found: dict[str, Any] = {**ends, "protocol": protocol, "verdict": "denied" if denied else "allowed", "decided": []}
    if raw["protocol"] in (1, 58):
        found["icmp"] = dict(zip(("type", "code"), raw["icmp"], strict=True))
    else:
        ends["source"]["port"], ends["destination"]["port"] = raw["sport"], raw["dport"]
    return {**found, "last": "2026-11-26T14:02:11.403+00:00"}


def _predict(wire: Wire, seen: Counter[str], documents: dict[Any, Any], change: dict[Any, Any]) -> None:
    changed = {**documents, **change}
    before, after = wanted_of(documents), wanted_of(changed)
    if before.endpoints.keys() != after.endpoints.keys():
        return
    owners = owners_of(after)
    several = {one for endpoint in after.endpoints.values() for one in endpoint.addresses} - owners.keys()
    replay = Replay(
        PolicyRecords(
            records={
                key: record_of((key.kind, key.namespace, key.name), changed[(key.kind, key.namespace, key.name)])
                for key in after.endpoints
            }
        ),
        before,
        after,
    )
    tried, expected = [], []
    routes = {packed: endpoint.interface for packed, endpoint in owners.items()}
    for raw in TRIED:
        ends = raw["source"].packed, raw["destination"].packed
        incoming, outgoing = (routes.get(one, UPLINK) for one in ends)
        if incoming == outgoing or not several.isdisjoint(ends):
            continue
        denied, same, was = is_denied(before, owners, raw), replay.same, replay.changed
        replay.changed = {}
        replay.add(flow_of(raw, denied=denied))
        assert not replay.drifted and not replay.uncertain, (raw, replay.uncertain)
        assert (replay.same > same) != bool(replay.changed)
        tried.append((incoming, outgoing, raw))
        expected.append(denied if replay.same > same else not denied)
        seen["as before" if replay.same > same else "denied" if not denied else "allowed"] += 1
        replay.changed |= was
    wire.apply(after)
    assert wire.enforcer.goal.problems == {}
    wire.route(
        {
            raw[side]: routes.get(raw[side].packed, UPLINK)
            for raw in TRIED
            for _, side in _SIDES
            if raw[side].packed in routes
        }
    )
    found = wire.arrivals(tried)
    assert [raw for (_, _, raw), there, no in zip(tried, found, expected, strict=True) if there is no] == []


def check_predictions(drawing: Drawing, changes: int) -> None:
    seen: Counter[str] = Counter()
    with open_wire(FilterSettings()) as wire:
        drawing.run(partial(_predict, wire, seen), changes, documents=_clusters, change=_changes)
    print(f"predicted: {dict(seen)}")
    assert seen["as before"] and seen["denied"] + seen["allowed"]


def test_predictions(drawing: Drawing) -> None:
    check_predictions(drawing, 12)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_predictions(drawing: Drawing) -> None:
    check_predictions(drawing, 500)
