"""PURE: the rules of one direction of a policy class, worked out for one pair of address classes and one protocol.

Rule: a cell answers for every port at once what ``policy.explain`` answers for one (it does not say what was logged).
The rules that fit the classes are asked in order, and each takes what is still open of a plane of two numbers: the
ports of the destination and of the source; ICMP's type and code; one point for a protocol that has neither. Rules that
cut the plane into too many pieces are asked for each packet instead, for the one point that it is.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from cni_calico.policy.explain import Decision
from cni_calico.policy.judge.classes import AddressClass
from cni_calico.policy.judge.fitting import FittingRules
from cni_calico.policy.judge.spans import NO_SPANS, Span, Spans, difference, intersection, spans_of, union
from cni_calico.policy.ports import ICMP, PORT_MAX, WITH_PORTS
from cni_calico.policy.wanted import Direction, PolicyId, WantedRule, WantedSide, WantedTier

ALL_PORTS: Spans = ((0, PORT_MAX),)
ALL_OF_ICMP: Spans = ((0, 255),)
A_POINT: Spans = ((0, 0),)
MOST_WORK = 100_000  # pieces and spans that are looked at for one cell

PlaneRegion = tuple[
    tuple[Spans, Spans], ...
]  # of the plane: each first number with each second number, one pair or two
NOWHERE: PlaneRegion = ()
RulesOf = Callable[[PolicyId, Direction], FittingRules]


@dataclass(frozen=True, slots=True)
class Passed:
    """A tier that handed on to the next one: by a rule of a policy, or by its end (then ``policy`` is None)."""

    tier: str
    policy: PolicyId | None = None
    rule: int | None = None


@dataclass(frozen=True, slots=True)
class JudgedPacket:
    """``decision`` is None where a host endpoint's stage decides nothing. ``passed``: the tiers before it, in order."""

    decision: Decision | None
    passed: tuple[Passed, ...] = ()


@dataclass(frozen=True, slots=True)
class AskedTiers:
    """What a cell is worked out of: the tiers of a class in one direction, and what comes after the last tier."""

    direction: Direction
    tiers: tuple[WantedTier, ...]
    profiles: tuple[PolicyId, ...] = ()
    ends: bool = True  # what no profile decides is denied; False: it is not decided at all (stages of host endpoints)

    def policies(self) -> frozenset[PolicyId]:
        return frozenset((*(policy for tier in self.tiers for policy in tier.policies), *self.profiles))


@dataclass(frozen=True, slots=True)
class CellQuestion:
    """Everything that a cell is about."""

    rules_of: RulesOf
    asked: AskedTiers
    source: AddressClass
    destination: AddressClass
    protocol: int
    shared: dict[JudgedPacket, JudgedPacket]  # equal answers are the same object


class TooManyPieces(Exception):
    """The rules cut the plane into more pieces than is worth it."""


@dataclass(frozen=True, slots=True)
class PlanePiece:
    """A part of the plane: first numbers from ``low`` to ``high``, each with every second one in ``seconds``."""

    low: int
    high: int
    seconds: Spans
    passed: tuple[Passed, ...] = ()


class Cell:
    """``find`` gives what happens to a packet. ``size``: of how many spans it is made."""

    __slots__ = ("_bands", "_starts", "_whole", "size")

    def __init__(self, parts: Iterable[tuple[PlanePiece, JudgedPacket]], everything: Spans) -> None:
        """``parts`` cover the plane, and no two of them overlap; ``everything``: all second numbers."""
        starts, whole, bands = array("H"), list[JudgedPacket](), list[_Band]()
        end = self.size = 0
        for piece, judged in sorted(parts, key=lambda part: (part[0].low, part[0].high)):
            if piece.seconds == everything:
                if not whole or end != piece.low or whole[-1] != judged:
                    starts.append(piece.low)
                    whole.append(judged)
                end = piece.high + 1
            else:
                if not bands or piece.low > bands[-1].high:
                    bands.append(_Band(piece.low, piece.high, []))
                bands[-1].high = max(bands[-1].high, piece.high)
                bands[-1].parts.append((piece.low, piece.high, piece.seconds, judged))
                self.size += 1 + len(piece.seconds)
        self.size += len(whole)
        self._starts, self._whole, self._bands = starts, tuple(whole), tuple(bands)

    def find(self, first: int, second: int) -> JudgedPacket:
        """``first``: the port of the destination, or ICMP's type; ``second``: the source's, or ICMP's code."""
        if self._bands:
            at = bisect_right(self._bands, first, key=lambda band: band.low) - 1
            if at >= 0 and first <= self._bands[at].high:
                for low, high, seconds, judged in self._bands[at].parts:
                    if low <= first <= high and _holds(seconds, second):
                        return judged
        return self._whole[bisect_right(self._starts, first) - 1]

    @property
    def asks_seconds(self) -> bool:
        """Whether the second number matters."""
        return bool(self._bands)

    def cuts(self) -> set[int]:
        """The first numbers at which the answers may be others than just before."""
        found = set(self._starts)
        for band in self._bands:
            for low, high, _, _ in band.parts:
                found |= {low, high + 1}
        return found

    def across(self, first: int, everything: Spans) -> list[tuple[Spans, JudgedPacket]]:
        """The answers at one first number: which second numbers have which. ``everything``: all second numbers."""
        at = bisect_right(self._bands, first, key=lambda band: band.low) - 1
        if at >= 0 and first <= self._bands[at].high:
            parts = self._bands[at].parts
            return [(seconds, judged) for low, high, seconds, judged in parts if low <= first <= high]
        return [(everything, self._whole[bisect_right(self._starts, first) - 1])]


@dataclass(slots=True)
class _Band:
    """First numbers that belong to parts which ask for the second one, too: those parts are looked at one by one."""

    low: int
    high: int
    parts: list[tuple[int, int, Spans, JudgedPacket]]


def _holds(spans: Spans, number: int) -> bool:
    at = bisect_right(spans, number, key=lambda span: span[0]) - 1
    return at >= 0 and number <= spans[at][1]


class AskedEachTime:
    """In the place of a cell that would have too many pieces: each packet asks the rules."""

    __slots__ = ("_question",)
    asks_seconds, size = True, 1

    def __init__(self, question: CellQuestion) -> None:
        self._question = question

    def find(self, first: int, second: int) -> JudgedPacket:
        """As a cell's."""
        work = _CellWork(self._question, PlanePiece(first, first, ((second, second),)), most=0)
        work.ask_all()
        ((_, judged),) = work.settled
        return judged


def compile_cell(question: CellQuestion, most: int = MOST_WORK) -> Cell:
    """The verdicts for one protocol from any address of one class to any of the other; both are of one family. Raises
    TooManyPieces.
    """
    everything = plane_of(question.protocol, question.source.family)
    work = _CellWork(question, *(PlanePiece(low, high, everything) for low, high in everything), most=most)
    work.ask_all()
    return Cell(work.settled, everything)


def plane_of(protocol: int, family: int) -> Spans:
    """Of both numbers."""
    if protocol in WITH_PORTS:
        return ALL_PORTS
    return ALL_OF_ICMP if protocol == ICMP[family] else A_POINT


class _CellWork:
    """One cell in the making, or one packet. ``most``: how much may be looked at, 0 for any amount."""

    def __init__(self, question: CellQuestion, *open_pieces: PlanePiece, most: int) -> None:
        self.settled: list[tuple[PlanePiece, JudgedPacket]] = []
        self._question, self._most, self._done = question, most, 0
        self._open = OpenPieces(open_pieces)

    def ask_all(self) -> None:
        """Settles everything."""
        asked = self._question.asked
        for tier in asked.tiers:
            passing: list[PlanePiece] = []
            for policy in tier.policies:
                passing += self._ask(policy, tier.name)
                if not self._open:
                    break
            if tier.end == "Deny":
                self._settle(self._open.take(), Decision("Deny", asked.direction, tier.name))
            else:
                passing += [_after(piece, Passed(tier.name)) for piece in self._open.take()]
            self._open = OpenPieces(passing)
            if not self._open:
                return
        for profile in asked.profiles:
            self._open.put(self._ask(profile, ""))
            if not self._open:
                return
        self._settle(self._open.take(), Decision("Deny", asked.direction) if asked.ends else None)

    def _ask(self, policy: PolicyId, tier: str) -> list[PlanePiece]:
        """What the policy hands on. A profile hands on to the next one, which is no step of its own."""
        direction, passing = self._question.asked.direction, list[PlanePiece]()
        question = self._question
        for index, rule in question.rules_of(policy, direction).of(
            question.source, question.destination, question.protocol
        ):
            region = region_of(rule, question.source, question.destination, question.protocol)
            if not region:
                continue
            inside = self._open.cut(region)
            self._spend(1 + len(inside) + sum(len(firsts) + len(seconds) for firsts, seconds in region))
            if rule.action == "Pass":
                passing += [_after(piece, Passed(tier, policy, index)) for piece in inside] if tier else inside
            elif rule.action != "Log":
                self._settle(inside, Decision(rule.action, direction, tier, policy, index))
            if not self._open:
                break
        return passing

    def _spend(self, work: int) -> None:
        self._done += work + self._open.looked
        self._open.looked = 0
        if self._most and self._done > self._most:
            raise TooManyPieces

    def _settle(self, pieces: Iterable[PlanePiece], decision: Decision | None) -> None:
        shared = self._question.shared
        for piece in pieces:
            judged = JudgedPacket(decision, piece.passed)
            self.settled.append((piece, shared.setdefault(judged, judged)))


def region_of(rule: WantedRule, source: AddressClass, destination: AddressClass, protocol: int) -> PlaneRegion:
    """Where in the plane a rule that fits the addresses matches."""
    if protocol in WITH_PORTS:
        if rule.icmp is not None:
            return NOWHERE
        firsts = _ports(rule.destination, destination, protocol)
        seconds = _ports(rule.source, source, protocol)
        return ((firsts, seconds),) if firsts and seconds else NOWHERE
    if not _ports(rule.source, source, protocol) or not _ports(rule.destination, destination, protocol):
        return NOWHERE
    if protocol != ICMP[source.family]:
        return ((A_POINT, A_POINT),) if rule.icmp is None else NOWHERE
    return _region_of_icmp(rule)


def _after(piece: PlanePiece, step: Passed) -> PlanePiece:
    return PlanePiece(piece.low, piece.high, piece.seconds, (*piece.passed, step))


def _ports(side: WantedSide, address: AddressClass, protocol: int) -> Spans:
    """The ports that the side allows these addresses; for a protocol without ports 0 stands for it."""
    ranged = protocol in WITH_PORTS
    found = ALL_PORTS if ranged else A_POINT
    if side.ports or side.port_sets:
        found = union(spans_of(side.ports) if ranged else NO_SPANS, _members(side.port_sets, address, protocol))
    if side.not_ports and ranged:
        found = difference(found, spans_of(side.not_ports))
    if side.not_port_sets:
        found = difference(found, _members(side.not_port_sets, address, protocol))
    for name in side.service_sets:
        found = intersection(found, _members((name,), address, protocol))
    return found


def _members(port_sets: Iterable[str], address: AddressClass, protocol: int) -> Spans:
    """The ports of this protocol that any of these sets has for the addresses."""
    there = address.ports_of_set
    return spans_of((port, port) for name in port_sets for of, port in there.get(name, ()) if of == protocol)


def _region_of_icmp(rule: WantedRule) -> PlaneRegion:
    kinds, codes = ALL_OF_ICMP, ALL_OF_ICMP
    if rule.icmp is not None:
        kind, code = rule.icmp
        kinds, codes = ((kind, kind),), ALL_OF_ICMP if code is None else ((code, code),)
    if rule.not_icmp is None:
        return ((kinds, codes),)
    kind, code = rule.not_icmp
    of_others = difference(kinds, ((kind, kind),))
    same_kind = intersection(kinds, ((kind, kind),))
    other_codes = NO_SPANS if code is None else difference(codes, ((code, code),))
    found = ((of_others, codes), (same_kind, other_codes))
    return tuple((firsts, seconds) for firsts, seconds in found if firsts and seconds)


class OpenPieces:
    """What no rule has taken yet. Pieces with the same second numbers are kept together, sorted, so that a rule costs
    what it takes, not what there is. ``looked``: at how many other pieces and spans since it was last set to 0.
    """

    def __init__(self, pieces: Iterable[PlanePiece] = ()) -> None:
        self.looked = 0
        self._rows: dict[Spans, list[PlanePiece]] = {}  # those of one are disjoint, and sorted
        self.put(pieces)

    def __bool__(self) -> bool:
        return bool(self._rows)

    def put(self, pieces: Iterable[PlanePiece]) -> None:
        longer: dict[Spans, list[PlanePiece]] = {}
        for piece in pieces:
            row = longer[piece.seconds] = self._rows.setdefault(piece.seconds, [])
            row.append(piece)
        for row in longer.values():
            row.sort(key=lambda piece: piece.low)

    def take(self) -> list[PlanePiece]:
        """All of them; none is left."""
        rows, self._rows = self._rows, {}
        return [piece for row in rows.values() for piece in row]

    def cut(self, region: PlaneRegion) -> list[PlanePiece]:
        """Takes out what lies in the region, and returns it."""
        inside: list[PlanePiece] = []
        for firsts, seconds in region:
            outside: list[PlanePiece] = []
            for mine, row in list(self._rows.items()):
                within, without = (mine, NO_SPANS) if mine == seconds else _split(mine, seconds)
                self.looked += 1 + len(mine)
                if within:
                    for first in firsts:
                        inside += _cut_row(row, first, within, without, outside)
                    if not row:
                        del self._rows[mine]
            self.put(outside)
        return inside


def _split(mine: Spans, seconds: Spans) -> tuple[Spans, Spans]:
    return intersection(mine, seconds), difference(mine, seconds)


def _cut_row(
    row: list[PlanePiece], span: Span, within: Spans, without: Spans, outside: list[PlanePiece]
) -> list[PlanePiece]:
    """Takes the first numbers of the span out of the row; what the second numbers leave of it goes to ``outside``."""
    low, high = span
    begin = bisect_left(row, low, key=lambda piece: piece.high)
    end = bisect_right(row, high, key=lambda piece: piece.low)
    touched = row[begin:end]
    if not touched:
        return touched
    inside, kept = [], list[PlanePiece]()
    for piece in touched:
        first, last = max(piece.low, low), min(piece.high, high)
        if piece.low < first:
            kept.append(PlanePiece(piece.low, first - 1, piece.seconds, piece.passed))
        inside.append(PlanePiece(first, last, within, piece.passed))
        if without:
            outside.append(PlanePiece(first, last, without, piece.passed))
        if last < piece.high:
            kept.append(PlanePiece(last + 1, piece.high, piece.seconds, piece.passed))
    row[begin:end] = kept
    return inside
