"""Policies above the budget that an agent without a budget had put into force: they stay in force, and are reported.

Rule: the evidence is in the kernel. Where the policy's own chain has at least as many rules as its record, when the
tables are read first, it is in force. A policy that denies because of the budget has a chain of one rule.
"""

from __future__ import annotations

from collections.abc import Mapping

from cni_calico.model.netfilter import NftTable, TableId
from cni_calico.nodeagent.dataplane.policy.goal import Goal
from cni_calico.nodeagent.dataplane.policy.naming import policy_chain
from cni_calico.nodeagent.dataplane.policy.parts import count_rules_of
from cni_calico.nodeagent.dataplane.policy.tables import FILTER
from cni_calico.policy.graph import Graph


def spare_policies(graph: Graph, goal: Goal, held: Mapping[TableId, NftTable]) -> None:
    """``held``: the tables as they were found."""
    found = {}
    for name, count in graph.over_budget.items():
        record = graph.policy(name)
        for family, table in FILTER.items():
            if record is None or table not in held:
                continue
            for ingress, rules in ((True, record.wanted.ingress), (False, record.wanted.egress)):
                its = sum(family in rule.families for rule in rules or ())
                if 1 < its <= count_rules_of(held[table], policy_chain(name, ingress)):
                    found[name] = count
    if found:
        graph.spare(found)
        goal.update(graph.flush())
