"""Which record a decision or an end belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.flows.deciders import Decider
from cni_calico.flows.live import ATTEMPT_US, LiveFlows
from cni_calico.flows.outcomes import decided_in
from cni_calico.flows.records import COUNTED, DENIED, ENDED, GONE, FlowRecord
from cni_calico.flows.stores import RecordRow
from cni_calico.kernel.netlink.ended import TrackedConnection
from tests.fakes.stepped_recorder import paired

OUT, IN, HOST_IN, HOST_OUT, DENY = 300, 301, 302, 303, 304
S = 1_000_000
KEY = bytes((10, 0, 0, 1, 10, 0, 0, 2, 6)) + pack(">HH", 1000, 80)
OTHER = KEY[:-1] + b"\x51"


class Kept:
    """Records in memory."""

    def __init__(self) -> None:
        self.records: list[FlowRecord | None] = [None]

    def append(self, record: FlowRecord) -> int:
        self.records.append(record)
        return len(self.records) - 1

    @property
    def next(self) -> int:
        return len(self.records)

    def append_all(self, records: Sequence[FlowRecord], alike: Sequence[tuple[FlowRecord, int]]) -> int:
        first = self.next
        self.records += records
        return first

    def update(self, number: int, record: FlowRecord) -> None:
        self.records[number] = record

    def read(self, number: int) -> FlowRecord | None:
        return self.records[number]

    def rows(self, numbers: Sequence[int]) -> dict[int, RecordRow]:
        return {number: record for number in numbers if (record := self.records[number]) is not None}

    def end_all(self, ended: Sequence[tuple[int, RecordRow, FlowRecord]]) -> None:
        for number, _, record in ended:
            self.update(number, record)


def decider(number: int) -> Decider | None:
    if number not in (OUT, IN, HOST_IN, HOST_OUT, DENY):
        return None
    return Decider("NetworkPolicy", "a", "p", "default", number in (IN, HOST_IN, DENY), 0, "Allow")


def opened(most: int = 100) -> tuple[LiveFlows, Kept]:
    kept = Kept()
    return LiveFlows(kept, decider, lambda address: address[-1], most), kept


def ended(key: bytes = KEY, ended_s: float = 9.0, label: bytes = b"", began_s: float = 1.0) -> TrackedConnection:
    return TrackedConnection(key, bytes((10, 96, 0, 1)), 443, 5, 500, 4, 400, began_s, max(ended_s, began_s), label)


def only_flags(kept: Kept) -> list[int]:
    return [one.flags for one in kept.records[1:] if one is not None]


def only(kept: Kept) -> FlowRecord:
    (record,) = kept.records[1:]
    assert record is not None
    return record


def test_both_sides_are_one_record_until_the_connection_ends() -> None:
    live, kept = opened()
    where = live.decide(KEY, OUT, 1 * S, allowed=True)
    assert live.decide(KEY, IN, 1 * S, allowed=True) == where and len(live) == 1
    assert live.decide(KEY, IN, 2 * S, allowed=True) == where  # two first packets at once
    assert live.end(ended(), 10 * S) == where and len(live) == 0
    record = only(kept)
    assert (record.egress, record.ingress, record.source_end, record.destination_end) == (OUT, IN, 1, 2)
    assert (record.asked, record.asked_port, record.dport) == (bytes((10, 96, 0, 1)), 443, 80)
    assert (record.packets, record.size, record.packets_back, record.size_back) == (5, 500, 4, 400)
    assert record.flags == COUNTED | ENDED and (record.began, record.last) == (1 * S, 9 * S)
    assert (live.allowed, live.denied) == (1, 0)
    assert live.decide(KEY, OUT, 20 * S, allowed=True) != where  # the same ports again


def test_ports_that_are_used_again_before_the_end_is_read() -> None:
    """Decisions are read before ends: the end that comes then is of the one before."""
    live, kept = opened()
    for began in (1, 40, 43):
        live.note_all_read(began * S)
        for number in (OUT, IN):
            live.decide(KEY, number, began * S, allowed=True)
    assert len(live) == 1 and live.allowed == 3
    assert [live.end(ended(began_s=began), 43 * S) for began in (1.0, 40.0)] == [1, 2]
    assert only_flags(kept) == [COUNTED | ENDED, COUNTED | ENDED, 0]
    assert live.end(ended(began_s=43.0), 50 * S) == 3 and len(live) == 0
    assert all(one is not None and (one.egress, one.ingress) == (OUT, IN) for one in kept.records[1:])


def test_what_a_recorder_reads_late_is_about_the_same_connection() -> None:
    """It was stopped for a minute after the report of the one side."""
    live, kept = opened()
    live.note_all_read(2 * S)
    live.decide(KEY, OUT, 2 * S, allowed=True)
    live.decide(KEY, IN, 62 * S, allowed=True)
    live.decide(OTHER, OUT, 62 * S, allowed=True)
    live.note_all_read(64 * S)
    live.decide(OTHER, IN, 66 * S, allowed=True)  # or for a moment
    assert [(one.egress, one.ingress) for one in kept.records[1:] if one] == [(OUT, IN), (OUT, IN)]


def test_an_end_that_was_lost_is_not_taken_from_the_next_one() -> None:
    live, kept = opened()
    for began in (1, 40):
        live.note_all_read(began * S)
        live.decide(KEY, OUT, began * S, allowed=True)
    assert live.end(ended(began_s=40.0), 45 * S) == 2  # the first one's never came
    assert only_flags(kept) == [ENDED | GONE, COUNTED | ENDED]
    for began in (50, 70):
        live.note_all_read(began * S)
        live.decide(KEY, OUT, began * S, allowed=True)
    live.tidy(79 * S)
    assert kept.records[3] is not None and not kept.records[3].flags
    live.tidy(81 * S)
    assert kept.records[3].flags == ENDED | GONE and len(live) == 1


def test_an_end_of_which_no_report_came_ends_no_other_one() -> None:
    """Its ports are used again at once, and all that was reported before has been read."""
    live, kept = opened()
    live.note_all_read(30 * S)
    live.decide(KEY, OUT, 30 * S + 1, allowed=True)
    assert live.end(ended(began_s=2.0), 30 * S + 2) == 0 and len(live) == 1
    live.decide(OTHER, OUT, 30 * S + 3, allowed=True)
    assert live.end(ended(OTHER, began_s=2.0), 30 * S + 4) == 0
    assert live.end(ended(OTHER, began_s=30.0), 32 * S) == 2 and only_flags(kept) == [0, COUNTED | ENDED]


def test_ports_that_are_used_again_at_once_are_told_by_the_second_end() -> None:
    live, kept = opened()
    for number in (OUT, IN, OUT, IN):  # as if its first packet came twice
        live.decide(KEY, number, 2 * S, allowed=True)
    assert len(kept.records) == 2 and live.allowed == 1
    assert live.end(ended(began_s=1.9), 3 * S) == 1 and live.end(ended(began_s=1.95), 3 * S) == 2
    assert only_flags(kept) == [COUNTED | ENDED, COUNTED | ENDED] and live.allowed == 2 and len(live) == 0
    assert kept.records[2] is not None and (kept.records[2].egress, kept.records[2].ingress) == (OUT, IN)
    live.decide(OTHER, OUT, 4 * S, allowed=True)
    live.decide(OTHER, OUT, 4 * S, allowed=True)  # two first packets, one end
    live.end(ended(OTHER, began_s=4.0), 5 * S)
    assert live.end(ended(OTHER, began_s=6.0), 6 * S) == 0 and live.allowed == 3


def test_what_is_denied_later_with_the_same_ports_is_another_one() -> None:
    live, kept = opened()
    live.decide(KEY, IN, 1 * S, allowed=True)
    live.note_all_read(19 * S)
    live.decide(KEY, DENY, 20 * S, allowed=False)
    assert (live.allowed, live.denied) == (1, 1)
    assert live.end(ended(began_s=1.0), 20 * S) == 1 and only_flags(kept) == [COUNTED | ENDED, DENIED]


def test_a_list_finds_what_has_the_ports_of_one_that_has_ended_unseen() -> None:
    live, kept = opened()
    live.decide(KEY, OUT, 1 * S, allowed=True)
    live.mark()
    live.mark()
    label = pack("=4I", OUT, ~OUT & 0xFFFFFFFF, 0, 0)
    expected = live.begin_comparison()
    live.compare(expected, ended(label=label, began_s=30.0), 60 * S)
    live.end_comparison(expected)
    assert only_flags(kept) == [ENDED | GONE, COUNTED] and len(live) == 1 and not expected


def test_host_endpoints_and_workloads_in_the_same_direction() -> None:
    live, kept = opened()
    for number in (HOST_IN, OUT, IN, HOST_OUT):  # in the order in which they are asked
        live.decide(KEY, number, S, allowed=True)
    record = only(kept)
    assert (record.host_in, record.ingress, record.egress, record.host_out) == (HOST_IN, IN, OUT, HOST_OUT)


def test_what_is_let_out_and_not_in_is_denied() -> None:
    """The first packet comes again and again."""
    live, kept = opened()
    for i in range(3):
        live.decide(KEY, OUT, (1 + i) * S, allowed=True)
        live.decide(KEY, DENY, (1 + i) * S, allowed=False)
    record = only(kept)
    assert (record.egress, record.denied_by, record.packets) == (OUT, DENY, 3)
    assert record.flags == DENIED and record.last == 3 * S and (live.allowed, live.denied, len(live)) == (0, 1, 0)
    live.decide(KEY, DENY, 3 * S + ATTEMPT_US + 1, allowed=False)
    assert len(kept.records) == 3 and live.denied == 2


def test_an_attempt_that_another_rule_denies_is_another_record_with_both_sides() -> None:
    """The rule has another place now; what lets it out is the same, and has been asked again."""
    live, kept = opened()
    for i, denied_by in enumerate((DENY, HOST_IN, HOST_IN)):
        for _ in range(1 + i):  # that of the time before may be read late
            live.decide(KEY, OUT, (1 + i) * S, allowed=True)
        live.decide(KEY, denied_by, (1 + i) * S, allowed=False)
    found = [(one.egress, one.host_out, one.denied_by, one.packets) for one in kept.records[1:] if one]
    assert found == [(OUT, 0, DENY, 1), (OUT, 0, HOST_IN, 2)] and (live.allowed, live.denied) == (0, 2)
    live.decide(KEY, DENY, 5 * S, allowed=False)  # what lets it out may be read later, and may be another rule
    live.decide(KEY, HOST_OUT, 5 * S + 1, allowed=True)
    assert kept.records[-1] is not None and (kept.records[-1].egress, kept.records[-1].denied_by) == (HOST_OUT, DENY)


def test_what_let_it_out_may_be_read_after_what_denied_it() -> None:
    """Denied packets have a list of their own, and the two are read in turn."""
    live, kept = opened()
    where = live.decide(KEY, DENY, 1 * S, allowed=False)
    assert live.decide(KEY, OUT, 1 * S + 1, allowed=True) == where
    record = only(kept)
    assert (record.egress, record.denied_by, record.flags) == (OUT, DENY, DENIED)
    assert (live.allowed, live.denied, len(live)) == (0, 1, 0)
    assert live.decide(KEY, IN, 2 * S, allowed=True) != where  # another policy lets it in now
    assert kept.records[-1] is not None and (kept.records[-1].egress, kept.records[-1].ingress) == (OUT, IN)


def test_an_attempt_that_is_let_through_later_is_another_record() -> None:
    live, kept = opened()
    live.decide(KEY, OUT, S, allowed=True)
    live.decide(KEY, DENY, S, allowed=False)
    live.decide(KEY, OUT, 2 * S, allowed=True)
    live.decide(KEY, IN, 2 * S, allowed=True)
    found = [(one.denied_by, one.egress, one.ingress) for one in kept.records[1:] if one]
    assert found == [(DENY, OUT, 0), (0, OUT, IN)] and (live.allowed, live.denied, len(live)) == (1, 1, 1)


def test_an_end_that_comes_before_the_decision() -> None:
    live, kept = opened()
    assert live.end(ended(), 2 * S) == 0
    live.decide(KEY, OUT, 2 * S, allowed=True)
    assert only(kept).flags == COUNTED | ENDED and len(live) == 0
    live.end(ended(OTHER), 2 * S)
    live.tidy(9 * S)
    live.decide(OTHER, OUT, 9 * S, allowed=True)
    assert len(live) == 1  # it was another one


def test_the_oldest_go_when_there_are_too_many() -> None:
    live, kept = opened(2)
    keys = [KEY[:-1] + bytes((i,)) for i in range(3)]
    for key in keys:
        live.decide(key, OUT, S, allowed=True)
    assert len(live) == 2 and live.dropped == 1 and live.end(ended(keys[0]), 2 * S) == 0
    assert all(record is not None and not record.flags for record in kept.records[1:])


def test_what_is_missing_twice_has_ended_unseen() -> None:
    live, kept = opened()
    live.decide(KEY, OUT, S, allowed=True)
    live.decide(OTHER, OUT, S, allowed=True)
    for present in ((OTHER,), ()):
        expected = live.begin_comparison()
        for key in present:
            live.compare(expected, ended(key, 0.0), 2 * S)
        live.end_comparison(expected)
    first, second = kept.records[1:]
    assert first is not None and second is not None
    assert first.flags == ENDED | GONE and second.flags == COUNTED and len(live) == 1


def test_what_began_unrecorded_is_known_by_its_label() -> None:
    live, kept = opened()
    label = pack("=4I", OUT, ~OUT & 0xFFFFFFFF, IN, ~IN & 0xFFFFFFFF)
    expected = live.begin_comparison()
    live.compare(expected, ended(label=label), 5 * S)
    live.compare(expected, ended(OTHER), 5 * S)  # nobody labelled it
    record = only(kept)
    assert (record.egress, record.ingress, record.began) == (OUT, IN, 1 * S) and len(live) == 1


def test_what_is_found_takes_no_place_of_another() -> None:
    """Else what had to go would be found again, at the cost of what is followed, and be another flow each time."""
    live, kept = opened(2)
    keys = [KEY[:-1] + bytes((i,)) for i in range(4)]
    label = pack("=4I", OUT, ~OUT & 0xFFFFFFFF, 0, 0)
    for key in keys[:3]:
        live.decide(key, OUT, S, allowed=True)
    for _ in range(2):
        expected = live.begin_comparison()
        for key in keys:
            live.compare(expected, ended(key, 0.0, label), 2 * S)
        live.end_comparison(expected)
    assert len(live) == 2 and len(kept.records[1:]) == 3
    live.end(ended(keys[1]), 3 * S)
    live.compare(live.begin_comparison(), ended(keys[3], 0.0, label), 3 * S)
    assert len(live) == 2 and len(kept.records[1:]) == 4


def test_two_numbers_in_one_half_of_a_label_are_told() -> None:
    first, second = (pack("=4I", number, ~number & 0xFFFFFFFF, 0, 0) for number in (OUT, IN))
    both = bytes(a | b for a, b in zip(first, second, strict=True))
    assert decided_in(first) == (OUT, 0) and decided_in(both) == (0, 0) and decided_in(b"") == (0, 0)


def test_an_unknown_number_is_kept_and_counted() -> None:
    live, kept = opened()
    live.decide(KEY, 9999, S, allowed=True)
    live.decide(KEY, 3, S, allowed=False)  # a fixed reason
    assert only(kept).egress == 9999 and live.unknown == 1


def test_a_new_recorder_goes_on_with_what_lasts() -> None:
    live, kept = opened()
    where = live.decide(KEY, OUT, S, allowed=True)
    again = LiveFlows(kept, decider, lambda address: 0)
    again.resume([(where, only(kept))])
    assert again.end(ended(), 9 * S) == where and only(kept).flags == COUNTED | ENDED


def test_a_new_recorder_forgets_the_oldest_first() -> None:
    live, kept = opened()
    keys = [KEY[:-1] + bytes((i,)) for i in range(3)]
    numbers = [live.decide(key, OUT, S, allowed=True) for key in keys]
    again = LiveFlows(kept, decider, lambda address: 0, 2)
    again.resume([(number, record) for number in reversed(numbers) if (record := kept.read(number)) is not None])
    again.decide(OTHER, OUT, S, allowed=True)
    assert [again.end(ended(key), 2 * S) for key in keys] == [0, 0, numbers[2]]


DECISIONS = st.tuples(st.booleans(), st.sampled_from((KEY, OTHER)), st.sampled_from((OUT, IN, HOST_IN, HOST_OUT, DENY)))


@given(st.lists(st.tuples(st.lists(DECISIONS, max_size=6), st.integers(0, 70 * S))))
def test_decisions_in_pairs_are_the_same_as_one_by_one(steps: list[tuple[list[tuple[bool, bytes, int]], int]]) -> None:
    """Also with what a kernel would not report."""
    (one, ones), (two, twos) = opened(), opened()
    now = S
    for decisions, passed in steps:
        now += passed
        for allowed, key, number in decisions:
            one.decide(key, number, now, allowed=allowed)
        for allowed, key, number, also in paired(decisions):
            two.decide(key, number, now, allowed=allowed, also=also)
    assert ones.records == twos.records
    assert (one.allowed, one.denied, one.unknown, len(one)) == (two.allowed, two.denied, two.unknown, len(two))
