"""What ``calicoctl policy replay`` says that a change would do at host endpoints, and what the kernel does once it is
applied: to the host, from the host, and through it, with and without a translated destination.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.seeds import Drawing
from tests.netns.test_host_verdicts import FROM_HOST, OWN, POD, HostWire, open_hosts, path_of
from tests.netns.test_verdicts import TRIED, owners_of, strangers_among
from tests.netns.wire import UPLINK
from tests.unit.ctl.policy.at_hosts.worlds import CHANGES, CLUSTERS, ReplayedPackets, wanted_of

pytestmark = [pytest.mark.netns, pytest.mark.never_excused, pytest.mark.timeout(900)]


def _predict(hosts: HostWire, counts: Counter[str], documents: dict[Any, Any], change: dict[Any, Any]) -> None:
    changed = {**documents, **change}
    wanted, wire = wanted_of(changed), hosts.wire
    if wanted_of(documents).endpoints.keys() != wanted.endpoints.keys():
        return
    every = [one for endpoint in wanted.endpoints.values() for one in endpoint.addresses]
    several = {one for one in every if every.count(one) > 1} | {one.packed for one in OWN.values()} & {*every}
    wire.apply(wanted)
    assert wire.enforcer.goal.problems == {}
    owners = owners_of(sorted(wanted.endpoints.values(), key=lambda endpoint: str(endpoint.key)))
    owners = {address: endpoint for address, endpoint in owners.items() if address not in OWN.values()}
    strangers = strangers_among(wanted.endpoints.values(), {*owners, *OWN.values(), *POD.values()})
    wire.route({one: endpoint.interface for one, endpoint in owners.items()} | strangers, without=OWN.values())
    before = path_of(documents, owners, strangers)
    replayed = ReplayedPackets(documents, changed, before, counts=counts)
    left_out = several | {one.packed for one in strangers}
    ways: list[tuple[str, str, dict[str, Any]]] = []
    expected: list[bool] = []
    for packet in TRIED:
        ends = packet["source"].packed, packet["destination"].packed
        outgoing, _ = before.passes_in(packet)
        incoming = before.routes[packet["source"]]
        if packet["source"] in OWN.values() or incoming == outgoing or not left_out.isdisjoint(ends):
            continue
        said = replayed.predict(packet, own=False)
        if said is not None:
            # where it comes out is where it would go if nothing denied it
            where = "" if packet["destination"] in OWN.values() else before.routes[packet["destination"]]
            if where == "" and (packet["protocol"], packet["dport"]) == (6, 443):
                where = before.routes[POD[packet["destination"].version]]  # translated
            ways.append((incoming, where, packet))
            expected.append(said)
    hosts.reached()
    first = wire.number + 1
    found = wire.arrivals([(incoming, where or UPLINK, packet) for incoming, where, packet in ways])
    own = hosts.reached({first + i for i, (_, where, _) in enumerate(ways) if not where and expected[i]})
    wrong = []
    for i, (incoming, where, packet) in enumerate(ways):
        arrived = found[i] if where else first + i in own
        if arrived is not expected[i]:
            wrong.append((incoming, where or "the host", packet, f"arrived: {arrived}"))
    sent = {}
    for packet in FROM_HOST:
        ends = packet["source"].packed, packet["destination"].packed
        is_tried = not packet.get("invalid") and packet["destination"] not in OWN.values()
        if is_tried and left_out.isdisjoint(ends):
            said = replayed.predict(packet, own=True)
            if said is not None:
                sent[hosts.send(packet)] = packet, said
    seen = wire.seen()
    for number, (packet, said) in sent.items():
        outgoing, _ = before.passes_out(packet)
        if (number in seen[outgoing]) is not said:
            wrong.append(("the host", outgoing, packet, f"arrived: {not said}"))
    assert wrong == []


def check_predictions(tmp_path: Path, drawing: Drawing, changes: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    with open_hosts(tmp_path) as hosts:
        drawing.run(partial(_predict, hosts, counts), changes, documents=CLUSTERS, change=CHANGES)
    print(f"predicted: {dict(counts)}")
    return counts


def test_predictions_about_hosts(tmp_path: Path, drawing: Drawing) -> None:
    counts = check_predictions(tmp_path, drawing, 12)
    assert counts["as before"] and counts["denied"] + counts["allowed"]


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_predictions_about_hosts(tmp_path: Path, drawing: Drawing) -> None:
    counts = check_predictions(tmp_path, drawing, 500)
    assert min(counts[one] for one in ("as before", "denied", "allowed", "changed by a host endpoint")) > 0
