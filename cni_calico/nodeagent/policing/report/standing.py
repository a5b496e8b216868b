"""What the policy engine says of itself: its status, its log, and the figures that only the metrics report.

Rule: everything that is said goes through here, and the newest status is handed on only if it differs from the one
before. What the other rooms know comes in as values, once a round; nothing here changes what is enforced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from cni_calico.daemon.said import Said
from cni_calico.kernel.netlink.filter_events import Happened
from cni_calico.log import Log
from cni_calico.model.keys import ResourceKey
from cni_calico.model.names import CHECK_PREFIX
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.policing.gate import Gate
from cni_calico.nodeagent.policing.report.announce import describe_policing
from cni_calico.nodeagent.policing.report.dispute_events import DisputeEvents
from cni_calico.nodeagent.policing.report.in_force import RulesInForce
from cni_calico.nodeagent.policing.report.lifelines import Lifelines, describe_idle, read_lifelines
from cni_calico.nodeagent.policing.report.problems import (
    count_goal,
    describe_http,
    describe_lacking,
    describe_problems,
    describe_spared,
)
from cni_calico.nodeagent.policing.report.surroundings import Surroundings
from cni_calico.nodeagent.policing.report.unenforced import Unenforced
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.status.policing import PolicyFigures, Standing
from cni_calico.policy.flushed import GraphFacts
from cni_calico.policy.records import Labelled

_COUNT_S = 1.0  # how often the kernel's content is counted, at most; an idle thread looks as often


@dataclass(frozen=True, slots=True)
class RoundResult:
    """``guard``: a status in which the standing rules' fields are filled in. ``failing``: why the newest state is not
    in force, "" if it is. ``policies``: all that exist; ``records``: how many of each kind. ``select_governing``: the
    policies that select a host endpoint; ``count_kernel``: what the kernel holds. ``warnings``, ``left_out``,
    ``waiting``: of what came in; ``connections``: why those of workloads that are gone may still pass;
    ``reports``: rules that decide report to the recorder of flows.
    """

    gate: Gate
    guard: Standing
    in_force: bool
    failing: str
    felix: FelixSettings
    goal: Goal
    facts: GraphFacts
    policies: Collection[ResourceKey]
    records: Mapping[str, int]
    select_governing: Callable[[Labelled], Collection[str]]
    count_kernel: Callable[[], Mapping[str, Mapping[str, int]]]
    warnings: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()
    connections: str = ""
    reports: bool = False


class StandingReport:
    """For the engine's thread; ``tell`` is called with the newest Standing whenever it changes. ``lost`` listens to
    records; ``lifelines`` is asked before host endpoints are put into force, ``surroundings`` before anything is.
    ``by``: the packet filter, and what its users have to know.
    """

    def __init__(
        self,
        context: Context,
        node: str,
        tell: Callable[[Standing], None],
        figures: PolicyFigures,
        now: Callable[[], float],
        by: tuple[str, str],
    ) -> None:
        self.standing = Standing()
        self.figures = figures
        self.lost = Unenforced(node)
        self.lifelines = Lifelines(read_lifelines(context.config), context.log)
        self._log: Log = context.log
        self._node, self._tell, self._now = node, tell, now
        self._by = by
        self._said = Said(context.log)
        self.surroundings = Surroundings(by[0])
        self._disputes = DisputeEvents(context.kubernetes_store, context.log)
        self._counted = -1, 0.0  # transactions when the kernel's content was last counted, and when it is the next time
        self.rules = RulesInForce()

    def notice(self, happened: Happened) -> None:
        """Note what the kernel reported."""
        self.surroundings.notice(happened)

    def stop(self) -> None:
        """End the thread that writes Events."""
        self._disputes.stop()

    def announce(self, goal: Goal) -> None:
        """Policies are in force, and were not before: say what has changed for workloads' owners."""
        for text in describe_policing(self._node, goal.endpoints.all.values(), goal.classes):
            self._log.info(text)

    def tell_early(self, standing: Standing) -> None:
        """Not everything has been read yet."""
        before, self.standing = self.standing, standing
        if before.failing != standing.failing:
            self._log.error(standing.sentence)
        if before != standing:
            self._tell(standing)

    def tell(self, result: RoundResult) -> None:
        """A round has ended."""
        gate, facts, in_force = result.gate, result.facts, result.in_force
        checks_only = self.standing.checks_only
        if in_force and result.policies:
            checks_only = all(key.name.startswith(CHECK_PREFIX) for key in result.policies)
        self._count(result)
        troubles, lacking = tuple(self._troubles(result)), describe_lacking(result.goal)
        standing = replace(
            result.guard,
            decided=True,
            in_force=in_force,
            ready=in_force or (gate.ready and not gate.police and not result.failing),
            upstream_goes=in_force or gate.upstream_goes,
            why_not=gate.why,
            failing=result.failing,
            problems=describe_problems(facts, result.goal) + lacking + result.guard.problems + result.waiting,
            warnings=describe_http(result.warnings, result.felix.policy_sync_prefix)
            + result.left_out
            + troubles
            + describe_spared(facts.over),
            notes=(*troubles, *lacking, *result.guard.problems),
            none_exist=gate.none_exist and not result.failing,
            upstream_stays=gate.upstream_stays and not in_force,
            lost=self.lost.describe(result.felix, result.policies, result.select_governing),
            counts=count_goal(result.goal, facts, len(result.policies)),
            repairs=self.figures.repairs,
            by=self._by[0],
            checks_only=checks_only,
            reports=in_force and result.reports,
            unguardable="" if gate.police or in_force else result.guard.unguardable,
        )
        self._disputes.tell(facts.disputes)
        if standing != self.standing:
            self._say(standing)
            self.standing = standing
            self._tell(standing)

    def _count(self, result: RoundResult) -> None:
        """Count what only the metrics report."""
        figures = self.figures
        figures.records = result.records
        figures.selectors = result.facts.selectors
        transactions, due = self._counted
        if figures.transactions == transactions or self._now() < due:
            return
        self._counted = figures.transactions, self._now() + _COUNT_S
        figures.in_kernel = result.count_kernel()

    def _troubles(self, result: RoundResult) -> Iterator[str]:
        yield from result.troubles
        if result.in_force:
            yield from filter(None, self._by[1:])
            yield from self.surroundings.warnings(result.felix.mark_mask)
            yield from describe_idle(result.goal, result.facts.missing_host_profiles)
            yield from self.lifelines.cuts
        if result.connections:
            yield f"connections of workloads that are gone may still pass: {result.connections}"

    def _say(self, standing: Standing) -> None:
        failing = (standing.failing,) if standing.failing else ()
        self._said.say("standing", sorted({*standing.problems, *standing.warnings, *failing}))
        if (standing.in_force, standing.why_not) != (self.standing.in_force, self.standing.why_not):
            was_expected = standing.checks_only or not self.standing.in_force
            is_usual = standing.in_force or (standing.none_exist and was_expected)
            self._log.write("info" if is_usual else "warning", standing.sentence)
