"""One round of the policy engine: it takes in changes, decides, puts the result into force and reports it.

Rule: all rounds run in one thread, and nothing here waits for a datastore. If a round fails, what was in force stays,
and the round is tried again, soon at first and then less often.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from cni_calico.backoff import Backoff
from cni_calico.daemon.said import Said
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.kernel.memory import give_back_memory
from cni_calico.kernel.netlink.expressions import forget_cached
from cni_calico.kernel.netlink.filter_events import Happened
from cni_calico.kernel.netlink.nfnetlink import Nfnetlink
from cni_calico.kernel.netlink.nftables import PacketFilter
from cni_calico.log import Log
from cni_calico.model.keys import BGP_DEFAULT, ResourceKey
from cni_calico.model.resources import Resource, WorkloadEndpoint
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.policy.goal import Goal
from cni_calico.nodeagent.dataplane.policy.tunnels import Tunnels
from cni_calico.nodeagent.policing.ahead import MOST_REMOVED, MadeAhead
from cni_calico.nodeagent.policing.announce import describe_policing
from cni_calico.nodeagent.policing.audit import SLICE_S
from cni_calico.nodeagent.policing.changes import FedRecord, Refusal, Undecoded, Unread
from cni_calico.nodeagent.policing.dataplanes import DEFAULT, DataPlane
from cni_calico.nodeagent.policing.departures import Departures
from cni_calico.nodeagent.policing.dispute_events import DisputeEvents
from cni_calico.nodeagent.policing.enforcer import Enforcer
from cni_calico.nodeagent.policing.gate import NAMESPACE_PROFILE, Gate, GateFacts, decide
from cni_calico.nodeagent.policing.guard import StandingGuard
from cni_calico.nodeagent.policing.host_side import HostSide, describe_idle, read_lifelines, speak_to
from cni_calico.nodeagent.policing.interfaces import Interfaces
from cni_calico.nodeagent.policing.parameters import parse_service_networks
from cni_calico.nodeagent.policing.problems import count_goal, describe_problems, describe_spared
from cni_calico.nodeagent.policing.spared import Spared
from cni_calico.nodeagent.policing.status_files import StatusFiles
from cni_calico.nodeagent.policing.surroundings import Surroundings
from cni_calico.nodeagent.policing.unenforced import Unenforced
from cni_calico.nodeagent.status.policing import PolicyFigures, Standing
from cni_calico.nodeagent.view.last_valid import LastValid
from cni_calico.policy.confirmed import ClaimedEndpoint
from cni_calico.policy.graph import Graph, GraphRecord
from cni_calico.policy.records import POLICY_KINDS, Labelled

RETRY_FIRST_S, RETRY_LAST_S, APPLY_S, _FORGIVE_S = 0.2, 30.0, 60.0, 180.0
_COUNTED_KINDS = ("Tier", "Profile", "HostEndpoint")


class Rounds:
    """``tell`` is called with the newest Standing whenever it changes."""

    def __init__(
        self,
        context: Context,
        node: str,
        felix: FelixSettings,
        kernel: PacketFilter,
        conntrack: Nfnetlink | None,
        tell: Callable[[Standing], None],
        watch_rules: Callable[[], None] = lambda: None,
        figures: PolicyFigures | None = None,
        now: Callable[[], float] = time.monotonic,
        watch_addresses: Callable[[], None] = lambda: None,
        dataplane: DataPlane = DEFAULT,
    ) -> None:
        self._context, self._node = context, node
        self._log: Log = context.log
        self._felix, self._tell = felix, tell
        self._watch_rules = watch_rules
        self._dataplane, self._now = dataplane, now
        self._graph = Graph(lambda endpoint: endpoint.node == node, lambda host: host.node == node)
        self._graph.set_budget(felix.policy_rule_budget)
        self._service_networks = parse_service_networks(None)
        self._goal = Goal(dataplane.settings(felix, self._service_networks))
        self.ahead = MadeAhead(self._graph, self._goal)
        self._figures = figures or PolicyFigures()
        self._enforcer = Enforcer(kernel, self._goal, self._log, self._figures)
        self.guard = StandingGuard(self._enforcer, self._goal, now)
        self._files = StatusFiles(
            context.files, self._log, felix.endpoint_status_prefix, lambda: self._goal.endpoints.all
        )
        self._departures = Departures(node, conntrack, context.files, self._log, context.settings.run_dir)
        self._last_valid = LastValid(context.files, self._log, context.settings.state_dir)
        self._spared = Spared(context.files, self._log, context.settings.state_dir)
        self._surroundings, self._interfaces, self._policies = Surroundings(), Interfaces(), set[ResourceKey]()
        self._hosts = HostSide(
            watch_addresses, read_lifelines(context.config), self._log, lambda: speak_to(context.store)
        )
        with_pods = context.is_kubernetes_datastore
        self._dispute_events = DisputeEvents(context.kubernetes_store, self._log, reads_pods=with_pods)
        self._graph.require_present(needed=with_pods)
        self._retry = Backoff(RETRY_FIRST_S, RETRY_LAST_S)
        self._next_retry, self._next_full = float("inf"), 0.0
        self._failing, self._in_force, self._files_due, self._repaired_after = "", False, True, ""
        self._looked = self._was_policed = False  # whether the kernel was asked for our tables; whether they were there
        self.needs_endpoints = self.needs_services = False  # of other nodes
        self._warnings = self._left_out = self._waiting = tuple[str, ...]()
        self._has_namespace_profile, self._governing = False, 0  # policies in the goal
        self._changed_since = float("inf")  # when the oldest change arrived that is not in force
        self._taking_s: float | None = None  # how long it took to take in what is not calculated yet
        self._counted_at = -1  # the number of transactions when the kernel's content was last counted
        self._lost = Unenforced(node)
        self._known: dict[str, set[ResourceKey]] = {kind: set() for kind in _COUNTED_KINDS}
        self._standing, self._said = Standing(), Said(self._log)

    # -- what came in -------------------------------------------------------------------------------------------------

    def configure(self, felix: FelixSettings) -> None:
        self._felix = felix
        self._graph.set_budget(felix.policy_rule_budget)
        self._goal.configure(self._dataplane.settings(felix, self._service_networks))

    def follow_tunnels(self, tunnels: Tunnels) -> None:
        self.guard.tunnels = tunnels
        self._goal.follow_tunnels(tunnels)
        self._hosts.follow_tunnels(tunnels)

    def notice(self, happened: Happened) -> None:
        """Process what the kernel reported."""
        self._surroundings.notice(happened)
        self._hosts.notice(happened, self._felix.interface_prefixes)
        if happened.touched_by and self.guard.stands:
            self._enforcer.doubt()
            self._repaired_after = ", ".join(sorted(happened.touched_by))
        self._files_due = self._files_due or happened.links is None or bool(happened.links)
        self._interfaces.notice(happened)

    def take(self, records: Mapping[ResourceKey, FedRecord], since: float | None = None) -> None:
        """``since``: when (time.monotonic) the first of them came; None: now."""
        begun = self._now()
        if records:
            self._changed_since = min(self._changed_since, begun if since is None else since)
        for key, record in records.items():
            for earlier in record.first if isinstance(record, Refusal) else ():
                assert not isinstance(earlier, Undecoded | Unread)  # turns.py has decoded it
                self._take(key, earlier)
            self._take(key, record)
        if records:
            self._taking_s = (self._taking_s or 0.0) + self._now() - begun

    def _take(self, key: ResourceKey, record: FedRecord) -> None:
        if isinstance(record, Refusal):
            if key.kind in POLICY_KINDS:
                self._policies.add(key)  # it exists: a host whose only policy is unreadable must not open
            earlier = self._last_valid.take(key)
            if earlier is not None and self._graph.last_valid(key) is None:
                self._put(key, earlier)
            self._graph.refuse(key, record.why)
            return
        self._last_valid.drop(key)
        self._put(key, record)

    def _put(self, key: ResourceKey, record: GraphRecord | None) -> None:
        if key.kind in _COUNTED_KINDS:
            (self._known[key.kind].discard if record is None else self._known[key.kind].add)(key)
        if key.kind in POLICY_KINDS:
            (self._policies.discard if record is None else self._policies.add)(key)
        elif key.kind == "Profile":
            self._has_namespace_profile |= record is not None and key.name.startswith(NAMESPACE_PROFILE)
        elif key.kind == "WorkloadEndpoint":
            assert record is None or isinstance(record, WorkloadEndpoint | ClaimedEndpoint | Labelled)
            self._departures.put(key, record)
        elif key == BGP_DEFAULT:
            assert record is None or isinstance(record, Resource)
            self._service_networks = parse_service_networks(None if record is None else record.spec)
            self.configure(self._felix)
        self._lost.put(key, record)
        self._graph.put(key, record)

    # -- a round ------------------------------------------------------------------------------------------------------

    def wait_for(self, error: str) -> None:
        """Not everything has been read yet, for this reason ("": it just takes time)."""
        before, self._standing = self._standing, self.guard.describe_early(self._standing, self._felix, error)
        if before.failing != self._standing.failing:
            self._log.error(self._standing.sentence)
        if before != self._standing:
            self._tell(self._standing)

    def follow(self) -> bool:
        """Calculate what changed; returns whether it needs other listings, which have to be read before ``once``."""
        needed = self.needs_endpoints, self.needs_services
        begun = self._now()
        self._graph.see(self._node, self._interfaces.take_changed())
        changes = self._graph.flush(MOST_REMOVED)
        if self._taking_s is not None:
            self._figures.calculation.observe(self._taking_s + self._now() - begun)
            self._taking_s = None
        self._goal.update(changes)
        self._hosts.follow(self._goal)
        self._hosts.look_for_cuts(self._goal, self._graph, changes, kubelet=self._context.kubernetes is not None)
        self._files_due = self._files_due or bool(changes.endpoints)
        if changes.policies:
            self._governing = sum(1 for policy in self._goal.policies if policy.kind != "Profile")
            self.needs_endpoints = bool(self._graph.selector_sources())
            self.needs_services = bool(self._graph.services())
            warnings = self._graph.warnings().items()
            self._warnings = tuple(sorted(f"{name}: {text}" for name, texts in warnings for text in texts))
        return needed != (self.needs_endpoints, self.needs_services)

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
        self._left_out, self._waiting = left_out, waiting
        self._goal.wait_for(self._graph.sets_of(unread_kinds), f"its rules need what is not known: {unread}")
        self._last_valid.keep(self._graph.problems, self._graph.last_valid)
        self._figures.workload_endpoints = self._departures.owners.count if everybody else None
        gate = decide(self._facts())
        try:
            if not self._looked:  # a decision that needs nothing from the kernel holds even if this fails
                self._enforcer.read(Deadline.after(APPLY_S), sum(self._graph.over_budget.values()))
                self._departures.begin(() if self._context.is_kubernetes_datastore else self._files.read_all())
                self._looked, self._was_policed = True, self._enforcer.is_there
                if self._spared.begin(self._graph, self._enforcer.held) and self.follow():
                    return  # what their rules need has to be read first
                gate = decide(self._facts())
            self._spared.keep(self._graph)
            if gate.police:
                self._police()
            else:
                self._leave(gate)
            self._failing = unread
            self._retry.reset()
            self._next_retry = float("inf")
        except CalicoError as e:
            self._failing = str(e)
            self._figures.failures += 1
            self._next_retry = self._now() + self._retry.next()
            self._next_full = max(self._next_full, self._next_retry)
        self._report(gate)

    def patience_s(self) -> float:
        """How long the thread may wait if nothing happens."""
        if self._graph.is_behind or self._enforcer.audit.is_running:
            wait_s = 0.0 if self._graph.is_behind else SLICE_S  # as long as a slice: half a processor
            return min(wait_s, max(0.0, self._next_retry - self._now()))
        return max(0.0, min(self._next_retry, self._next_full, self.guard.next_look) - self._now())

    @property
    def waits_to_retry(self) -> bool:
        """Whether the last round failed and it is not yet time for the next."""
        return self._now() < self._next_retry < float("inf")

    @property
    def in_force(self) -> bool:
        return self._in_force

    def _facts(self) -> GateFacts:
        return GateFacts(
            enabled=self._felix.policy_enforcement == "Enabled",
            has_kubernetes=self._context.kubernetes is not None,
            is_kubernetes_datastore=self._context.is_kubernetes_datastore,
            has_namespace_profile=self._has_namespace_profile,
            policies=len(self._policies) + len(self._goal.hosts.all),
            is_policing=self._enforcer.is_there,
            missing_profiles=() if self._enforcer.is_there else self._graph.missing_profiles(),
        )

    def _police(self) -> None:
        interval_s = self._dataplane.refresh_s(self._felix) or (_FORGIVE_S if self._goal.refused else float("inf"))
        self._next_full = min(self._next_full, self._now() + interval_s)
        if self._now() >= self._next_full or not self._in_force or self._goal.refused.essential():
            if self._goal.lacking or self._goal.refused or not self._in_force:
                self._enforcer.doubt()
            else:
                self._enforcer.audit.begin()
            self._goal.forgive()
            self._next_full = self._now() + interval_s
        if self._enforcer.compare_on():
            self._repaired_after = self._repaired_after or "somebody"
        figures, repaired_after, found_changed = self._figures, self._repaired_after, self._figures.found_changed
        self._departures.before_change()
        self._enforcer.only(None)
        self._enforcer.bring_about(Deadline.after(APPLY_S))
        if self._changed_since < float("inf"):
            figures.change.observe(self._now() - self._changed_since)
            self._changed_since = float("inf")
        self._repaired_after = ""
        if figures.found_changed > found_changed and repaired_after:
            figures.repairs += 1
            self._log.warning(f"repaired the policies' tables: {repaired_after} had changed them")
        self.guard.with_policies()
        if not self._in_force:
            self._in_force = True
            self._first()
        self._hosts.keep_awake(self._goal, lost=self._departures.after_change())
        self._write_files()

    def _first(self) -> None:
        """Everything is in force: from now on others' changes matter, and the memory that the start needed is freed.

        If no policy was enforced before, the log tells workloads' owners what has changed for them.
        """
        if not self._was_policed:
            endpoints = self._goal.endpoints.all.values()
            for text in describe_policing(self._node, endpoints, self._goal.classes):
                self._log.info(text)
        self._was_policed = True
        self._watch_rules()
        forget_cached()
        give_back_memory()

    def _leave(self, gate: Gate) -> None:
        """No policy is enforced: remove what an earlier run enforced, unless that is only unknown so far. The standing
        rules stay, or come into force.

        If no policy is to be enforced, there is nothing to wait for, and the status files say so.
        """
        was_there, self._in_force, self._next_full = self._enforcer.is_there, False, float("inf")
        if self.guard.follow(self._felix, self._dataplane.refresh_s(self._felix)):
            self._watch_rules()
        if gate.ready and was_there and not self._enforcer.is_there:
            self._was_policed = False
            self._log.warning(f"policies are not enforced any more: {gate.why}")
        if gate.ready:
            self._departures.forget()
            self._write_files()
        else:
            self._files.clear()
            self._files_due = True

    def stop(self) -> None:
        """Stop the threads that run beside the rounds; the policies in force stay."""
        self._departures.stop()
        self._dispute_events.stop()

    def _write_files(self) -> None:
        if not self._files_due and not self._files.were_removed():
            return
        self._files_due = not self._files.update(self._interfaces.is_up)

    # -- told ---------------------------------------------------------------------------------------------------------

    def _count(self) -> None:
        """Count what only the metrics report."""
        figures = self._figures
        figures.records = {kind: len(keys) for kind, keys in self._known.items()} | {"Policy": len(self._policies)}
        figures.selectors = len(self._graph.selector_sources())
        if figures.transactions == self._counted_at:
            return
        self._counted_at = figures.transactions
        figures.in_kernel = self._enforcer.count()

    def _report(self, gate: Gate) -> None:
        self._count()
        standing = Standing(
            decided=True,
            in_force=self._in_force,
            ready=self._in_force or (gate.ready and not gate.police and not self._failing),
            upstream_goes=self._in_force or gate.upstream_goes,
            why_not=gate.why,
            failing=self._failing,
            problems=describe_problems(self._graph, self._goal) + self.guard.problems() + self._waiting,
            warnings=self._warnings + self._left_out + self._troubles() + describe_spared(self._graph),
            lost=self._lost.describe(self._felix, self._policies, self._graph.select_governing),
            counts=count_goal(self._goal, self._graph, len(self._policies), self._governing),
            repairs=self._figures.repairs,
            by=self._dataplane.name,
            guarded=self.guard.guarded(self._felix, policed=self._in_force),
            unguardable="" if gate.police or self._in_force else self.guard.refused,
        )
        self._dispute_events.tell(self._graph.disputes())
        if standing != self._standing:
            self._say(standing)
            self._standing = standing
            self._tell(standing)

    def _troubles(self) -> tuple[str, ...]:
        around = self._last_valid.troubles
        if self._in_force:
            hosts = describe_idle(self._goal, self._graph.missing_host_profiles())
            plane = filter(None, (self._dataplane.warning,))
            around = (*around, *plane, *self._surroundings.warnings(), *hosts, *self._hosts.cuts)
        trouble = self._departures.trouble
        return (*around, f"connections of workloads that are gone may still pass: {trouble}") if trouble else around

    def _say(self, standing: Standing) -> None:
        failing = (standing.failing,) if standing.failing else ()
        self._said.say("standing", sorted({*standing.problems, *standing.warnings, *failing}))
        if (standing.in_force, standing.why_not) != (self._standing.in_force, self._standing.why_not):
            self._log.write("info" if standing.in_force else "warning", standing.sentence)
