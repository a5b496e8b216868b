"""The order in which a driver is told what changes.

Rule: a message names only what has come before it and has not been removed. Sets come first, then policies, profiles
and endpoints; what is not needed any more goes in reverse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.driver.cluster import OTHER, ROUTE, VTEP, Fact, FactName
from cni_calico.nodeagent.driver.messages import encode_host, encode_host_removal
from cni_calico.nodeagent.sync.known import EndpointName, less
from cni_calico.nodeagent.sync.messages import (
    PROFILE,
    encode_endpoint,
    encode_endpoint_removal,
    encode_policy,
    encode_policy_removal,
    encode_set,
    encode_set_change,
    encode_set_removal,
)
from cni_calico.policy.wanted import (
    Members,
    PolicyId,
    SetChange,
    WantedChanges,
    WantedClass,
    WantedEndpoint,
    WantedHost,
    WantedHostClass,
    WantedPolicy,
)


def name_of(endpoint: WantedEndpoint) -> EndpointName:
    return endpoint.orchestrator, endpoint.workload, endpoint.endpoint


class DriverStream:
    """``receive`` gives the messages of a change; they count as told."""

    def __init__(self) -> None:
        self.endpoints: dict[ResourceKey, WantedEndpoint] = {}
        self.hosts: dict[ResourceKey, WantedHost] = {}
        self._sets: set[str] = set()
        self._policies: set[PolicyId] = set()
        self._classes: dict[str, WantedClass] = {}
        self._host_classes: dict[str, WantedHostClass] = {}
        self._facts: dict[FactName, Fact] = {}

    def receive(self, changes: WantedChanges) -> Iterator[bytes]:
        self._classes |= _present(changes.classes)
        self._host_classes |= _present(changes.host_classes)
        for name, members in changes.sets_made.items():
            self._sets.add(name)
            yield from encode_set(name, members)
        for name, change in changes.sets_changed.items():
            yield from encode_set_change(name, change)
        policies: dict[PolicyId, WantedPolicy] = _present(changes.policies)
        for policy in sorted(policies, key=_profiles_last):
            self._policies.add(policy)
            yield encode_policy(policies[policy])
        yield from self._endpoints(changes.endpoints)
        yield from self._hosts(changes.hosts)
        gone = {policy for policy, wanted in changes.policies.items() if wanted is None} & self._policies
        for policy in sorted(gone, key=_profiles_last, reverse=True):
            self._policies.discard(policy)
            yield encode_policy_removal(policy)
        for name in sorted(changes.sets_removed & self._sets):
            self._sets.discard(name)
            yield encode_set_removal(name)
        for known, changed in ((self._classes, changes.classes), (self._host_classes, changes.host_classes)):
            _forget(known, changed)

    def _endpoints(self, changes: Mapping[ResourceKey, WantedEndpoint | None]) -> Iterator[bytes]:
        """An endpoint has its name from its workload: another record may have the name of one that goes."""
        before = [self.endpoints.pop(key) for key in changes if key in self.endpoints]
        for key, endpoint in _present(changes).items():
            self.endpoints[key] = endpoint
            yield encode_endpoint(endpoint, self._classes[endpoint.class_id])
        there = {name_of(endpoint) for endpoint in self.endpoints.values()} if before else set()
        for endpoint in before:
            if name_of(endpoint) not in there:
                yield encode_endpoint_removal(endpoint)

    def _hosts(self, changes: Mapping[ResourceKey, WantedHost | None]) -> Iterator[bytes]:
        for key, host in changes.items():
            before = self.hosts.pop(key, None)
            if host is not None:
                self.hosts[key] = host
                yield encode_host(host, self._host_classes[host.class_id])
            elif before is not None:
                yield encode_host_removal(before)

    def become(self, facts: Mapping[FactName, Fact]) -> Iterator[bytes]:
        """What is known of the cluster besides policy is this now. A tunnel's end comes before the routes over it, and
        goes after them.
        """
        before, self._facts = self._facts, dict(facts)
        for kind in (ROUTE, VTEP):
            yield from _removals(before, facts, kind)
        for kind in (VTEP, ROUTE, OTHER):
            for name, (update, _) in facts.items():
                if name[0] == kind and (name not in before or before[name][0] != update):
                    yield update
        yield from _removals(before, facts, OTHER)


def _removals(before: Mapping[FactName, Fact], facts: Mapping[FactName, Fact], kind: str) -> Iterator[bytes]:
    for name, (_, removal) in before.items():
        if name[0] == kind and name not in facts and removal:
            yield removal


def _profiles_last(policy: PolicyId) -> tuple[bool, str]:
    return policy.kind == PROFILE, str(policy)


def _present(changes: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: value for key, value in changes.items() if value is not None}


def _forget(known: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for name, value in changes.items():
        if value is None:
            known.pop(name, None)


# -- changes that wait for others -------------------------------------------------------------------------------------


def join_changes(first: WantedChanges, then: WantedChanges) -> WantedChanges:
    """Both as one: nobody is told what lies between."""
    made, changed = dict(first.sets_made), dict(first.sets_changed)
    removed = set(first.sets_removed)
    for name in then.sets_removed:
        made.pop(name, None)
        changed.pop(name, None)
        removed.add(name)
    for name, members in then.sets_made.items():
        made[name] = members
        removed.discard(name)
    for name, change in then.sets_changed.items():
        if name in made:
            made[name] = _with_change(made[name], change)
        else:
            changed[name] = _both(changed[name], change) if name in changed else change
    return replace(
        then,
        sets_made=made,
        sets_changed=changed,
        sets_removed=frozenset(removed),
        policies={**first.policies, **then.policies},
        classes={**first.classes, **then.classes},
        endpoints={**first.endpoints, **then.endpoints},
        host_classes={**first.host_classes, **then.host_classes},
        hosts={**first.hosts, **then.hosts},
    )


def _with_change(members: Members, change: SetChange) -> Members:
    return _union(less(members, change.removed), change.added)


def _both(first: SetChange, then: SetChange) -> SetChange:
    """What came and went again is in neither part."""
    added = _union(less(first.added, then.removed), less(then.added, first.removed))
    removed = _union(less(first.removed, then.added), less(then.removed, first.added))
    return SetChange(added, removed)


def _union(one: Members, other: Members) -> Members:
    return Members(one.addresses | other.addresses, one.nets | other.nets, one.ports | other.ports)
