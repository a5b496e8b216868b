"""PURE: judges what the kernel reports, and counts together what differs by the source port only.

Rule: each report counts as if it were judged by itself. Those are counted together of which one was judged, and found
to be the same for any source port, until other rules may be in force.
"""

from __future__ import annotations

from collections.abc import Callable

from cni_calico.flows.deciders import FIRST, Decider
from cni_calico.flows.judging.agreement import Agreement
from cni_calico.flows.judging.staged import CountedResult, StagedFlows

_MOST = 20_000


class AlikeReports:
    """``check`` each; what was counted together is in ``agreement`` and ``staged`` after ``settle``."""

    def __init__(self, agreement: Agreement, staged: StagedFlows, decider_of: Callable[[int], Decider | None]) -> None:
        self._agreement, self._staged, self._decider_of = agreement, staged, decider_of
        self.version = 0  # another one as soon as counters count no more
        self._counts: dict[tuple[bytes, int, int], list[int]] = {}  # of one number each
        self._results: dict[tuple[bytes, int, int], tuple[CountedResult, ...]] = {}

    def check(self, key: bytes, number: int, also: int = 0) -> None:
        """``key``: as in ``flows.packets``; ``also``: what else has decided about the same packet, 0 for nothing."""
        alike = key[:-4] + key[-2:], number, also
        count = self._counts.get(alike)
        if count is not None:
            count[0] += 1
            return
        found: list[CountedResult] = []
        lasts = True
        for one in (number, also):
            if one >= FIRST:
                decider = self._decider_of(one)
                agrees = self._agreement.check(key, one, decider)
                results = self._staged.count(key, decider)
                lasts = lasts and agrees and results is not None
                found += results or ()
        if lasts:
            if len(self._counts) >= _MOST:
                self.forget()
            self._counts[alike], self._results[alike] = [0], tuple(found)

    def counter(self, key: bytes, number: int, also: int = 0) -> list[int] | None:
        """Of those that count together with this one, as for ``check``; None as long as each is judged."""
        return self._counts.get((key[:-4] + key[-2:], number, also))

    def settle(self) -> None:
        for alike, counted in self._counts.items():
            if count := counted[0]:
                self._agreement.agreed += count * sum(one >= FIRST for one in alike[1:])
                for result in self._results[alike]:
                    self._staged.counts[result] += count
                counted[0] = 0

    def forget(self) -> None:
        """Other rules may be in force from now on."""
        self.settle()
        self.version += 1
        self._counts.clear()
        self._results.clear()
