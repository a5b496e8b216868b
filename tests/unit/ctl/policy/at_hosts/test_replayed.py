"""Replay at the stages of host endpoints: what it is sure of is what the naive evaluator says of the packet's path."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest

from tests.fixtures.seeds import Drawing
from tests.netns.test_host_verdicts import FROM_HOST, OWN, path_of
from tests.netns.test_verdicts import TRIED, owners_of
from tests.unit.ctl.policy.at_hosts.worlds import CHANGES, CLUSTERS, ReplayedPackets, wanted_of, wrong


def check(documents: dict[Any, Any], change: dict[Any, Any], counts: Counter[str]) -> None:
    changed = {**documents, **change}
    wanted = wanted_of(changed)
    if wanted_of(documents).endpoints.keys() != wanted.endpoints.keys():
        return
    every = [one for endpoint in wanted.endpoints.values() for one in endpoint.addresses]
    several = {one for one in every if every.count(one) > 1} | {one.packed for one in OWN.values()} & {*every}
    owners = {a: e for a, e in owners_of([*wanted.endpoints.values()]).items() if a.packed not in several}
    before, after = path_of(documents, owners), path_of(changed, owners)
    replayed = ReplayedPackets(documents, changed, before, counts=counts)

    def tried() -> Any:
        for packet in TRIED:
            if several.isdisjoint((packet["source"].packed, packet["destination"].packed)):
                incoming, outgoing = before.routes[packet["source"]], before.passes_in(packet)[0]
                if packet["source"] not in OWN.values() and incoming != outgoing:
                    yield packet, False
        for packet in FROM_HOST:
            is_tried = not packet.get("invalid") and packet["destination"] not in OWN.values()
            if is_tried and several.isdisjoint((packet["source"].packed, packet["destination"].packed)):
                yield packet, True

    assert wrong(replayed, after, tried()) == []


def run(drawing: Drawing, states: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    tried = partial(check, counts=counts)
    drawing.run(tried, states, documents=CLUSTERS, change=CHANGES)
    print(dict(counts))
    return counts


def test_what_it_is_sure_of_is_right(drawing: Drawing) -> None:
    counts = run(drawing, 40)
    assert min(counts[one] for one in ("as before", "denied", "allowed", "changed by a host endpoint")) > 0
    unsure = counts["uncertain"] + counts["uncertain sum"]
    assert unsure < sum(counts.values()) / 8


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_what_it_is_sure_of_many_is_right(drawing: Drawing) -> None:
    assert sum(run(drawing, 1500).values()) > 100_000
