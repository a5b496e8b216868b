"""PURE: what the policy engine says of itself: one value, for the status, the metrics and the probes.

Rule: written by the engine's thread, read by any; "enforced" means in force in the kernel, not wanted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Standing:
    """``decided``: everything was read, or what keeps it from being read is known.

    ``in_force``: the newest state is, or the last one that could be applied (then ``failing`` says why not newer).
    ``why_not`` says why nothing is policed; ``upstream_goes`` whether upstream's rules may be removed.
    ``problems``: records and policies that are not in force as written; ``warnings``: parts of policies that nobody
    looks at.
    """

    decided: bool = False
    in_force: bool = False
    ready: bool = False
    upstream_goes: bool = False
    why_not: str = "the policies have not been read yet"
    failing: str = ""
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    repairs: int = 0

    def fields(self) -> dict[str, object]:
        """For the status file."""
        return {
            "in_force": self.in_force,
            "ready": self.ready,
            "sentence": self.sentence,
            "problems": list(self.problems),
            "warnings": list(self.warnings),
            "counts": dict(self.counts),
            "repairs": self.repairs,
        }

    @property
    def sentence(self) -> str:
        """For people."""
        if self.in_force:
            policies, endpoints = self.counts.get("policies", 0), self.counts.get("endpoints", 0)
            said = f"{policies} policies are in force for {endpoints} workloads"
            return f"{said}; changes are NOT: {self.failing}" if self.failing else said
        return f"no policy is enforced on this node: {self.failing or self.why_not}"
