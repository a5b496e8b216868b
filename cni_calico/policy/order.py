"""PURE: policies that apply to an endpoint, in the order in which they are asked.

Rule: tiers by order, absent last, ties by name; tiers without a record come after all others and end in Deny. In a
tier, policies by order, absent last, ties by "name/namespace/kind". A tier in which nothing applies is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cni_calico.policy.records import PolicyRecord, TierRecord
from cni_calico.policy.sources import digest
from cni_calico.policy.wanted import PolicyId, WantedClass, WantedTier


def tier_rank(name: str, tiers: Mapping[str, TierRecord]) -> tuple[bool, float, str]:
    tier = tiers.get(name)
    return (True, 0.0, name) if tier is None else (False, tier.order, name)


def select_class(
    policies: Iterable[PolicyRecord], tiers: Mapping[str, TierRecord], profiles: Iterable[PolicyId]
) -> WantedClass:
    """``policies`` apply to the endpoint; ``profiles`` are its own, in order, up to the first that is missing."""
    by_tier: dict[str, list[PolicyRecord]] = {}
    for policy in policies:
        if not policy.host_only:
            by_tier.setdefault(policy.wanted.tier, []).append(policy)
    ingress: list[WantedTier] = []
    egress: list[WantedTier] = []
    for name in sorted(by_tier, key=lambda name: tier_rank(name, tiers)):
        end = tiers[name].end if name in tiers else "Deny"
        ranked = sorted(by_tier[name], key=lambda policy: policy.rank)
        for direction, ids in (
            (ingress, tuple(policy.id for policy in ranked if policy.wanted.ingress is not None)),
            (egress, tuple(policy.id for policy in ranked if policy.wanted.egress is not None)),
        ):
            if ids:
                direction.append(WantedTier(name, ids, end))
    return _class(tuple(ingress), tuple(egress), tuple(profiles))


def _class(
    ingress: tuple[WantedTier, ...], egress: tuple[WantedTier, ...], profiles: tuple[PolicyId, ...]
) -> WantedClass:
    parts = [repr(part) for part in (ingress, egress, profiles)]
    return WantedClass(f"c-{digest(*parts)}", ingress, egress, profiles)
