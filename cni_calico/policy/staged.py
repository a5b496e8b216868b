"""PURE: staged policies as what they would be if they were enforced.

Rule: one place says what a staged policy would do: it stands in the place of the enforced policy with its name, or
takes that away. What it would do is only ever computed, and never reaches the packet filter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from cni_calico.errors import CorruptRecord
from cni_calico.model.documents.codec import decode_resource, describe
from cni_calico.model.documents.fields import JSON
from cni_calico.model.keys import ResourceKey
from cni_calico.model.kubernetes.policies import NETWORK_POLICY, read_network_policy, read_stored_network_policy
from cni_calico.policy.kubernetes import record_of
from cni_calico.policy.nodes import GraphRecord
from cni_calico.policy.records import policy_id
from cni_calico.policy.wanted import PolicyId

STAGED_KINDS = {
    "StagedNetworkPolicy": "NetworkPolicy",
    "StagedGlobalNetworkPolicy": "GlobalNetworkPolicy",
    "StagedKubernetesNetworkPolicy": NETWORK_POLICY,
}
PutIntoGraph = tuple[ResourceKey, GraphRecord | None]
_OF_KUBERNETES = "StagedKubernetesNetworkPolicy"
_ACTION, _DELETE, _IGNORE = "stagedAction", "Delete", "Ignore"
_ACTIONS = ("Set", _DELETE, "Learn", _IGNORE)


@dataclass(frozen=True, slots=True)
class StagedPolicy:
    """``enforced``: the policy in whose place it stands. ``record``: what that would be; None: it would be gone.
    ``left_out``: what of it could not be converted.
    """

    key: ResourceKey
    enforced: ResourceKey
    record: GraphRecord | None
    left_out: tuple[str, ...] = ()

    @property
    def policy(self) -> PolicyId:
        return policy_id(self.enforced)

    @property
    def path(self) -> str:
        """As people write it."""
        return f"{self.key.namespace}/{self.key.name}" if self.key.namespace else self.key.name


def read_staged(key: ResourceKey, document: JSON, *, stored: bool = False) -> StagedPolicy | None:
    """None: it is to be ignored. ``stored``: policies of Kubernetes are stored as NetworkPolicies, as they are in etcd.
    Raises CorruptRecord.
    """
    resource = decode_resource(key, document)
    action = resource.spec.get(_ACTION) or "Set"
    if action not in _ACTIONS:
        raise CorruptRecord(f"cannot use {describe(key)}: stagedAction must be one of {', '.join(_ACTIONS)}")
    if action == _IGNORE:
        return None
    spec: dict[str, Any] = {name: value for name, value in resource.spec.items() if name != _ACTION}
    if key.kind != _OF_KUBERNETES:
        enforced = ResourceKey(STAGED_KINDS[key.kind], key.name, key.namespace)
        return StagedPolicy(
            key, enforced, None if action == _DELETE else replace(resource, kind=enforced.kind, spec=spec)
        )
    metadata = {"name": key.name, "namespace": key.namespace}
    read = read_stored_network_policy if stored else read_network_policy
    converted = read({"kind": "NetworkPolicy", "metadata": metadata, "spec": {} if action == _DELETE else spec})
    if action == _DELETE:
        return StagedPolicy(key, converted.key, None)
    return StagedPolicy(key, converted.key, record_of(converted.key, converted.document), converted.left_out)


class StagedOverlay:
    """Records as they would be: ``put`` and ``stage`` give what changes for a graph, which sees the staged policies in
    the place of the enforced ones. ``staged``: by the policy that each stands for; of several the first by its key.
    """

    def __init__(self) -> None:
        self.staged: dict[PolicyId, StagedPolicy] = {}
        self._enforced: dict[ResourceKey, ResourceKey] = {}  # by the key of a staged one
        self._standing: dict[ResourceKey, dict[ResourceKey, StagedPolicy]] = {}  # by what is enforced
        self._covered: dict[ResourceKey, GraphRecord | None] = {}  # what is enforced, where something stands for it

    def known(self) -> tuple[ResourceKey, ...]:
        """The keys of the staged policies."""
        return tuple(self._enforced)

    def put(self, key: ResourceKey, record: GraphRecord | None) -> Iterator[PutIntoGraph]:
        """A record that is enforced, or None if it is gone."""
        if key in self._covered:
            self._covered[key] = record
        else:
            yield key, record

    def stage(
        self, key: ResourceKey, staged: StagedPolicy | None, record_of: Callable[[ResourceKey], GraphRecord | None]
    ) -> Iterator[PutIntoGraph]:
        """A staged policy, or None if it is gone. ``record_of`` what is enforced now."""
        before = self._enforced.pop(key, None)
        if before is not None:
            del self._standing[before][key]
            if staged is None or staged.enforced != before:
                yield from self._settle(before)
        if staged is not None:
            enforced = self._enforced[key] = staged.enforced
            if enforced not in self._covered:
                self._covered[enforced] = record_of(enforced)
            self._standing.setdefault(enforced, {})[key] = staged
            yield from self._settle(enforced)

    def _settle(self, enforced: ResourceKey) -> Iterator[PutIntoGraph]:
        standing = self._standing[enforced]
        if standing:
            first = self.staged[policy_id(enforced)] = standing[min(standing, key=str)]
            yield enforced, first.record
        else:
            del self._standing[enforced], self.staged[policy_id(enforced)]
            yield enforced, self._covered.pop(enforced)
