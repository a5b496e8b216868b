"""PURE: where two cells answer differently: the same pair of ends and protocol, judged by two states.

Rule: every port of both ends is compared, none is tried as an example. Cells that ask their rules for each packet
cannot be compared, and whoever asks has to say so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cni_calico.policy.judge.cells import AskedEachTime, Cell, JudgedPacket, plane_of
from cni_calico.policy.judge.spans import Span, Spans, intersection


class NotComparable(Exception):
    """The rules cut the ports into more pieces than is worth it."""


@dataclass(frozen=True, slots=True)
class CellDifference:
    """``firsts``: ports of the destination, or ICMP's types, of which each has ``seconds``: ports of the source, ICMP's
    codes. ``everywhere``: those are all that there are.
    """

    firsts: Span
    seconds: Spans
    everywhere: bool
    before: JudgedPacket
    after: JudgedPacket


def verdict_of(judged: JudgedPacket) -> str:
    """Allow, Deny, or "" where a stage of a host endpoint decides nothing."""
    return "" if judged.decision is None else judged.decision.verdict


def pairs_of(
    before: Cell | AskedEachTime, after: Cell | AskedEachTime, protocol: int, family: int
) -> Iterator[CellDifference]:
    """What both answer, for every point of the plane once, equal or not. Raises NotComparable."""
    if isinstance(before, AskedEachTime) or isinstance(after, AskedEachTime):
        raise NotComparable
    everything = plane_of(protocol, family)
    ((lowest, highest),) = everything
    cuts = sorted(cut for cut in before.cuts() | after.cuts() | {lowest} if lowest <= cut <= highest)
    for low, following in zip(cuts, [*cuts[1:], highest + 1], strict=True):
        span = low, following - 1
        there = after.across(low, everything)
        for seconds, was in before.across(low, everything):
            for others, now in there:
                both = everything if seconds is everything and others is everything else intersection(seconds, others)
                if both:
                    yield CellDifference(span, both, both == everything, was, now)
