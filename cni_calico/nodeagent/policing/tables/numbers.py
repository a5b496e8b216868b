"""PURE: the numbers by which rules that decide are known in the kernel, in labels of connections and in reports.

Rule: the same rule has the same number in every table and after every restart, so that recording changes nothing in the
kernel by itself; a rule that is another one by its text, index or policy has another number, and no number is ever used
again. Numbers below FIRST are reasons that do not depend on any record.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from cni_calico.flows.deciders import ALLOWED_GROUP, DENIED_GROUP, FIRST, FIXED, Decider
from cni_calico.netfilter.rules import (
    KNOWN_BY_STATE,
    KNOWN_BY_STATUS,
    AcceptKnown,
    CountPacket,
    LabelConnection,
    PacketVerdict,
    ReportDecision,
    RuleAction,
)
from cni_calico.netfilter.tables import NftSet, NftTable, word_key

_STATES = {"invalid": 1, "established": 2, "related": 4, "new": 8, "untracked": 64}
_HAVE_NO_CONNECTION = ("invalid", "untracked")
_CONFIRMED = 8
_ACCEPT, _CONTINUE = PacketVerdict("accept"), PacketVerdict("continue")
_ROOM = 16  # in these maps: with room for more than there is, few keys share a place
BY_STATE = NftSet(KNOWN_BY_STATE, ("mark",), verdicts=True, size=_ROOM)
BY_STATUS = NftSet(KNOWN_BY_STATUS, ("mark",), verdicts=True, size=_ROOM)
MAPS = {
    BY_STATE: {word_key(bit): _ACCEPT if name in _HAVE_NO_CONNECTION else _CONTINUE for name, bit in _STATES.items()},
    BY_STATUS: {word_key(0): _CONTINUE, word_key(_CONFIRMED): _ACCEPT},
}


class RuleNumbers:
    """Gives numbers; what is new since the last ``take_new`` has to be written down before the kernel gets it."""

    def __init__(self, known: Iterable[tuple[int, Decider]] = (), after: int = FIRST - 1) -> None:
        """``after``: the next number is larger than that, and than each that is known."""
        self._known: dict[Decider, int] = {}
        self._last = max(after, FIRST - 1)
        for number, decider in known:
            self._known[decider] = number
            self._last = max(self._last, number)
        self._new: list[tuple[int, Decider]] = []

    def number_of(self, decider: Decider) -> int:
        found = self._known.get(decider)
        if found is None:
            self._last += 1
            found = self._known[decider] = self._last
            self._new.append((found, decider))
        return found

    def go_past(self, numbers: Iterable[int]) -> None:
        self._last = max((self._last, *numbers))

    def __len__(self) -> int:
        return len(self._known)

    def known(self) -> list[tuple[int, Decider]]:
        """The oldest first."""
        return [(number, decider) for decider, number in self._known.items()]

    def forget(self, newest: int, in_force: Container[int]) -> None:
        """All but so many, and those in force: a rule that is made again has another number then."""
        last = len(self._known) - newest
        numbered = enumerate(self._known.items())
        self._known = {decider: number for at, (decider, number) in numbered if at >= last or number in in_force}

    def take_new(self) -> list[tuple[int, Decider]]:
        new, self._new = self._new, []
        return new


def numbers_in(tables: Iterable[NftTable]) -> set[int]:
    """Those that rules report."""
    rules = (rule for table in tables for chain in table.chains.values() for rule in chain.rules)
    return {one.number for rule in rules for one in rule.actions if isinstance(one, ReportDecision)}


@dataclass(frozen=True, slots=True)
class Recording:
    """What rules do for the recorder. ``allowed``: also what is let through, not only what is denied; ``by_iptables``:
    the packet filter is legacy iptables, which has no labels and none of the maps. ``groups``: to which what is let
    through is reported, and what is denied. Two are equal if they share their numbers, and these.
    """

    numbers: RuleNumbers
    allowed: bool = True
    by_iptables: bool = False
    groups: tuple[int, int] = (ALLOWED_GROUP, DENIED_GROUP)

    def before_accept(self, decider: Decider, *, has_connection: bool = True) -> tuple[RuleAction, ...]:
        """What comes before accept. ``has_connection`` False: at a hook before connection tracking, where packets can
        only be counted.
        """
        if not self.allowed:
            return ()
        if not has_connection:
            return (CountPacket(),)
        number = self.numbers.number_of(decider)
        if self.by_iptables:
            return (ReportDecision(number, self.groups[0], once=True),)
        return (
            AcceptKnown(),
            CountPacket(),
            LabelConnection(number, decider.ingress),
            ReportDecision(number, self.groups[0]),
        )

    def before_drop(self, decider: Decider | str) -> tuple[RuleAction, ...]:
        """What comes before drop or reject; a text is one of FIXED."""
        number = FIXED[decider] if isinstance(decider, str) else self.numbers.number_of(decider)
        return CountPacket(), ReportDecision(number, self.groups[1])
