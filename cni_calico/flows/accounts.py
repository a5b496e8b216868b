"""PURE: whether everything that rules have counted was recorded or lost.

Rule: never a false alarm. What a rule has counted since it is known is at least what is added up here, what was
reported of its number at most what is compared with it, so what is missing is missing; what a change of rules hides is
not counted, and a rule that is another one by now, or was counted anew, begins again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

RulePath = tuple[str, int]
"""Family and handle of a rule, which no other rule has had."""


class RuleCount(NamedTuple):
    """``source``: of which kind its reports are."""

    source: str
    number: int
    packets: int


class RuleAccounts:
    """``grown``: what each number's rules have counted since the first reading, for good."""

    def __init__(self) -> None:
        self._rules: dict[RulePath, RuleCount] | None = None  # nothing was read yet
        self._counted = Counter[int]()  # of each number since it began
        self._began: dict[int, int] = {}  # so many reports there were of it then, at least
        self._sources: dict[int, str] = {}
        self._lost: dict[str, int] = {}  # when it all began
        self._known = Counter[str]()  # missing for certain
        self._closed = Counter[str]()  # of numbers that have begun again
        self._deficits = Counter[int]()
        self.grown = Counter[int]()

    @property
    def missing(self) -> int:
        """Packets that rules have counted and that are neither recorded nor lost."""
        return self._known.total()

    def receive(
        self, rules: Mapping[RulePath, RuleCount], reported: Mapping[int, int], lost: Mapping[str, int]
    ) -> None:
        """A reading. ``reported``, ``lost``: reports of each number that had been read, and of each source that had
        not, before it began.
        """
        before = self._rules
        self._rules = dict(rules)
        if before is None:
            self._lost = dict(lost)
            self._begin({one.number: one.source for one in rules.values()}, reported)
            return
        changed: dict[int, str] = {one.number: one.source for path, one in before.items() if path not in rules}
        for path, one in rules.items():
            known = before.get(path)
            if known is None or known.number != one.number or one.packets < known.packets:
                changed[one.number] = one.source
                self.grown[one.number] += one.packets
                continue
            self._counted[one.number] += one.packets - known.packets
            self.grown[one.number] += one.packets - known.packets
        self._begin(changed, reported)

    def _begin(self, numbers: Mapping[int, str], reported: Mapping[int, int]) -> None:
        there = {one.number for one in (self._rules or {}).values()}
        for number, source in numbers.items():
            self._closed[source] += self._deficits.pop(number, 0)
            self._counted.pop(number, None)
            self._began.pop(number, None)
            self._sources.pop(number, None)
            if number in there:
                self._began[number], self._sources[number] = reported.get(number, 0), source

    def suspects(self, reported: Mapping[int, int]) -> Collection[str]:
        """The sources of which something is missing, or was lost and that is not known yet. ``reported``: as of a
        moment by which all that had been counted at the last reading had arrived, or had been lost.
        """
        self._deficits = Counter()
        for number, began in self._began.items():
            deficit = self._counted[number] - (reported.get(number, 0) - began)
            if deficit > 0:
                self._deficits[number] = deficit
        return {*(self._sources[number] for number in self._deficits), *(+self._closed)}

    def unexplained(self, source: str, lost: int) -> int:
        """After ``suspects``: how many of this source were neither reported nor, by what is known now, lost; without
        those that are missing for certain.
        """
        return max(0, self._missing()[source] - (lost - self._lost.get(source, 0)) - self._known[source])

    def settle(self, lost: Mapping[str, int]) -> None:
        """After ``suspects``; ``lost``: as of a moment by which something later was read of each of them."""
        for source, count in self._missing().items():
            more = count - (lost.get(source, 0) - self._lost.get(source, 0))
            self._known[source] = max(self._known[source], more)

    def _missing(self) -> Counter[str]:
        """Of each source, what was not reported."""
        missing = self._closed.copy()
        for number, deficit in self._deficits.items():
            missing[self._sources[number]] += deficit
        return missing
