"""PURE: which IP pools cover the same addresses, and what becomes of them.

Rule: a disabled pool counts only where another gives no addresses because of it. Networks that overlap contain one
another, so the pools that one overlaps are those around it and those within it. calicoctl refuses such a pool, an API
server takes it; where pools are ``projectcalico.org/v3`` their condition says which of them gives no addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cni_calico.ipam.pools import overlapped
from cni_calico.model.resources import IPPool

ALLOCATABLE, CIDR_OVERLAP = "Allocatable", "CIDROverlap"  # upstream's condition of a pool, and its reason (v3.32)


def overlapping_pools(pools: Iterable[IPPool]) -> dict[str, tuple[str, ...]]:
    """The names of the pools that each pool in use overlaps, sorted; pools that overlap none are left out."""
    found: dict[str, set[str]] = {}
    around: list[IPPool] = []
    for pool in sorted(pools, key=_place):
        while around and not _contains(around[-1], pool):
            around.pop()
        for other in (other for other in around if _concern_each_other(pool, other)):
            found.setdefault(pool.metadata.name, set()).add(other.metadata.name)
            found.setdefault(other.metadata.name, set()).add(pool.metadata.name)
        around.append(pool)
    return {name: tuple(sorted(found[name])) for name in sorted(found)}


def describe_overlaps(pools: Sequence[IPPool]) -> dict[str, str]:
    """A sentence for each pool that overlaps others, by its name."""
    named = {pool.metadata.name: pool for pool in pools}
    return {
        name: _describe(named[name], [named[other] for other in others], pools)
        for name, others in overlapping_pools(pools).items()
    }


def _describe(pool: IPPool, others: Sequence[IPPool], pools: Sequence[IPPool]) -> str:
    names = ", ".join(f"{other.metadata.name} ({other.cidr})" for other in others)
    said = f"IPPool {pool.metadata.name} ({pool.cidr}) overlaps {names}"
    if pool.disabled:
        return f"{said}, and is disabled"
    if refused(pool, pools):
        return f"{said}: it gives no addresses"
    if all(refused(other, pools) for other in others):
        return f"{said}, which gives no addresses" if len(others) == 1 else f"{said}, which give no addresses"
    return f"{said}: addresses of both have the tunnel and NAT of the narrower; disable the other"


def refused(pool: IPPool, pools: Iterable[IPPool]) -> bool:
    """Whether IPAM takes no addresses from it because of another pool: its condition says so, or its blocks have
    another size than those of an older pool.
    """
    conditions: Any = (pool.status or {}).get("conditions")
    for each in conditions if isinstance(conditions, list) else ():
        if isinstance(each, Mapping) and (each.get("type"), each.get("reason")) == (ALLOCATABLE, CIDR_OVERLAP):
            return each.get("status") == "False"
    return overlapped(pool, pools) is not None


def _concern_each_other(pool: IPPool, other: IPPool) -> bool:
    if pool.disabled == other.disabled:
        return not pool.disabled
    in_use, disabled = (other, pool) if pool.disabled else (pool, other)
    return overlapped(in_use, [disabled]) is not None


def _contains(outer: IPPool, inner: IPPool) -> bool:
    return outer.cidr.version == inner.cidr.version and outer.cidr.overlaps(inner.cidr)


def _place(pool: IPPool) -> tuple[int, int, int, str]:
    return pool.cidr.version, int(pool.cidr.network_address), pool.cidr.prefixlen, pool.metadata.name
