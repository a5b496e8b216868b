"""PURE: what one pass over the data plane did, in words, and the interface of a part of the data plane.

Rule: a part knows one kind of thing in the kernel and nothing of the other parts; apply.py calls them in order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from cni_calico.deadline import Deadline
from cni_calico.model.resources import Network
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.desired import Desired


@dataclass(slots=True)
class Pass:
    """One pass: what it changed and what failed, in words; ``pending`` routes are still in their grace period.

    ``lacking``: by name, why a tunnel device or masquerading is wanted and missing (needs.py). ``refused``: what was
    not done although it could be, and why; ``unmet``: in words, why the node is not ready, with these.
    ``public_keys``: by family, what the Node is to say of WireGuard's key, b"": nothing; others are left as they are.
    ``awaits``: by family, the nodes that have not followed a new key of this node's yet.
    ``encryption``: by family, what the status says of it (encryption/told.py).
    ``limits_left``: how many limits of bandwidth are left for a further look, which is due at once.
    ``unrouted``: the networks whose plain routes could not be changed; None: it is not known which.
    """

    changed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    pending: int = 0
    lacking: dict[str, str] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    unmet: tuple[str, ...] = ()
    public_keys: dict[int, bytes] = field(default_factory=dict)
    awaits: dict[int, tuple[str, ...]] = field(default_factory=dict)
    encryption: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    limits_left: int = 0
    unrouted: frozenset[Network] | None = None


class Part(Protocol):
    """One kind of thing that is maintained in the kernel (or beside it). Only the agent's thread calls it."""

    @property
    def name(self) -> str:
        """What it maintains; the text of a failure begins with it."""

    def wants(self, changed: Collection[str]) -> bool:
        """Whether it must compare everything again after the monitor reported these kinds of changes."""

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass, full: bool) -> None:
        """Read, compare, apply the difference, and record in ``done`` what was changed and what failed.

        ``full``: trust nothing that was read before. Raises CalicoError or OSError if it cannot continue; the other
        parts are still applied, and its next ``apply`` is a full one.
        """


def described(what: str, verb: str, items: Collection[object]) -> list[str]:
    """Each separately, or their number if there are many."""
    if len(items) > 10:
        return [f"{verb} {len(items)} {what}s"]
    return [f"{verb} {what} {item}" for item in items]
