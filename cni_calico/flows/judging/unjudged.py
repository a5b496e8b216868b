"""PURE: what the recorder has in the place of judging, where nobody tells it which rules are in force.

Rule: nothing is computed. Who asks for what would have to be is refused with the reason, and not told that there is
nothing; what is computed beside a flow is left out of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from cni_calico.flows.deciders import Decider
from cni_calico.flows.names import EndName
from cni_calico.flows.records import FlowRecord

NOT_JUDGED = (
    "what staged policies would do is worked out only where FELIX_FLOWS is Enabled, or flows are exported; this node "
    "records what is denied"
)


class JudgedReports(Protocol):
    """AlikeReports, or what is in its place."""

    version: int

    def check(self, key: bytes, number: int, also: int = 0) -> None: ...

    def counter(self, key: bytes, number: int, also: int = 0) -> list[int] | None: ...


class UnjudgedReports:
    """In the place of AlikeReports; ``count``: of decisions."""

    def __init__(self) -> None:
        self.version = self.count = 0

    def check(self, key: bytes, number: int, also: int = 0) -> None:
        self.count += 2 if also else 1

    def counter(self, key: bytes, number: int, also: int = 0) -> list[int] | None:
        return None


class UnjudgedStaged:
    """In the place of StagedFlows."""

    def describe(
        self, record: FlowRecord, source: EndName | None, destination: EndName | None
    ) -> dict[str, Any] | None:
        return None

    def pending(self, record: FlowRecord, ingress: bool) -> None:
        return None


class UnjudgedFlows:
    """In the place of JudgedFlows. ``refusal``: why nobody can be told what staged policies would do."""

    refusal = NOT_JUDGED

    def __init__(self) -> None:
        self.reports, self.staged = UnjudgedReports(), UnjudgedStaged()

    def receive(self) -> None:
        return

    def settle(self) -> None:
        return

    def note_late(self, late_s: float) -> None:
        return

    def passed_by(self, record: FlowRecord, decider: Decider) -> list[dict[str, Any]] | None:
        return None

    def compute(self, record: FlowRecord, number: int, name_of: Callable[[int], EndName | None]) -> Decider | None:
        return None

    def status(self) -> dict[str, Any]:
        return {"judges": False, "agreed": 0, "disagreed": 0, "unjudged": self.reports.count}
