"""The agent with policy sync: a program at the socket of a pod's volume has what is in force for the pod."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cni_calico.model.resources import Metadata, Resource
from tests.netns.nodes import Node
from tests.unit.nodeagent.fabric import pool, workload
from tests.unit.nodeagent.sync.test_keeper import volume_in
from tests.unit.nodeagent.sync.test_serving import Client

pytestmark = pytest.mark.netns

HTTP = {"methods": ["GET"], "paths": [{"prefix": "/public"}]}


def policy(**rule: object) -> Resource:
    spec = {"selector": "all()", "types": ["Ingress"], "ingress": [{"action": "Allow", "protocol": "TCP", **rule}]}
    return Resource("GlobalNetworkPolicy", Metadata("requests"), spec)


def test_a_program_in_a_pod_follows_the_rules_about_requests(agent_node: Node, tmp_path: Path) -> None:
    """From FelixConfiguration, while the agent runs, on a kernel's packet filter, until the endpoint goes."""
    node, prefix = agent_node, tmp_path / "nodeagent"
    socket = volume_in(prefix)
    (prefix / "creds/csi-1.json").write_text('{"UID": "u", "Workload": "web", "Namespace": "default"}')
    node.store.put(pool("10.65.0.0/16"))
    node.store.put(policy(source={"selector": "role == 'client'"}, http=HTTP))
    endpoint = replace(workload("web", "caliweb", "10.65.0.2/32"), pod="web")
    node.store.put(endpoint)
    node.calico_node("-startup")
    node.ns.do("link", "add", "caliweb", "type", "veth", "peer", "name", "inside")
    node.ns.do("link", "set", "caliweb", "up")
    node.run("-felix").until_applied()
    assert not socket.exists()
    spec = {"policySyncPathPrefix": str(prefix)}
    node.store.put(Resource("FelixConfiguration", Metadata("default"), spec))
    client = Client(socket).join()
    kind, found = client.next()
    assert kind == "ipset_update" and not found.members
    kind, found = client.next()
    assert kind == "active_policy_update" and found.id.name == "requests"
    (rule,) = found.policy.inbound_rules
    assert list(rule.http_match.methods) == ["GET"] and rule.http_match.paths[0].prefix == "/public"
    assert rule.original_src_selector == "role == 'client'" and rule.protocol.number == 6
    kind, found = client.next()
    assert kind == "workload_endpoint_update" and list(found.endpoint.ipv4_nets) == ["10.65.0.2/32"]
    client.until_in_sync()
    node.store.put(policy(http={"methods": ["HEAD"]}))
    kind, found = client.next()
    assert kind == "active_policy_update" and list(found.policy.inbound_rules[0].http_match.methods) == ["HEAD"]
    assert client.next()[0] == "ipset_remove"
    node.store.put(Resource("FelixConfiguration", Metadata("default"), {}))
    assert client.end().name == "UNAVAILABLE"
    client.channel.close()
