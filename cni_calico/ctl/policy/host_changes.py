"""PURE: whether a change of policy may concern a recorded flow at a host endpoint.

Rule: flows do not say which host endpoints they passed. Only if no stage of any, which may have been on the way, would
decide otherwise, nothing changes there; else the flow is uncertain.
"""

from __future__ import annotations

from collections.abc import Iterator

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.judge.staged import is_denied
from cni_calico.policy.judge.trace import AskedGroup, Judge
from cni_calico.policy.judge.worlds import DIRECTIONS, STAGES
from cni_calico.policy.wanted import Direction, Packed, PolicyId, PolicyReach, Wanted

_EARLY: tuple[PolicyReach, ...] = ("beforeNat", "raw")


class HostChanges:
    """``before`` and ``after`` of the same host endpoints, and judges of them."""

    def __init__(self, before: Wanted, after: Wanted, judges: tuple[Judge, Judge]) -> None:
        self._judges = judges
        self._groups = frozenset(_changed(before, after, judges))

    def may_concern(
        self, source: Packed, destination: Packed, protocol: int, point: tuple[int, int], workloads: tuple[bool, bool]
    ) -> bool:
        """``point``: as for a cell, -1 for what is not known; ``workloads``: whether the ends are."""
        for groups in self._groups:
            _, direction, reach = groups[0]
            other_end = workloads[direction == "ingress"]
            if other_end and (reach == "own" or (reach == "raw" and direction == "egress")):
                continue  # these are about what the host itself sends or gets
            if direction == "ingress" and reach in _EARLY:
                return True  # where it was sent is not recorded
            cells = [
                judge.cell(group, source, destination, protocol)
                for judge, group in zip(self._judges, groups, strict=True)
            ]
            if point[1] < 0 and any(cell.asks_seconds for cell in cells):
                return True
            if len({is_denied(cell.find(*point)) for cell in cells}) > 1:
                return True
        return False


def _changed(before: Wanted, after: Wanted, judges: tuple[Judge, Judge]) -> Iterator[tuple[AskedGroup, AskedGroup]]:
    """The stages whose rules are others."""
    for key in before.hosts.keys() & after.hosts.keys():
        for reach in STAGES:
            for direction in DIRECTIONS:
                if _content(before, key, reach, direction) != _content(after, key, reach, direction):
                    was, now = (judge.of_host(key, reach, direction) for judge in judges)
                    yield was, now


def _content(wanted: Wanted, key: ResourceKey, reach: PolicyReach, direction: Direction) -> object:
    one = wanted.host_classes[wanted.hosts[key].class_id]
    tiers = one.tiers(reach, direction == "ingress")
    asked: list[PolicyId] = [policy for tier in tiers for policy in tier.policies]
    asked += one.profiles if reach == "own" else ()
    policies = [wanted.policies[policy] for policy in asked]
    sets = {name for policy in policies for rule in policy.rules() for name in rule.set_ids()}
    return tiers, policies, {name: wanted.sets[name] for name in sets}
