"""Which staged policies are named for a packet, in random worlds: against what ``decide`` answers in both."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cni_calico.policy.explain import Packet, decide
from cni_calico.policy.judge.staged import JudgedByTiers, StagedResult, staged_results
from cni_calico.policy.judge.trace import Judge
from cni_calico.policy.wanted import Direction, PolicyId, Wanted
from tests.unit.policy.judge.test_oracle import POD, POLICIES, packets, worlds

DIRECTIONS: tuple[Direction, ...] = get_args(Direction)


def judged(wanted: Wanted, packet: Packet, direction: Direction) -> JudgedByTiers:
    judge = Judge(wanted)
    group = judge.of_workload(POD, direction)
    return JudgedByTiers(judge.judge(group, packet), judge.tiers(group))


@settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)
@given(worlds(), worlds(), st.lists(packets(), min_size=5, max_size=5), st.sampled_from(POLICIES))
def test_a_change_is_put_down_to_somebody(before: Wanted, other: Wanted, asked: list[Packet], staged: PolicyId) -> None:
    """The staged policy has other rules; everything else is the same."""
    after = replace(before, policies={**before.policies, staged: other.policies[staged]})
    for packet in asked:
        for direction in DIRECTIONS:
            was, would = judged(before, packet, direction), judged(after, packet, direction)
            results = list(staged_results(was, would, {staged}))
            assert {name for name, _ in results} <= {staged}
            verdicts = [decide(one, POD, direction, packet).verdict for one in (before, after)]
            assert ((staged, StagedResult.CHANGED) in results) == (verdicts[0] != verdicts[1])
            decision = decide(after, POD, direction, packet)
            if decision.policy == staged:
                expected = StagedResult.ALLOW if decision.verdict == "Allow" else StagedResult.DENY
                assert (staged, expected) in results
            elif decision.policy is not None:
                assert {result for _, result in results} <= {StagedResult.CHANGED}
