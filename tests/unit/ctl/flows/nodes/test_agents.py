"""Whose pods are asked for flows: not whoever gives a pod the agents' label."""

from __future__ import annotations

from typing import Any

import pytest

from cni_calico.ctl.flows.nodes.agents import NoAgents, choose_agents, service_addresses
from cni_calico.errors import InvalidConfig


def agent_pod(namespace: str, node: str, name: str = "calico-node-x", phase: str = "Running") -> dict[str, Any]:
    spec = {"nodeName": node, "containers": [{"name": "calico-node", "command": ["/usr/bin/calico-node"]}]}
    return {"metadata": {"namespace": namespace, "name": name}, "spec": spec, "status": {"phase": phase}}


@pytest.mark.parametrize("where", ["kube-system", "calico-system"])
def test_a_tenants_pod_with_the_agents_label_does_not_answer_for_a_node(where: str) -> None:
    pods = [agent_pod("a", "w1", "fake"), agent_pod(where, "w1"), agent_pod("shop", "w1", "fake")]
    (found,) = choose_agents([*pods, agent_pod("shop", "w2", "fake")], ())
    assert (found.node, found.command.namespace, found.command.pod) == ("w1", where, "calico-node-x")
    with pytest.raises(InvalidConfig, match="there is no calico-node on w2"):
        choose_agents([*pods, agent_pod("shop", "w2", "fake")], ["w2"])


def test_agents_in_a_namespace_of_their_own() -> None:
    (found,) = choose_agents([agent_pod("net", "w1")], ())
    assert found.command.namespace == "net"
    with pytest.raises(NoAgents, match=r"several namespaces \(net, shop\)"):
        choose_agents([agent_pod("net", "w1"), agent_pod("shop", "w1")], ())
    with pytest.raises(NoAgents, match="there is no pod"):
        choose_agents([], ())


def test_the_one_of_a_node_that_can_answer() -> None:
    pods = [agent_pod("kube-system", "w1", "new"), agent_pod("kube-system", "w1", "old", "Failed")]
    assert [one.command.pod for one in choose_agents(pods, ())] == ["new"]
    (found,) = choose_agents([agent_pod("kube-system", "w1", "old", "Failed")], ())
    assert found.trouble == "its pod old is Failed"


SERVICES = (
    {
        "metadata": {"namespace": "shop", "name": "db"},
        "spec": {"clusterIPs": ["10.96.0.1", "fd00::1"], "externalIPs": ["192.0.2.1"]},
        "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.2"}, {"hostname": "x"}]}},
    },
    {"metadata": {"namespace": "other", "name": "db"}, "spec": {"clusterIPs": ["10.96.0.2"]}},
    {"metadata": {"namespace": "shop", "name": "headless"}, "spec": {"clusterIPs": ["None"]}},
)


def test_the_addresses_of_a_service() -> None:
    of_shop = ["10.96.0.1", "fd00::1", "192.0.2.1", "192.0.2.2"]
    assert service_addresses(SERVICES, "shop/db") == of_shop
    assert service_addresses(SERVICES, "db") == [*of_shop, "10.96.0.2"]
    assert service_addresses(SERVICES, "fd00:0::5") == ["fd00::5"]
    for missing in ("shop/headless", "shop/other", "d"):
        with pytest.raises(InvalidConfig, match=f"there is no service {missing} "):
            service_addresses(SERVICES, missing)
