"""The records of policy, as far as a driver is to know them: what has changed in what is wanted since it was told.

Rule: the packet filter's limits hold here, too: the budget of rules, the limit of memory, the turns of namespaces, last
valid versions. Changes that need what is not read yet wait together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cni_calico.model.keys import BGP_DEFAULT, ResourceKey
from cni_calico.model.resources import Resource
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.driver.stream import join_changes
from cni_calico.nodeagent.policing.engine import PolicyEngine
from cni_calico.nodeagent.policing.feed.changes import FedRecord
from cni_calico.nodeagent.policing.feed.incoming import Incoming
from cni_calico.nodeagent.policing.feed.intake import Intake
from cni_calico.nodeagent.policing.feed.shares import Taken
from cni_calico.nodeagent.policing.feed.spared import Spared
from cni_calico.nodeagent.policing.feed.turns import Turns
from cni_calico.nodeagent.policing.report.problems import describe_problems
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.view.last_valid import LastValid
from cni_calico.policy.flushed import GraphFacts
from cni_calico.policy.graph import Graph
from cni_calico.policy.nodes import GraphRecord
from cni_calico.policy.wanted import WantedChanges


class DriverRecords:
    """For the engine's thread. ``intake``: what has come in."""

    def __init__(
        self, context: Context, node: str, felix: FelixSettings, incoming: Incoming, engine: PolicyEngine
    ) -> None:
        files, log, state_dir = context.files, context.log, context.settings.state_dir
        graph = Graph(lambda endpoint: endpoint.node == node, lambda host: host.node == node)
        self._goal = Goal(FilterSettings())  # only what a large change needs is made in it, ahead of it
        kept, spared = LastValid(files, log, state_dir), Spared(files, log, state_dir)
        self.bgp: Mapping[str, Any] = {}  # the BGPConfiguration's spec
        self.intake = Intake(node, graph, self._goal, kept, spared, (engine.rules.put, self._note))
        self._feed, self._memory, self._turns = incoming.feed, incoming.memory, Turns(incoming.memory)
        self._rules, self._figures = engine.rules, engine.figures
        self._waiting: WantedChanges | None = None
        self.intake.bound_members(self._memory.admits_members)
        self._rules.begin()
        self.configure(felix)

    def _note(self, key: ResourceKey, record: GraphRecord | None) -> None:
        if key == BGP_DEFAULT:
            self.bgp = record.spec if isinstance(record, Resource) else {}

    def configure(self, felix: FelixSettings) -> None:
        self.intake.set_budget(felix.policy_rule_budget, felix.policy_rule_total)
        self._memory.configure(felix.policy_memory_mib)

    def step(self, *, told: bool) -> tuple[bool, Taken[FedRecord]]:
        """Take in what has come. ``told``: the driver knows a state. Returns whether everything has been read that the
        rules need, and what has been taken, for ``end``.
        """
        synced = self._feed.synced  # asked first: what was read until then is taken below
        taken = self._take(everything=not told, synced=synced)
        if synced or told:
            self._calculate()
            synced = self._feed.need(self._rules.needs(self.facts.needs)) and synced
        return synced, taken

    def end(self, taken: Taken[FedRecord]) -> bool:
        """Of a step; returns whether more waits for its turn."""
        self._turns.charge(taken)
        return bool(self._turns)

    def take_changes(self) -> WantedChanges | None:
        """What the driver is to be told now."""
        changes, self._waiting = self._waiting, None
        return changes

    def told(self) -> None:
        """It has been told everything."""
        self.intake.keep_last_valid()
        self._rules.applied(self.intake.wanted)

    def _take(self, *, everything: bool, synced: bool) -> Taken[FedRecord]:
        intake = self.intake
        taken = self._turns.take(self._feed, intake.ahead, everything=everything, synced=synced)
        intake.receive(taken.changes)
        for key, nets in self._memory.take_unread_sets().items():
            intake.hold_back(key, nets)
        self._figures.waiting_for_memory = self._memory.waiting(intake.facts.waiting)
        for due in (self._memory.next_due(), intake.reconsider()):
            if due is not None:
                self._feed.read_again(due)
        return taken

    def _calculate(self) -> None:
        changes = self.intake.flush({}, self._figures.calculation)
        self._rules.note(changes)
        self.intake.offer(self._rules.offer)
        if changes:
            self._waiting = changes if self._waiting is None else join_changes(self._waiting, changes)

    def stop(self) -> None:
        self._feed.stop()

    # -- for the status -----------------------------------------------------------------------------------------------

    @property
    def facts(self) -> GraphFacts:
        """Of the whole, as of the last step."""
        return self.intake.facts

    @property
    def error(self) -> str:
        """Why what is known is not kept up to date, "" if it is."""
        return self._feed.error

    @property
    def unread(self) -> str:
        """What changes wait for, "" if none wait."""
        return "" if self._waiting is None else self._feed.unread

    def problems(self) -> tuple[str, ...]:
        return describe_problems(self.facts, self._goal)

    def warnings(self) -> tuple[str, ...]:
        """Besides those of policies."""
        return (*self._feed.left_out, *self._turns.problems())
