"""PURE: the tiers that every cluster has, whether start-up or calicoctl writes to it first.

Rule: their names, orders and actions are defined only here. Values: what upstream stores (tests/golden/vectors).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cni_calico.model.documents.codec import encode_resource, new_metadata
from cni_calico.model.resources import Resource

# name -> (order, what happens to traffic that no policy of the tier decides)
TIERS: Mapping[str, tuple[int, str]] = {
    "default": (1000000, "Deny"),
    "kube-admin": (1000, "Pass"),
    "kube-baseline": (10000000, "Pass"),
}
# policies that name a tier
TIERED_KINDS = ("NetworkPolicy", "GlobalNetworkPolicy", "StagedNetworkPolicy", "StagedGlobalNetworkPolicy")


def new_tier(name: str, *, uid: str, now: str) -> dict[str, Any]:
    """The document of a tier that does not exist yet."""
    order, action = TIERS[name]
    spec = {"order": order, "defaultAction": action}
    return encode_resource(Resource("Tier", new_metadata(name, uid=uid, now=now), spec, {}))
