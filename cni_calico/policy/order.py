"""PURE: the policies that apply to an endpoint, in the order in which they are applied.

Rule: tiers by order, absent last, ties by name; tiers without a record come after all others and end in Deny. In a
tier, policies by order, absent last, ties by "name/namespace/kind". A tier in which nothing applies is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cni_calico.policy.records import PolicyRecord, TierRecord
from cni_calico.policy.sources import digest
from cni_calico.policy.wanted import EndAction, PolicyId, PolicyReach, WantedClass, WantedHostClass, WantedTier

Directions = tuple[tuple[WantedTier, ...], tuple[WantedTier, ...]]  # (ingress, egress)
_BOTH: tuple[PolicyReach, ...] = ("own", "forward")


def tier_rank(name: str, tiers: Mapping[str, TierRecord]) -> tuple[bool, float, str]:
    tier = tiers.get(name)
    return (True, 0.0, name) if tier is None else (False, tier.order, name)


def select_class(
    policies: Iterable[PolicyRecord], tiers: Mapping[str, TierRecord], profiles: Iterable[PolicyId]
) -> WantedClass:
    """``policies`` apply to the endpoint; ``profiles`` are its own, in order, up to the first that is missing."""
    ingress, egress = _tiers((policy for policy in policies if policy.wanted.reach in _BOTH), tiers)
    its = tuple(profiles)
    return WantedClass(f"c-{digest(*map(repr, (ingress, egress, its)))}", ingress, egress, its)


def select_host_class(
    policies: Iterable[PolicyRecord], tiers: Mapping[str, TierRecord], profiles: Iterable[PolicyId]
) -> WantedHostClass:
    """The same for a host endpoint."""
    by_reach: dict[PolicyReach, list[PolicyRecord]] = {"own": [], "forward": [], "beforeNat": [], "raw": []}
    for policy in policies:
        by_reach[policy.wanted.reach].append(policy)
    own = _tiers(by_reach["own"] + by_reach["forward"], tiers)
    forward = _tiers(by_reach["forward"], tiers)
    before_nat = _tiers(by_reach["beforeNat"], tiers, no_ends=True)[:1]
    raw = _tiers(by_reach["raw"], tiers, no_ends=True)
    stages = (*own, *forward, *before_nat, *raw)
    its = tuple(profiles)
    return WantedHostClass(f"h-{digest(*map(repr, (*stages, its)))}", *stages, its)


def _tiers(policies: Iterable[PolicyRecord], tiers: Mapping[str, TierRecord], *, no_ends: bool = False) -> Directions:
    by_tier: dict[str, list[PolicyRecord]] = {}
    for policy in policies:
        by_tier.setdefault(policy.wanted.tier, []).append(policy)
    ingress: list[WantedTier] = []
    egress: list[WantedTier] = []
    for name in sorted(by_tier, key=lambda name: tier_rank(name, tiers)):
        end: EndAction = tiers[name].end if name in tiers else "Deny"
        ranked = sorted(by_tier[name], key=lambda policy: policy.rank)
        for direction, ids in (
            (ingress, tuple(policy.id for policy in ranked if policy.wanted.ingress is not None)),
            (egress, tuple(policy.id for policy in ranked if policy.wanted.egress is not None)),
        ):
            if ids:
                direction.append(WantedTier(name, ids, "Pass" if no_ends else end))
    return tuple(ingress), tuple(egress)
