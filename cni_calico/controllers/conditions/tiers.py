"""PURE: which tiers of ``projectcalico.org/v3`` cannot go yet, because policies are in them.

Rule: every tier has the finalizer; one that is going says in its condition how many policies of which kind it waits
for. Staged policies count, staged policies of Kubernetes are in no tier. Words and finalizer are upstream's (v3.32).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from cni_calico.controllers.conditions.wishes import ObjectCondition, Wish, is_going
from cni_calico.model.documents.fields import JSON
from cni_calico.model.keys import ResourceKey

FINALIZER = "projectcalico.org/tier-controller"
READY = "Ready"
POLICIES = ("GlobalNetworkPolicy", "NetworkPolicy", "StagedGlobalNetworkPolicy", "StagedNetworkPolicy")


def tier_of(policy: JSON) -> str:
    spec = policy.get("spec")
    return str((spec.get("tier") if isinstance(spec, Mapping) else None) or "default")


def desired_tiers(
    tiers: Mapping[ResourceKey, JSON], policies: Iterable[tuple[ResourceKey, str]]
) -> dict[ResourceKey, Wish]:
    """``policies``: each with the name of its tier."""
    counts: dict[str, Counter[str]] = {}
    for key, tier in policies:
        counts.setdefault(tier, Counter())[key.kind] += 1
    wishes = {}
    for key, document in tiers.items():
        left = counts.get(key.name)
        if not is_going(document):
            wishes[key] = Wish(True)
        elif left:
            wishes[key] = Wish(True, ObjectCondition(READY, False, "Terminating", _waiting(left)))
        else:
            wishes[key] = Wish(False)
    return wishes


def _waiting(left: Mapping[str, int]) -> str:
    parts = [f"{left[kind]} {_plural(kind, left[kind])}" for kind in POLICIES if left.get(kind)]
    return f"Waiting for policies to be removed: {', '.join(parts)}"


def _plural(kind: str, count: int) -> str:
    return kind if count == 1 else f"{kind.removesuffix('y')}ies"
