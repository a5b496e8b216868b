"""PURE: which pools of ``projectcalico.org/v3`` give addresses, as their condition says, and which cannot go yet.

Rule: of pools that overlap one gives addresses. Those that give them already come first, then those that are going,
those that do not give any, and new ones; among these the older, then the first by name. A pool that is disabled is in
nobody's way; one that is going stays until no block lies in it. The order, the words and the finalizer are upstream's
(v3.32).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_network
from typing import Any

from cni_calico.controllers.conditions.wishes import ObjectCondition, Wish, is_going, status_of
from cni_calico.ipam.overlaps import ALLOCATABLE, CIDR_OVERLAP
from cni_calico.model.documents.fields import JSON
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Network

FINALIZER = "projectcalico.org/ippool-finalizer"
OK = ObjectCondition(ALLOCATABLE, True, "OK", "IPPool is available for IP allocation.")
DISABLED = ObjectCondition(ALLOCATABLE, False, "PoolDisabled", "IPPool is disabled.")
TERMINATING = ObjectCondition(ALLOCATABLE, False, "Terminating", "IPPool is being deleted")
OVERLAP = ObjectCondition(
    ALLOCATABLE,
    False,
    CIDR_OVERLAP,
    "CIDR overlaps another pool; disabled to prevent IP allocation conflicts.",
)
_RANKS = {"True": 0, "False": 2, "": 3}
_GOING = 1


def desired_pools(pools: Mapping[ResourceKey, JSON], blocks: Iterable[Network]) -> dict[ResourceKey, Wish]:
    """A pool whose network cannot be read is left alone."""
    networks = {key: found for key, document in pools.items() if (found := network_of(document)) is not None}
    there = list(blocks)
    taken: list[Network] = []
    wishes = {}
    for key in sorted(networks, key=lambda key: _rank(key, pools[key])):
        cidr, document = networks[key], pools[key]
        if is_going(document):
            wishes[key] = Wish(any(block.overlaps(cidr) for block in there), TERMINATING)
            taken.append(cidr)
        elif (document.get("spec") or {}).get("disabled") is True:
            wishes[key] = Wish(False, DISABLED)
        elif any(cidr.overlaps(other) for other in taken):
            wishes[key] = Wish(False, OVERLAP)
        else:
            wishes[key] = Wish(True, OK)
            taken.append(cidr)
    return wishes


def network_of(document: JSON) -> Network | None:
    spec = document.get("spec")
    cidr: Any = spec.get("cidr") if isinstance(spec, Mapping) else None
    try:
        return ip_network(cidr, strict=False) if isinstance(cidr, str) else None
    except ValueError:
        return None


def _rank(key: ResourceKey, document: JSON) -> tuple[int, str, str]:
    rank = _GOING if is_going(document) else _RANKS.get(status_of(document, ALLOCATABLE), _RANKS[""])
    return rank, str((document.get("metadata") or {}).get("creationTimestamp") or ""), key.name
