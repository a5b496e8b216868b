"""PURE: what staged policies would do to flows, as nodes say it: joined from both sides, and in words.

Rule: unknown on one side is unknown, unless the other side denies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from cni_calico.flows.query import ALLOWED, DENIED, UNKNOWN
from cni_calico.flows.told import RESULTS


def join_staged(source: Mapping[str, Any] | None, destination: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Of one connection, as both ends' nodes say it."""
    sides = [one for one in (source, destination) if one is not None]
    if len(sides) < 2:
        return dict(sides[0]) if sides else None
    decided = [one for side in sides for one in side["decided"]]
    policies = [one for side in sides for one in side.get("policies", ())]
    denies = any(side["verdict"] == DENIED for side in sides)
    if any(side["verdict"] == UNKNOWN for side in sides):
        return {"verdict": UNKNOWN, "decided": decided, "policies": policies}
    denied = any((side["verdict"] == DENIED) != side["changes"] for side in sides)
    verdict = DENIED if denies else ALLOWED
    return {"verdict": verdict, "changes": denied != denies, "decided": decided, "policies": policies}


def describe_staged(document: Mapping[str, Any]) -> str:
    """For the end of a line, "" if nothing would change."""
    staged = document.get("staged")
    if staged is None:
        return ""
    if staged["verdict"] == UNKNOWN:
        return "staged: unknown"
    if not staged["changes"]:
        return ""
    said = [one["said"] for one in staged["decided"] if (one["action"] == "Deny") == (staged["verdict"] == DENIED)]
    verdict = "DENIED" if staged["verdict"] == DENIED else "allowed"
    return f"staged: {verdict} {', '.join(said)}"


class StagedSummary:
    """``add`` each flow; ``lines``: of each staged policy, how many connections it would allow and deny, and of how
    many the verdict would change.
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self._unknown = 0

    def add(self, document: Mapping[str, Any]) -> None:
        staged, connections = document.get("staged"), document["connections"]
        if staged is None:
            return
        if staged["verdict"] == UNKNOWN:
            self._unknown += connections
        for policy, result in {(one["policy"], one["result"]) for one in staged.get("policies", ())}:
            self._counts[policy, result] += connections

    def lines(self) -> Iterator[str]:
        for policy in sorted({policy for policy, _ in self._counts}):
            counts = [f"{self._counts[policy, result]} {word}" for result, word in RESULTS.items()]
            yield f"{policy} would decide: {', '.join(counts)}"
        if self._unknown:
            yield f"of {self._unknown} connections it is unknown what would be decided"
