"""PURE: what stands for a policy that waits for memory and has never been in force: it denies what the policy governs.

Rule: the policy's selector, order, tier and directions are the document's own; its rules are not even read, and nothing
that it would deny is let through.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from cni_calico.model.documents.fields import JSON
from cni_calico.model.keys import ResourceKey
from cni_calico.model.kubernetes.policies import CLUSTER_NETWORK_POLICY
from cni_calico.policy.budget import WAITS_FOR_MEMORY, denied
from cni_calico.policy.decode import decode_record, reduce_record
from cni_calico.policy.records import PolicyRecord

_DIRECTIONS = ("ingress", "egress")
_ANY_RULE = {"action": "Deny", "from": [{"namespaces": {}}], "to": [{"namespaces": {}}]}


def stand_in_of(policy: PolicyRecord) -> PolicyRecord:
    return replace(policy, wanted=denied(policy.wanted, WAITS_FOR_MEMORY), sources={}, warnings=())


def decode_stand_in(key: ResourceKey, document: JSON) -> PolicyRecord | None:
    """The same for a policy's document of any kind; None if it does not take part. Raises CorruptRecord, Wrong."""
    record, _ = decode_record(key, {**document, "spec": _without_rules(key, document["spec"])})
    reduced = None if record is None else reduce_record(key, record)
    return stand_in_of(reduced) if isinstance(reduced, PolicyRecord) else None


def _without_rules(key: ResourceKey, spec: JSON) -> dict[str, Any]:
    """A ClusterNetworkPolicy governs the directions that have rules."""
    found = {name: value for name, value in spec.items() if name not in _DIRECTIONS}
    if key.kind == CLUSTER_NETWORK_POLICY:
        found |= {name: [_ANY_RULE] for name in _DIRECTIONS if spec.get(name)}
    return found
