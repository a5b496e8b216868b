"""Decisions and ends that are taken together have the outcome of one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.flows.arrivals import DecidedPacket
from cni_calico.flows.counted import CountedRecords
from cni_calico.flows.deciders import Decider
from cni_calico.flows.judging.alike import AlikeReports
from cni_calico.flows.lasting import LastingConnections
from cni_calico.flows.live import LiveFlows
from cni_calico.flows.names import Names
from cni_calico.flows.records import ENDED, FlowRecord
from cni_calico.flows.ring import Ring
from cni_calico.flows.sums import FlowSums, SumCounts
from cni_calico.flows.together import TakenTogether
from cni_calico.flows.untranslated import UntranslatedDecisions
from cni_calico.kernel.netlink.ended import TrackedConnection

S = 1_000_000
BEGIN = 1_000 * S
OUT, IN, DENY, BEFORE, UNKNOWN = 300, 301, 302, 303, 304
SERVICE = bytes((10, 96, 0, 1))


def decider(number: int) -> Decider | None:
    if number == UNKNOWN:
        return None
    kind, action = ("GlobalNetworkPolicy", "Allow") if number == BEFORE else ("NetworkPolicy", "Allow")
    action = "Deny" if number == DENY else action
    return Decider(kind, "a", "p", "default", number in (IN, DENY), 0, action, untranslated=number == BEFORE)


class Judge:
    """All is right, and the same for any source port but of one destination port."""

    def __init__(self) -> None:
        self.agreed = 0
        self.counts = Counter[Any]()

    def check(self, key: bytes, number: int, decider: Decider | None) -> bool:
        self.agreed += 1
        return key[-1] != 81

    def count(self, key: bytes, decider: Decider | None) -> tuple[Any, ...]:
        self.counts["staged"] += 1
        return ("staged",)


class Recording:
    def __init__(self, root: Path, *, together: bool) -> None:
        self.ring, self.sums, self.judge = Ring(str(root / "ring"), 1 << 20), FlowSums(), Judge()
        self.records = CountedRecords(self.ring, self.sums)
        judge: Any = self.judge
        self.reports = AlikeReports(judge, judge, decider)
        names = Names(str(root), str(root))
        self.live = LiveFlows(self.records, decider, lambda address: address[-1] % 3)
        self.deciding = UntranslatedDecisions(self.live, decider)
        self.taking = TakenTogether(self.deciding, self.records, self.reports, names)
        self.together = together
        self.new: dict[int, None] = {}

    def take(self, decisions: Sequence[DecidedPacket], ended: Sequence[TrackedConnection], now: int) -> None:
        if self.together:
            self.taking.receive(decisions, ended, now, self.new)
            return
        for allowed, key, number, also in decisions:
            following, denied = self.ring.next, self.live.denied
            self.reports.check(key, number, also)
            where = self.deciding.decide(key, number, now, allowed=allowed, also=also)
            if where >= following or self.live.denied > denied:
                self.new[where] = None
        for one in ended:
            self.deciding.end(one, now)

    def settle(self, now: int) -> None:
        self.deciding.tidy(now)
        self.records.settle()
        self.reports.settle()
        self.ring.flush()

    def outcome(self, *, times: bool = True) -> tuple[Any, ...]:
        """``times``: also of sums."""
        there: list[FlowRecord] = sorted(record for _, record in self.ring.newest_first())
        told = sorted(record for number in self.new if (record := self.ring.read(number)))
        sums: dict[Any, SumCounts] = {}
        for bucket, unwritten in self.sums.unwritten.items():
            sums |= {(bucket, key): counts for key, counts in unwritten.items() if counts.connections}
        if not times:
            sums = {key: replace(counts, began=0, last=0) for key, counts in sums.items()}
        counted = self.live.allowed, self.live.denied, self.live.unknown, len(self.live)
        return there, told, sums, counted, self.judge.agreed, self.judge.counts, self.live.begin_comparison()


def key_of(source: int, sport: int, dport: int) -> bytes:
    return bytes((10, 0, 0, source, 10, 0, 0, 9, 17, 4, sport, 0, dport))


KEYS = st.builds(key_of, st.integers(1, 2), st.integers(0, 4), st.sampled_from((80, 80, 80, 81)))
DECISIONS = st.tuples(
    KEYS,
    st.sampled_from(((True, OUT, IN),) * 6 + ((True, IN, 0), (True, OUT, 0), (False, DENY, 0), (True, UNKNOWN, IN))),
)
BEFORE_TRANSLATION = st.tuples(KEYS, st.just((True, BEFORE, 0)))


def steps(decisions: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    step = st.tuples(
        st.lists(decisions, min_size=2, max_size=8),
        st.lists(st.tuples(KEYS, st.sampled_from((0, 1, 1, 3, 9)), st.booleans()), max_size=8),
        st.sampled_from((0, 1, 1, 3, 7, 70)),
        st.booleans(),
    )
    return st.lists(step, min_size=3, max_size=12)


# where a decision is held nothing is taken together
STEPS = st.one_of(steps(DECISIONS), steps(DECISIONS), steps(st.one_of(*[DECISIONS] * 30, BEFORE_TRANSLATION)))


@given(STEPS)
@settings(max_examples=80, deadline=None)
def test_together_is_as_one_after_the_other(steps: list[Any]) -> None:
    with TemporaryDirectory() as one, TemporaryDirectory() as other:
        both = Recording(Path(one), together=False), Recording(Path(other), together=True)
        now = BEGIN
        for decided, ended, seconds, settles in steps:
            now += seconds * S
            decisions = [(allowed, key, number, also) for key, (allowed, number, also) in decided]
            decisions.sort(key=lambda decision: not decision[0])
            ends = [end(key, (now - ago * S) / S, now / S, counted=counted) for key, ago, counted in ended]
            for recording in both:
                recording.live.note_all_read(now - S if settles else now + 1)
                recording.take(decisions, ends, now)
                if settles:
                    recording.settle(now)
        for recording in both:
            recording.settle(now)
        # times of a sum do not go back when what was added at once turns out to be another sum's
        assert both[1].outcome(times=False) == both[0].outcome(times=False)
        for recording in both:
            recording.ring.close()


FIRST, SECOND = (bytes((10, 0, 0, 1, 10, 0, 0, 9, 17, 4, sport, 0, 80)) for sport in (0, 1))
SENT = SECOND[:4] + SERVICE + SECOND[8:11] + (443).to_bytes(2, "big")  # before it was translated
Reads = list[tuple[int, list[DecidedPacket], list[tuple[bytes, int, bool]]]]


@pytest.mark.parametrize(
    "reads",
    [
        pytest.param(
            [(0, [(True, FIRST, OUT, IN)], []), (5, [], [(FIRST, 0, True), (FIRST, 0, False)])],
            id="one-end-for-each-connection",
        ),
        pytest.param(
            [
                (0, [(True, FIRST, OUT, IN)], []),
                (40, [(True, FIRST, OUT, IN)], []),
                (41, [], [(FIRST, 0, True)]),
            ],
            id="an-end-is-of-the-oldest-that-waits-for-it",
        ),
        pytest.param(
            [(0, [(True, FIRST, OUT, IN), (False, SECOND, DENY, 0)], []), (1, [(True, SECOND, OUT, IN)], [])],
            id="what-let-it-out-belongs-to-the-denied-attempt",
        ),
        pytest.param(
            [(0, [(True, FIRST, OUT, IN)], [(SECOND, 0, True)]), (1, [(True, SECOND, OUT, IN)], [])],
            id="an-end-that-came-before-its-begin",
        ),
        pytest.param(
            [
                (0, [(True, FIRST, OUT, IN), (True, SECOND, OUT, IN)], []),
                (3, [(True, SENT, BEFORE, 0)], [(SECOND, 0, True)]),
                (4, [(True, SECOND, OUT, IN)], []),
            ],
            id="an-end-takes-the-decision-that-waits",
        ),
    ],
)
def test_what_is_not_plain_is_not_taken_together(reads: Reads, tmp_path: Path) -> None:
    """``reads``: seconds, what was decided, and ends: the key, when it began, whether its packets were counted."""
    outcomes = []
    for together in (False, True):
        (root := tmp_path / str(together)).mkdir()
        recording = Recording(root, together=together)
        for seconds, decisions, ended in reads:
            now = BEGIN + seconds * S
            ends = [end(key, BEGIN / S + began, now / S, counted=counted) for key, began, counted in ended]
            recording.live.note_all_read(now)
            recording.take(decisions, ends, now)
        recording.settle(now)
        outcomes.append(recording.outcome())
        recording.ring.close()
    assert outcomes[1] == outcomes[0]


def end(key: bytes, began: float, ended: float, *, counted: bool) -> TrackedConnection:
    carried: Any = (5, 500, 1 << 40, 400) if counted else (None, None, None, None)
    if counted and key[-3] % 2:
        carried = 5, 500, 4, 400
    return TrackedConnection._make((key, SERVICE, 443, *carried, began, ended, b""))


def test_nearly_all_is_taken_together(tmp_path: Path) -> None:
    """Else the comparison above says nothing."""
    recording = Recording(tmp_path, together=True)
    keys = [key_of(1, sport, 80) for sport in range(100)]
    recording.take([(True, keys[0], OUT, IN)], [], BEGIN)
    alone = patch.object(recording.deciding, "decide"), patch.object(recording.deciding, "end")
    with alone[0] as decided, alone[1] as ended:
        take_what_is_alike(recording, keys)
    assert not decided.called and not ended.called and not len(recording.live)
    assert all(record.flags & ENDED for _, record in recording.ring.newest_first()) and len(recording.new) == 100
    recording.ring.close()


def take_what_is_alike(recording: Recording, keys: Sequence[bytes]) -> None:
    recording.take([(True, key, OUT, IN) for key in keys[1:]], [], BEGIN)
    recording.live.note_all_read(BEGIN + 3 * S)
    recording.settle(BEGIN)
    recording.take([], [end(key, BEGIN / S, BEGIN / S + 9, counted=True) for key in keys], BEGIN + 10 * S)


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 3), max_size=6), st.booleans()), max_size=8),
    st.sampled_from((4, 9, 100)),
)
def test_shares_are_those_of_one_after_the_other(steps: list[tuple[list[int], bool]], most: int) -> None:
    one, other, number = LastingConnections(most), LastingConnections(most), 0
    for sources, ends in steps:
        keys = [key_of(source, number % 256, at) for at, source in enumerate(sources)]
        owners = [key[:4] if key[3] < 3 else b"" for key in keys]
        gone = sum(map(one.add, keys, range(number, number + len(keys)), owners))
        assert other.add_all(keys, number, [(owner, 1) for owner in owners]) == gone
        number += len(keys)
        if ends:
            known = [key for key in keys if other.numbers_of([key]) != [None]]
            other.pop_all(known)
            for key in known:
                one.pop(key)
        assert len(one) == len(other)
        if most > 2 * number:
            assert one.everything() == other.everything() and one._counts == other._counts
