"""Records of several nodes as one answer: for any connections, each is told once, and denied if a side denies it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.ctl.flows.nodes.joined import ToldFlow, join, join_sums, parse_told
from cni_calico.ctl.flows.nodes.stream import HELD_S, JoinedStream
from tests.fakes.recorder import address, end_of_tier, flow, pod, rule

ALLOWS_OUT = rule("egress", "shop", "web", 0)
ALLOWS_IN, DENIES_IN = rule("ingress", "shop", "db", 1), end_of_tier("ingress", "shop", "db")
DENIES_OUT = end_of_tier("egress", "shop", "web")


def at(second: float) -> dict[str, str]:
    text = f"2026-11-26T14:02:{second:06.3f}+00:00"
    return {"start": text, "last": text}


def source_side(port: int | None, *decided: dict[str, Any], second: float = 1, **other: Any) -> dict[str, Any]:
    ends = pod("shop", "web", "10.65.0.9", port), address("10.65.1.9", 5432)
    return flow(*ends, *decided, **at(second), **other)


def destination_side(port: int | None, *decided: dict[str, Any], second: float = 1, **other: Any) -> dict[str, Any]:
    ends = address("10.65.0.9", port), pod("shop", "db", "10.65.1.9", 5432)
    return flow(*ends, *decided, **at(second), **other)


def told(*documents: tuple[str, dict[str, Any]]) -> list[ToldFlow]:
    return [parse_told(node, document) for node, document in documents]


connections = st.lists(
    st.tuples(
        st.integers(1, 3),  # port
        st.sampled_from(["both", "denied there", "denied here", "source only", "destination only"]),
        st.sampled_from([0.0, 0.3, 4.0]),  # how much later the destination's clock says it was
    ),
    max_size=3,
    unique_by=lambda one: one[0],
)


@given(connections, st.randoms(use_true_random=False))
def test_each_connection_is_told_once(chosen: list[tuple[int, str, float]], shuffler: Any) -> None:
    records = []
    for port, kind, later in chosen:
        if kind != "destination only":
            records.append(("a", source_side(port, DENIES_OUT if kind == "denied here" else ALLOWS_OUT)))
        if kind in ("both", "denied there", "destination only"):
            decided = DENIES_IN if kind == "denied there" else ALLOWS_IN
            records.append(("b", destination_side(port, decided, second=1 + later)))
    shuffler.shuffle(records)
    found = {one["source"]["port"]: one for one in join(told(*records))}
    assert len(list(join(told(*records)))) == len(found) == len(chosen)
    for port, kind, _ in chosen:
        one = found[port]
        assert one["verdict"] == ("denied" if kind.startswith("denied") else "allowed")
        if kind in ("both", "denied there"):
            assert (one["source"]["name"], one["destination"]["name"]) == ("web", "db")
            assert one["nodes"] == ["a", "b"] and [step["direction"] for step in one["decided"]] == [
                "egress",
                "ingress",
            ]

    # the same as they come
    stream = JoinedStream()
    live = [one for record in told(*records) for one in stream.add(record, 0.0)] + list(stream.due(HELD_S))
    assert sorted(map(str, live)) == sorted(map(str, found.values()))


def test_what_is_not_the_same_connection() -> None:
    apart = [("a", source_side(1, ALLOWS_OUT)), ("b", destination_side(1, ALLOWS_IN, second=9))]
    same_node = [("a", source_side(1, ALLOWS_OUT)), ("a", destination_side(1, ALLOWS_IN))]
    twice = [("a", source_side(1, ALLOWS_OUT)), ("b", source_side(1, ALLOWS_OUT))]
    for records in (apart, same_node, twice):
        assert len(list(join(told(*records)))) == 2


def test_counts_of_the_source_are_the_destinations_the_other_way() -> None:
    counted = {"packets": {"in": 3, "out": 5}, "bytes": {"in": 30, "out": 50}}
    (one,) = join(told(("a", source_side(1, ALLOWS_OUT, **counted)), ("b", destination_side(1, ALLOWS_IN))))
    assert one["packets"] == {"in": 5, "out": 3} and one["bytes"] == {"in": 50, "out": 30}


def test_the_service_is_that_of_the_record_that_knows_where_it_was_sent() -> None:
    service, asked = {"namespace": "shop", "name": "db", "port": "pg"}, {"ip": "10.96.0.1", "port": 443}
    for knows, other in (("a", "b"), ("b", "a")):
        sides = {"a": source_side(1, ALLOWS_OUT), "b": destination_side(1, ALLOWS_IN)}
        sides[knows]["destination"] |= {"asked": asked, "service": service}
        sides[other]["destination"] |= {"asked": None}
        (one,) = join(told(*sides.items()))
        assert (one["destination"]["asked"], one["destination"]["service"]) == (asked, service)
        assert one["destination"]["name"] == "db"


def test_sums_of_two_sides() -> None:
    source = ("a", source_side(None, ALLOWS_OUT, connections=100))
    here = [
        ("b", destination_side(None, ALLOWS_IN, connections=60)),
        ("b", destination_side(None, DENIES_IN, connections=40)),
    ]
    found = join_sums(told(source, *here))
    assert [(one["verdict"], one["connections"], len(one["decided"])) for one in found] == [
        ("allowed", 60, 2),
        ("denied", 40, 2),
    ]
    assert all(one["source"]["name"] == "web" and one["destination"]["name"] == "db" for one in found)
    other = ("a", source_side(None, rule("egress", "shop", "web", 7), connections=9))
    alone = join_sums(told(source, other, *here))  # which of them belong together is not known
    assert [one["connections"] for one in alone] == [100, 60, 40, 9]
    denied = join_sums(told(("a", source_side(None, DENIES_OUT, connections=7)), *here))
    assert [(one["connections"], len(one["decided"])) for one in denied] == [(60, 1), (40, 1), (7, 1)]


def test_an_end_has_the_labels_that_its_own_node_recorded() -> None:
    """Not those that calicoctl gave the other node; in sums also where the two sides cannot be told apart."""
    own = source_side(1, ALLOWS_OUT), destination_side(1, ALLOWS_IN)
    own[1]["destination"]["labels"] = {"app": "db"}
    own[0]["destination"] |= {**own[1]["destination"], "labels": {"app": "new"}, "labelsOfNow": True}
    for found in (join(told(("a", own[0]), ("b", own[1]))), join_sums(told(("a", own[0]), ("b", own[1])))):
        (one,) = found
        assert one["destination"]["labels"] == {"app": "db"} and "labelsOfNow" not in one["destination"]

    def unnamed(*others: dict[str, Any]) -> dict[str, Any]:
        """The destination of the source's second sum."""
        sides = [("b", destination_side(None, ALLOWS_IN)) for _ in others]
        for (_, side), more in zip(sides, others, strict=True):
            side["destination"] |= more
        rules = [ALLOWS_OUT, rule("egress", "shop", "web", 7)]
        sums = [("a", source_side(None, one, connections=9 - place)) for place, one in enumerate(rules)]
        found: dict[str, Any] = next(one for one in join_sums(told(*sums, *sides)) if one["connections"] == 8)
        return {name: value for name, value in found["destination"].items() if "abels" in name or name == "relabelled"}

    old, new = {"labels": {"app": "db"}}, {"labels": {"app": "new"}}
    assert unnamed({}) == {} and unnamed(old) == old and unnamed(old, {}, old) == old
    assert unnamed(old, new) == {**new, "relabelled": True} == unnamed({**new, "relabelled": True})
    assert unnamed({**new, "labelsOfNow": True}) == {**new, "labelsOfNow": True}
    assert unnamed({**new, "labelsOfNow": True}, old) == old


def test_an_address_that_two_pods_had_names_nobody() -> None:
    first = ("b", destination_side(None, ALLOWS_IN))
    second = ("b", flow(address("10.65.0.9"), pod("shop", "other", "10.65.1.9", 80), ALLOWS_IN, **at(1)))
    found = join_sums(told(("a", source_side(None, ALLOWS_OUT)), first, second))
    assert [one["destination"].get("name") for one in found if one["reporter"] == "src"] == [None]


@pytest.mark.parametrize(
    "change",
    [
        {"start": "yesterday"},
        {"start": 5},
        {"last": None},
        {"verdict": "maybe"},
        {"reporter": 1},
        {"connections": "many"},
        {"connections": True},
        {"protocol": None},
        {"decided": [{}]},
        {"decided": [{"said": 5}]},
        {"decided": 7},
        {"source": {"ip": "x"}},
        {"source": {"ip": "10.0.0.1", "port": "80"}},
        {"source": {"ip": "10.0.0.1", "name": "n", "namespace": None, "kind": "pod"}},
        {"source": []},
        {"icmp": {"type": 3}},
        {"packets": [1, 2]},
        {"bytes": {"in": "many", "out": 0}},
        {"decided": [{**ALLOWS_OUT, "trigger": "shop/web"}]},
        {"decided": [{**ALLOWS_OUT, "passed": [{}]}]},
        {"destination": {**address("10.65.1.9", 80), "asked": "10.96.0.1"}},
        {"destination": {**address("10.65.1.9", 80), "service": "shop/db"}},
        {"destination": {**address("10.65.1.9", 80), "service": {"namespace": "shop", "name": 7, "port": ""}}},
    ],
)
def test_what_is_no_flow(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no flow"):
        parse_told("a", {**source_side(1, ALLOWS_OUT), **change})


def test_a_node_speaks_for_itself() -> None:
    (one,) = join(told(("a", source_side(1, ALLOWS_OUT, node="b"))))
    assert (one["node"], one["nodes"]) == ("a", ["a"])
