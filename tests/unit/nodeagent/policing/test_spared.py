"""Which policies above the budget stay in force: those whose chain is in the kernel when the agent starts."""

from __future__ import annotations

import pytest

from cni_calico.model.netfilter import DROP, NftChain, NftRule, NftTable
from cni_calico.nodeagent.dataplane.policy.goal import Goal
from cni_calico.nodeagent.dataplane.policy.naming import policy_chain
from cni_calico.nodeagent.dataplane.policy.settings import FilterSettings
from cni_calico.nodeagent.dataplane.policy.tables import FILTER
from cni_calico.nodeagent.policing.spared import spare_policies
from tests.unit.policy.cluster import graph_of
from tests.unit.policy.test_scenarios import ONE, policy


@pytest.mark.parametrize(("there", "is_spared"), [(10, True), (9, False), (1, False), (0, False)])
def test_the_kernel_has_its_rules(there: int, is_spared: bool) -> None:
    rules = [{"action": "Allow", "source": {"selector": f"a == '{i}'"}} for i in range(10)]
    graph = graph_of(ONE | policy("n", ingress=rules))
    graph.flush()
    (name,) = (one for one in graph.wanted().policies if one.kind != "Profile")
    graph.set_budget(5)
    graph.flush()
    goal, held = Goal(FilterSettings()), NftTable("ip", "calico-policy")
    chain = NftChain(policy_chain(name, True), (NftRule((DROP,)),) * there)
    held.chains[chain.name] = chain
    spare_policies(graph, goal, {FILTER[4]: held})
    assert (graph.spared == {name: 21}) == is_spared and bool(graph.over_budget) != is_spared
    assert (name in goal.policies) == is_spared
