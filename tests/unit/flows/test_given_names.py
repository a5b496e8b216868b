"""Names that come with a question, and questions that name badly."""

from __future__ import annotations

import json
from ipaddress import ip_address
from typing import Any

import pytest

from cni_calico.flows.given_names import MOST_GIVEN, GivenName, GivenNames
from cni_calico.flows.query import FlowQuery, QueryRefused, parse_query, render_query
from tests.fakes.recorder import address, flow, pod, rule

GIVEN = GivenName("10.0.0.1", "pod", "shop", "web", 100.0, {"app": "web"})


def test_they_come_with_the_question() -> None:
    assert parse_query(render_query(FlowQuery(names=(GIVEN,)))).names == (GIVEN,)


def test_an_older_client_gives_no_labels() -> None:
    assert parse_query(json.dumps({"names": [GIVEN[:5]]}).encode()).names == (GIVEN._replace(labels={}),)


@pytest.mark.parametrize(
    "names",
    [
        5,
        [5],
        [["10.0.0.1", "pod", "shop", "web"]],
        [["10.0.0.300", "pod", "shop", "web", 1, {}]],
        [["10.0.0.1", "pod", None, "web", 1, {}]],
        [["10.0.0.1", "pod", "shop", "web", "now", {}]],
        [["10.0.0.1", "pod", "shop", "web", True, {}]],
        [["10.0.0.1", "pod", "shop", "web", 10**400, {}]],
        [["10.0.0.1", "pod", "shop", "web", 1, []]],
        [["10.0.0.1", "pod", "shop", "web", 1, {"app": 1}]],
        [["10.0.0.1", "pod", "shop", "web", 1, {}]] * (MOST_GIVEN + 1),
    ],
)
def test_bad_names(names: Any) -> None:
    with pytest.raises(QueryRefused):
        parse_query(json.dumps({"names": names}).encode())


def test_only_for_whom_has_none_and_from_then_on() -> None:
    names = GivenNames([GIVEN])
    packed = ip_address("10.0.0.1").packed
    assert names.get(packed, 100_000_000) == GIVEN
    assert names.get(packed, 99_999_999) is None and names.get(b"\1\2\3\4", 10**12) is None
    known = flow(pod("a", "b", "10.0.0.1"), address("10.0.0.1"), rule("egress", "a", "b", 0))
    named = names.name(known)
    assert named["source"] == known["source"] and named["destination"]["name"] == "web"
    assert named["destination"]["labels"] == {"app": "web"} and named["destination"]["labelsOfNow"]
    assert "name" not in known["destination"]
    assert "name" not in names.name({**known, "start": "1970-01-01T00:01:39+00:00"})["destination"]
