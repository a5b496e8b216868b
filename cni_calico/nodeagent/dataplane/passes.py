"""PURE: what one pass over the data plane did, in words."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass(slots=True)
class Pass:
    """One pass: what it changed and what failed, in words; ``pending`` routes are waiting out their grace."""

    changed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    pending: int = 0


def described(what: str, verb: str, items: Collection[object]) -> list[str]:
    """Each by itself, or their number when there are many."""
    if len(items) > 10:
        return [f"{verb} {len(items)} {what}s"]
    return [f"{verb} {what} {item}" for item in items]
