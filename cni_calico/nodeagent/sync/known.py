"""What is in force, as far as workloads that follow it may need it.

Rule: it is the engine's state after each change that came in, whether that came as a change or as a whole. What is sent
to several is encoded once, and only if somebody needs it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.sync.messages import encode_policy, encode_set, encode_set_change
from cni_calico.policy.wanted import (
    Members,
    Packed,
    PackedNet,
    PackedPort,
    PolicyId,
    SetChange,
    Wanted,
    WantedChanges,
    WantedClass,
    WantedEndpoint,
    WantedPolicy,
)

ChangedKey = TypeVar("ChangedKey")
ChangedValue = TypeVar("ChangedValue")
EndpointName = tuple[str, str, str]  # orchestrator, workload, endpoint
_CHANGES, _CHANGED_MEMBERS = 32, 20_000  # of a set that are kept for those that lag


@dataclass(slots=True)
class KnownPolicy:
    """A policy or profile; another version of it is another object."""

    wanted: WantedPolicy
    set_ids: frozenset[str]
    _message: bytes | None = None

    def message(self) -> bytes:
        if self._message is None:
            self._message = encode_policy(self.wanted)
        return self._message


@dataclass(slots=True)
class _SetStep:
    """A set's change from one version to the next."""

    before: int
    change: SetChange
    messages: tuple[bytes, ...] | None = None


@dataclass(slots=True)
class KnownSet:
    """``version`` is no other set's, and never the same again."""

    name: str
    version: int
    addresses: set[Packed] = field(default_factory=set)
    nets: set[PackedNet] = field(default_factory=set)
    ports: set[PackedPort] = field(default_factory=set)
    _steps: deque[_SetStep] = field(default_factory=deque)
    _stepped: int = 0  # members in them
    _whole: tuple[bytes, ...] | None = None

    def members(self) -> Members:
        return Members(frozenset(self.addresses), frozenset(self.nets), frozenset(self.ports))

    def step(self, version: int, change: SetChange) -> None:
        more, less = change.added, change.removed
        self.addresses -= less.addresses
        self.addresses |= more.addresses
        self.nets -= less.nets
        self.nets |= more.nets
        self.ports -= less.ports
        self.ports |= more.ports
        self._steps.append(_SetStep(self.version, change))
        self._stepped += _size(change)
        while self._steps and (len(self._steps) > _CHANGES or self._stepped > _CHANGED_MEMBERS):
            self._stepped -= _size(self._steps.popleft().change)
        self.version, self._whole = version, None

    def since(self, version: int | None) -> Iterator[bytes]:
        """What a reader that has this version needs; None: it does not have the set."""
        if version == self.version:
            return
        known = next((place for place, step in enumerate(self._steps) if step.before == version), None)
        if known is None:
            if self._whole is None:
                self._whole = tuple(encode_set(self.name, self.members()))
            yield from self._whole
            return
        for step in islice(self._steps, known, None):
            if step.messages is None:
                step.messages = tuple(encode_set_change(self.name, step.change))
            yield from step.messages


def _size(change: SetChange) -> int:
    return sum(len(one.addresses) + len(one.nets) + len(one.ports) for one in (change.added, change.removed))


class KnownPolicies:
    """Also sets and endpoints. ``ready``: it is the engine's state."""

    def __init__(self) -> None:
        self.ready = False
        self.policies: dict[PolicyId, KnownPolicy] = {}
        self.sets: dict[str, KnownSet] = {}
        self.classes: dict[str, WantedClass] = {}
        self._endpoints: dict[ResourceKey, WantedEndpoint] = {}
        self._named: dict[EndpointName, ResourceKey] = {}
        self._version = 0
        self._asking: frozenset[EndpointName] | None = None

    def asking(self) -> frozenset[EndpointName]:
        """The endpoints to which rules that ask something of requests apply."""
        if self._asking is None:
            policies = {
                name for name, one in self.policies.items() if any(rule.http for rule in one.wanted.ingress or ())
            }
            classes = {name for name, its in self.classes.items() if not policies.isdisjoint(its.policy_ids())}
            found = (_name(one) for one in self._endpoints.values() if one.class_id in classes)
            self._asking = frozenset(found)
        return self._asking

    def endpoint(self, name: EndpointName) -> tuple[WantedEndpoint, WantedClass] | None:
        key = self._named.get(name)
        if key is None:
            return None
        endpoint = self._endpoints[key]
        return endpoint, self.classes[endpoint.class_id]

    def needs(self, its: WantedClass) -> tuple[dict[PolicyId, KnownPolicy], set[str]]:
        """The policies, profiles and sets of a class."""
        policies = {name: self.policies[name] for name in sorted(its.policy_ids(), key=str)}
        return policies, set().union(*(policy.set_ids for policy in policies.values()))

    def become(self, wanted: Wanted) -> None:
        """Everything that is in force now."""
        made = {name: members for name, members in wanted.sets.items() if name not in self.sets}
        changed = {name: _difference(self.sets[name], wanted.sets[name]) for name in self.sets.keys() & wanted.sets}
        self.receive(
            WantedChanges(
                sets_made=made,
                sets_changed=changed,
                sets_removed=frozenset(self.sets.keys() - wanted.sets),
                policies=_differing({name: one.wanted for name, one in self.policies.items()}, wanted.policies),
                classes=_differing(self.classes, wanted.classes),
                endpoints=_differing(self._endpoints, wanted.endpoints),
            )
        )
        self.ready = True

    def receive(self, changes: WantedChanges) -> None:
        """These have come into force since."""
        self._version += 1
        if changes.policies or changes.classes or changes.endpoints:
            self._asking = None
        for name in changes.sets_removed:
            self.sets.pop(name, None)
        for name, members in changes.sets_made.items():
            self.sets[name] = KnownSet(
                name, self._version, set(members.addresses), set(members.nets), set(members.ports)
            )
        for name, change in changes.sets_changed.items():
            if _size(change):
                self.sets[name].step(self._version, change)
        for policy, wanted in changes.policies.items():
            if wanted is None:
                self.policies.pop(policy, None)
            else:
                set_ids = frozenset(name for rule in wanted.rules() for name in rule.set_ids())
                self.policies[policy] = KnownPolicy(wanted, set_ids)
        for class_id, its in changes.classes.items():
            if its is None:
                self.classes.pop(class_id, None)
            else:
                self.classes[class_id] = its
        self._receive_endpoints(changes.endpoints)

    def _receive_endpoints(self, endpoints: Mapping[ResourceKey, WantedEndpoint | None]) -> None:
        for key in endpoints:
            before = self._endpoints.pop(key, None)
            if before is not None and self._named.get(_name(before)) == key:
                del self._named[_name(before)]
        for key, endpoint in endpoints.items():
            if endpoint is not None:
                self._endpoints[key] = endpoint
                self._named[_name(endpoint)] = key


def _name(endpoint: WantedEndpoint) -> EndpointName:
    return endpoint.orchestrator, endpoint.workload, endpoint.endpoint


def _difference(known: KnownSet, wanted: Members) -> SetChange:
    before = known.members()
    return SetChange(less(wanted, before), less(before, wanted))


def less(one: Members, other: Members) -> Members:
    return Members(one.addresses - other.addresses, one.nets - other.nets, one.ports - other.ports)


def _differing(
    known: Mapping[ChangedKey, ChangedValue], wanted: Mapping[ChangedKey, ChangedValue]
) -> dict[ChangedKey, ChangedValue | None]:
    gone: Iterable[ChangedKey] = known.keys() - wanted.keys()
    return {**dict.fromkeys(gone), **{key: one for key, one in wanted.items() if known.get(key) != one}}
