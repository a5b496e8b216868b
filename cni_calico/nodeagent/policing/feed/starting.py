"""PURE: which large policies wait until the first round is in force, with a stand-in that denies what they govern.

Rule: the first round takes everything, and others' policies wait for it; so of tenants' large policies it takes what
fits into START_BYTES (sizes.py) and START_SELECTORS, some seconds' work: first those that were in force before, then
those of the namespaces that need least. The others follow in slices. What no tenant can write is never among them. Of a
policy that waits the rules stay that an earlier run had in force (tables/kept.py). Where these cannot be told apart
(iptables) nothing waits: all of them stay until the first round is ready.

Selectors count by themselves: nf_tables finds a set by walking through all of its table, so twice as many take four
times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from cni_calico.model.keys import ResourceKey
from cni_calico.netfilter.tables import UNRECOGNISED
from cni_calico.nodeagent.policing.feed.changes import Undecoded
from cni_calico.nodeagent.policing.feed.sizes import count_selectors, estimate_document
from cni_calico.nodeagent.policing.gate import listed
from cni_calico.nodeagent.policing.tables.naming import policy_chains
from cni_calico.policy.wanted import PolicyId, PolicyKind

START_BYTES, START_SELECTORS = 200 << 20, 5000
NamesChains = Callable[[], Collection[str]]


def select_later(changes: Mapping[ResourceKey, Undecoded], chains: NamesChains) -> dict[ResourceKey, Undecoded]:
    """``chains``: the names of those in the kernel; asked for only if not everything fits."""
    parts = {key: _part(key, one) for key, one in changes.items() if key.namespace}
    if sum(parts.values()) <= 1:
        return {}
    there, costs = frozenset(chains()), dict[str, float]()
    if UNRECOGNISED in there:
        return {}
    for key, part in parts.items():
        costs[key.namespace] = costs.get(key.namespace, 0.0) + part
    room, later = 1.0, {}
    for key in sorted(parts, key=lambda key: (not _has_chain(key, there), costs[key.namespace], parts[key], str(key))):
        if parts[key] <= room:
            room -= parts[key]
        else:
            later[key] = changes[key]
    return later


def _part(key: ResourceKey, one: Undecoded) -> float:
    """Of what the first round may take."""
    spec: Any = one.item.value.get("spec")
    return max(estimate_document(key.kind, spec) / START_BYTES, count_selectors(spec) / START_SELECTORS)


def _has_chain(key: ResourceKey, there: frozenset[str]) -> bool:
    policy = PolicyId(cast(PolicyKind, key.kind), key.name, key.namespace)
    return not there.isdisjoint(policy_chains(policy))


def describe_later(keys: Collection[ResourceKey]) -> tuple[str, ...]:
    """A sentence for each namespace."""
    found: dict[str, list[str]] = {}
    for key in keys:
        found.setdefault(key.namespace, []).append(f"{key.kind} {key.name}")
    return tuple(
        f"{len(names)} large policies of namespace {namespace} are still being made ready "
        f"({listed(sorted(names))}): what they govern is denied until then, unless an earlier run had them in force"
        for namespace, names in sorted(found.items())
    )
