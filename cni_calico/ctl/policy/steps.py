"""PURE: the tiers that a packet meets at a workload, in order, and what each of them does.

Rule: the decision is the one that was made; what came before it is the judge's, which answers the same.
"""

from __future__ import annotations

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.explain import Decision, Packet
from cni_calico.policy.judge.trace import Judge
from cni_calico.policy.wanted import Direction, PolicyId, Wanted

TierStep = dict[str, str]


def steps_of(wanted: Wanted, key: ResourceKey, direction: Direction, packet: Packet, found: Decision) -> list[TierStep]:
    """``tier``, "" for the profiles; ``action``: Pass, Allow, Deny, or "" for a tier that is not asked any more;
    ``by``, in words. ``key`` must be a workload of ``wanted``.
    """
    judge = Judge(wanted)
    passed = judge.judge(judge.of_workload(key, direction), packet).passed
    steps = [_step(one.tier, "Pass", one.policy, one.rule) for one in passed]
    steps.append(_step(found.tier, found.verdict, found.policy, found.rule))
    group = wanted.classes[wanted.endpoints[key].class_id]
    tiers = [tier.name for tier in (group.ingress if direction == "ingress" else group.egress)]
    rest = tiers[tiers.index(found.tier) + 1 :] if found.tier else []
    return [*steps, *({"tier": tier, "action": "", "by": "not asked"} for tier in rest)]


def describe_passes(steps: list[TierStep]) -> list[str]:
    """A line for each tier that handed the packet on."""
    return [f"    tier {one['tier']} passes it on: {one['by']}" for one in steps if one["action"] == "Pass"]


def _step(tier: str, action: str, policy: PolicyId | None, rule: int | None) -> TierStep:
    by = "the end of the tier" if tier else "no policy and no profile allows it"
    if policy is not None and rule is not None:
        by = f"rule {rule + 1} of {policy}"
    return {"tier": tier, "action": action, "by": by}
