"""PURE: for the status: which policies are not in force as their records say and why, and the counts of what is in
force.
"""

from __future__ import annotations

from cni_calico.nodeagent.policing.report.unenforced import named
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.policy.budget import describe_size
from cni_calico.policy.flushed import GraphFacts, OverBudget
from cni_calico.policy.records import HTTP_WARNING
from cni_calico.policy.room import describe_no_room

_UNCHECKED = "the rules that have them allow by addresses and ports alone"
_NOT_CHECKED = f"nobody checks its http matches on this node, because policySyncPathPrefix is not set: {_UNCHECKED}"
_CHECKED_HERE = (
    "its http matches are checked by programs in pods that follow policy sync; in pods without one, which this status "
    f"names, and at host endpoints {_UNCHECKED}"
)


def describe_problems(facts: GraphFacts, goal: Goal) -> tuple[str, ...]:
    """Sentences, sorted."""
    found = goal.left_out()
    for key, why in facts.problems.items():
        fate = "its last valid version stays in force" if key in facts.last_valid else "it counts as absent"
        found.append(f"{named(key)}: {why}; {fate}")
    for policy, count in facts.over.denied.items():
        found.append(f"{policy} denies what it governs: {describe_size(count, facts.over.budget or 0)}")
    for policy, count in facts.over.without_room.items():
        found.append(f"{policy} denies what it governs: {describe_no_room(count, facts.over.total)}")
    found += map(str, facts.disputes)
    found += [f"{policy}: {why}" for policy, why in goal.problems.items()]
    return tuple(sorted(found))


def describe_http(warnings: tuple[str, ...], prefix: str) -> tuple[str, ...]:
    """The warnings, with what is missing on this node for http; ``prefix``: of policy sync, "" for none."""
    return tuple(text.replace(HTTP_WARNING, _CHECKED_HERE if prefix else _NOT_CHECKED) for text in warnings)


def describe_lacking(goal: Goal) -> tuple[str, ...]:
    """What this kernel or packet filter lacks and policies do not need: sentences, sorted."""
    return tuple(sorted(f"{feature.value} is not in force: {why}" for feature, why in goal.lacking.items()))


def count_goal(goal: Goal, facts: GraphFacts, records: int) -> dict[str, int]:
    """The counts for the status. ``records``: how many policy records there are."""
    return {
        "records": records,
        "policies": facts.governing,
        "over_budget": len(facts.over.denied) + len(facts.over.without_room),
        "disputed": len(facts.disputes),
        "profiles": len(goal.policies) - facts.governing,
        "endpoints": len(goal.endpoints.all),
        "hosts": len(goal.hosts.all),
        "classes": len(goal.classes),
        "sets": sum(len(table.elements) for table in goal.tables.of.values() if table.family == "ip"),
    }


def describe_spared(over: OverBudget) -> tuple[str, ...]:
    """The policies above the budget that are in force because they were before the agent started."""
    return tuple(
        f"{policy} is above {_budget_of(count, over)}, and in force because it was when the agent started; "
        f"it may not need more than {count}"
        for policy, count in sorted(over.spared.items(), key=str)
        if policy not in over.all_denied
    )


def _budget_of(count: int, over: OverBudget) -> str:
    if over.budget is not None and count <= over.budget:
        return f"its part of the {over.total} rules that there is room for"
    return f"the budget of {over.budget} rules"
