"""How much is taken in a second, and why the rest was lost."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.flows import arrivals as module
from cni_calico.flows.arrivals import Arrivals, SharedSecond, in_pairs
from cni_calico.flows.limits import FlowLimits
from cni_calico.flows.losses import ALLOWED, DENIED, OVERRUN, RATE
from cni_calico.kernel.netlink.decisions import IN_DATAGRAM

PACKET = bytes((0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 3, 232, 0, 53, 0, 8, 0, 0))


class Decision(NamedTuple):
    number: int
    packet: bytes


class Flood:
    """A group whose datagrams have so many packets; what is lost is told by the test."""

    strange = slow = read = waiting = 0
    sample = b""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes, self.lost, self.at, self.told = sizes, 0, 0, 0

    def take(self, datagrams: int) -> list[Decision]:
        found: list[Decision] = []
        for _ in range(datagrams):
            found += [Decision(300, PACKET)] * self.sizes[self.at % len(self.sizes)]
            self.at += 1
        return found

    def span(self) -> tuple[int, int]:
        """The datagrams that were taken since the last time."""
        before, self.told = self.told, self.at
        return before, self.at

    def __enter__(self) -> Flood:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class NoEnds(Flood):
    overrun = 0

    def take(self, datagrams: int) -> list[Decision]:
        return []


@given(st.lists(st.integers(1, IN_DATAGRAM), min_size=1, max_size=5))
@settings(max_examples=8, deadline=None)
def test_never_more_is_taken_in_a_second_and_hardly_less(sizes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        groups: list[Flood] = []
        patched.setattr(module, "DecisionReports", lambda *_: groups.append(Flood(sizes)) or groups[-1])
        patched.setattr(module, "EndedConnections", lambda room: NoEnds([1]))
        now = 7.0
        arrivals = Arrivals(lambda: now)
        arrivals.limit(FlowLimits(2000))
        for second in (7.0, 8.0):
            now, taken = second, {True: 0, False: 0}
            while True:
                decisions, _, more = arrivals.take()
                for allowed, *_ in decisions:
                    taken[allowed] += 1
                if not more:
                    break
            assert arrivals.is_behind  # reports without end
            assert 2000 - IN_DATAGRAM < taken[True] <= 2000 and 500 - IN_DATAGRAM < taken[False] <= 500
            groups[1].lost += 5
            lost = {loss.source: (loss.why, loss.count) for loss in arrivals.new_losses(100.0)}
            told = [sum(group.sizes[at % len(group.sizes)] for at in range(*group.span())) for group in groups]
            assert lost == {ALLOWED: (RATE, told[0] - taken[True]), DENIED: (RATE, told[1] - taken[False] + 5)}
        now = 9.0
        groups[0].sizes = [1]  # no more than may be taken
        arrivals.take()
        groups[0].lost += 3
        found = [(loss.why, loss.count) for loss in arrivals.new_losses(101.0) if loss.source == ALLOWED]
        assert found == [(OVERRUN, 3)]


def packet(sender: int) -> bytes:
    return PACKET[:15] + bytes((sender,)) + PACKET[16:]


class Crowd(Flood):
    """As many packets as there are; each datagram has one of a quiet sender among those of one that floods."""

    def __init__(self, quiet: int) -> None:
        super().__init__([1])
        self.quiet, self.left = quiet, 10_000

    def take(self, datagrams: int) -> list[Decision]:
        found: list[Decision] = []
        for _ in range(min(datagrams, self.left)):
            self.left -= 1
            self.at += 1
            found += [Decision(300, packet(9))] * (IN_DATAGRAM - 1)
            found.append(Decision(300, packet(10 + self.at % self.quiet)))
        return found


def test_a_flood_costs_no_other_sender_a_record() -> None:
    with pytest.MonkeyPatch.context() as patched:
        groups: list[Crowd] = []
        patched.setattr(module, "DecisionReports", lambda *_: groups.append(Crowd(10)) or groups[-1])
        patched.setattr(module, "EndedConnections", lambda room: NoEnds([1]))
        arrivals, senders = Arrivals(lambda: 7.0), dict[bytes, int]()
        arrivals.limit(FlowLimits(2000))
        more = True
        while more:
            decisions, _, more = arrivals.take()
            for allowed, key, *_ in decisions:
                if allowed:
                    senders[key[:4]] = senders.get(key[:4], 0) + 1
        looked_at = 3 * 2000 // IN_DATAGRAM
        assert groups[0].at == looked_at
        flooding = senders.pop(bytes((10, 0, 0, 9)))
        assert sum(senders.values()) == looked_at and flooding < 2000  # all of theirs
        lost = {loss.source: (loss.why, loss.count) for loss in arrivals.new_losses(100.0)}
        assert lost[ALLOWED] == (RATE, looked_at * (IN_DATAGRAM - 1) - flooding)


def test_what_is_not_understood_is_described_once_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[Flood] = []
    monkeypatch.setattr(module, "DecisionReports", lambda *_: groups.append(Flood([1])) or groups[-1])
    monkeypatch.setattr(module, "EndedConnections", lambda room: NoEnds([1]))
    now = 7.0
    arrivals = Arrivals(lambda: now)
    assert arrivals.describe_strange() == ""
    groups[1].strange, groups[1].sample = 1, b"\x01\xff"
    assert arrivals.describe_strange() == "1 messages of the kernel could not be understood so far; one begins: 01ff"
    groups[0].strange, groups[0].sample = 3, b"\x02"
    now = 3606.0
    assert arrivals.describe_strange() == ""
    now = 3607.0
    assert arrivals.describe_strange().startswith("4 messages") and arrivals.describe_strange() == ""
    now = 9000.0
    assert arrivals.describe_strange() == ""  # nothing new


def test_how_far_it_is_behind_is_known_while_there_is_always_more() -> None:
    """All that waited at a moment has been read once as many bytes were."""
    with pytest.MonkeyPatch.context() as patched:
        groups: list[Flood] = []
        patched.setattr(module, "DecisionReports", lambda *_: groups.append(Flood([1])) or groups[-1])
        patched.setattr(module, "EndedConnections", lambda room: NoEnds([1]))
        now = 100.0
        arrivals = Arrivals(lambda: now)
        allowed = groups[0]
        now, allowed.waiting = 101.0, 5000
        assert arrivals.behind_s() == 1.0  # what came since it was opened waits
        now, allowed.read = 104.0, 4999
        assert arrivals.behind_s() == 4.0
        now, allowed.read, allowed.waiting = 105.0, 5000, 2000
        assert arrivals.behind_s() == 4.0  # all of 101.0 has been read
        now, allowed.read, allowed.waiting = 106.0, 7000, 0
        assert arrivals.behind_s() == 1.0
        now = 106.5
        assert arrivals.behind_s() == 0.5


def test_a_packet_of_both_sides_is_taken_once_and_lost_twice() -> None:
    """Both are reported one after the other, also of packets that look alike."""
    first, second, third = (bytes(PACKET[:20]) + bytes((1, port)) + PACKET[22:] for port in (1, 2, 3))
    reports = [(300, first), (301, first), (300, second), (301, second), (301, third), (301, third), (7, b"none")]
    taken, misplaced = in_pairs(reports, allowed=True)
    assert [(key[-3], number, also) for _, key, number, also in taken] == [
        (1, 300, 301), (2, 300, 301), (3, 301, 0), (3, 301, 0),
    ] and misplaced == [b"none"]  # fmt: skip
    assert [one[2:] for one in in_pairs(reports[:2], allowed=False)[0]] == [(300, 0), (301, 0)]
    share = SharedSecond(2)
    share.begin()
    assert share.may_have_all(taken[:2]) and not share.may_have_all(taken[2:3])
    assert not any(map(share.may_have, taken)) and (share.shed, share.is_over) == (2 + 2 + 1 + 1, True)


class Datagrams(Flood):
    """What is in each; the last ones of a packet's reports may be in the next one."""

    def __init__(self, *contents: list[Decision]) -> None:
        super().__init__([1])
        self.contents = list(contents)

    def take(self, datagrams: int) -> list[Decision]:
        found = self.contents.pop(0) if self.contents else []
        self.waiting = len(self.contents)
        return found


@pytest.mark.parametrize("cut", [1, 2, 3, 4])
def test_what_both_sides_say_of_a_packet_stays_together(cut: int) -> None:
    """Also where one datagram ends between them: late, the connection may have ended before the next one is read."""
    reports = [Decision(number, packet(sender)) for sender in (1, 2) for number in (300, 301)]
    with pytest.MonkeyPatch.context() as patched:
        groups = [Datagrams(reports[:cut], reports[cut:]), Datagrams()]
        patched.setattr(module, "DecisionReports", lambda *_: groups.pop(0))
        patched.setattr(module, "EndedConnections", lambda room: NoEnds([1]))
        arrivals = Arrivals(lambda: 7.0)
        found, more = list[tuple[int, int]](), True
        while more:
            decisions, _, more = arrivals.take()
            found += [one[2:] for one in decisions]
    assert found == [(300, 301)] * 2
    assert arrivals.recorded() == {ALLOWED: 4, DENIED: 0} and arrivals.take()[0] == []
