"""One round of the policy engine: it takes in changes, decides, puts the result into force and reports it.

Rule: all rounds run in one thread, and nothing here waits for a datastore. If a round fails, what was in force stays,
and the round is tried again, soon at first and then less often.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.kernel.cgroup import read_limited_groups
from cni_calico.kernel.memory import give_back_memory
from cni_calico.kernel.netlink.filter_events import Happened
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Network, WorkloadEndpoint
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.policing.enforce.departures import Departures
from cni_calico.nodeagent.policing.enforce.enforcer import Enforcer
from cni_calico.nodeagent.policing.enforce.filters import KernelSide
from cni_calico.nodeagent.policing.enforce.guard import StandingGuard
from cni_calico.nodeagent.policing.enforce.numbers import NumbersFile, PlaneRules
from cni_calico.nodeagent.policing.feed.changes import FedRecord
from cni_calico.nodeagent.policing.feed.hearing import Hearing, speak_to
from cni_calico.nodeagent.policing.feed.intake import Intake
from cni_calico.nodeagent.policing.feed.interfaces import Interfaces
from cni_calico.nodeagent.policing.feed.parameters import parse_service_networks
from cni_calico.nodeagent.policing.feed.spared import Spared
from cni_calico.nodeagent.policing.gate import Gate, GateFacts, decide
from cni_calico.nodeagent.policing.report.in_force import RulesInForce
from cni_calico.nodeagent.policing.report.standing import RoundResult, StandingReport
from cni_calico.nodeagent.policing.report.status_files import StatusFiles
from cni_calico.nodeagent.policing.schedule import Pause, Schedule
from cni_calico.nodeagent.policing.states import NEXT, EngineState, RoundOutcome, begins
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.numbers import numbers_in
from cni_calico.nodeagent.policing.tables.tunnels import Tunnels
from cni_calico.nodeagent.status.policing import PolicyFigures, Standing
from cni_calico.nodeagent.view.last_valid import LastValid
from cni_calico.policy.budget import is_waiting
from cni_calico.policy.confirmed import ClaimedEndpoint
from cni_calico.policy.flushed import OtherNeeds
from cni_calico.policy.graph import Graph
from cni_calico.policy.lifelines import Lifeline
from cni_calico.policy.nodes import GraphRecord
from cni_calico.policy.records import Labelled
from cni_calico.policy.wanted import PolicyId

APPLY_S, _FORGIVE_S = 60.0, 180.0
_KEPT_RULES = 100_000  # so many more rules are read at the start if policies wait, unless memory is limited


class Rounds:
    """``tell`` is called with the newest Standing whenever it changes."""

    def __init__(
        self,
        context: Context,
        node: str,
        felix: FelixSettings,
        kernel: KernelSide,
        tell: Callable[[Standing], None],
        figures: PolicyFigures | None = None,
        now: Callable[[], float] = time.monotonic,
        rules: RulesInForce | None = None,
    ) -> None:
        dataplane = kernel.filtering.plane
        self._context, self._felix = context, felix
        files, log, state_dir = context.files, context.log, context.settings.state_dir
        figures = figures or PolicyFigures()
        graph = Graph(lambda endpoint: endpoint.node == node, lambda host: host.node == node)
        graph.set_budget(felix.policy_rule_budget, felix.policy_rule_total)
        graph.require_present(needed=context.is_kubernetes_datastore)
        numbers = NumbersFile(state_dir, log, kernel.why_no_recording, keeps=kernel.keeps_numbers)
        self._rules = PlaneRules(dataplane, numbers, context.settings.run_dir)
        goal = self._goal = Goal(self._rules.settings(felix, parse_service_networks(None)))
        self._report = StandingReport(context, node, tell, figures, now, (dataplane.name, dataplane.warning))
        self._enforcer = Enforcer(
            kernel.filtering.kernel, goal, log, figures, before=lambda: numbers.keep(self._numbers_in_force)
        )
        self.guard = StandingGuard(self._enforcer, goal, now, kernel.watch_rules)
        self._departures = Departures(node, kernel.conntrack, files, log, context.settings.run_dir)
        self._interfaces = Interfaces(kernel.watch_addresses)
        self._files = StatusFiles(
            files, log, felix.endpoint_status_prefix, lambda: goal.endpoints.all, self._interfaces.is_up
        )
        self._hearing = Hearing(lambda: speak_to(context.store))
        self.schedule = Schedule(now)
        self._report.rules = rules or self._report.rules
        self._report.rules.begin()
        kept, listeners = (
            LastValid(files, log, state_dir),
            (self._put_workload, self._report.lost.put, self._report.rules.put),
        )
        self.intake = Intake(node, graph, goal, kept, Spared(files, log, state_dir), listeners, now)
        self.intake.mark_mesh(wanted=felix.istio_ambient == "Enabled")
        self._state = EngineState.READING

    def _numbers_in_force(self) -> set[int]:
        return numbers_in((*self._goal.tables.of.values(), *self._enforcer.held.values()))

    # -- what came in -------------------------------------------------------------------------------------------------

    def configure(self, felix: FelixSettings) -> None:
        self._felix = felix
        self.intake.set_budget(felix.policy_rule_budget, felix.policy_rule_total)
        self.intake.mark_mesh(wanted=felix.istio_ambient == "Enabled")
        settings = self._rules.settings(felix, self.intake.service_networks)
        self._goal.configure(replace(settings, ipvs_marks=self._report.surroundings.forwards(felix.mark_mask)))

    def use_tunnels(self, tunnels: Tunnels) -> None:
        self.guard.tunnels = tunnels
        self._goal.use_tunnels(tunnels)
        self._report.lifelines.use_tunnels(tunnels)

    def use_pools(self, pools: frozenset[Network]) -> None:
        """All IP pools: what goes to one stays in the cluster."""
        self._goal.use_pools(pools)

    def use_sessions(self, lifelines: tuple[Lifeline, ...], peers: Mapping[str, str]) -> None:
        """What this node's BGP sessions need from host endpoints; by their interfaces, which workloads are peers."""
        self._report.lifelines.bgp = lifelines
        self._files.use_peers(peers)

    def notice(self, happened: Happened) -> None:
        """Process what the kernel reported."""
        self._report.notice(happened)
        self._interfaces.addresses.notice(happened, self._felix.interface_prefixes)
        if happened.touched_by and self.guard.stands:
            self._enforcer.doubt(", ".join(sorted(happened.touched_by)))
        elif happened.lost and self.guard.stands:
            self._enforcer.compare_lost()
        self._files.notice(happened)
        self._interfaces.notice(happened)

    def receive(self, records: Mapping[ResourceKey, FedRecord], since: float | None = None) -> None:
        """``since``: when (time.monotonic) the first of them came; None: now."""
        networks = self.intake.service_networks
        if records:
            self.schedule.changed(since)
        self.intake.receive(records)
        if self.intake.service_networks != networks:
            self.configure(self._felix)

    def _put_workload(self, key: ResourceKey, record: GraphRecord | None) -> None:
        if key.kind == "WorkloadEndpoint":
            assert record is None or isinstance(record, WorkloadEndpoint | ClaimedEndpoint | Labelled)
            self._departures.put(key, record)

    # -- a round ------------------------------------------------------------------------------------------------------

    def wait_for(self, error: str) -> None:
        """Not everything has been read yet, for this reason ("": it just takes time)."""
        self.schedule.know_now()
        self._report.tell_early(self.guard.describe_early(self._report.standing, self._felix, error))

    def calculate(self) -> bool:
        """Calculate what changed; returns whether it needs other listings, which have to be read before ``once``."""
        needed = self.needs
        forwards = self._report.surroundings.forwards(self._felix.mark_mask)
        if self._rules.are_out_of_date() or forwards != self._goal.settings.ipvs_marks:
            self.configure(self._felix)
        changes = self.intake.flush(self._interfaces.take_changed(), self._report.figures.calculation)
        self._goal.update(changes)
        self._report.rules.note(changes)
        self.intake.offer(self._report.rules.offer)
        addresses = self._interfaces.addresses
        addresses.read_again(self._goal)
        kubelet = self._context.kubernetes is not None
        self._report.lifelines.look_for_cuts(self._goal, self.intake.wanted, changes, addresses.owners, kubelet=kubelet)
        self._files.note(changes.endpoints)
        return needed != self.needs

    @property
    def needs(self) -> OtherNeeds:
        """What else has to be read; enforcement does not begin later because somebody else wants to know more."""
        own = self.intake.facts.needs
        return self._report.rules.needs(own) if self.in_force else own

    def once(
        self,
        left_out: tuple[str, ...] = (),
        unread: str = "",
        unread_kinds: frozenset[str] = frozenset(),
        *,
        everybody: bool = False,
        waiting: tuple[str, ...] = (),
    ) -> None:
        """Put what is known into force, if it is to be enforced. Only call it once everything has been read.

        ``unread`` says what could not be read that rules have needed since then; it does not hold up the rest, but
        policies that could allow too much without it deny (``unread_kinds``: its kinds). ``everybody``: all nodes'
        endpoints are known. ``waiting``: for memory.
        """
        self._goal.wait_for(self.intake.sets_of(unread_kinds), f"its rules need what is not known: {unread}")
        self.intake.keep_last_valid()
        self._report.figures.workload_endpoints = self._departures.owners.count if everybody else None
        gate, failing, before = decide(self._facts()), unread, self._state
        try:
            if not self._enforcer.looked:  # a decision that needs nothing from the kernel holds even if this fails
                if self._look():
                    return  # what their rules need has to be read first
                gate = decide(self._facts())
            self.intake.keep_spared()
            if gate.police:
                self._police(RoundOutcome.LACKING if unread else RoundOutcome.APPLIED)
            else:
                self._leave(gate)
            self.schedule.succeeded()
        except CalicoError as e:
            failing = str(e)
            self._turn(RoundOutcome.REFUSED if gate.police else RoundOutcome.UNWANTED)
            self._report.figures.failures += 1
            self.schedule.failed()
        self._report.tell(self._result(gate, failing, left_out, waiting))
        if begins(before, self._state):  # everybody has been told: free the memory that the start needed
            self._enforcer.forget_cached()
            give_back_memory()

    def pause(self, *, slices: bool = False, longest_s: float = float("inf")) -> Pause:
        """How long the thread may wait if nothing happens. ``slices``: a large change is made ready."""
        return self.schedule.pause(
            next_look=self.guard.next_look,
            slices=slices,
            removes=self.intake.facts.is_behind,
            audits=self._enforcer.audit.is_running,
            longest_s=longest_s,
        )

    @property
    def waits_to_retry(self) -> bool:
        """Whether the last round failed and it is not yet time for the next."""
        return self.schedule.waits_to_retry()

    @property
    def in_force(self) -> bool:
        return self._state.in_force

    @property
    def is_starting(self) -> bool:
        """Nothing is in force, and the node is not ready without it."""
        return not (self.in_force or self._report.standing.ready)

    def stop(self) -> None:
        """Stop the threads that run beside the rounds; the policies in force stay."""
        for beside in (self._departures, self._hearing, self._report):
            beside.stop()

    def _facts(self) -> GateFacts:
        is_there = self._enforcer.is_there
        return GateFacts(
            enabled=self._felix.policy_enforcement == "Enabled",
            has_kubernetes=self._context.kubernetes is not None,
            is_kubernetes_datastore=self._context.is_kubernetes_datastore,
            has_namespace_profile=self.intake.has_namespace_profile,
            policies=len(self.intake.policies) + len(self._goal.hosts.all),
            is_policing=is_there,
            missing_profiles=() if is_there else self.intake.facts.missing_profiles,
            held="" if is_there or self._felix.takeover_with_ipvs else self._why_upstream_stays(),
        )

    def _why_upstream_stays(self) -> str:
        return self._report.surroundings.why_upstream_stays(self._felix.mark_mask)

    def _look(self) -> bool:
        """Learn what an earlier run left; returns whether its policies need other listings."""
        stand_ins = self._stand_ins()
        more_rules = sum(self.intake.facts.over.all_denied.values())
        if stand_ins and not (self._felix.policy_memory_mib or read_limited_groups()):
            more_rules += _KEPT_RULES
        chains = self.intake.chains_over_budget(stand_ins)
        found = self._enforcer.look(Deadline.after(APPLY_S), more_rules, stand_ins, chains)
        self._rules.numbers.go_past(lambda: numbers_in(self._enforcer.held.values()))
        self._departures.begin(() if self._context.is_kubernetes_datastore else self._files.read_all())
        return self.intake.spare(found, stand_ins) and self.calculate()

    def _stand_ins(self) -> set[PolicyId]:
        return {name for name, policy in self._goal.policies.items() if is_waiting(policy)}

    def _turn(self, outcome: RoundOutcome) -> None:
        """If policies come into force with it, the log tells owners what has changed for them, unless policies were
        enforced before.
        """
        before, self._state = self._state, NEXT[outcome][self._state]
        if begins(before, self._state):
            if not self._enforcer.was_policed:
                self._report.announce(self._goal)
            self._enforcer.was_policed = True

    def _police(self, outcome: RoundOutcome) -> None:
        goal = self._goal
        interval_s = self._rules.refresh_s(self._felix) or (_FORGIVE_S if goal.refused else float("inf"))
        at_once = not self.in_force or bool(goal.refused.essential())
        if self.schedule.compares_all(interval_s, at_once=at_once):
            self._enforcer.compare_all(whole=bool(goal.lacking or goal.refused) or not self.in_force)
            goal.forgive()
        self._enforcer.compare_on()
        self._departures.before_change()
        self._rules.numbers.in_use = True
        self._enforcer.only(None)
        if self._goal.tables.kept:
            self._enforcer.keep(self._stand_ins())
        self._enforcer.repair(Deadline.after(APPLY_S + self._enforcer.rewriting_s()))
        waited_s = self.schedule.waited_s()
        if waited_s is not None:
            self._report.figures.change.observe(waited_s)
        self.guard.with_policies()
        self._turn(outcome)
        self._report.rules.applied(self.intake.wanted)
        self._hearing.keep(hosts=bool(goal.hosts.all), lost=self._departures.after_change())
        self._files.keep()

    def _leave(self, gate: Gate) -> None:
        """No policy is enforced: remove what an earlier run enforced, unless that is only unknown so far. The standing
        rules stay, or come into force.

        If no policy is to be enforced, there is nothing to wait for, and the status files say so.
        """
        was_there = self._enforcer.is_there
        self._rules.numbers.in_use = False
        self._turn(RoundOutcome.UNWANTED)
        self._report.rules.lifted()
        self.schedule.compare_no_more()
        self.schedule.nothing_waits()
        self.guard.stand_or_leave(self._felix, self._rules.refresh_s(self._felix))
        if gate.ready and was_there and not self._enforcer.is_there:
            self._enforcer.was_policed = False
        if gate.ready:
            self._hearing.keep(hosts=False)
            self._departures.forget()
            self._files.keep()
        else:
            self._files.clear()

    def _result(self, gate: Gate, failing: str, left_out: tuple[str, ...], waiting: tuple[str, ...]) -> RoundResult:
        intake = self.intake
        return RoundResult(
            gate,
            self.guard.describe(Standing(), self._felix, policed=self.in_force),
            self.in_force,
            failing,
            self._felix,
            self._goal,
            intake.facts,
            intake.policies,
            intake.count(),
            intake.select_governing,
            self._enforcer.count,
            intake.warnings,
            left_out,
            waiting,
            (*intake.troubles, *filter(None, (self._rules.numbers.trouble,))),
            self._departures.trouble,
            self._rules.report,
        )
