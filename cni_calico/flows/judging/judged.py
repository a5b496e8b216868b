"""The recorder's door to judging: it hears from the agent which rules are in force, and judges by them.

Rule: recording never waits for it. What the agent sends is taken in pieces; without the agent, or after a message that
cannot be read, nothing is judged.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

from cni_calico.flows.deciders import Decider
from cni_calico.flows.judging.agreement import Agreement, UnexplainedReport, point_of, repeats
from cni_calico.flows.judging.alike import AlikeReports
from cni_calico.flows.judging.allowance import Allowance
from cni_calico.flows.judging.computed import compute_decider
from cni_calico.flows.judging.encoding import Messages
from cni_calico.flows.judging.host_sides import HostSides
from cni_calico.flows.judging.known import KnownRules
from cni_calico.flows.judging.staged import StagedFlows, describe_step, never_moves
from cni_calico.flows.names import EndName
from cni_calico.flows.packets import parts_of
from cni_calico.flows.records import FlowRecord
from cni_calico.log import Log
from cni_calico.policy.explain import Decision

_PIECE, _AT_ONCE = 64 << 10, 512 << 10
_SAID_EVERY_S = 60.0


class JudgedFlows:
    """``decider_of``: what a number stands for; ``clock`` never steps."""

    refusal = ""  # why nobody can be told what staged policies would do

    def __init__(
        self,
        fd: int | None,
        decider_of: Callable[[int], Decider | None],
        log: Log,
        clock: Callable[[], float],
        has_moved: Callable[[bytes, EndName], bool] = never_moves,
        hosts: HostSides | None = None,
    ) -> None:
        """``has_moved``, ``hosts``: as for StagedFlows."""
        self._fd, self._decider_of, self._log, self._clock = fd, decider_of, log, clock
        self._has_moved = has_moved
        self._messages, self._known = Messages(), KnownRules()
        self._agreement = Agreement(self._known, clock, time.thread_time)
        self.staged = StagedFlows(self._known, Allowance(clock, time.thread_time), has_moved, hosts)
        self.reports = AlikeReports(self._agreement, self.staged, decider_of)
        self._said: float | None = None
        if fd is not None:
            os.set_blocking(fd, False)

    def receive(self) -> None:
        """Take in what the agent has sent."""
        for _ in range(_AT_ONCE // _PIECE):
            if self._fd is None:
                return
            try:
                data = os.read(self._fd, _PIECE)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._stop("the agent has ended")
                return
            self._messages.put(data)
            try:
                while (message := self._messages.take()) is not None:
                    self.reports.forget()
                    if message.staged:
                        self.staged.receive(message, self._clock())
                    else:
                        self._known.receive(message.kind, message.changes, self._clock())
            except ValueError as e:
                self._stop(str(e))
                return

    def note_late(self, late_s: float) -> None:
        """Reports that come now may have waited for so long."""
        self._agreement.late_s = late_s

    def _stop(self, why: str) -> None:
        self._fd = None  # it stays open: another file would become our standard input
        self.reports.forget()
        self._known.ready = False
        self.staged.stop()
        self._log.warning(f"flows are not judged any more: {why}")

    def settle(self) -> None:
        """Say what differs, not too often."""
        for difference in self._agreement.settle():
            now = self._clock()
            if self._said is None or now - self._said >= _SAID_EVERY_S:
                self._said = now
                self._log.error(_describe(difference))

    def passed_by(self, record: FlowRecord, decider: Decider) -> list[dict[str, Any]] | None:
        """The tiers that passed the packet on before that, by the rules in force; None if they do not decide so."""
        if not self._known.ready:
            return None
        point = point_of(record.key)
        ends = record.source, record.destination, record.protocol
        for cell in self._known.cells(*ends, ingress=decider.ingress):
            judged = cell.find(*point)
            if repeats(decider, judged.decision):
                return [describe_step(step) for step in judged.passed]
        return None

    def compute(self, record: FlowRecord, number: int, name_of: Callable[[int], EndName | None]) -> Decider | None:
        """What decides now, where a number of a record says nothing any more; None if that is not known either.
        ``name_of``: as for Describer.
        """

        def is_still(address: bytes, end: int) -> bool:
            name = name_of(end)
            return name is not None and not self._has_moved(address, name)

        return compute_decider(self._known, record, number, is_still) if self._known.ready else None

    def status(self) -> dict[str, Any]:
        self.reports.settle()
        one = self._agreement
        return {
            "judges": self._known.ready,
            "agreed": one.agreed,
            "disagreed": one.disagreed,
            "unjudged": one.skipped + one.unsettled,
            **self.staged.status(),
        }


def _describe(difference: UnexplainedReport) -> str:
    source, destination, protocol, sport, dport = parts_of(difference.key)
    ends = f"{ip_address(source)} to {ip_address(destination)}, protocol {protocol}, {sport} to {dport}"
    said, judged = difference.said, ", or ".join(_sentence(one.decision) for one in difference.judged)
    told = f"{said.sentence()} ({said.action})"
    return f"the packet filter decided otherwise than the rules in force: {ends}: {told}, and not {judged}"


def _sentence(decision: Decision | None) -> str:
    if decision is None:
        return "nothing"
    if decision.policy is None:
        return f"the end of tier {decision.tier}" if decision.tier else "no policy or profile"
    return f"{decision.policy} rule {decision.rule} ({decision.verdict})"
