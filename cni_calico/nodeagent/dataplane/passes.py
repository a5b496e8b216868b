"""PURE: what one pass over the data plane did, in words, and what a part of the data plane looks like.

Rule: a part knows one kind of thing in the kernel and nothing of the other parts; apply.py calls them in order.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from cni_calico.deadline import Deadline
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.desired import Desired


@dataclass(slots=True)
class Pass:
    """One pass: what it changed and what failed, in words; ``pending`` routes are waiting out their grace.

    ``lacking``: why a tunnel device or masquerading is wanted and not there, by its name (needs.py).
    """

    changed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    pending: int = 0
    lacking: dict[str, str] = field(default_factory=dict)


class Part(Protocol):
    """One kind of thing that is kept in the kernel (or beside it). Only the agent's thread calls it."""

    @property
    def name(self) -> str:
        """What it keeps, as it begins the text of a failure."""

    def wants(self, changed: Collection[str]) -> bool:
        """Whether, after the monitor reported these kinds of changes, it must compare everything again."""

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass, full: bool) -> None:
        """Read, compare, change the difference, and say in ``done`` what was changed and what failed.

        ``full``: trust nothing that was read before. Raises CalicoError or OSError when it cannot go on; the other
        parts are applied all the same, and its next ``apply`` is a full one.
        """


def described(what: str, verb: str, items: Collection[object]) -> list[str]:
    """Each by itself, or their number when there are many."""
    if len(items) > 10:
        return [f"{verb} {len(items)} {what}s"]
    return [f"{verb} {what} {item}" for item in items]
