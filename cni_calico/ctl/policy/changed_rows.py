"""What another state of policy decides otherwise, as lines for people: equal ones of several ends are one line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cni_calico.policy.explain import Decision
from cni_calico.policy.judge.cells import JudgedPacket
from cni_calico.policy.judge.compare import CellDifference, verdict_of
from cni_calico.policy.judge.spans import Span, Spans, spans_of
from cni_calico.policy.judge.worlds import ComparedEnd, ComparedPair, WorldPair
from cni_calico.policy.ports import ICMP, WITH_PORTS
from cni_calico.policy.wanted import Direction, PolicyReach

PROTOCOL_NAMES = {1: "icmp", 6: "tcp", 17: "udp", 58: "icmpv6", 132: "sctp", 136: "udplite"}
_STAGES = {"own": "", "forward": " (forwarded)", "beforeNat": " (before NAT)", "raw": " (doNotTrack)"}
UNNAMED = _OTHER, _ANY = "other protocols", "any protocol"  # also what no rule names

RowKey = tuple[Direction, PolicyReach | None, str, JudgedPacket, JudgedPacket]
TrafficPiece = tuple[int, CellDifference]  # protocol, and where in its plane
RowEnds = tuple[frozenset[ComparedEnd], frozenset[ComparedEnd]]


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """``traffic``: protocol and ports in words, ``pieces``: in numbers, a protocol with ports at a time. ``before``,
    ``after``: None where it could not be compared.
    """

    direction: Direction
    reach: PolicyReach | None
    traffic: str
    before: JudgedPacket | None
    after: JudgedPacket | None
    sources: frozenset[ComparedEnd]
    destinations: frozenset[ComparedEnd]
    pieces: tuple[TrafficPiece, ...] = ()

    @property
    def where(self) -> str:
        return self.direction if self.reach is None else f"host {self.direction}{_STAGES[self.reach]}"

    @property
    def denies(self) -> bool:
        """Whether something is denied that was not."""
        return self.after is not None and verdict_of(self.after) == "Deny"


def describe_decision(judged: JudgedPacket | None) -> str:
    if judged is None:
        return "unknown"
    if judged.decision is None:
        return "not decided"
    decision = judged.decision
    verdict = "allowed" if decision.verdict == "Allow" else "DENIED"
    return f"{verdict} {describe_decider(decision)}"


def describe_decider(decision: Decision) -> str:
    """Such as: by rule 1 of NetworkPolicy shop/database."""
    if decision.policy is not None and decision.rule is not None:
        return f"by rule {decision.rule + 1} of {decision.policy}"
    return f"at the end of tier {decision.tier}" if decision.tier else "because no policy and no profile allows it"


def changed_rows(worlds: WorldPair) -> list[ChangedRow]:
    """Everything that differs, sorted: what is denied first."""
    ends_of: dict[RowKey, dict[RowEnds, None]] = {}
    unknown: list[ChangedRow] = []
    pieces: dict[RowKey, dict[TrafficPiece, None]] = {}
    sets: dict[tuple[ComparedEnd, ...], frozenset[ComparedEnd]] = {}
    for asked in worlds.groups:
        if not worlds.is_concerned(asked):
            continue
        every = len(worlds.names(asked).all_protocols())
        protocols: dict[tuple[RowEnds, str, JudgedPacket, JudgedPacket], dict[str, list[TrafficPiece]]] = {}
        for pair in worlds.compare(asked):
            ends = _shared(sets, pair.sources), _shared(sets, pair.destinations)
            name = _OTHER if pair.others else PROTOCOL_NAMES.get(pair.protocol, f"protocol {pair.protocol}")
            if pair.differing is None:
                unknown.append(ChangedRow(asked.direction, asked.reach, name, None, None, *ends))
                continue
            for before, after, ports, its in _joined(pair):
                protocols.setdefault((ends, ports, before, after), {}).setdefault(name, []).extend(its)
        for (ends, ports, before, after), names in protocols.items():
            named = _ANY if len(names) == every else ",".join(names)
            key = asked.direction, asked.reach, f"{named} {ports}".rstrip(), before, after
            ends_of.setdefault(key, {})[ends] = None
            pieces.setdefault(key, {}).update((piece, None) for its in names.values() for piece in its)
    rows = [ChangedRow(*key, *ends, tuple(pieces[key])) for key, its in ends_of.items() for ends in _merged(its)]
    rows.sort(key=_rank)
    return [*rows, *unknown]


def _shared(
    sets: dict[tuple[ComparedEnd, ...], frozenset[ComparedEnd]], ends: tuple[ComparedEnd, ...]
) -> frozenset[ComparedEnd]:
    """Equal ones are the same object: there may be thousands of lines with hundreds of ends."""
    found = sets.get(ends)
    if found is None:
        found = sets[ends] = frozenset(ends)
    return found


def _rank(row: ChangedRow) -> tuple[object, ...]:
    verdicts = describe_decision(row.before), describe_decision(row.after)
    return not row.denies, row.reach or "", row.direction, row.traffic, *verdicts, len(row.sources)


def _joined(pair: ComparedPair) -> Iterator[tuple[JudgedPacket, JudgedPacket, str, list[TrafficPiece]]]:
    """The ports with equal answers, in words."""
    family = pair.classes[0][0].family
    spans: dict[tuple[JudgedPacket, JudgedPacket, Spans, bool], list[CellDifference]] = {}
    for one in pair.differing or ():
        spans.setdefault((one.before, one.after, one.seconds, one.everywhere), []).append(one)
    for (before, after, seconds, everywhere), its in spans.items():
        texts = []
        joined = spans_of(one.firsts for one in its)
        if pair.protocol in WITH_PORTS and not pair.others:
            texts += [] if joined == ((0, 65535),) else [_shown(joined)]
            texts += [] if everywhere else [f"from source ports {_shown(seconds)}"]
        elif pair.protocol == ICMP[family]:
            texts += [] if joined == ((0, 255),) else [f"type {_shown(joined)}"]
            texts += [] if everywhere else [f"code {_shown(seconds)}"]
        yield before, after, " ".join(texts), [(pair.protocol, one) for one in its]


def _shown(spans: Iterable[Span]) -> str:
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)


def _merged(ends: Iterable[RowEnds]) -> list[RowEnds]:
    """The same pairs of ends, in fewer lines."""
    by_source: dict[frozenset[ComparedEnd], list[frozenset[ComparedEnd]]] = {}
    for sources, destinations in ends:
        by_source.setdefault(sources, []).append(destinations)
    by_destination: dict[frozenset[ComparedEnd], list[frozenset[ComparedEnd]]] = {}
    for sources, found in by_source.items():
        by_destination.setdefault(found[0] if len(found) == 1 else frozenset().union(*found), []).append(sources)
    return [
        (found[0] if len(found) == 1 else frozenset().union(*found), destinations)
        for destinations, found in by_destination.items()
    ]
