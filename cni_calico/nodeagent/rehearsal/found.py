"""PURE: what a rehearsal has found, and its document.

Rule: only ``changes`` and ``denied`` are differences; ``uncertain`` and ``trouble`` say that there may be others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FORMAT = 1


@dataclass(frozen=True, slots=True)
class DeniedConnection:
    """One that is there, and would not be allowed again. ``seen``: conntrack, or how many flows were recorded."""

    source: str
    destination: str
    traffic: str
    why: str
    seen: str

    def document(self) -> dict[str, str]:
        return {
            "from": self.source,
            "to": self.destination,
            "traffic": self.traffic,
            "why": self.why,
            "seen": self.seen,
        }


@dataclass(slots=True)
class Rehearsed:
    """``changes``: (kind, what would be done). ``unused``: settings without effect. ``notes``: what a person has to
    know besides. ``trouble``: why something could not be rehearsed.
    """

    changes: list[tuple[str, str]] = field(default_factory=list)
    denied: list[DeniedConnection] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    uncertain: list[str] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)
    judged: int = 0

    def change(self, kind: str, what: str) -> None:
        self.changes.append((kind, what))

    def document(self, version: str, node: str) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": version,
            "node": node,
            "changes": [{"kind": kind, "what": what} for kind, what in self.changes],
            "denied": [one.document() for one in self.denied],
            "judged": self.judged,
            "settingsWithoutEffect": self.unused,
            "notes": self.notes,
            "uncertain": self.uncertain,
            "trouble": self.trouble,
        }
