"""What decides about a recorded connection now, where its number says nothing any more."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.flows.deciders import Decider
from cni_calico.flows.judging.computed import compute_decider
from cni_calico.flows.judging.encoding import BEGIN
from cni_calico.flows.query import Describer
from cni_calico.flows.records import DENIED, FlowRecord
from cni_calico.policy.wanted import WantedChanges
from tests.unit.flows.judging.test_agreement import ALLOW_80, RULE_0, THE_END, Watched
from tests.unit.policy.judge.test_bounds import HERE, THERE, ports

NUMBER = 700
ENDS = THERE.packed, HERE.packed, HERE.packed


def arrived(dport: int, *, ingress: int = 0, denied_by: int = 0, host_in: int = 0) -> FlowRecord:
    decided = 0, ingress, 0, host_in, denied_by
    flags = DENIED if denied_by else 0
    return FlowRecord(1, 1, *ENDS, 4000, dport, dport, 6, flags, *decided, 1, 0, 0, 0, 0, 9)


def computed(record: FlowRecord, *, moved: bool = False) -> Decider | None:
    def is_still(address: bytes, end: int) -> bool:
        return not moved and (address, end) == (HERE.packed, 9)

    return compute_decider(Watched(ALLOW_80).known, record, NUMBER, is_still)


def test_it_is_what_is_in_force_if_that_decides_as_the_kernel_did() -> None:
    assert computed(arrived(80, ingress=NUMBER)) == RULE_0
    assert computed(arrived(81, denied_by=NUMBER)) == THE_END
    assert computed(arrived(81, ingress=NUMBER)) is None  # it would be denied now
    assert computed(arrived(80, denied_by=NUMBER)) is None


def test_nothing_is_said_of_another_workload_or_a_host() -> None:
    assert computed(arrived(80, ingress=NUMBER), moved=True) is None
    assert computed(arrived(80, host_in=NUMBER)) is None
    elsewhere = ip_address("10.0.0.2").packed
    assert computed(arrived(80, ingress=NUMBER)._replace(destination=elsewhere)) is None


def test_what_is_computed_is_said_to_be() -> None:
    watched = Watched(ALLOW_80)

    def compute(record: FlowRecord, number: int) -> Decider | None:
        return compute_decider(watched.known, record, number, lambda address, end: True)

    describer = Describer("n", lambda number: None, lambda number: None, computed_by=compute)
    found = describer.describe(arrived(80, ingress=NUMBER))
    (decided,) = found["decided"]
    assert found["how"] == "computed" and decided["computed"] is True and decided["name"] == "p"
    assert decided["said"] == "ingress: p rule 0 (computed)"
    mixed = describer.describe(arrived(80, ingress=NUMBER, host_in=NUMBER + 1))
    assert mixed["how"] == "unknown"
    told = replace(describer, decider_of=lambda number: RULE_0).describe(arrived(80, ingress=NUMBER))
    assert told["how"] == "kernel" and "computed" not in told["decided"][0]
    watched.known.receive(BEGIN, WantedChanges(), 0.0)
    assert describer.describe(arrived(80, ingress=NUMBER))["how"] == "unknown"


def test_sums_have_no_source_port_that_could_decide() -> None:
    watched = Watched(replace(ALLOW_80, source=ports((4000, 4000))))
    found = [
        compute_decider(watched.known, arrived(80, ingress=NUMBER)._replace(sport=sport), NUMBER, lambda *_: True)
        for sport in (4000, 0)
    ]
    assert found == [RULE_0, None]


@given(st.integers(0, 65535), st.booleans())
def test_it_never_says_otherwise_than_the_kernel_did(dport: int, denied: bool) -> None:
    found = computed(arrived(dport, **{"denied_by" if denied else "ingress": NUMBER}))
    assert found is None or (found.action == "Deny") == denied
