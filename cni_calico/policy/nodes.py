"""PURE: the nodes of the graph, and which record goes where.

Rule: what a kind's records become, and which node gets them, is a table; a record is parsed before any node changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Resource, WorkloadEndpoint
from cni_calico.policy.active import ActivePolicies
from cni_calico.policy.confirmed import ClaimedEndpoint
from cni_calico.policy.endpoints import LocalEndpoints
from cni_calico.policy.hosts import HostRecord, LocalHosts, parse_host
from cni_calico.policy.memberless import MemberlessSets
from cni_calico.policy.records import (
    POLICY_KINDS,
    Labelled,
    PolicyRecord,
    ProfileRecord,
    ServiceMembers,
    TierRecord,
    labelled_network_set,
    labelled_workload,
    parse_policy,
    parse_profile,
    parse_tier,
    policy_id,
    require_interface,
)
from cni_calico.policy.sets import NETWORK_SETS, NODE, Sets
from cni_calico.policy.wanted import PolicyId

GraphRecord = (
    Resource
    | WorkloadEndpoint
    | ClaimedEndpoint
    | ServiceMembers
    | PolicyRecord
    | Labelled
    | HostRecord
    | ProfileRecord
    | TierRecord
)
SLICE, WORKLOADS, HOSTS = "EndpointSlice", "WorkloadEndpoint", "HostEndpoint"
_NAMING_PROFILES = (WORKLOADS, HOSTS)

# kind -> what makes a node's form of the stored record; the others come in their form
_PARSERS: Mapping[str, Callable[[ResourceKey, Resource], GraphRecord]] = {
    **dict.fromkeys(POLICY_KINDS, parse_policy),
    **dict.fromkeys(NETWORK_SETS, labelled_network_set),
    "Profile": parse_profile,
    "Tier": lambda _, record: parse_tier(record),
    HOSTS: lambda _, record: parse_host(record),
}


class GraphNodes:
    """``claimed``: endpoints with only those of their addresses that count. ``changed_rules``: policies whose records
    have changed, in force or not; ``profiles_moved``: profiles have, or who names them. The graph empties both.
    """

    def __init__(
        self,
        is_local: Callable[[WorkloadEndpoint], bool],
        is_local_host: Callable[[HostRecord], bool],
        *,
        alone: bool,
        members: bool = True,
    ) -> None:
        self.active = ActivePolicies()
        self.endpoints = LocalEndpoints(self.active, alone=alone)
        self.hosts = LocalHosts(self.active)
        self.sets = Sets() if members else MemberlessSets()
        self.claimed: dict[ResourceKey, WorkloadEndpoint] = {}
        self.changed_rules: set[PolicyId] = set()
        self.profiles_moved = False
        self._is_local, self._is_local_host = is_local, is_local_host
        self._nodes: Mapping[str, Callable[[ResourceKey, Any], None]] = {
            **dict.fromkeys(POLICY_KINDS, self._set_policy),
            **dict.fromkeys(NETWORK_SETS, self.sets.set_item),
            "Profile": self._set_profile,
            "Tier": lambda key, tier: self.active.set_tier(key.name, tier),
            HOSTS: self._set_host,
            WORKLOADS: self._set_workload,
            SLICE: self.sets.set_slice,
            NODE: self.sets.set_item,
        }

    def put(self, key: ResourceKey, record: GraphRecord | None) -> None:
        """None: it does not exist (any more). Kinds that are not in the tables are ignored. Raises Wrong."""
        self.profiles_moved = self.profiles_moved or key.kind in _NAMING_PROFILES
        node = self._nodes.get(key.kind)
        if isinstance(record, Resource):
            parse = _PARSERS.get(key.kind)
            record, node = (None, None) if parse is None else (parse(key, record), node)
        if node is not None:
            node(key, record)

    def _set_workload(self, key: ResourceKey, record: WorkloadEndpoint | ClaimedEndpoint | Labelled | None) -> None:
        if isinstance(record, Labelled):  # another node's
            self.endpoints.put(key, None)
            self.claimed.pop(key, None)
            self.sets.set_item(key, record)
            return
        counting: WorkloadEndpoint | None = None  # with the addresses that are members of sets, if these are not all
        if isinstance(record, ClaimedEndpoint):
            counting = replace(record.record, ip_networks=record.confirmed)
            record = record.record
        is_local = record is not None and self._is_local(record)
        if record is not None and is_local:
            require_interface(record)
        self.endpoints.put(key, record if is_local else None)
        if counting is None:
            self.claimed.pop(key, None)
        else:
            self.claimed[key] = counting
        counting = counting or record
        self.sets.set_item(key, None if counting is None else labelled_workload(counting))

    def _set_host(self, key: ResourceKey, record: HostRecord | None) -> None:
        self.hosts.put(key, record if record is not None and self._is_local_host(record) else None)
        self.sets.set_item(key, None if record is None else record.labelled)

    def _set_profile(self, key: ResourceKey, profile: ProfileRecord | None) -> None:
        self.sets.set_profile(key.name, None if profile is None else profile.labels)
        self.active.set_profile(key.name, profile)
        self.changed_rules.add(PolicyId("Profile", key.name))
        self.profiles_moved = True

    def _set_policy(self, key: ResourceKey, policy: PolicyRecord | None) -> None:
        name = policy_id(key)
        self.active.set_policy(name, policy)
        self.changed_rules.add(name)

    def records(self) -> Iterator[tuple[ResourceKey, GraphRecord]]:
        """The last valid version of each record that takes part."""
        active = self.active
        keys = {
            *(ResourceKey(name.kind, name.name, name.namespace) for name in active.policies),
            *(ResourceKey("Profile", name) for name in active.profiles),
            *(ResourceKey("Tier", name) for name in active.tiers),
            *self.endpoints.keys(),
            *self.hosts.keys(),
            *self.sets.keys(),
        }
        for key in keys:
            record = self.last_valid(key)
            if record is not None:
                yield key, record

    def last_valid(self, key: ResourceKey) -> GraphRecord | None:
        """The last valid version of a record; ``put`` accepts it, also in a later run."""
        if key.kind in POLICY_KINDS:
            return self.active.policies.get(policy_id(key))
        if key.kind == "Profile":
            return self.active.profiles.get(key.name)
        if key.kind == "Tier":
            return self.active.tiers.get(key.name)
        return self.claimed.get(key) or self.endpoints.record(key) or self.hosts.record(key) or self.sets.held(key)
