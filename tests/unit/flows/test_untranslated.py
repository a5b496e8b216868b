"""Decisions before translation, and those after it."""

from __future__ import annotations

from dataclasses import replace
from struct import pack

from cni_calico.flows.deciders import Decider
from cni_calico.flows.live import LiveFlows
from cni_calico.flows.records import COUNTED, DENIED, ENDED, GONE, FlowRecord
from cni_calico.flows.untranslated import UntranslatedDecisions
from cni_calico.kernel.netlink.ended import TrackedConnection
from tests.unit.flows.test_live import Kept

EARLY, OUT, IN, DENY = 300, 301, 302, 303
S = 1_000_000
NODE, POD, OTHER = bytes((192, 0, 2, 1)), bytes((10, 0, 0, 1)), bytes((10, 0, 0, 9))


def key(destination: bytes, port: int, sport: int = 1000) -> bytes:
    return bytes((10, 9, 9, 9)) + destination + b"\x06" + pack(">HH", sport, port)


SENT, REACHED = key(NODE, 30080), key(POD, 80)
ENDED_LATER = TrackedConnection(REACHED, NODE, 30080, 5, 500, 4, 400, 1.0, 9.0, b"")


def decider(number: int) -> Decider | None:
    if number not in (EARLY, OUT, IN, DENY):
        return None
    found = Decider("GlobalNetworkPolicy", "", "p", "default", number != OUT, 0, "Deny" if number == DENY else "Allow")
    return replace(found, untranslated=number == EARLY)


class Deciding:
    def __init__(self) -> None:
        self.kept = Kept()
        self.live = LiveFlows(self.kept, decider, lambda address: 0)
        self.all = UntranslatedDecisions(self.live, decider)
        self.now = S

    def decide(self, key: bytes, number: int, also: int = 0) -> None:
        self.all.decide(key, number, self.now, allowed=number != DENY, also=also)

    def wait(self) -> list[int]:
        """Until nobody says anything about what was decided so far."""
        self.now += 3 * S
        self.live.note_all_read(self.now)
        return self.all.tidy(self.now)

    @property
    def records(self) -> list[FlowRecord]:
        return [one for one in self.kept.records if one is not None]


def where_to(record: FlowRecord) -> tuple[bytes, int, bytes, int]:
    return record.destination, record.dport, record.asked, record.asked_port


def test_both_are_one_connection() -> None:
    one = Deciding()
    one.decide(SENT, EARLY)
    assert one.records == []
    one.decide(REACHED, IN)
    (record,) = one.records
    assert (record.host_in, record.ingress, record.egress) == (EARLY, IN, 0)
    assert where_to(record) == (POD, 80, NODE, 30080) and one.live.allowed == 1
    one.all.end(ENDED_LATER, 9 * S)
    (record,) = one.records
    assert record.flags == ENDED | COUNTED and record.packets == 5 and one.wait() == []


def test_what_is_not_translated_either() -> None:
    one = Deciding()
    one.decide(SENT, EARLY)
    one.decide(SENT, IN)
    one.decide(key(NODE, 30080, 1001), EARLY, also=IN)
    assert [(record.host_in, record.ingress) for record in one.records] == [(EARLY, IN)] * 2
    assert {where_to(record) for record in one.records} == {(NODE, 30080, NODE, 30080)}


def test_what_is_decided_only_before_stands_for_itself_and_its_end_is_found() -> None:
    one = Deciding()
    one.decide(SENT, EARLY)
    one.live.note_all_read(one.now + S // 2)
    assert one.all.tidy(one.now) == [] and one.records == []
    assert one.wait() == [1] and one.wait() == []
    (record,) = one.records
    assert (record.ingress, record.host_in, where_to(record)) == (EARLY, 0, (NODE, 30080, NODE, 30080))
    one.all.end(ENDED_LATER, one.now)
    (record,) = one.records
    assert record.flags == ENDED | COUNTED and not len(one.live)


def test_its_end_may_come_first() -> None:
    one = Deciding()
    one.decide(SENT, EARLY)
    one.all.end(ENDED_LATER, one.now)
    (record,) = one.records
    assert record.flags == ENDED | COUNTED and one.wait() == []


def test_a_list_has_it_by_where_it_was_sent() -> None:
    one = Deciding()
    one.decide(SENT, EARLY)
    one.wait()
    label = pack("=4I", 0, 0, EARLY, EARLY ^ 0xFFFFFFFF)
    for _ in range(2):
        expected = one.live.begin_comparison()
        one.live.compare(expected, ENDED_LATER._replace(label=label), one.now)
        one.live.end_comparison(expected)
    (record,) = one.records
    assert not record.flags & (ENDED | GONE)


def test_a_denial_is_joined_whichever_is_read_first_and_tried_again() -> None:
    for first, second in (((SENT, EARLY), (REACHED, DENY)), ((REACHED, DENY), (SENT, EARLY))):
        one = Deciding()
        for _ in range(2):
            one.decide(*first)
            one.decide(*second)
            one.wait()
        (record,) = one.records
        assert record.flags == DENIED and (record.ingress, record.denied_by, record.packets) == (EARLY, DENY, 2)
        assert where_to(record) == (POD, 80, NODE, 30080) and (one.live.allowed, one.live.denied) == (0, 1)


def test_what_is_let_through_after_a_denial_names_both_again() -> None:
    one = Deciding()
    for number in (DENY, IN):
        one.decide(SENT, EARLY)
        one.decide(REACHED, number)
        one.wait()
    denied, allowed = one.records
    assert denied.denied and (allowed.host_in, allowed.ingress, allowed.denied) == (EARLY, IN, False)


def test_nothing_is_guessed_where_it_may_be_about_several() -> None:
    one = Deciding()
    one.decide(SENT, EARLY)
    one.decide(key(OTHER, 30080), EARLY)
    one.decide(REACHED, DENY)
    one.wait()
    found = [(record.destination, record.numbers(), record.denied) for record in one.records]
    assert found == [(NODE, (EARLY,), False), (POD, (DENY,), True), (OTHER, (EARLY,), False)]


def test_a_denial_of_another_connection_is_not_joined() -> None:
    """Of several that one source port begins at once the one with the same destination is meant, else nobody knows."""
    one = Deciding()
    one.decide(SENT, EARLY)
    for destination in (OTHER, NODE):
        one.decide(key(destination, 30080), DENY)
    one.decide(key(NODE, 30080, 1001), EARLY)
    for destination in (OTHER, POD):
        one.decide(key(destination, 80, 1001), DENY)
    one.wait()
    found = {(record.destination, record.dport, record.numbers(), record.denied) for record in one.records}
    joined = {(OTHER, 30080, (DENY,), True), (NODE, 30080, (EARLY, DENY), True)}
    unknown = {(OTHER, 80, (DENY,), True), (POD, 80, (DENY,), True), (NODE, 30080, (EARLY,), False)}
    assert found == joined | unknown


def test_others_are_not_held_up() -> None:
    one = Deciding()
    one.decide(SENT, EARLY)
    one.decide(key(POD, 80, 1001), OUT)
    one.decide(key(POD, 80, 1002), 999)
    assert [record.numbers() for record in one.records] == [(OUT,), (999,)]
    one.all.note_step(one.now)
    assert len(one.records) == 3


def test_only_so_many_are_held() -> None:
    one = Deciding()
    for sport in range(1, 10_011):
        one.decide(key(NODE, 30080, sport), EARLY)
    assert len(one.records) == 10
