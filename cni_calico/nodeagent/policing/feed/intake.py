"""Puts the records that came in into the graph, and notes what the gate and the metrics want to know about them.

Rule: a record that cannot be read keeps its last valid version, also over a restart; whoever else listens to records
hears exactly what the graph gets, in the same order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from cni_calico.model.keys import BGP_DEFAULT, ResourceKey
from cni_calico.model.resources import Resource
from cni_calico.netfilter.tables import TableId
from cni_calico.nodeagent.policing.feed.ahead import MOST_REMOVED, MadeAhead
from cni_calico.nodeagent.policing.feed.changes import FedRecord, PutAside, Refusal, Undecoded, Unread
from cni_calico.nodeagent.policing.feed.parameters import parse_service_networks
from cni_calico.nodeagent.policing.feed.spared import Spared, chains_of, chains_over_budget
from cni_calico.nodeagent.policing.gate import NAMESPACE_PROFILE
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.status.policing import Durations
from cni_calico.nodeagent.view.last_valid import LastValid
from cni_calico.policy.endpoints import PresentInterface
from cni_calico.policy.flushed import GraphFacts
from cni_calico.policy.graph import Graph
from cni_calico.policy.nodes import GraphRecord
from cni_calico.policy.records import POLICY_KINDS, Labelled
from cni_calico.policy.sets import AdmitsMembers
from cni_calico.policy.wanted import PolicyId, Wanted, WantedChanges

_COUNTED_KINDS = ("Tier", "Profile", "HostEndpoint")
RecordListener = Callable[[ResourceKey, GraphRecord | None], None]


class Intake:
    """``policies``: those that exist, readable or not. ``service_networks``: of the newest BGPConfiguration.
    ``facts``: what the last flush said of the whole; ``warnings``: of them, what of the policies is not as
    their author may think.
    """

    def __init__(
        self,
        node: str,
        graph: Graph,
        goal: Goal,
        last_valid: LastValid,
        spared: Spared,
        listeners: Sequence[RecordListener],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.policies: set[ResourceKey] = set()
        self.has_namespace_profile = False
        self.service_networks = parse_service_networks(None)
        self.facts = GraphFacts()
        self.warnings: tuple[str, ...] = ()
        self.ahead = MadeAhead(graph, goal)
        self._node, self._now = node, now
        self._graph = graph
        self._last_valid, self._spared = last_valid, spared
        self._listeners = listeners
        self._known: dict[str, set[ResourceKey]] = {kind: set() for kind in _COUNTED_KINDS}
        self._taking_s: float | None = None  # how long it took to take in what is not calculated yet

    @property
    def troubles(self) -> tuple[str, ...]:
        """Why last valid versions may be lost."""
        return self._last_valid.troubles

    def set_budget(self, budget: int, total: int) -> None:
        """Of rules that a policy may need, and that all namespaces' policies may need together."""
        self._graph.set_budget(budget, total)

    def mark_mesh(self, *, wanted: bool) -> None:
        """Whether rules look up which pods are in Istio's mesh."""
        self._graph.mark_mesh(wanted=wanted)

    def bound_members(self, admits: AdmitsMembers) -> None:
        """``admits``: whether there is memory for so many members of sets more than at the last flush."""
        self._graph.bound_members(admits)

    def hold_back(self, key: ResourceKey, nets: int) -> None:
        """A namespace's network set of so many networks cannot be read for lack of memory."""
        self._graph.hold_back(key, nets)

    def reconsider(self) -> ResourceKey | None:
        """Judge anew what waits for memory, from time to time; returns a record that is to be read again."""
        return self._graph.reconsider(self._now())

    def count(self) -> dict[str, int]:
        """The records of each kind."""
        return {kind: len(keys) for kind, keys in self._known.items()} | {"Policy": len(self.policies)}

    def receive(self, records: Mapping[ResourceKey, FedRecord]) -> None:
        """With the versions before it that came in together with a refusal."""
        begun = self._now()
        for key, record in records.items():
            for earlier in record.first if isinstance(record, Refusal) else ():
                assert not isinstance(earlier, PutAside | Undecoded | Unread)  # turns.py has decoded it
                self._receive(key, earlier)
            self._receive(key, record)
        if records:
            self._taking_s = (self._taking_s or 0.0) + self._now() - begun

    def _receive(self, key: ResourceKey, record: FedRecord) -> None:
        if isinstance(record, Refusal):
            if key.kind in POLICY_KINDS:
                self.policies.add(key)  # it exists: a host whose only policy is unreadable must not open
            earlier = self._last_valid.pop(key)
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
            (self.policies.discard if record is None else self.policies.add)(key)
        elif key.kind == "Profile":
            self.has_namespace_profile |= record is not None and key.name.startswith(NAMESPACE_PROFILE)
        elif key == BGP_DEFAULT:
            assert record is None or isinstance(record, Resource)
            self.service_networks = parse_service_networks(None if record is None else record.spec)
        for listen in self._listeners:
            listen(key, record)
        self._graph.put(key, record)

    def offer(self, take: Callable[[Graph], None]) -> None:
        """Hand over the graph, for somebody who only looks."""
        take(self._graph)

    def flush(self, seen: Mapping[str, PresentInterface | None], calculation: Durations) -> WantedChanges:
        """What changed in what is wanted; ``facts`` are of now. ``seen``: this node's interfaces that have changed."""
        begun, before = self._now(), self.facts
        if seen:
            self._graph.see(self._node, seen)
        flushed = self._graph.flush(MOST_REMOVED)
        self.facts = flushed.facts
        if self.facts.warnings != before.warnings:
            self.warnings = self.facts.told_warnings()
        if self._taking_s is not None:
            calculation.observe(self._taking_s + self._now() - begun)
            self._taking_s = None
        return flushed.changes

    # -- what costs as much as everything, and is seldom asked --------------------------------------------------------

    def wanted(self) -> Wanted:
        """Everything that is wanted."""
        return self._graph.wanted()

    def sets_of(self, kinds: frozenset[str]) -> frozenset[str]:
        """The sets in force whose members come from records of these kinds."""
        return self._graph.sets_of(kinds) if kinds else frozenset()

    def select_governing(self, host: Labelled) -> tuple[str, ...]:
        """The policies that select a host endpoint."""
        return self._graph.select_governing(host)

    # -- files --------------------------------------------------------------------------------------------------------

    def keep_last_valid(self) -> None:
        """Everything has been read: a restart finds the last valid versions."""
        versions = self.facts.last_valid
        self._last_valid.keep(versions, versions.get)

    def chains_over_budget(self, stand_ins: Collection[PolicyId]) -> frozenset[str]:
        """Of the policies that deny because of a budget, or may do so in their turn, those that they would have."""
        return chains_over_budget(self._graph) | chains_of(stand_ins)

    def spare(self, found: Mapping[TableId, Mapping[str, int]], stand_ins: Collection[PolicyId]) -> bool:
        """Spare what was in force before. ``found``: how many rules those chains had before any change, in each table.
        Returns whether to flush again.
        """
        return self._spared.begin(self._graph, found, stand_ins)

    def keep_spared(self) -> None:
        """A reboot finds what is spared."""
        self._spared.keep(self._graph)
