"""What to say when a policy is stored that agents will not put into force because it is too large.

Rule: agents count as this does, from the text alone; a node's environment may set another budget than the cluster's.
"""

from __future__ import annotations

from cni_calico.ctl.session import Session
from cni_calico.datastore.interface import Document
from cni_calico.errors import CorruptRecord
from cni_calico.model.documents.codec import decode_resource
from cni_calico.model.documents.fields import Wrong
from cni_calico.model.keys import ResourceKey


def describe_too_large(session: Session, key: ResourceKey, document: Document) -> str:
    """The warning; "" for everything else."""
    if key.kind not in ("GlobalNetworkPolicy", "NetworkPolicy"):
        return ""
    from cni_calico.ctl.rule_budget import read_rule_budget
    from cni_calico.policy.budget import count_rules, describe_size
    from cni_calico.policy.records import parse_policy

    try:
        count = count_rules(parse_policy(key, decode_resource(key, document)).wanted)
    except (CorruptRecord, Wrong):
        return ""  # the agents say what is wrong with it
    budget = read_rule_budget(session)
    if count <= budget:
        return ""
    return f"{key.kind} {key.name} will deny what it governs: {describe_size(count, budget)}"
