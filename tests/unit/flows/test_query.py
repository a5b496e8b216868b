"""Questions and documents: what is asked is refused by name or understood, and filters mean what their words say."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.flows.conditions import meets
from cni_calico.flows.deciders import END, Decider
from cni_calico.flows.names import EndName
from cni_calico.flows.query import (
    FIELDS,
    Aggregates,
    Condition,
    Describer,
    FlowQuery,
    QueryRefused,
    parse_query,
    render_query,
)
from cni_calico.flows.records import COUNTED, DENIED, ENDED, SIX, FlowRecord
from cni_calico.flows.told import require_told

DECIDERS = {
    300: Decider("Profile", "", "kns.shop", "", False, 0, "Allow"),
    301: Decider("NetworkPolicy", "shop", "database", "default", True, END, "Deny"),
}
NAMES = {1: EndName("pod", "shop", "web-7d9-x2k4"), 2: EndName("pod", "shop", "db-0")}
DESCRIBER = Describer("worker-1", DECIDERS.get, NAMES.get)
WEB, DB = bytes((10, 65, 0, 9)), bytes((10, 65, 0, 7))
DENIED_FLOW = FlowRecord(
    1_700_000_000_000_000, 1_700_000_001_000_000, WEB, DB, DB, 40000, 5432, 5432, 6, DENIED, 300, 0, 0, 0, 301,
    *(7, 0, 0, 0), 1, 2,
)  # fmt: skip


def test_a_denied_flow() -> None:
    assert DESCRIBER.describe(DENIED_FLOW) == {
        "start": "2023-11-14T22:13:20.000+00:00",
        "last": "2023-11-14T22:13:21.000+00:00",
        "node": "worker-1",
        "verdict": "denied",
        "reporter": "dst",
        "connections": 1,
        "source": {"kind": "pod", "namespace": "shop", "name": "web-7d9-x2k4", "ip": "10.65.0.9", "port": 40000},
        "destination": {
            "kind": "pod", "namespace": "shop", "name": "db-0", "ip": "10.65.0.7", "port": 5432, "asked": None,
        },
        "protocol": "tcp",
        "decided": [
            {
                "direction": "egress", "action": "Allow", "tier": "", "kind": "Profile", "namespace": "",
                "name": "kns.shop", "rule": 0, "said": "egress: profile kns.shop rule 0",
            },
            {
                "direction": "ingress", "action": "Deny", "tier": "default", "endOfTier": True,
                "trigger": {"kind": "NetworkPolicy", "namespace": "shop", "name": "database"},
                "said": "ingress: end of tier default (policies: shop/database)",
            },
        ],
        "packets": {"in": 7, "out": 0},
        "bytes": None,
        "ended": True,
        "how": "kernel",
    }  # fmt: skip


def test_a_translated_flow_of_icmp_and_one_of_an_unknown_rule() -> None:
    allowed = DENIED_FLOW._replace(flags=COUNTED | ENDED, denied_by=0, asked=bytes((10, 96, 0, 1)), asked_port=443)
    found = DESCRIBER.describe(allowed)
    assert found["destination"]["asked"] == {"ip": "10.96.0.1", "port": 443} and found["packets"]["out"] == 7
    echo = DESCRIBER.describe(allowed._replace(protocol=1, sport=7, dport=8 << 8))
    assert echo["icmp"] == {"type": 8, "code": 0} and "port" not in echo["destination"]
    unknown = DESCRIBER.describe(allowed._replace(egress=0x2AAA, source_end=9))
    assert unknown["decided"][0]["said"] == "rule 0x2aaa, unknown" and unknown["how"] == "unknown"
    assert unknown["source"] == {"kind": "address", "ip": "10.65.0.9", "port": 40000}
    invalid = DESCRIBER.describe(DENIED_FLOW._replace(egress=0, denied_by=2))
    assert [one["said"] for one in invalid["decided"]] == ["invalid"] and invalid["reporter"] == "src"
    six = DESCRIBER.describe(DENIED_FLOW._replace(flags=SIX, source=bytes(15) + b"\1", destination=bytes(16)))
    assert six["source"]["ip"] == "::1"
    timeless = DESCRIBER.describe(DENIED_FLOW._replace(began=1 << 62))
    for document in (found, echo, unknown, invalid, six, timeless):
        require_told(json.loads(json.dumps(document)))


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        ("verdict", "denied", True),
        ("verdict", "allowed", False),
        ("from", "shop/web", True),
        ("from", "web", True),
        ("from", "shop/", True),
        ("from", "other/web", False),
        ("from", "db", False),
        ("to", "shop/db-0", True),
        ("pod", "db", True),
        ("pod", "10.65.0.9", True),
        ("namespace", "shop", True),
        ("namespace", "sho", False),
        ("ip", "10.65.0.7", True),
        ("port", "5432", True),
        ("port", "40000", False),
        ("protocol", "TCP", True),
        ("policy", "shop/database", True),
        ("policy", "database", True),
        ("policy", "kns.shop", True),
        ("policy", "data", False),
        ("tier", "default", True),
    ],
)
def test_filters(field: str, value: str, wanted: bool) -> None:
    document = DESCRIBER.describe(DENIED_FLOW)
    assert meets(document, [Condition(field, (value,))]) is wanted
    assert meets(document, [Condition(field, (value,), negated=True)]) is not wanted
    assert meets(document, [Condition(field, ("nothing", value))]) is wanted  # either
    assert not meets(document, [Condition(field, (value,)), Condition("port", ("1",))])  # both


_conditions = st.builds(Condition, st.sampled_from(FIELDS), st.lists(st.text()).map(tuple), st.booleans())
_times = st.none() | st.floats(0, 1e10)
_queries = st.builds(
    FlowQuery,
    st.lists(_conditions).map(tuple),
    st.none() | st.integers(0, 99),
    _times,
    _times,
    *[st.booleans()] * 4,
    first=st.none() | st.integers(0, 99),
    staged=st.booleans(),
)


@given(
    st.dictionaries(
        st.sampled_from(("end", "lost", "note", "node", "kept", *DESCRIBER.describe(DENIED_FLOW), "icmp", "staged")),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(("ip", "said", "port")), inner),
        ),
        max_size=3,
    )
)
def test_what_a_recorder_may_tell_is_taken_or_refused(others: dict[str, Any]) -> None:
    """Nothing else is raised."""
    with suppress(ValueError):
        require_told({**DESCRIBER.describe(DENIED_FLOW), **others})


@given(_queries)
def test_a_question_is_understood_as_it_was_asked(query: FlowQuery) -> None:
    assert parse_query(render_query(query)) == query


def test_only_what_is_asked_is_sent() -> None:
    """A recorder of before refuses what it does not know."""
    assert json.loads(render_query(FlowQuery())) == {}
    assert json.loads(render_query(FlowQuery(last=0, since=0.0, steps=True))) == {
        "last": 0,
        "since": 0.0,
        "steps": True,
    }


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"lats": 3}', "unknown field 'lats'"),
        ('{"last": -1}', "last"),
        ('{"last": true}', "last"),
        ('{"since": "now"}', "since"),
        ('{"since": Infinity}', "since"),
        ('{"until": NaN}', "until"),
        ('{"until": 1e300}', "until"),
        ('{"follow": 1}', "follow"),
        ('{"conditions": [{"field": "pot", "values": ["1"]}]}', "unknown field 'pot'"),
        ('{"conditions": [{"field": "port", "values": [1]}]}', "values of port"),
        ('{"conditions": [{"field": "port", "values": [], "regex": "a"}]}', "a condition has"),
        ('{"conditions": {}}', "conditions must be a list"),
    ],
)
def test_a_question_is_refused_by_name(line: str, said: str) -> None:
    with pytest.raises(QueryRefused, match=said):
        parse_query(line.encode())


@given(st.binary(max_size=200) | st.recursive(st.none() | st.text(), st.lists).map(lambda v: json.dumps(v).encode()))
def test_any_bytes_are_refused_or_understood(line: bytes) -> None:
    try:
        assert isinstance(parse_query(line), FlowQuery)
    except QueryRefused:
        pass


def test_flows_are_added_up() -> None:
    summed = Aggregates(most=1)
    for i in range(3):
        summed.add(DESCRIBER.describe(DENIED_FLOW._replace(sport=i, began=DENIED_FLOW.began - i)))
    summed.add(DESCRIBER.describe(DENIED_FLOW._replace(dport=1)))
    found: list[dict[str, Any]] = summed.documents()
    assert [(one["connections"], one["packets"]["in"], one["start"][-12:-6]) for one in found] == [(3, 21, "19.999")]
    assert "port" not in found[0]["source"] and summed.left_out == 1
