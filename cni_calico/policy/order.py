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


def describe_missing_tier(name: str) -> str:
    """What it means for a policy that is in it."""
    return f"its tier {name} does not exist: it comes after all tiers that do, and what it leaves undecided is denied"


def select_class(
    policies: Iterable[PolicyRecord],
    tiers: Mapping[str, TierRecord],
    profiles: Iterable[PolicyId],
    *,
    in_order: bool = False,
) -> WantedClass:
    """``policies`` apply to the endpoint; ``profiles`` are its own, in order, up to the first that is missing.
    ``in_order``: those of a tier come by their rank already.
    """
    both = (policy for policy in policies if policy.wanted.reach in _BOTH)
    ingress, egress = _tiers(both, tiers, in_order=in_order)
    its = tuple(profiles)
    return WantedClass(f"c-{digest(_shown(ingress), _shown(egress), repr(its))}", ingress, egress, its)


def _shown(direction: tuple[WantedTier, ...]) -> str:
    """What ``repr`` gives, from which chains have their names, written down: of thousands of policies that is slow."""
    tiers = [
        f"WantedTier(name={tier.name!r}, policies={_tuple(map(_policy, tier.policies))}, end={tier.end!r})"
        for tier in direction
    ]
    return _tuple(tiers)


def _policy(one: PolicyId) -> str:
    return f"PolicyId(kind={one.kind!r}, name={one.name!r}, namespace={one.namespace!r})"


def _tuple(shown: Iterable[str]) -> str:
    items = list(shown)
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


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


def _tiers(
    policies: Iterable[PolicyRecord],
    tiers: Mapping[str, TierRecord],
    *,
    no_ends: bool = False,
    in_order: bool = False,
) -> Directions:
    by_tier: dict[str, list[PolicyRecord]] = {}
    for policy in policies:
        by_tier.setdefault(policy.wanted.tier, []).append(policy)
    ingress: list[WantedTier] = []
    egress: list[WantedTier] = []
    for name in sorted(by_tier, key=lambda name: tier_rank(name, tiers)):
        end: EndAction = tiers[name].end if name in tiers else "Deny"
        ranked = by_tier[name] if in_order else sorted(by_tier[name], key=lambda policy: policy.rank)
        for direction, ids in (
            (ingress, tuple(policy.id for policy in ranked if policy.wanted.ingress is not None)),
            (egress, tuple(policy.id for policy in ranked if policy.wanted.egress is not None)),
        ):
            if ids:
                direction.append(WantedTier(name, ids, "Pass" if no_ends else end))
    return tuple(ingress), tuple(egress)
