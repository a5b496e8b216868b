"""Conditions on a record against conditions on its document."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.flows.conditions import meets
from cni_calico.flows.deciders import END, REFUSED, Decider
from cni_calico.flows.given_names import GivenName, GivenNames
from cni_calico.flows.labels import LabelsSince
from cni_calico.flows.names import EndName
from cni_calico.flows.network_sets import NetworkSetName
from cni_calico.flows.query import FIELDS, Condition, Describer, is_translated
from cni_calico.flows.records import DENIED, SIX, FlowRecord
from cni_calico.flows.selection import Selection
from cni_calico.flows.services import ServiceName

NAMES = {
    1: EndName("pod", "shop", "web-1"),
    2: EndName("pod", "shop", "web-2"),
    3: EndName("workload", "", "web"),
    4: EndName("pod", "other", "10.0.0.1-x"),
}
DECIDERS = {
    300: Decider("NetworkPolicy", "shop", "db", "default", True, 0, "Allow"),
    301: Decider("GlobalNetworkPolicy", "", "db", "security", False, END, "Deny"),
    302: Decider("Profile", "", "", "", True, END, "Deny"),
    303: Decider("Profile", "", "kns.shop", "", False, 0, "Allow"),
    304: Decider("NetworkPolicy", "shop", "web", "default", True, REFUSED, "Deny"),
}
WEB_9 = GivenName("10.0.0.1", "pod", "shop", "web-9", 0.0, {})
GIVEN = GivenNames([WEB_9, GivenName("fd00::", "pod", "other", "db", 5.0, {"app": "db"})])
LABELS = {
    NAMES[1]: [LabelsSince(0, {"app": "web", "a": ""})],
    NAMES[2]: [LabelsSince(0, {"app": "web"}), LabelsSince(5_000_000, {"app": "db"}), LabelsSince(6_000_000, {})],
}
DESCRIBER = Describer("n", DECIDERS.get, NAMES.get, labels_of=lambda name: LABELS.get(name, ()))
DESCRIBERS = (
    DESCRIBER,
    replace(DESCRIBER, given=GIVEN.get),
    replace(DESCRIBER, given=GIVEN.get, set_of=lambda address, namespace: SETS.get((address, namespace))),
    replace(DESCRIBER, service_of=lambda one: SENT_TO.get((one.asked, one.asked_port)) if is_translated(one) else None),
)
V4, V6 = (bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2))), (b"\xfd" + bytes(15), bytes(15) + b"\1")
SETS = {
    (V4[0], ""): NetworkSetName("", "web-all", {}),
    (V4[0], "shop"): NetworkSetName("shop", "web", {}),
    (V4[1], "shop"): NetworkSetName("other", "10.0.0.1", {"app": "web"}),
    (V6[1], ""): NetworkSetName("", "", {}),
}
SENT_TO = {
    (V4[0], 80): ServiceName("shop", "db", "http"),
    (V4[1], 80): ServiceName("other", "10.0.0.1", ""),
    (V6[0], 8443): ServiceName("shop", "", ""),
}
VALUES = {
    "verdict": ("allowed", "denied", "other"),
    "namespace": ("shop", "other", "", "x"),
    "ip": ("10.0.0.1", "fd00::", "::1", "0::1", "x"),
    "port": ("0", "80", "080", "8443", "-1", "x", "9" * 5000, "\u0663"),
    "protocol": ("tcp", "TCP", "6", "icmp", "1", "47", "047", "x"),
    "policy": ("db", "shop/db", "other/db", "/db", "", "web", "kns.shop", "shop/"),
    **dict.fromkeys(("from-label", "to-label", "label"), ("app", "app=web", "app=db", "app=", "a", "a=", "=", "")),
    "service": ("10.0.0.1", "10.0.0.2", "fd00::", "x", "db", "shop/db", "other/db", "/db", "shop/", "", "d"),
    "tier": ("default", "security", "", "x"),
}
ENDS = ("10.0.0.1", "10.0.0", "fd00::", "shop/web", "shop/", "web-2", "web", "/web", "", "other/10.0.0.1")


@st.composite
def _records(draw: st.DrawFn) -> FlowRecord:
    addresses = draw(st.sampled_from((V4, V6)))
    source, destination = draw(st.sampled_from(addresses)), draw(st.sampled_from(addresses))
    ports = [draw(st.sampled_from((0, 80, 8443))) for _ in range(2)]
    protocol = draw(st.sampled_from((1, 6, 17, 47, 58)))
    flags = (SIX if addresses is V6 else 0) | draw(st.sampled_from((0, DENIED)))
    number = st.sampled_from((0, 3, 999, *DECIDERS))
    decided = [draw(number) for _ in range(4)]
    denied = draw(number.filter(bool)) if flags & DENIED else 0
    ends = [draw(st.sampled_from((0, 1, 2, 3, 4, 9))) for _ in range(2)]
    asked = draw(st.sampled_from(addresses)), draw(st.sampled_from((ports[1], 80)))
    where = source, destination, asked[0], *ports, asked[1], protocol, flags
    began = draw(st.sampled_from((1, 4_999_999, 5_000_000, 9_000_000)))
    return FlowRecord(began, began, *where, *decided, denied, 1, 1, 1, 1, *ends)


@st.composite
def _conditions(draw: st.DrawFn) -> Condition:
    name = draw(st.sampled_from(FIELDS))
    value = st.sampled_from(VALUES.get(name, ENDS))
    return Condition(name, tuple(draw(st.lists(value, max_size=2))), draw(st.booleans()))


def test_given_labels_are_told_to_be_those_of_now() -> None:
    record = FlowRecord(6_000_000, 6_000_000, V6[0], V6[1], V6[1], 1, 2, 2, 6, SIX, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 2)
    document = DESCRIBERS[1].describe(record)
    assert document["source"]["labels"] == {"app": "db"} and document["source"]["labelsOfNow"]
    assert "labels" in document["destination"] and "labelsOfNow" not in document["destination"]


@given(st.lists(_records(), min_size=1, max_size=4), st.lists(_conditions(), max_size=3), st.sampled_from(DESCRIBERS))
@settings(max_examples=400, deadline=None)
def test_a_record_is_selected_as_its_document_is(
    records: list[FlowRecord], conditions: list[Condition], describer: Describer
) -> None:
    selection = Selection(conditions, describer)
    documents: list[dict[str, Any]] = [describer.describe(one) for one in records]
    assert [selection.has(one) for one in records] == [meets(one, conditions) for one in documents]
