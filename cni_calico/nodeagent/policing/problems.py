"""PURE: for the status: which policies are not in force as their records say and why, and the counts of what is in
force.
"""

from __future__ import annotations

from cni_calico.nodeagent.dataplane.policy.goal import Goal
from cni_calico.nodeagent.policing.unenforced import named
from cni_calico.policy.graph import Graph


def describe_problems(graph: Graph, goal: Goal) -> tuple[str, ...]:
    """Sentences, sorted."""
    found = goal.left_out()
    for key, why in graph.problems.items():
        is_absent = graph.last_valid(key) is None
        fate = "it counts as absent" if is_absent else "its last valid version stays in force"
        found.append(f"{named(key)}: {why}; {fate}")
    found += [f"{policy}: {why}" for policy, why in goal.problems.items()]
    found += [f"{feature.value} is not in force: {why}" for feature, why in goal.lacking.items()]
    return tuple(sorted(found))


def count_goal(goal: Goal, records: int, policies: int) -> dict[str, int]:
    """The counts for the status. ``records``: how many policy records there are; ``policies``: how many of them are in
    the goal.
    """
    return {
        "records": records,
        "policies": policies,
        "profiles": len(goal.policies) - policies,
        "endpoints": len(goal.endpoints.all),
        "hosts": len(goal.hosts.all),
        "classes": len(goal.classes),
        "sets": sum(len(table.elements) for table in goal.tables.of.values() if table.family == "ip"),
    }
