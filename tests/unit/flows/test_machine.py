"""A recorder through policy changes, losses, restarts and lists that lie: what it has, and what is lost, is what the
rules of the kernel have counted, and each record names the rules that decided.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from struct import pack

import pytest

from cni_calico.flows import recorder as module
from cni_calico.flows.deciders import Decider, render_line
from cni_calico.flows.losses import ALLOWED, DENIED
from cni_calico.flows.packets import parts_of
from cni_calico.flows.recorder import DIRECTORY
from cni_calico.flows.records import DENIED as IS_DENIED
from cni_calico.flows.records import ENDED, GONE, FlowRecord
from cni_calico.kernel.netlink.ended import TrackedConnection
from tests.fakes import stepped_recorder
from tests.fakes.stepped_recorder import Arriving, SteppedRecorder, arriving_instead_of_the_kernel


@dataclass
class Connection:
    """``numbers``: of the rules that decided, in the order in which they did; ``told``: those whose reports arrived."""

    key: bytes
    numbers: tuple[int, ...]
    denied: bool
    began: float
    told: set[int] = field(default_factory=set)
    found: bool = False  # by its label
    missed: bool = False  # by the last list
    ended: bool = False  # and that was heard


class Machine:
    def __init__(self, root: Path, arriving: Arriving, seed: int, *, sets_clock: bool = False) -> None:
        self.random, self.root, self.arriving, self.sets_clock = Random(seed), root, arriving, sets_clock
        self.rules: dict[int, Decider] = {}
        self.counters, self.lost = Counter[int](), Counter[str]()
        self.all: list[Connection] = []
        self.lasting: dict[bytes, Connection] = {}
        self.free: dict[bytes, float] = {}  # keys that may be used again
        self.used: dict[bytes, float] = {}  # when they were, by a clock that nobody sets
        self.node = SteppedRecorder(root, arriving)
        self.before: list[SteppedRecorder] = []
        self.change_rules()

    def close(self) -> None:
        for one in (*self.before, self.node):
            one.recorder.close()

    # -- what happens -------------------------------------------------------------------------------------------------

    def change_rules(self) -> None:
        for ingress in (False, True):
            for action in ("Allow", "Deny"):
                number = 1000 + len(self.rules)
                self.rules[number] = Decider("NetworkPolicy", "a", "p", "default", ingress, 0, action, str(number))
        with (self.root / DIRECTORY / "numbers").open("a") as file:
            file.writelines(render_line(*one) for one in list(self.rules.items())[-4:])

    def newest(self, *, ingress: bool, action: str) -> int:
        return max(number for number, one in self.rules.items() if (one.ingress, one.action) == (ingress, action))

    def connect(self) -> None:
        """One connection or several at once; reports of both kinds are read in turn, so a denial may come first."""
        reports: list[tuple[bool, bytes, int]] = []
        unread, self.arriving.ended = self.arriving.ended, []
        for _ in range(self.random.choice((0, 1, 2))):  # it goes on while nothing happens
            self.node.step(after_s=self.random.choice((6.0, 30.0)))
        self.arriving.ended = unread
        for _ in range(self.random.choice((1, 1, 1, 5))):
            key = self.key()
            out, into = self.random.choice((("Allow", "Allow"), ("Allow", "Allow"), ("Allow", "Deny"), ("Deny", "")))
            numbers = [self.newest(ingress=False, action=out)]
            numbers += [self.newest(ingress=True, action=into)] if into else []
            one = Connection(key, tuple(numbers), "Deny" in (out, into), self.node.wall)
            self.all.append(one)
            self.used[key] = self.node.now
            if not one.denied:
                self.lasting[key] = one
            for number in numbers:
                self.counters[number] += 1
                allows = self.rules[number].action == "Allow"
                if self.random.random() < 0.1:
                    self.lost[ALLOWED if allows else DENIED] += 1
                else:
                    one.told.add(number)
                    reports.append((allows, key, number))
        if self.random.random() < 0.3:
            reports.sort(key=lambda report: report[0])
        cut = self.random.randrange(len(reports) + 1)
        self.node.step(*reports[:cut])
        self.node.step(*reports[cut:])

    def key(self) -> bytes:
        """Often one that was used before, maybe a moment ago: then its end arrives with the next begin, and is read
        after it.
        """
        often = [key for key in self.free if self.node.now - self.used[key] > 6.0]
        if often and self.random.random() < 0.5:
            chosen = self.random.choice(often)
            del self.free[chosen]
            return chosen
        return bytes((10, 0, 0, 1, 10, 0, 0, 2, 6)) + (1024 + len(self.all)).to_bytes(2, "big") + b"\0\x50"

    def entry(self, one: Connection, label: bytes = b"") -> TrackedConnection:
        destination, port = parts_of(one.key)[1], parts_of(one.key)[4]
        return TrackedConnection(one.key, destination, port, 2, 100, 1, 50, one.began, self.node.wall, label)

    def end(self) -> None:
        if not self.lasting:
            return
        one = self.lasting.pop(self.random.choice(list(self.lasting)))
        self.free[one.key] = one.began
        if self.random.random() < 0.2 and not self.sets_clock:
            return  # ENOBUFS: nobody hears of it
        one.ended = True
        self.arriving.ended.append(self.entry(one))
        if self.random.random() < 0.5:
            self.node.step()  # else it is read after what begins next

    def compare(self, lies: float = 0.1) -> None:
        """With a list that lacks some that are there, but none twice in a row, and has others twice."""
        live, micros = self.node.recorder._deciding.live, int(self.node.wall * 1e6)
        expected = live.begin_comparison()
        for one in list(self.lasting.values()):
            one.missed = not one.missed and self.random.random() < lies
            if one.missed:
                continue
            label = pack("=4I", *(word for number in one.numbers for word in (number, number ^ 0xFFFFFFFF)))
            for _ in range(self.random.choice((1, 1, 2))):
                live.compare(expected, self.entry(one, label), micros)
            one.found = one.found or not one.told
        live.end_comparison(expected)
        self.node.step()

    def restart(self) -> None:
        """In the place of one that has ended, or was killed; ends that it has not read are lost with its socket."""
        unread = {(one.key, one.began) for one in self.arriving.ended}
        for one in self.all:
            one.ended = one.ended and (one.key, one.began) not in unread
        self.arriving.ended.clear()
        now, stepped = self.node.now, self.node.stepped
        if self.random.random() < 0.5:
            self.node.recorder.close()
        else:
            self.before.append(self.node)
        self.node = SteppedRecorder(self.root, self.arriving)
        self.node.now, self.node.stepped = now + 2, stepped
        self.node.step()

    def set_clock(self) -> None:
        """By an hour or some seconds, in either direction, while nothing is on its way."""
        self.node.step(after_s=6.0)
        self.node.stepped += self.random.choice((-3600.0, -7.0, 7.0, 3600.0))
        self.node.step()

    # -- what has to be true ------------------------------------------------------------------------------------------

    def check(self) -> None:
        self.node.step()
        ring = self.node.recorder._ring
        found = dict[bytes, list[FlowRecord]]()
        for _, record in ring.newest_first():
            found.setdefault(record.key, []).append(record)
        if not self.node.stepped:
            for records in found.values():
                records.sort(key=lambda record: -record.began)
        again = 0
        for one in self.all:
            if not one.told and not one.found:
                continue
            record = found[one.key].pop()
            named = set(record.numbers())
            assert named == (one.told if one.told else set(one.numbers)), "the rules that decided"
            again += len(named - one.told)
            decided_against = any(self.rules[number].action == "Deny" for number in one.told)
            assert bool(record.flags & IS_DENIED) == decided_against
            if one.ended:
                assert record.flags & ENDED
            elif self.lasting.get(one.key) is one:
                assert not record.flags & (ENDED | GONE)
        assert not any(found.values()), "a connection is recorded once, and what nobody has sent is not"
        recorded = sum(len(record.numbers()) for _, record in ring.newest_first())
        assert recorded - again + sum(self.lost.values()) == sum(self.counters.values())
        known = self.node.recorder._deciders
        assert all(known.get(number) == decider for number, decider in self.rules.items()), "a number means one rule"


def run_machine(root: Path, monkeypatch: pytest.MonkeyPatch, steps: int, seed: int, *, sets_clock: float = 0.0) -> None:
    arriving = arriving_instead_of_the_kernel(monkeypatch)
    for name in ("_SLEEP_S", "_CALM_S", "_IDLE_S"):
        monkeypatch.setattr(module, name, 0.0)
    monkeypatch.setattr(stepped_recorder, "RING_BYTES", 4 << 20)  # more than there will be
    (root / DIRECTORY).mkdir()
    machine = Machine(root, arriving, seed, sets_clock=bool(sets_clock))
    try:
        for step in range(steps):
            what = machine.random.choices(
                (
                    machine.connect,
                    machine.end,
                    machine.change_rules,
                    machine.compare,
                    machine.restart,
                    machine.set_clock,
                ),
                (30, 25, 3, 5, 0.5, sets_clock),
            )[0]
            what()
            if step % (steps // 20) == 0:
                machine.check()
        machine.check()
        for _ in range(3):  # what ended unseen is found out by lists that have everything
            machine.compare(0.0)
        machine.node.step(after_s=11.0)  # nor does anything wait for its end any more
        seen = set[bytes]()
        for _, record in machine.node.recorder._ring.newest_first():
            is_last = record.key in machine.lasting and record.key not in seen
            seen.add(record.key)
            assert record.denied or is_last or record.flags & (ENDED | GONE)
    finally:
        machine.close()


def test_records_and_losses_are_what_rules_have_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_machine(tmp_path, monkeypatch, 400, 1)


@pytest.mark.parametrize("seed", [2, 3])
def test_a_clock_that_is_set_makes_none_of_two_and_two_of_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    run_machine(tmp_path, monkeypatch, 400, seed, sets_clock=2.0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_records_and_losses_are_what_rules_have_counted_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_machine(tmp_path, monkeypatch, 10_000, 7)
