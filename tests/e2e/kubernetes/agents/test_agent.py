"""``calico-node run`` on a real API server with the manifests' own roles, a real BIRD, and a router beside the node.

Passwords come out of Secrets, services and their endpoints out of the API; what the router learns is the judge. The
node's namespace has no way out: a relay on its 127.0.0.1 leads to the API server.
"""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni_calico.errors import DatastoreError
from tests.conftest import ROOT
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import NODE_USER, Cluster
from tests.e2e.kubernetes.node import Relay
from tests.e2e.kubernetes.programs import RelayProcess, controllers
from tests.e2e.kubernetes.roles import rights
from tests.e2e.relays import make_certificates
from tests.netns.agents import Store
from tests.netns.bird.cluster import BirdNode, make_lab
from tests.netns.nodes import Node

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns, pytest.mark.bird]

CALICO = "/apis/crd.projectcalico.org/v1"
SPACE, SYSTEM = "space", "kube-system"
SERVICES, SECRETS = f"/api/v1/namespaces/{SPACE}/services", f"/api/v1/namespaces/{SYSTEM}/secrets"
SLICES = f"/apis/discovery.k8s.io/v1/namespaces/{SPACE}/endpointslices"
RANGES = {"10.96.0.0/16", "203.0.113.0/24", "198.51.100.0/24"}
ROUTER_AS, NODE_AS = 65000, 64512
ROUTERS = {"router": "10.0.0.254", "other": "10.0.0.253"}


class KubeStore(Store):
    """The API server, as calico-node is told of it."""

    def __init__(self, kubeconfig: str) -> None:
        super().__init__(Path("/nonexistent"))
        self.kubeconfig = kubeconfig

    def environ(self) -> dict[str, str]:
        # as the manifest: the role has nothing of a janitor's
        return {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": self.kubeconfig, "CALICO_JANITOR": "false"}


class World:
    """The node, the router, and what an administrator does at the API server."""

    def __init__(self, kube: Cluster, node: Node, routers: dict[str, BirdNode]) -> None:
        self.kube, self.node, self.routers = kube, node, routers
        self._made: list[str] = []

    def create(self, path: str, body: dict[str, Any]) -> None:
        name = f"{path}/{body['metadata']['name']}"
        self.remove(name)
        self.kube.request("POST", path, body)
        self._made.append(name)

    def remove(self, path: str) -> None:
        try:
            self.kube.request("DELETE", path)
        except DatastoreError:
            pass  # it is not there

    def clean(self) -> None:
        for path in reversed(self._made):
            self.remove(path)

    def calico(self, kind: str, plural: str, name: str, spec: dict[str, Any]) -> None:
        body = {"apiVersion": "crd.projectcalico.org/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        self.create(f"{CALICO}/{plural}", body)

    def peer(self, name: str, address: str, secret: str, key: str) -> None:
        password = {"secretKeyRef": {"name": secret, "key": key}}
        spec = {"node": "node1", "peerIP": address, "asNumber": ROUTER_AS, "password": password}
        self.calico("BGPPeer", "bgppeers", name, spec)

    def secret(self, name: str, **values: str) -> None:
        data = {key: b64encode(value.encode()).decode() for key, value in values.items()}
        self.create(SECRETS, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data})

    def service(self, name: str, policy: str, external: str, load_balancer: str) -> str:
        """A service of type LoadBalancer with its address; its cluster IP."""
        spec = {
            "type": "LoadBalancer",
            "externalTrafficPolicy": policy,
            "externalIPs": [external],
            "ports": [{"port": 80}],
        }
        self.create(SERVICES, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec})
        status = {"status": {"loadBalancer": {"ingress": [{"ip": load_balancer}]}}}
        merge = "application/merge-patch+json"
        done = self.kube.request("PATCH", f"{SERVICES}/{name}/status", status, content_type=merge)
        address: str = done["spec"]["clusterIP"]
        return address

    def endpoint(self, service: str, node: str, *, ready: bool = True) -> None:
        body = {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "addressType": "IPv4",
            "metadata": {"name": f"{service}-1", "labels": {"kubernetes.io/service-name": service}},
            "endpoints": [{"addresses": ["10.65.0.3"], "nodeName": node, "conditions": {"ready": ready}}],
            "ports": [{"port": 80}],
        }
        self.create(SLICES, body)

    # -- what came of it ----------------------------------------------------------------------------------------------

    def trust(self, password: str, routers: Iterable[str] = ("router",)) -> None:
        """Make these routers expect the node with this password."""
        for name in routers:
            self.routers[name].apply_text(
                f"router id {ROUTERS[name]};\nprotocol device {{ }}\n"
                f"protocol bgp node1 {{ local {ROUTERS[name]} as {ROUTER_AS}; neighbor 10.0.0.1 as {NODE_AS}; "
                f'password "{password}"; connect delay time 1; connect retry time 1; error wait time 1, 2; '
                "ipv4 { import all; export none; }; }\n"
            )

    def is_up(self, name: str = "router") -> bool:
        return bool(self.routers[name].established())

    def start(self) -> None:
        self.node.run()
        try:
            self.node.until_ready()
        except AssertionError:
            raise AssertionError(f"{self.status()}\n{self.node.log()}") from None

    def learned(self) -> set[str]:
        return self.routers["router"].show_routes()

    def until_learned(self, *singles: str, timeout_s: float = 30.0) -> None:
        """The ranges and just these single addresses."""
        wanted = RANGES | {f"{address}/32" for address in singles}
        try:
            until(lambda: self.learned() == wanted, "what the router learns", timeout_s)
        except AssertionError:
            raise AssertionError(f"{self.learned()} instead of {wanted}\n{self.status()}\n{self.node.log()}") from None

    def status(self) -> str:
        argv = ["nsenter", f"--net={self.node.ns.path}", sys.executable, "-m", "cni_calico.ctl.main", "node", "status"]
        done = subprocess.run(argv, cwd=ROOT, env=self.node.environ(), capture_output=True, text=True, timeout=60)
        return done.stdout + done.stderr


def roles() -> list[dict[str, Any]]:
    """calico-node's roles and bindings, as the manifest makes them."""
    documents = yaml.safe_load_all((ROOT / "manifests" / "calico.yaml").read_text())
    return [d for d in documents if d and "rbac" in d["apiVersion"] and d["metadata"]["name"] == "calico-node"]


def documented_role() -> str:
    """The role in docs/bgp.md for Secrets of other names."""
    text = (ROOT / "docs" / "bgp.md").read_text()
    return text.partition("```yaml\n")[2].partition("```")[0]


@pytest.fixture
def agent_world(kube: Cluster, tmp_path: Path) -> Iterator[World]:
    kube.ensure_namespace(SYSTEM)
    kube.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": roles()}))
    kube.create_node("node1")
    addresses = {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}}
    kube.request("PATCH", "/api/v1/nodes/node1/status", addresses, content_type="application/merge-patch+json")
    with make_lab(tmp_path) as lab:
        ns = lab.node("node1", "10.0.0.1/24").ns
        routers = {name: lab.node(name, f"{address}/24") for name, address in ROUTERS.items()}
        relay = Relay(ns, kube.port)
        node = Node(ns, "node1", tmp_path / "agent", KubeStore(kube.kubeconfig("node-token")))
        node.more = {
            "CALICO_NETWORKING_BACKEND": "bird",
            "CALICO_IPV4POOL_VXLAN": "",
            "IP_AUTODETECTION_METHOD": "kubernetes-internal-ip",
            "CLUSTER_TYPE": "k8s,bgp",
            "FELIX_HEALTHENABLED": "false",
        }
        made = World(kube, node, routers)
        try:
            yield made
        finally:
            node.end()
            relay.close()
            made.clean()
            kube.kubectl("delete", "--ignore-not-found", "-f", "-", stdin=documented_role())
            kube.kubectl("delete", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": roles()}))


def refused(world: World, since: int) -> list[str]:
    """What the API server did not let calico-node do."""
    return [
        f"{event['verb']} {event['requestURI']}"
        for event in world.kube.audited(since)
        if event["user"]["username"] == NODE_USER and event.get("responseStatus", {}).get("code") == 403
    ]


def condition(world: World) -> tuple[str, str] | None:
    conditions = world.kube.request("GET", "/api/v1/nodes/node1")["status"].get("conditions", [])
    return next(((c["status"], c["reason"]) for c in conditions if c["type"] == "NetworkUnavailable"), None)


def test_passwords_and_services_reach_the_router(agent_world: World) -> None:
    since = len(agent_world.kube.audited())
    # there before the first start, and without the defaults: start-up completes it
    agent_world.calico("FelixConfiguration", "felixconfigurations", "default", {"prometheusMetricsEnabled": False})
    announced = {
        "serviceClusterIPs": [{"cidr": "10.96.0.0/16"}],
        "serviceExternalIPs": [{"cidr": "203.0.113.0/24"}],
        "serviceLoadBalancerIPs": [{"cidr": "198.51.100.0/24"}],
    }
    agent_world.calico("BGPConfiguration", "bgpconfigurations", "default", announced)
    agent_world.peer("rack", "10.0.0.254", "bgp-secrets", "rack-1")
    agent_world.secret("bgp-secrets", **{"rack-1": "s3cret-of-rack-1"})
    cluster_ip = agent_world.service("web", "Local", "203.0.113.7", "198.51.100.7")
    agent_world.service("elsewhere", "Local", "203.0.113.8", "198.51.100.8")
    agent_world.service("anywhere", "Cluster", "203.0.113.9", "198.51.100.9")
    agent_world.endpoint("web", "node1")
    agent_world.endpoint("elsewhere", "node2")
    agent_world.endpoint("anywhere", "node1")
    agent_world.trust("s3cret-of-rack-1")
    agent_world.start()
    local = cluster_ip, "203.0.113.7", "198.51.100.7"
    agent_world.until_learned(*local, timeout_s=60)
    until(lambda: agent_world.node.calico_node("-bird-ready", check=False).returncode == 0, "the session is up", 30)
    until(lambda: condition(agent_world) == ("False", "CalicoIsUp"), "Kubernetes is told", 30)
    # endpoints come and go
    agent_world.endpoint("elsewhere", "node1")
    moved = agent_world.kube.request("GET", f"{SERVICES}/elsewhere")["spec"]["clusterIP"]
    agent_world.until_learned(*local, moved, "203.0.113.8", "198.51.100.8")
    agent_world.endpoint("web", "node1", ready=False)
    agent_world.until_learned(moved, "203.0.113.8", "198.51.100.8")
    agent_world.remove(f"{SERVICES}/elsewhere")
    agent_world.until_learned()
    assert not refused(agent_world, since)
    assert "s3cret" not in agent_world.node.log() + agent_world.status()
    completed = agent_world.kube.request("GET", f"{CALICO}/felixconfigurations/default")["spec"]
    ours = {"prometheusMetricsEnabled": False, "logSeverityScreen": "Info", "reportingInterval": "0s"}
    assert completed == {**ours, "nftablesMode": "Auto"}  # the definition's own default


def test_the_address_that_the_controllers_give_to_a_service_reaches_the_router(
    agent_world: World, tmp_path: Path
) -> None:
    """From the pool to the router and back: kube-controllers assign, the agent announces, nobody sets a status."""
    pool = {"cidr": "198.51.100.0/24", "blockSize": 28, "allowedUses": ["LoadBalancer"], "nodeSelector": "all()"}
    agent_world.calico("IPPool", "ippools", "services", pool)
    announced = {"serviceLoadBalancerIPs": [{"cidr": "198.51.100.0/24"}]}
    agent_world.calico("BGPConfiguration", "bgpconfigurations", "default", announced)
    agent_world.peer("rack", "10.0.0.254", "bgp-secrets", "rack-1")
    agent_world.secret("bgp-secrets", **{"rack-1": "s3cret"})
    agent_world.trust("s3cret")
    environ = {"DATASTORE_TYPE": "kubernetes", "ENABLED_CONTROLLERS": "node,loadbalancer"}
    with rights(agent_world.kube, "calico.yaml"), controllers(agent_world.kube, tmp_path, **environ) as process:
        agent_world.start()
        until(lambda: agent_world.learned() == {"198.51.100.0/24"}, "the range", 60)
        spec = {"type": "LoadBalancer", "externalTrafficPolicy": "Local", "ports": [{"port": 80}]}
        agent_world.create(
            SERVICES, {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "given"}, "spec": spec}
        )
        agent_world.endpoint("given", "node1")
        status = f"{SERVICES}/given"
        until(
            lambda: agent_world.kube.request("GET", status)["status"]["loadBalancer"].get("ingress"), "an address", 60
        )
        [given] = agent_world.kube.request("GET", status)["status"]["loadBalancer"]["ingress"]
        until(lambda: agent_world.learned() == {"198.51.100.0/24", f"{given['ip']}/32"}, "its route", 30)
        agent_world.remove(f"{SERVICES}/given")
        until(lambda: agent_world.learned() == {"198.51.100.0/24"}, "the route goes with the Service", 30)
        blocks = f"{CALICO}/ipamblocks"

        def used() -> int:
            found = agent_world.kube.request("GET", blocks)["items"]
            lists = [one["spec"]["allocations"] for one in found if one["spec"]["affinity"].startswith("virtual:")]
            return sum(index is not None for one in lists for index in one)

        until(lambda: used() == 0, "the address is free again", 30)
        assert process.end() == 0


def start_with_an_old_role(world: World) -> int:
    """Without nodes/status, and with records that are not Kubernetes' objects; with those, start-up itself needs the
    right. Returns from where on the audit log is of interest.
    """
    role = next(d for d in roles() if d["kind"] == "ClusterRole")
    rules = [rule for rule in role["rules"] if rule["resources"] != ["nodes/status"]]
    assert len(rules) == len(role["rules"]) - 1
    world.kube.kubectl("apply", "-f", "-", stdin=json.dumps({**role, "rules": rules}))
    conditions = {"status": {"conditions": [{"type": "NetworkUnavailable", "status": "True", "reason": "NoRouteYet"}]}}
    merge = "application/merge-patch+json"
    world.kube.request("PATCH", "/api/v1/nodes/node1/status", conditions, content_type=merge)
    since = len(world.kube.audited())
    store = Store(world.node.root.parent / "store.db")
    world.node.more |= {**store.environ(), "CALICO_K8S_NODE_REF": "node1"}
    world.node.more |= {"CALICO_NETWORKING_BACKEND": "vxlan", "FELIX_POLICYENFORCEMENT": "Disabled"}
    world.start()
    rule = "resources: [nodes/status], verbs: [patch]"
    until(lambda: rule in world.status(), "the status names the rule", 60)
    return since


def test_a_role_without_the_right_to_set_the_nodes_condition(agent_world: World) -> None:
    """As clusters have it that were made long ago: one line with the rule to add, and seldom another request."""
    since = start_with_an_old_role(agent_world)

    def tries() -> list[str]:
        return [text for text in refused(agent_world, since) if "/status" in text]

    before = agent_world.node.status()["updated"]
    until(lambda: agent_world.node.status()["updated"] > before + 6, "time for another try has passed", 60)
    said = [line for line in agent_world.node.log().splitlines() if "nodes/status" in line]
    assert len(said) == len(tries()) == 1 and "[ERROR]" in said[0], (said, tries())


@pytest.mark.slow
def test_the_right_to_set_the_nodes_condition_is_given_later(agent_world: World) -> None:
    start_with_an_old_role(agent_world)
    agent_world.kube.kubectl(
        "apply", "-f", "-", stdin=json.dumps({"kind": "List", "apiVersion": "v1", "items": roles()})
    )
    until(lambda: condition(agent_world) == ("False", "CalicoIsUp"), "Kubernetes is told", 100)
    until(lambda: "nodes/status" not in agent_world.status(), "the status does not name it any more", 60)


@pytest.mark.slow
def test_a_secret_of_another_name_needs_the_documented_role(agent_world: World) -> None:
    agent_world.calico(
        "BGPConfiguration", "bgpconfigurations", "default", {"serviceClusterIPs": [{"cidr": "10.96.0.0/16"}]}
    )
    agent_world.peer("rack", "10.0.0.254", "bgp-secrets", "rack-1")
    agent_world.peer("other", "10.0.0.253", "rack-passwords", "other")
    agent_world.secret("bgp-secrets", **{"rack-1": "s3cret"})
    agent_world.secret("rack-passwords", other="s3cret")
    agent_world.trust("s3cret", ROUTERS)
    agent_world.start()
    until(agent_world.is_up, "the session whose password may be read", 60)
    shown = agent_world.status()
    assert f"Secret {SYSTEM}/rack-passwords" in shown and "BGPPeer other" in shown and not agent_world.is_up("other")
    agent_world.kube.kubectl("apply", "-f", "-", stdin=documented_role())
    until(lambda: agent_world.is_up("other") and agent_world.is_up(), "the other session too", 60)
    until(lambda: "rack-passwords" not in agent_world.status(), "nothing is missing any more", 30)


@pytest.mark.slow
def test_a_password_is_changed(agent_world: World) -> None:
    agent_world.calico(
        "BGPConfiguration", "bgpconfigurations", "default", {"serviceClusterIPs": [{"cidr": "10.96.0.0/16"}]}
    )
    agent_world.peer("rack", "10.0.0.254", "bgp-secrets", "rack-1")
    agent_world.secret("bgp-secrets", **{"rack-1": "old"})
    agent_world.trust("old")
    agent_world.start()
    until(agent_world.is_up, "the session", 60)
    agent_world.trust("new")
    until(lambda: not agent_world.is_up(), "the session ends", 60)
    agent_world.secret("bgp-secrets", **{"rack-1": "new"})
    until(agent_world.is_up, "the session with the new password", 90)


def test_a_whole_node_behind_a_relay_which_is_killed(agent_world: World, tmp_path: Path) -> None:
    """What the router learns follows from peers, services and endpoints that the node has from the relay alone."""
    certificates = tmp_path / "relay"
    certificates.mkdir()
    make_certificates(certificates)
    relay = RelayProcess(agent_world.kube, certificates)
    way = Relay(agent_world.node.ns, relay.port)
    agent_world.node.more |= {
        "FELIX_TYPHAADDR": f"127.0.0.1:{relay.port}",
        "FELIX_TYPHACAFILE": str(certificates / "ca.crt"),
        "FELIX_TYPHACERTFILE": str(certificates / "client.crt"),
        "FELIX_TYPHAKEYFILE": str(certificates / "client.key"),
        "FELIX_TYPHACN": "typha-server",
    }

    def asked() -> set[str]:
        """The types that calico-node has listed at the API server, of those that it follows through a relay."""
        events = [event for event in agent_world.kube.audited(since) if event["user"]["username"] == NODE_USER]
        return {event["objectRef"]["resource"] for event in events if event["verb"] == "list"} & {
            "endpointslices",
            "services",
        }

    try:
        relay.await_ready()
        since = len(agent_world.kube.audited())
        announced = {"serviceLoadBalancerIPs": [{"cidr": "198.51.100.0/24"}]}
        agent_world.calico("BGPConfiguration", "bgpconfigurations", "default", announced)
        agent_world.peer("rack", "10.0.0.254", "bgp-secrets", "rack-1")
        agent_world.secret("bgp-secrets", **{"rack-1": "s3cret"})
        agent_world.trust("s3cret")
        agent_world.service("web", "Local", "203.0.113.7", "198.51.100.7")
        agent_world.service("later", "Local", "203.0.113.8", "198.51.100.8")
        agent_world.endpoint("web", "node1")
        agent_world.start()
        until(lambda: agent_world.learned() >= {"198.51.100.7/32"}, "the service is announced", 60)
        assert not asked()

        relay.process.kill()
        relay.process.wait(20)
        agent_world.endpoint("web", "node1", ready=False)
        agent_world.endpoint("later", "node1")
        again = RelayProcess(agent_world.kube, certificates, relay.port)
        try:
            wanted = {"198.51.100.0/24", "198.51.100.8/32"}
            until(lambda: agent_world.learned() == wanted, "what happened meanwhile", 120)
            lines = again.page(again.metrics, "/metrics")[1].splitlines()
            assert not [line for line in lines if 'kind="list"' in line]
            assert not asked()
        finally:
            again.stop()
    finally:
        relay.stop()
        way.close()
