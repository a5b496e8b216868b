"""PURE: for the status: which policies are not in force as their records say and why, and the counts of what is in
force.
"""

from __future__ import annotations

from cni_calico.nodeagent.dataplane.policy.goal import Goal
from cni_calico.nodeagent.policing.unenforced import named
from cni_calico.policy.budget import describe_size
from cni_calico.policy.graph import Graph


def describe_problems(graph: Graph, goal: Goal) -> tuple[str, ...]:
    """Sentences, sorted."""
    found = goal.left_out()
    for key, why in graph.problems.items():
        is_absent = graph.last_valid(key) is None
        fate = "it counts as absent" if is_absent else "its last valid version stays in force"
        found.append(f"{named(key)}: {why}; {fate}")
    for policy, count in graph.over_budget.items():
        found.append(f"{policy} denies what it governs: {describe_size(count, graph.budget or 0)}")
    found += map(str, graph.disputes())
    found += [f"{policy}: {why}" for policy, why in goal.problems.items()]
    found += [f"{feature.value} is not in force: {why}" for feature, why in goal.lacking.items()]
    return tuple(sorted(found))


def count_goal(goal: Goal, graph: Graph, records: int, policies: int) -> dict[str, int]:
    """The counts for the status. ``records``: how many policy records there are; ``policies``: how many of them are in
    the goal.
    """
    return {
        "records": records,
        "policies": policies,
        "over_budget": len(graph.over_budget),
        "disputed": len(graph.disputes()),
        "profiles": len(goal.policies) - policies,
        "endpoints": len(goal.endpoints.all),
        "hosts": len(goal.hosts.all),
        "classes": len(goal.classes),
        "sets": sum(len(table.elements) for table in goal.tables.of.values() if table.family == "ip"),
    }


def describe_spared(graph: Graph) -> tuple[str, ...]:
    """The policies above the budget that are in force because they were before the agent started."""
    return tuple(
        f"{policy} is above the budget of {graph.budget} rules, and in force because it was when the agent started; "
        f"it may not need more than {count}"
        for policy, count in sorted(graph.spared.items(), key=str)
        if policy not in graph.over_budget
    )
