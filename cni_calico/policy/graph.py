"""PURE: takes records, in any order, and returns the changes of what is wanted in the kernel.

Rule: the result depends only on the present records, never on the order in which they came. Three exceptions: if a
record is invalid, its last valid version stays in force, and ``problems`` says so; while there is no memory for the
members of what a namespace's policy selects, its rules before stay in force, or it denies (shortage.py); and what
denies for lack of room in the packet filter (room.py) comes back only when it is put again.

    Tier, policies, Profile ------> ActivePolicies --classes, what is in force--> policies, profiles
                                        ^                                              |
    WorkloadEndpoint (this node's) -> LocalEndpoints --> endpoints                     | the sets they name
    HostEndpoint (this node's) ----> LocalHosts -------> hosts                         |
                                                                                       v
    WorkloadEndpoint (all), HostEndpoint, NetworkSet, Profile, EndpointSlice ------> Sets --> members
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from cni_calico.model.documents.fields import Wrong
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.policy.budget import WAITS_FOR_MEMORY, denied
from cni_calico.policy.endpoints import Dispute, PresentInterface
from cni_calico.policy.flushed import Flushed, GraphFacts, OtherNeeds, OverBudget
from cni_calico.policy.hosts import HostRecord
from cni_calico.policy.judged_sizes import JudgedSizes
from cni_calico.policy.mesh import MESH_SOURCE
from cni_calico.policy.nodes import SLICE, WORKLOADS, GraphNodes, GraphRecord
from cni_calico.policy.order import describe_missing_tier
from cni_calico.policy.records import (
    POLICY_KINDS,
    Labelled,
    PolicyRecord,
    policy_id,
)
from cni_calico.policy.sets import NODE, AdmitsMembers, NoRoom
from cni_calico.policy.shortage import Shortage
from cni_calico.policy.sources import NodeSource, ServiceSource, SetSource
from cni_calico.policy.steps import Steps
from cni_calico.policy.wanted import PolicyId, Wanted, WantedChanges, WantedEndpoint, WantedHost, WantedPolicy


class Graph:
    """``put`` each record whenever it changes, then ``flush``. Not for several threads.

    Keys: ResourceKey with the kind of the record; policies of Kubernetes have the kinds "KubernetesNetworkPolicy" and
    "KubernetesClusterNetworkPolicy" (policy/kubernetes.py makes the records), services' endpoints "EndpointSlice";
    a "Node" comes as Labelled.
    Records of other kinds, including staged policies, are ignored. To save memory a caller may pass less than the
    record: for a policy a PolicyRecord, for an endpoint that is not local a Labelled, for a host endpoint a HostRecord.
    """

    def __init__(
        self,
        is_local: Callable[[WorkloadEndpoint], bool],
        is_local_host: Callable[[HostRecord], bool] = lambda _: False,
        *,
        alone: bool = True,
        members: bool = True,
    ) -> None:
        """``alone``: as for LocalEndpoints. ``members`` False: nobody asks for them, so all sets stay empty."""
        self._nodes = GraphNodes(is_local, is_local_host, alone=alone, members=members)
        self._active, self._endpoints = self._nodes.active, self._nodes.endpoints
        self._hosts, self._sets = self._nodes.hosts, self._nodes.sets
        self._problems: dict[ResourceKey, str] = {}
        self._held: dict[PolicyId, Mapping[str, SetSource]] = {}  # the sets needed by what is in force
        self._policies: dict[PolicyId, WantedPolicy] = {}  # as of the last flush
        self.governing = 0  # of them, those that are no profiles
        self._warnings: dict[PolicyId, tuple[str, ...]] = {}  # of them, by their own records
        self._missing_tiers: dict[str, frozenset[PolicyId]] = {}
        self.facts = GraphFacts()  # as of the last flush
        self._ahead: dict[PolicyId, list[str]] = {}  # sets needed by what is made ahead
        self._marks_mesh = False
        self._wanted_endpoints: dict[ResourceKey, WantedEndpoint] = {}
        self._wanted_hosts: dict[ResourceKey, WantedHost] = {}
        self._sizes = JudgedSizes(self._active)
        self.over_budget, self.spared, self.room = self._sizes.over_budget, self._sizes.spared, self._sizes.room
        self._shortage = Shortage(self._sets)

    # -- in -----------------------------------------------------------------------------------------------------------

    def put(self, key: ResourceKey, record: GraphRecord | None) -> None:
        """Note a record; None: it does not exist (any more)."""
        try:
            self._nodes.put(key, record)
        except Wrong as e:
            self._problems[key] = str(e)
        except Exception as e:  # one malformed record must not end the policies of all workloads
            self._problems[key] = f"cannot be understood: {type(e).__name__}: {e}"
        else:
            self._problems.pop(key, None)
            if record is None and key.kind in POLICY_KINDS:
                self.spared.pop(policy_id(key), None)

    def refuse(self, key: ResourceKey, why: str) -> None:
        """A record exists that its reader could not decode: the previous version stays."""
        self._problems[key] = why

    def see(self, node: str, interfaces: Mapping[str, PresentInterface | None]) -> None:
        """Note interfaces of a node that have changed, None for those that are gone."""
        self._endpoints.see(node, interfaces)

    def require_present(self, *, needed: bool = True) -> None:
        """Workloads have their interfaces only once these exist."""
        self._endpoints.require_present(needed=needed)

    # -- out ----------------------------------------------------------------------------------------------------------

    def flush(self, most_removed: int | None = None) -> Flushed:
        """What changed since the last flush, and what is to be known about the whole. ``most_removed``: of sets that
        nothing names any more.
        """
        changes, before = self._flush(most_removed), self.facts
        needs, warnings = before.needs, before.warnings
        missing_tiers = self._active.missing_tiers()
        if changes.policies or missing_tiers != self._missing_tiers:
            self._missing_tiers = missing_tiers
            needs = OtherNeeds(self.selectors > 0, self.services > 0, self.nodes > 0)
            warnings = self._all_warnings()
        missing, missing_host = before.missing_profiles, before.missing_host_profiles
        if self._nodes.profiles_moved:
            missing, missing_host = self.missing_profiles(), self.missing_host_profiles()
            self._nodes.profiles_moved = False
        versions = ((key, self.last_valid(key)) for key in self._problems)
        self.facts = GraphFacts(
            needs,
            warnings,
            self.selectors,
            dict(self._problems),
            {key: version for key, version in versions if version is not None},
            OverBudget(
                self.budget, dict(self.over_budget), dict(self.spared), self.room.total or 0, dict(self.room.without)
            ),
            self.disputes(),
            self.governing,
            missing,
            missing_host,
            self._sets.is_behind,
            self._shortage.waiting(self._policies),
        )
        return Flushed(changes, self.facts)

    def _flush(self, most_removed: int | None) -> WantedChanges:
        moved = self._active.flush()
        classes, host_classes = self._active.classes.flush(), self._active.host_classes.flush()
        in_force = self._active.in_force
        policies: dict[PolicyId, WantedPolicy | None] = {}
        changed: list[tuple[PolicyId, WantedPolicy | None, Mapping[str, SetSource]]] = []
        for name in self._sizes.judge(self._nodes.changed_rules | in_force.changed):
            changed.append((name, *(self._rules(name) if name in in_force.counts else (None, {}))))
        changed.sort(key=lambda one: len(one[2]))  # those with few sets come first
        for name, wanted, sources in changed:
            before = self._policies.get(name)
            if wanted == before:
                self._shortage.forget(name)
            elif wanted is not None and not self._shortage.make_sets(name, wanted, sources):
                if before is not None and self._shortage.reaches_as_before(self._active.policies.get(name)):
                    continue
                wanted, sources = denied(wanted, WAITS_FOR_MEMORY), {}
            self._note_in_force(name, before, wanted)
            if wanted == before:
                continue
            policies[name] = wanted
            for set_id in self._held.pop(name, {}):
                self._sets.release(set_id)
            if wanted is None:
                del self._policies[name]
                self._shortage.forget(name)
            else:
                self._policies[name] = wanted
                self._held[name] = sources
            self._shortage.note_reach(name, None if wanted is None else self._active.policies.get(name))
        self._nodes.changed_rules.clear()
        in_force.changed.clear()
        endpoints = _differing(moved | self._endpoints.changed, self._endpoints.render, self._wanted_endpoints)
        hosts = _differing(moved | self._hosts.changed, self._hosts.render, self._wanted_hosts)
        self._endpoints.changed.clear()
        self._hosts.changed.clear()
        sets = self._sets.flush(most_removed)
        return WantedChanges(sets.made, sets.changed, sets.removed, policies, classes, endpoints, host_classes, hosts)

    def reconsider(self, now: float) -> ResourceKey | None:
        """Of what waits for memory, or for room in the packet filter, what there may be some for now, and is to be put
        again; what only waited for a network set is judged anew at the next flush. ``now``: seconds of any clock.
        """
        due, names = self._shortage.reconsider(now)
        self._nodes.changed_rules.update(names)
        if due is None and (fits := self.room.reconsider(now, self.spared)) is not None:
            return ResourceKey(fits.kind, fits.name, fits.namespace)
        return due

    def _all_warnings(self) -> dict[PolicyId, tuple[str, ...]]:
        found = dict(self._warnings)
        for tier, policies in self._missing_tiers.items():
            for name in policies & self._policies.keys():
                found[name] = (*found.get(name, ()), describe_missing_tier(tier))
        return found

    def _note_in_force(self, name: PolicyId, before: WantedPolicy | None, wanted: WantedPolicy | None) -> None:
        self._warnings.pop(name, None)
        is_profile = name.kind == "Profile"
        self.governing += 0 if is_profile else (wanted is not None) - (before is not None)
        if wanted is not None:
            record = self._active.profiles[name.name] if is_profile else self._active.policies[name]
            if record.warnings:
                self._warnings[name] = record.warnings

    def _rules(self, name: PolicyId) -> tuple[WantedPolicy | None, Mapping[str, SetSource]]:
        if name.kind == "Profile":
            profile = self._active.profiles.get(name.name)
            return (None, {}) if profile is None else (profile.wanted, profile.sources)
        policy = self._active.policies.get(name)
        if policy is None:
            return None, {}
        why = self._sizes.why_denied(name)
        return (denied(policy.wanted, why), {}) if why else (policy.wanted, policy.sources)

    def bound_members(self, admits: AdmitsMembers) -> None:
        """``admits``: whether there is memory for so many members of sets more than at the last flush."""
        self._sets.admits = admits

    def admits_members(self, members: int) -> bool:
        """Whether there is memory for so many more."""
        return self._sets.admits(members)

    def hold_back(self, key: ResourceKey, nets: int) -> None:
        """A namespace's network set, of so many, is too large even to be read; what was known of it stays."""
        self._sets.waiting[key] = nets

    def count_matches(self, key: ResourceKey, item: Labelled) -> int:
        """The sets that it is a member of, or would be."""
        return self._sets.count_matches(key, item)

    def set_budget(self, budget: int, total: int | None = None) -> None:
        """Judge all policies by it. ``total``: as for FilterRoom."""
        if (budget, total) != (self.budget, self.room.total):
            self._sizes.budget, self.room.total = budget, total
            self._nodes.changed_rules |= self._active.policies.keys()

    def spare(self, policies: Mapping[PolicyId, int]) -> None:
        """These count although they are above the budget, as long as they do not become larger."""
        self.spared.update(policies)
        self._nodes.changed_rules |= policies.keys()

    def wanted(self) -> Wanted:
        """Everything that is wanted, as of the last flush. The cost is proportional to the size of everything, so this
        is for the start and for full comparisons.
        """
        return Wanted(
            self._sets.all_members(),
            dict(self._policies),
            dict(self._active.classes.all),
            dict(self._wanted_endpoints),
            dict(self._active.host_classes.all),
            dict(self._wanted_hosts),
        )

    # -- ahead ---------------------------------------------------------------------------------------------------------

    def make_ahead(self, policy: PolicyRecord) -> Steps[bool]:
        """Make the sets that a policy names before it is put, a part at each step; they stay until ``let_go``. Returns
        whether the policy will be in force as it is.
        """
        if not policy.hint and not self._active.applies(policy):
            return False
        self.let_go(policy.id)
        if not self._sizes.admit(policy):
            return False
        held, before = self._ahead.setdefault(policy.id, []), self._sets.made
        for source in policy.sources.values():
            self._sets.need(source)
            held.append(source.id)
            try:
                yield from self._sets.making(source.id)
            except NoRoom:
                if not policy.id.namespace:
                    continue
                self.let_go(policy.id)
                self._shortage.note(policy.id, policy.wanted, self._sets.made - before)
                return False
        return True

    def let_go(self, policy: PolicyId) -> None:
        """The policy has been put and flushed, or will not be."""
        for set_id in self._ahead.pop(policy, ()):
            self._sets.release(set_id)
        self._sizes.let_go(policy)

    def mark_mesh(self, *, wanted: bool) -> None:
        """Whether there is the set of the mesh's pods."""
        if wanted is not self._marks_mesh:
            self._marks_mesh = wanted
            if wanted:
                self._sets.need(MESH_SOURCE)
            else:
                self._sets.release(MESH_SOURCE.id)

    # -- about it -----------------------------------------------------------------------------------------------------

    @property
    def budget(self) -> int | None:
        """Rules of the packet filter that a policy may need; None: any number."""
        return self._sizes.budget

    @property
    def problems(self) -> Mapping[ResourceKey, str]:
        """Records that are invalid, and why. Their last valid version, if there was one, is in force."""
        return self._problems

    def disputes(self) -> tuple[Dispute, ...]:
        """The interfaces that endpoints name which cannot all have them, sorted by name."""
        return tuple(sorted(self._endpoints.disputes.values(), key=lambda dispute: dispute.interface))

    def last_valid(self, key: ResourceKey) -> GraphRecord | None:
        """The last valid version of a record; ``put`` accepts it, also in a later run."""
        return self._nodes.last_valid(key)

    def select_governing(self, host: Labelled) -> tuple[str, ...]:
        """The policies that select a host endpoint."""
        labels = dict(host.labels)
        for name in reversed(host.profiles):
            profile = self._active.profiles.get(name)
            labels = {**(profile.labels if profile else {}), **labels}
        policies = ((name, policy) for name, policy in self._active.policies.items() if name.kind != "Profile")
        return tuple(str(name) for name, policy in policies if not name.namespace and policy.selector.matches(labels))

    @property
    def services(self) -> int:
        """How many sets in force need EndpointSlices. As of the last flush."""
        return self._sets.services

    @property
    def selectors(self) -> int:
        """How many sets in force choose from the endpoints of all nodes. As of the last flush."""
        return self._sets.selectors

    @property
    def nodes(self) -> int:
        """How many sets in force choose from the nodes. As of the last flush."""
        return self._sets.nodes

    def sets_of(self, kinds: frozenset[str]) -> frozenset[str]:
        """The sets in force whose members come from records of these kinds: WorkloadEndpoint, EndpointSlice, Node."""
        found = (source for sources in self._held.values() for source in sources.values())
        return frozenset(source.id for source in found if _kind_of_members(source) in kinds)

    def missing_profiles(self) -> tuple[str, ...]:
        """The profiles that this node's workloads name and that do not exist, sorted."""
        return tuple(sorted(self._endpoints.profiles() - self._active.profiles.keys()))

    def missing_host_profiles(self) -> tuple[str, ...]:
        """The same for this node's host endpoints."""
        return tuple(sorted(self._hosts.profiles() - self._active.profiles.keys()))

    def records(self) -> Iterator[tuple[ResourceKey, GraphRecord]]:
        """The last valid version of each; put into another graph they give the same."""
        return self._nodes.records()

    def policy(self, name: PolicyId) -> PolicyRecord | None:
        """The last valid version of a policy, whether it is in force or not."""
        return self._active.policies.get(name)


def _kind_of_members(source: SetSource) -> str:
    return SLICE if isinstance(source, ServiceSource) else NODE if isinstance(source, NodeSource) else WORKLOADS


Shown = TypeVar("Shown", WantedEndpoint, WantedHost)


def _differing(
    keys: Iterable[ResourceKey], render: Callable[[ResourceKey], Shown | None], told: dict[ResourceKey, Shown]
) -> dict[ResourceKey, Shown | None]:
    """The items whose rendering differs from the one in ``told``, which is updated."""
    changes: dict[ResourceKey, Shown | None] = {}
    for key in keys:
        before, wanted = told.get(key), render(key)
        if wanted == before:
            continue
        changes[key] = wanted
        if wanted is None:
            del told[key]
        else:
            told[key] = wanted
    return changes
