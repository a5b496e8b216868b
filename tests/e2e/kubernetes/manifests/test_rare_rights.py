"""Grants of the plugin's and the agent's roles that count only at rare moments, each brought about: another node was
faster with a block, a handle holds something already, a pool has left its block.
"""

from __future__ import annotations

import json
import subprocess
from ipaddress import ip_network
from pathlib import Path

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.ipam.block import new_block
from cni_calico.model.documents.codec import encode
from cni_calico.model.keys import BlockKey
from tests.deadlines import soon, until
from tests.e2e.kubernetes.cluster import CNI_USER, NODE_USER, Cluster
from tests.e2e.kubernetes.node import KubeNode, Relay, kube_node
from tests.e2e.kubernetes.programs import agent_command, agent_environ, run_agent
from tests.e2e.kubernetes.roles import RARE, TAKEN_BACK, node_with_role, used
from tests.fakes.http_front import Front
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

AFFINITIES = "/apis/crd.projectcalico.org/v1/blockaffinities"


def through(front: Front, kube: Cluster, token: str, directory: Path) -> str:
    """A kubeconfig that leads through the front."""
    document = json.loads(Path(kube.kubeconfig(token)).read_text())
    document["clusters"][0]["cluster"] = {"server": front.url}
    path = directory / f"{token}.kubeconfig"
    path.write_text(json.dumps(document))
    return str(path)


class Faster:
    """The rule of a front: whoever is about to create a block finds that node2 has just created it; so once."""

    def __init__(self, kube: Cluster) -> None:
        self._kube = kube
        self.taken: list[str] = []

    def __call__(self, method: str, path: str) -> None:
        if method == "POST" and path.endswith("/ipamblocks") and not self.taken:
            [cidr] = [
                item["spec"]["cidr"]
                for item in self._kube.request("GET", AFFINITIES)["items"]
                if item["spec"]["state"] == "pending"
            ]
            self.taken.append(cidr)
            store, network = self._kube.store(), ip_network(cidr)
            block = encode(new_block(network, "node2", 1, "2026-01-01T00:00:00Z"))
            store.commit([Write.create(BlockKey(network), block)], soon())
            store.close()


def test_the_plugins(kube: Cluster, api_front: Front, host_ns: Namespace, pod_ns: Namespace, tmp_path: Path) -> None:
    with node_with_role("calico.yaml", kube, host_ns, tmp_path) as node:
        relay = Relay(host_ns, api_front.port)
        try:
            node.overrides["kubernetes"] = {"kubeconfig": through(api_front, kube, "cni-token", tmp_path)}
            api_front.rule = faster = Faster(kube)
            since = len(kube.audited())
            kube.create_pod(node.namespace, "web", node.nodename)
            calls: list[dict[str, str]] = [{}, {"ifname": "eth1", "plugin": "calico-ipam"}]  # one handle for both
            for verb in ("ADD", "DEL"):
                for call in calls:
                    reply = node.pod_call(verb, "web", "c0" * 32, pod_ns.path, **call)
                    assert reply.ok, reply.document
        finally:
            relay.close()
        requests, refused = used(kube, CNI_USER, since)
    assert faster.taken and not refused
    assert RARE | {("delete", "blockaffinities")} <= requests, RARE - requests


def owe_one_of_two(node: KubeNode, pod_ns: Namespace) -> None:
    """While the API server is away a pod loses one of its two interfaces."""
    kube = node.kube
    kube.create_pod(node.namespace, "two", node.nodename)
    uid = kube.read_pod(node.namespace, "two")["metadata"]["uid"]
    assert node.pod_call("ADD", "two", "2e" * 32, pod_ns.path, uid=uid).ok
    assert node.pod_call("ADD", "two", "2e" * 32, pod_ns.path, uid=uid, ifname="eth1", plugin="calico-ipam").ok
    node.relay.close()
    assert node.pod_call("DEL", "two", "2e" * 32, pod_ns.path, uid=uid).ok
    node.relay.open()
    assert node.intents()


@pytest.mark.slow
def test_the_agents(
    agent_rights: Cluster, api_front: Front, host_ns: Namespace, pod_ns: Namespace, tmp_path: Path
) -> None:
    kube = agent_rights
    wanted = RARE | TAKEN_BACK
    with kube_node(kube, host_ns, tmp_path) as node:
        relay = Relay(host_ns, api_front.port)
        try:
            owe_one_of_two(node, pod_ns)
            environ = agent_environ(kube, tmp_path)
            environ["KUBECONFIG"] = through(api_front, kube, "node-token", tmp_path)
            del environ["CALICO_IPV4POOL_CIDR"]
            run_agent(host_ns, environ, "-startup")
            since = len(kube.audited())
            # an address for the tunnel, from a block that node2 is faster with; then its pool leaves the other block
            api_front.rule = faster = Faster(kube)
            node.apply("IPPool", "tunnels", {"cidr": "10.67.0.0/16", "vxlanMode": "Always", "blockSize": 26})
            run_agent(host_ns, environ, "-allocate-tunnel-addrs-run-once")
            node.apply("IPPool", "tunnels", {"cidr": "10.67.0.0/16", "blockSize": 26, "nodeSelector": "has(nothing)"})
            run_agent(host_ns, environ, "-allocate-tunnel-addrs-run-once")
            with open(tmp_path / "agent.log", "wb") as log:
                argv = [*agent_command(host_ns), "-felix"]
                agent = subprocess.Popen(argv, env=environ, stderr=log)
            try:
                until(lambda: wanted <= used(kube, NODE_USER, since)[0], "each is used", 60)
            finally:
                agent.terminate()
                agent.wait(30)
        finally:
            relay.close()
        requests, refused = used(kube, NODE_USER, since)
    assert faster.taken and not refused
    assert wanted <= requests
