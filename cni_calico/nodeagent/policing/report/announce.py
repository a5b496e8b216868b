"""PURE: what changes for workloads when a node begins to enforce policy, as lines of its log.

Rule: one line for workloads that share their policies, with the same facts as ``calicoctl policy show --all``; on a
large node the lines are truncated, and that command is named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from cni_calico.policy.wanted import WantedClass, WantedEndpoint, WantedTier

_GROUPS, _NAMES = 50, 10


def describe_policing(
    node: str, endpoints: Collection[WantedEndpoint], classes: Mapping[str, WantedClass]
) -> list[str]:
    """The lines to log, sorted; at least one."""
    groups: dict[str, list[str]] = {}
    for endpoint in endpoints:
        groups.setdefault(endpoint.class_id, []).append(endpoint.shown)
    lines = sorted(f"{_some(sorted(names))}: {_rules(classes[name])}" for name, names in groups.items())
    whole = f"calicoctl policy show --all --node {node}"
    head = f"this node enforces policies from now on, for {len(endpoints)} workloads; details: {whole}"
    left = len(lines) - _GROUPS
    return [head, *lines[:_GROUPS], *([f"and {left} more groups of workloads"] if left > 0 else [])]


def _rules(group: WantedClass) -> str:
    profiles = ", ".join(f"profile {profile.name}" for profile in group.profiles) or "no profile"
    return f"ingress: {_direction(group.ingress, profiles)}; egress: {_direction(group.egress, profiles)}"


def _direction(tiers: Iterable[WantedTier], profiles: str) -> str:
    said = [
        f"tier {tier.name} ({_some([str(policy) for policy in tier.policies])}; the rest "
        f"{'denied' if tier.end == 'Deny' else 'continues'})"
        for tier in tiers
    ]
    return ", then ".join([*said, profiles])


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more
