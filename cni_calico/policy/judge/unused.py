"""PURE: rules that can never decide, and what takes everything before them.

Rule: it is said of a rule only if every pair of ends that its policy is asked about was compared, so that it holds for
all workloads and addresses that there are; others may come later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cni_calico.policy.explain import Decision
from cni_calico.policy.judge.asked import AskedNames
from cni_calico.policy.judge.cells import AskedEachTime, Cell, JudgedPacket, PlaneRegion, plane_of, region_of
from cni_calico.policy.judge.fitting import FittingRules
from cni_calico.policy.judge.spans import intersection
from cni_calico.policy.judge.worlds import AskedBoth, ClassPair, WorldPair
from cni_calico.policy.wanted import Direction, PolicyId

MOST_NAMED = 3  # of what takes everything before a rule


@dataclass(frozen=True, slots=True)
class UnusedRule:
    """``takers``: what decides where the rule would match, the first few; (): it matches nothing there is."""

    policy: PolicyId
    direction: Direction
    rule: int
    takers: tuple[Decision, ...]


def unused_rules(worlds: WorldPair, policies: Iterable[PolicyId]) -> Iterator[UnusedRule]:
    """Of these policies' rules after the change; every group that asks one of them must have been compared."""
    asking: dict[tuple[PolicyId, Direction], list[AskedBoth]] = {}
    for asked in worlds.groups:
        for policy in worlds.policies(asked):
            asking.setdefault((policy, asked.direction), []).append(asked)
    names: dict[int, AskedNames] = {}
    for policy in sorted(policies, key=str):
        wanted = worlds.after.policies.get(policy)
        if wanted is None:
            continue
        for direction, rules in (("ingress", wanted.ingress), ("egress", wanted.egress)):
            at: Direction = "ingress" if direction == "ingress" else "egress"
            used = {rule for one, of, rule in worlds.seen[1].rules if one == policy and of == at}
            left = [n for n, rule in enumerate(rules or ()) if n not in used and rule.action != "Log"]
            groups = asking.get((policy, at), ())
            if left and groups:
                yield from _explained(worlds, policy, at, left, groups, names)


def _explained(
    worlds: WorldPair,
    policy: PolicyId,
    direction: Direction,
    left: Sequence[int],
    groups: Sequence[AskedBoth],
    names: dict[int, AskedNames],
) -> Iterator[UnusedRule]:
    wanted = worlds.after.policies[policy]
    rules = (wanted.ingress if direction == "ingress" else wanted.egress) or ()
    takers: dict[int, dict[Decision, None]] = {number: {} for number in left}
    unsettled = set(left)
    fitting = FittingRules(rules)
    for asked in groups:
        its = names.setdefault(id(asked), worlds.names(asked))
        for source, destination, _, _ in worlds.kinds_of_pairs(asked, its):
            for protocol, _ in its.all_protocols():
                for number, rule in fitting.of(source[1], destination[1], protocol):
                    if number in unsettled:
                        region = region_of(rule, source[1], destination[1], protocol)
                        for judged in _answers(worlds, asked, (source, destination), protocol, region):
                            if judged.decision is not None:
                                takers[number][judged.decision] = None
                        if len(takers[number]) >= MOST_NAMED:
                            unsettled.discard(number)
        if not unsettled:
            break
    for number in left:
        yield UnusedRule(policy, direction, number, tuple(takers[number])[:MOST_NAMED])


def _answers(
    worlds: WorldPair, asked: AskedBoth, ends: tuple[ClassPair, ClassPair], protocol: int, region: PlaneRegion
) -> Iterator[JudgedPacket]:
    """What is answered in a part of the plane."""
    source, destination = ends
    cell = worlds.judges[1].cell_of(asked.after, source[1], destination[1], protocol)
    if isinstance(cell, AskedEachTime):
        return
    everything = plane_of(protocol, source[1].family)
    for firsts, seconds in region:
        for low, high in firsts:
            for first in sorted({low, *(cut for cut in cell.cuts() if low < cut <= high)}):
                yield from _at(cell, first, seconds, everything)


def _at(
    cell: Cell, first: int, seconds: tuple[tuple[int, int], ...], everything: tuple[tuple[int, int], ...]
) -> Iterator[JudgedPacket]:
    for there, judged in cell.across(first, everything):
        if intersection(there, seconds):
            yield judged
