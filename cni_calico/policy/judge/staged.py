"""PURE: which staged policies have to do with what would happen to a packet if they were enforced.

Rule: a verdict that would be another one is put down to the staged policies that act in it, else to those whose
enforced policy acts now, else to all that apply: none that would change is put down to nobody.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

from cni_calico.policy.judge.cells import JudgedPacket
from cni_calico.policy.judge.compare import verdict_of
from cni_calico.policy.wanted import PolicyId, WantedTier


class StagedResult(StrEnum):
    ALLOW = "allow"
    DENY = "deny"
    CHANGED = "changed"


class JudgedByTiers(NamedTuple):
    """``tiers``: those of the workload and direction in question."""

    judged: JudgedPacket
    tiers: tuple[WantedTier, ...]


def is_denied(judged: JudgedPacket) -> bool:
    """What a stage of a host endpoint does not decide goes on."""
    return verdict_of(judged) == "Deny"


def staged_results(
    was: JudgedByTiers, would: JudgedByTiers, staged: Container[PolicyId]
) -> Iterator[tuple[PolicyId, StagedResult]]:
    """What is counted for which staged policy: that it decides (by a rule, or as one of the policies of the tier whose
    end denies), and that the verdict would change.
    """
    for policy in dict.fromkeys(_deciding(would)):
        if policy in staged:
            yield policy, StagedResult.DENY if is_denied(would.judged) else StagedResult.ALLOW
    if is_denied(was.judged) != is_denied(would.judged):
        groups = (
            [*_passing(would), *_deciding(would)],
            [*_passing(was), *_deciding(was)],
            [policy for tier in (*would.tiers, *was.tiers) for policy in tier.policies],
        )
        named = ([policy for policy in dict.fromkeys(group) if policy in staged] for group in groups)
        for policy in next(filter(None, named), ()):
            yield policy, StagedResult.CHANGED


def _deciding(one: JudgedByTiers) -> Iterable[PolicyId]:
    decision = one.judged.decision
    if decision is None:
        return ()
    return (decision.policy,) if decision.policy is not None else _of_tier(one, decision.tier)


def _passing(one: JudgedByTiers) -> Iterator[PolicyId]:
    for step in one.judged.passed:
        yield from (step.policy,) if step.policy is not None else _of_tier(one, step.tier)


def _of_tier(one: JudgedByTiers, name: str) -> tuple[PolicyId, ...]:
    return next((tier.policies for tier in one.tiers if tier.name == name), ())
