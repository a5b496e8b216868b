"""PURE: which rule decides about a recorded connection now, where nobody knows any more what its number stands for.

Rule: it is said only of an end that is still the same workload, and only if the rules in force decide as the kernel
did; what is computed is never shown as the kernel's word.
"""

from __future__ import annotations

from collections.abc import Callable

from cni_calico.flows.deciders import END, Decider
from cni_calico.flows.judging.agreement import point_of
from cni_calico.flows.judging.known import KnownRules
from cni_calico.flows.records import FlowRecord
from cni_calico.policy.explain import Decision
from cni_calico.policy.ports import WITH_PORTS
from cni_calico.policy.wanted import PolicyId, WantedTier


def deciding_policy(decision: Decision, tiers: tuple[WantedTier, ...]) -> PolicyId | None:
    """The last that applies where the end of a tier decided; None if no policy did."""
    if decision.policy is None and decision.tier:
        return next((tier.policies[-1] for tier in tiers if tier.name == decision.tier), None)
    return decision.policy


def compute_decider(
    known: KnownRules, record: FlowRecord, number: int, is_still: Callable[[bytes, int], bool]
) -> Decider | None:
    """``number``: one of the record's. ``is_still``: whether an address has the name of that number now."""
    denied = record.denied and number == record.denied_by
    if denied:
        directions: tuple[bool, ...] = (False, True)
    elif number in (record.egress, record.ingress):
        directions = (number == record.ingress,)
    else:
        return None
    for ingress in directions:
        end = (record.destination, record.destination_end) if ingress else (record.source, record.source_end)
        asked = known.workload(record.source, record.destination, record.protocol, ingress=ingress)
        if asked is None or not is_still(*end):
            continue
        if asked.cell.asks_seconds and record.protocol in WITH_PORTS and not record.sport:
            continue  # the source port decides, and sums have none
        decision = asked.cell.find(*point_of(record.key)).decision
        if decision is None or (decision.verdict == "Deny") != denied:
            continue
        policy, index = deciding_policy(decision, asked.tiers), END if decision.rule is None else decision.rule
        named = ("", "", "") if policy is None else (policy.kind, policy.namespace, policy.name)
        return Decider(*named, decision.tier, ingress, index, decision.verdict)
    return None
