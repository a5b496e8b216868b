"""PURE: whether the rules in force decide about a packet as the kernel has reported: a self-test of enforcement.

Rule: only what is certain counts as a difference. Rules and reports come on two ways, so what differs is looked at
again after a while, and does not count if the rules have changed about that time. Judging may take a share of a
processor; what is not judged is counted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cni_calico.flows.deciders import END, REFUSED, Decider
from cni_calico.flows.judging.allowance import Allowance
from cni_calico.flows.judging.known import KnownRules
from cni_calico.flows.packets import V4_BYTES, parts_of
from cni_calico.policy.explain import Decision
from cni_calico.policy.judge.cells import JudgedPacket
from cni_calico.policy.ports import ICMP, WITH_PORTS

SETTLED_S = 3.0  # rules come within half a second
_AGREED, _DOUBTS = 20_000, 1_000


@dataclass(frozen=True, slots=True)
class UnexplainedReport:
    """``said``: what the kernel reported; ``judged``: what the rules in force say."""

    key: bytes
    said: Decider
    judged: tuple[JudgedPacket, ...]


class Agreement:
    """``check`` each report, ``settle`` now and then. ``clock`` never steps; ``worked``: as for Allowance. ``agreed``,
    ``disagreed``: reports; ``unsettled``: that differ, and the rules had changed about that time; ``skipped``: not
    judged, because there was no time, or nothing here that it could be about. ``late_s``: so long those that are
    checked now may have waited before they were read.
    """

    def __init__(self, known: KnownRules, clock: Callable[[], float], worked: Callable[[], float]) -> None:
        self._known, self._clock, self.late_s = known, clock, 0.0
        self.agreed = self.disagreed = self.unsettled = self.skipped = 0
        self.last: UnexplainedReport | None = None
        self._agreed: set[tuple[bytes, int]] = set()
        self._doubts: deque[tuple[float, float, bytes, Decider]] = deque()  # when seen, since when it may be from
        self._version = -1
        self._allowance = Allowance(clock, worked)

    def check(self, key: bytes, number: int, decider: Decider | None) -> bool:
        """``key``: as in ``flows.packets``. Returns whether it is right for any source port, by the rules of now."""
        if self._version != self._known.version:
            self._version = self._known.version
            self._agreed.clear()
        alike = key[:-4] + key[-2:], number
        if alike in self._agreed:
            self.agreed += 1
            return True
        if decider is None or decider.index == REFUSED or not self._known.ready or not self._allowance.is_left():
            self.skipped += 1
            return False
        with self._allowance:
            self._compare(key, alike, decider)
        return alike in self._agreed

    def _compare(self, key: bytes, alike: tuple[bytes, int], decider: Decider) -> None:
        judged, lasts = self._judge(key, decider)
        if not judged:
            self.skipped += 1
        elif any(repeats(decider, one.decision) for one in judged):
            self.agreed += 1
            if lasts:
                if len(self._agreed) >= _AGREED:
                    self._agreed.clear()
                self._agreed.add(alike)
        elif len(self._doubts) < _DOUBTS:
            now = self._clock()
            self._doubts.append((now, now - self.late_s, key, decider))
        else:
            self.skipped += 1

    def settle(self) -> Iterator[UnexplainedReport]:
        """What really differs, of what was in doubt long enough."""
        now = self._clock()
        while self._doubts and now - self._doubts[0][0] >= SETTLED_S:
            _, reported, key, decider = self._doubts.popleft()
            judged, _ = self._judge(key, decider) if self._known.ready else ((), False)
            if any(repeats(decider, one.decision) for one in judged):
                self.agreed += 1
            elif self._known.changed >= reported - SETTLED_S or not judged or self._stands_in(decider, judged):
                self.unsettled += 1
            else:
                self.disagreed += 1
                self.last = UnexplainedReport(key, decider, judged)
                yield self.last

    def _judge(self, key: bytes, decider: Decider) -> tuple[tuple[JudgedPacket, ...], bool]:
        """(what may be decided about the packet in that direction; whether it is the same for any source port)."""
        source, destination, protocol, *_ = parts_of(key)
        cells = list(self._known.cells(source, destination, protocol, ingress=decider.ingress))
        point = point_of(key)
        return tuple(cell.find(*point) for cell in cells), not any(cell.asks_seconds for cell in cells)

    def _stands_in(self, decider: Decider, judged: tuple[JudgedPacket, ...]) -> bool:
        """Whether a policy takes part of which the kernel may have an earlier version."""
        named = {(decider.kind, decider.namespace, decider.name)}
        for one in judged:
            policy = None if one.decision is None else one.decision.policy
            if policy is not None:
                named.add((policy.kind, policy.namespace, policy.name))
        return any(map(self._known.stands_in, named))


def point_of(key: bytes) -> tuple[int, int]:
    """The two numbers that a cell is asked for."""
    _, _, protocol, sport, dport = parts_of(key)
    if protocol in WITH_PORTS:
        return dport, sport
    return (dport >> 8, dport & 255) if protocol == ICMP[4 if len(key) == V4_BYTES else 6] else (0, 0)


def repeats(said: Decider, judged: Decision | None) -> bool:
    """Whether it is the same rule, or the end of the same tier, with the same verdict."""
    if judged is None or judged.verdict != said.action or judged.tier != said.tier:
        return False
    if said.index == END:
        return judged.rule is None
    policy = judged.policy
    return (
        judged.rule == said.index
        and policy is not None
        and (policy.kind, policy.namespace, policy.name) == (said.kind, said.namespace, said.name)
    )
