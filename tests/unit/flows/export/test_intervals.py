"""Updates of an interval: each packet in one of them, one for each key, and as many live ones as there are."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.flows.export.intervals import MOST_KEYS, EndLabels, ExportedFlow, IntervalSums
from cni_calico.flows.export.keys import (
    EndType,
    ExportedService,
    ExportKey,
    FlowAction,
    FlowEnd,
    HitKind,
    PolicyHit,
    ReportingSide,
)
from cni_calico.flows.records import COUNTED, DENIED, ENDED, FlowRecord

START = 1_000_000_000
HIT = PolicyHit(HitKind.CALICO, "shop", "db", "default", FlowAction.ALLOW, 0)
WEB, DB = FlowEnd(EndType.WORKLOAD, "shop", "web-*"), FlowEnd(EndType.WORKLOAD, "shop", "db-0")
LABELS = {1: {"app": "web", "pod": "1", "projectcalico.org/namespace": "shop"}, 2: {"app": "web", "pod": "2"}}


def record(**changed: Any) -> FlowRecord:
    made = FlowRecord(START, START, b"\1" * 4, b"\2" * 4, b"\2" * 4, 1, 80, 80, 6, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 1, 9)
    return made._replace(**changed)


def keys_of(one: FlowRecord) -> tuple[ExportKey, ...]:
    """Each side that decided, by port."""
    sides = []
    if one.egress:
        sides.append((ReportingSide.SOURCE, FlowAction.ALLOW))
    if one.denied or one.ingress:
        sides.append((ReportingSide.DESTINATION, FlowAction.DENY if one.denied else FlowAction.ALLOW))
    return tuple(ExportKey(WEB, DB, one.dport, "tcp", *side, (HIT,)) for side in sides)


def labels_of(one: FlowRecord) -> tuple[EndLabels, EndLabels]:
    return LABELS.get(one.source_end, {}), {}


class Noted:
    """The sums, and records as they were."""

    def __init__(self, sums: IntervalSums | None = None) -> None:
        self.sums = sums or IntervalSums(keys_of, labels_of)
        self.records: dict[int, FlowRecord] = {}

    def note(self, number: int, now: FlowRecord) -> None:
        self.sums.note(number, self.records.get(number), now)
        self.records[number] = now

    def take(self, began: int = 0, oldest: int = 0) -> list[ExportedFlow]:
        return self.sums.take(began, oldest)


def test_in_and_out_are_as_the_reporter_sees_them() -> None:
    sums = Noted()
    sums.note(1, record())
    sums.note(1, record(packets=3, size=180, packets_back=2, size_back=900, flags=COUNTED | ENDED))
    source, destination = sums.take(5)
    assert (source.packets_out, source.bytes_out, source.packets_in, source.bytes_in) == (3, 180, 2, 900)
    assert (destination.packets_in, destination.bytes_in, destination.packets_out, destination.bytes_out) == (
        3, 180, 2, 900,
    )  # fmt: skip
    for one in (source, destination):
        assert (one.time, one.started, one.completed, one.live) == (5, 1, 1, 0)
    assert sums.take(6) == []


def test_what_lasts_is_live_and_only_the_growth_is_told() -> None:
    sums = Noted()
    sums.note(1, record(ingress=0))
    sums.note(2, record(ingress=0))
    [one] = sums.take(0)
    assert (one.started, one.completed, one.live, one.packets_out) == (2, 0, 2, 0)
    sums.note(1, record(ingress=0, packets=10))
    [one] = sums.take(1)
    assert (one.started, one.live, one.packets_out) == (0, 2, 10)
    sums.note(1, record(ingress=0, packets=15, flags=ENDED))
    [one] = sums.take(2)
    assert (one.started, one.completed, one.live, one.packets_out) == (0, 1, 1, 5)


def test_a_side_that_decides_later_begins_then() -> None:
    sums = Noted()
    sums.note(1, record(ingress=0))
    sums.note(1, record())
    assert [(one.key.reporter, one.started, one.live) for one in sums.take(0)] == [
        (ReportingSide.SOURCE, 1, 1),
        (ReportingSide.DESTINATION, 1, 1),
    ]


def test_one_that_is_denied_after_all_does_not_live() -> None:
    sums = Noted()
    sums.note(1, record(ingress=0))
    sums.note(1, record(ingress=0, flags=DENIED, packets=1))
    source, destination = sums.take(0)
    assert (source.started, source.completed, source.live) == (1, 1, 0)
    assert (destination.key.action, destination.started, destination.completed, destination.packets_in) == (
        FlowAction.DENY, 1, 1, 1,
    )  # fmt: skip
    sums.note(1, record(ingress=0, flags=DENIED, packets=3))
    _, destination = sums.take(1)
    assert (destination.started, destination.completed, destination.packets_in, destination.live) == (0, 0, 2, 0)


def test_what_an_earlier_recorder_told_is_not_told_again() -> None:
    sums = Noted()
    sums.records[1] = record(packets=10)
    sums.note(1, record(packets=12))
    source, _ = sums.take()
    assert (source.packets_out, source.started, source.live) == (2, 0, 1)


SERVICE = ExportedService("shop", "db", "-", 5432)


def with_service(one: FlowRecord) -> tuple[ExportKey, ...]:
    """Known as soon as it is known where it was sent."""
    return tuple(key._replace(service=SERVICE if one.asked != one.destination else None) for key in keys_of(one))


def test_a_service_that_is_known_later_begins_nothing_twice() -> None:
    sums = Noted(IntervalSums(with_service, labels_of))
    told = record(packets=4, packets_back=2, asked=b"\3" * 4, flags=ENDED)
    sums.note(1, record())
    sums.note(1, told)
    assert [(one.key.service, one.started, one.completed, one.live) for one in sums.take(0)] == [(SERVICE, 1, 1, 0)] * 2
    sums.note(2, record(ingress=0))
    sums.note(3, record(ingress=0))
    [one] = sums.take(1)
    assert (one.key.service, one.started, one.live) == (None, 2, 2)
    sums.note(2, told._replace(ingress=0, flags=0))
    [one] = sums.take(2)
    assert (one.key.service, one.started, one.packets_out, one.live) == (SERVICE, 0, 4, 1)
    sums.note(2, told._replace(ingress=0))
    sums.note(3, told._replace(ingress=0))
    [one] = sums.take(3)
    assert (one.key.service, one.started, one.completed, one.live) == (SERVICE, 0, 2, 0)
    assert sums.take(4) == []


def test_records_that_are_gone_do_not_live() -> None:
    sums = Noted()
    sums.note(1, record(ingress=0))
    sums.note(2, record(ingress=0))
    sums.take(oldest=2)
    sums.note(2, record(ingress=0, packets=1))
    [one] = sums.take(oldest=2)
    assert one.live == 1


def test_labels_are_those_that_all_have() -> None:
    sums = Noted()
    sums.note(1, record(ingress=0))
    sums.note(1, record(ingress=0, packets=1))
    [one] = sums.take(0)
    assert one.source_labels == ("app=web", "pod=1", "projectcalico.org/namespace=shop")
    sums.note(2, record(ingress=0))
    sums.note(3, record(ingress=0, source_end=2))
    [one] = sums.take(1)
    assert one.source_labels == ("app=web",)


def test_what_is_left_out_is_counted() -> None:
    sums = Noted(IntervalSums(lambda one: tuple(key._replace(hits=()) for key in keys_of(one)), labels_of))
    sums.note(1, record(ingress=0))
    sums.note(1, record(ingress=0, packets=1))
    assert sums.sums.unknown_hits == 1 and sums.take(0)
    nobodys = record(egress=0, ingress=0, flags=ENDED)
    sums.note(2, nobodys)
    assert sums.sums.undecided == 1 and not sums.take(1)


def test_keys_for_which_there_is_no_room_are_counted() -> None:
    ends = iter(range(MOST_KEYS + 5))
    [key] = keys_of(record(ingress=0))
    sums = Noted(IntervalSums(lambda one: (key._replace(port=next(ends)),), labels_of))
    for number in range(MOST_KEYS + 5):
        sums.note(number, record(flags=ENDED))
    assert sums.sums.lost == 5 and len(sums.take(0)) == MOST_KEYS


STEPS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["grow", "second", "end", "take"]), st.integers(0, 50)), max_size=40
)


@given(STEPS)
def test_each_packet_and_connection_is_told_once(steps: list[tuple[int, str, int]]) -> None:
    sums, records, ended = Noted(), {}, set()
    told: Counter[str] = Counter()
    last_live = 0

    def take() -> None:
        nonlocal last_live
        found = [one for one in sums.take(0) if one.key.reporter is ReportingSide.SOURCE]
        for one in found:
            told.update(packets=one.packets_out, started=one.started, completed=one.completed)
            last_live = one.live
        assert len(found) <= 1

    for number, what, count in steps:
        if what == "take":
            take()
        elif number not in ended:
            one = records.get(number) or record(ingress=0)
            changed = {"grow": {"packets": one.packets + count}, "second": {"ingress": 8}, "end": {"flags": ENDED}}[
                what
            ]
            records[number] = one._replace(**changed)
            sums.note(number, records[number])
            if what == "end":
                ended.add(number)
    sums.note(99, record(ingress=0))
    take()
    assert told["packets"] == sum(one.packets for one in records.values())
    assert told["started"] == len(records) + 1 and told["completed"] == len(ended)
    assert last_live == len(records) - len(ended) + 1
