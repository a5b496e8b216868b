"""Policies on a cluster of real kubelets with kube-proxy: between pods of two nodes, through services, under traffic.

Rule: packets are the proof. Ports: 8000 is what policies here allow, 8001 what they do not, 53 the name service's.
"""

from __future__ import annotations

import functools
import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT
from tests.deadlines import until
from tests.lab.dns import install_coredns
from tests.lab.lab import Lab, install_bundle, running_lab
from tests.lab.node import DNS_DOMAIN, DNS_SERVICE
from tests.lab.probes import Probe, flowing, hearing, probes_of, running_pods, serving
from tests.lab.proxy import install_kube_proxy
from tests.lab.workloads import pod

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.bundle, pytest.mark.timeout(1800)]
OPEN, CLOSED, DNS = 8000, 8001, 53
PORTS = (OPEN, CLOSED, DNS)
BURST = 100
TOGETHER = 25  # objects in one command of kubectl
CLUSTER_POLICY = "policy.networking.k8s.io"
# pods of two namespaces, one of each on either node
PODS = {
    "web-1": ("a", "web", 0),
    "web-2": ("a", "web", 1),
    "client-1": ("a", "client", 0),
    "client-2": ("a", "client", 1),
    "other-1": ("b", "client", 0),
    "other-2": ("b", "client", 1),
}


ACCOUNT, TRUSTED = "trusted", "client-2"  # a service account, and the pod that has it


class World:
    """The lab, its probes by name, and what has been applied since the test began."""

    def __init__(self, lab: Lab, probes: dict[str, Probe]) -> None:
        self.lab = lab
        self.probes = probes
        self.applied: list[dict[str, Any]] = []

    def apply(self, *documents: dict[str, Any]) -> None:
        """Many are several commands: one command's time is limited."""
        self.applied += documents
        for at in range(0, len(documents), TOGETHER):
            self.lab.apply(*documents[at : at + TOGETHER])

    def remove_all(self) -> None:
        """Of each kind and namespace together, the last one first."""
        for (kind, scope), documents in groupby(reversed(self.applied), key=_kind_and_scope):
            names = list(dict.fromkeys(document["metadata"]["name"] for document in documents))
            for at in range(0, len(names), TOGETHER):
                some = names[at : at + TOGETHER]
                self.lab.kubectl("delete", kind, *some, *scope, "--ignore-not-found", "--wait=true")
        self.applied.clear()

    def reached(self, target: str, port: int, protocol: str = "udp") -> set[str]:
        """Who reaches a pod's port, of all others."""
        address = self.probes[target].address
        others = [probe for name, probe in self.probes.items() if name != target]
        return who_reach(others, port, address, protocol)

    def until_reached(self, target: str, port: int, by: set[str]) -> None:
        until(
            lambda: self.reached(target, port) == by,
            f"{target}:{port} is reached by {sorted(by)}",
            timeout_s=30,
            pause_s=0.1,
        )
        assert self.reached(target, port, "tcp") == by


def _kind_and_scope(document: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """As kubectl takes them."""
    group, slash, version = document["apiVersion"].rpartition("/")
    kind = f"{document['kind']}.{version}.{group}" if slash else document["kind"]
    namespace = document["metadata"].get("namespace")
    return kind, ("-n", namespace) if namespace else ()


def who_reach(probes: Iterable[Probe], port: int, address: str, protocol: str = "tcp") -> set[str]:
    """All at the same time: a packet that is dropped is waited for."""

    def ask(probe: Probe) -> str:
        return probe.name if probe.reaches(port, address, protocol=protocol) else ""

    with ThreadPoolExecutor() as pool:
        return set(pool.map(ask, probes)) - {""}


EVERYBODY = set(PODS)


@pytest.fixture(scope="module", params=["iptables", "nftables"])
def lab_cluster(
    request: pytest.FixtureRequest, busybox_image: Path, coredns_image: Path, own_bundle: Path
) -> Iterator[World]:
    with running_lab(images=[busybox_image, coredns_image], bundle=own_bundle) as lab:
        install_bundle(lab)
        install_kube_proxy(lab, request.param)
        install_coredns(lab)
        for name in ("a", "b"):
            lab.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"team": name}}})
        metadata = {"name": ACCOUNT, "namespace": "a", "labels": {"trust": "full"}}
        lab.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
        for name, (space, app, node) in PODS.items():
            account = ACCOUNT if name == TRUSTED else "default"
            named = {"open": OPEN} if app == "web" else None
            lab.apply(pod(name, space, {"app": app}, lab.nodes[node].name, ports=named, account=account))
        probes = probes_of(lab, "a", 4) | probes_of(lab, "b", 2)
        with serving(list(probes.values()), *PORTS):
            yield World(lab, probes)


@pytest.fixture
def policy_world(lab_cluster: World) -> Iterator[World]:
    lab_cluster.until_reached("web-1", CLOSED, EVERYBODY - {"web-1"})
    yield lab_cluster
    lab_cluster.remove_all()


# -- documents --------------------------------------------------------------------------------------------------------


def kubernetes(name: str, selector: dict[str, Any], *, namespace: str = "a", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"podSelector": selector, **spec},
    }


def calico(kind: str, name: str, spec: dict[str, Any], namespace: str = "", **labels: str) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, **({"namespace": namespace} if namespace else {})}
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": "crd.projectcalico.org/v1", "kind": kind, "metadata": metadata, "spec": spec}


WEB = {"matchLabels": {"app": "web"}}
CLIENT = {"matchLabels": {"app": "client"}}
OPEN_PORTS = [{"protocol": protocol, "port": OPEN} for protocol in ("UDP", "TCP")]


def allow_open(source: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"action": "Allow", "protocol": p, "source": source, "destination": {"ports": [OPEN]}} for p in ("UDP", "TCP")
    ]


# -- kinds ------------------------------------------------------------------------------------------------------------


def test_kubernetes_ingress_by_pods_namespaces_and_ports(policy_world: World) -> None:
    policy_world.apply(kubernetes("deny", WEB, policyTypes=["Ingress"]))
    policy_world.until_reached("web-1", OPEN, set())
    policy_world.until_reached("web-2", OPEN, set())
    assert policy_world.reached("client-1", OPEN) == EVERYBODY - {"client-1"}

    policy_world.apply(kubernetes("clients", WEB, ingress=[{"from": [{"podSelector": CLIENT}], "ports": OPEN_PORTS}]))
    for web in ("web-1", "web-2"):
        policy_world.until_reached(web, OPEN, {"client-1", "client-2"})
        assert policy_world.reached(web, CLOSED) == set()

    team = {"namespaceSelector": {"matchLabels": {"team": "b"}}, "podSelector": CLIENT}
    policy_world.apply(kubernetes("team", WEB, ingress=[{"from": [team]}]))
    policy_world.until_reached("web-1", CLOSED, {"other-1", "other-2"})
    policy_world.until_reached("web-1", OPEN, {"client-1", "client-2", "other-1", "other-2"})


def test_kubernetes_blocks_and_egress(policy_world: World) -> None:
    one = policy_world.probes["client-1"]
    block = {"ipBlock": {"cidr": "10.65.0.0/16", "except": [f"{one.address}/32"]}}
    policy_world.apply(kubernetes("block", WEB, ingress=[{"from": [block]}]))
    policy_world.until_reached("web-2", OPEN, EVERYBODY - {"client-1", "web-2"})

    dns = {"ports": [{"protocol": protocol, "port": DNS} for protocol in ("UDP", "TCP")]}
    policy_world.apply(kubernetes("egress", CLIENT, egress=[dns], policyTypes=["Egress"]))
    policy_world.until_reached("other-1", OPEN, {"web-1", "web-2", "other-2"})
    assert policy_world.reached("other-1", DNS) == EVERYBODY - {"other-1"}


def test_calico_policies_tiers_and_sets(policy_world: World) -> None:
    two = policy_world.probes["other-2"].address
    policy_world.apply(
        calico("Tier", "first", {"order": 10}),
        calico("GlobalNetworkSet", "friends", {"nets": [f"{two}/32"]}, are="friends"),
        calico("GlobalNetworkPolicy", "first.friends", {
            "tier": "first", "order": 1, "selector": "app == 'web'", "types": ["Ingress"],
            "ingress": [
                *allow_open({"selector": "are == 'friends'"}),
                {"action": "Pass", "source": {"selector": "app == 'client'"}},
            ],
        }),
    )  # fmt: skip
    # those who pass come to the profile, which allows; the two webs are denied by the end of the tier
    policy_world.until_reached("web-1", OPEN, EVERYBODY - {"web-1", "web-2"})
    policy_world.apply(calico("NetworkPolicy", "default.only", {
        "order": 1, "selector": "app == 'web'", "types": ["Ingress"],
        "ingress": allow_open({"namespaceSelector": "projectcalico.org/name == 'a'", "selector": "app == 'client'"}),
    }, "a"))  # fmt: skip
    policy_world.until_reached("web-1", OPEN, {"client-1", "client-2", "other-2"})
    policy_world.until_reached("web-2", CLOSED, set())


def test_network_sets_of_a_namespace(policy_world: World) -> None:
    """A policy's selector means its own namespace's sets, until a namespaceSelector says otherwise."""
    one, two = (policy_world.probes[name].address for name in ("other-1", "other-2"))
    from_friends = {"selector": "are == 'friends'"}
    policy_world.apply(
        calico("NetworkSet", "friends", {"nets": [f"{one}/32"]}, "a", are="friends"),
        calico("NetworkSet", "friends", {"nets": [f"{two}/32"]}, "b", are="friends"),
        calico("NetworkPolicy", "default.friends", ingress(allow_open(from_friends)), "a"),
    )
    policy_world.until_reached("web-1", OPEN, {"other-1"})
    wider = allow_open({**from_friends, "namespaceSelector": "team == 'b'"})
    policy_world.apply(calico("NetworkPolicy", "default.friends", ingress(wider), "a"))
    policy_world.until_reached("web-1", OPEN, {"other-2"})
    policy_world.apply(calico("NetworkSet", "friends", {"nets": [f"{one}/32", "10.65.0.0/16"]}, "b", are="friends"))
    policy_world.until_reached("web-2", OPEN, EVERYBODY - {"web-2"})
    assert policy_world.reached("web-2", CLOSED) == set()


def ingress(rules: list[dict[str, Any]]) -> dict[str, Any]:
    return {"order": 1, "selector": "app == 'web'", "types": ["Ingress"], "ingress": rules}


def test_service_accounts(policy_world: World) -> None:
    """As a source, by name and by label, and as what a policy is for."""
    for accounts in ({"names": [ACCOUNT]}, {"selector": "trust == 'full'"}):
        rules = allow_open({"serviceAccounts": accounts})
        policy_world.apply(calico("NetworkPolicy", "default.trusted", ingress(rules), "a"))
        policy_world.until_reached("web-1", OPEN, {TRUSTED})
        policy_world.remove_all()
        policy_world.until_reached("web-1", OPEN, EVERYBODY - {"web-1"})
    closed = {"order": 1, "serviceAccountSelector": "trust == 'full'", "types": ["Ingress"]}
    policy_world.apply(calico("GlobalNetworkPolicy", "default.closed", closed))
    policy_world.until_reached(TRUSTED, OPEN, set())
    assert policy_world.reached("client-1", OPEN) == EVERYBODY - {"client-1"}


def test_named_ports(policy_world: World) -> None:
    """The name is of a TCP port, in policies of both kinds."""
    by_name = [{"ports": [{"port": "open", "protocol": "TCP"}]}]
    rules = [{"action": "Allow", "protocol": "TCP", "destination": {"ports": ["open"]}}]
    for document in (
        kubernetes("named", WEB, ingress=by_name),
        calico("NetworkPolicy", "default.named", ingress(rules), "a"),
    ):
        policy_world.apply(document)
        until(lambda: policy_world.reached("web-1", OPEN) == set(), "UDP has no such port", timeout_s=30, pause_s=0.1)
        assert policy_world.reached("web-1", OPEN, "tcp") == EVERYBODY - {"web-1"}
        assert policy_world.reached("web-1", CLOSED, "tcp") == set()
        policy_world.remove_all()
        policy_world.until_reached("web-1", OPEN, EVERYBODY - {"web-1"})


def test_staged_policies_do_nothing(policy_world: World) -> None:
    """What was written after them is in force, and they are not."""
    all_web = {"order": 1, "selector": "app == 'web'", "types": ["Ingress"], "stagedAction": "Set"}
    staged = {"stagedAction": "Set", "podSelector": WEB, "policyTypes": ["Ingress"]}
    policy_world.apply(
        calico("StagedGlobalNetworkPolicy", "default.staged", all_web),
        calico("StagedNetworkPolicy", "default.staged", all_web, "a"),
        calico("StagedKubernetesNetworkPolicy", "staged", staged, "a"),
        kubernetes("after", CLIENT, policyTypes=["Ingress"]),
    )
    policy_world.until_reached("client-1", OPEN, set())
    policy_world.until_reached("web-1", OPEN, EVERYBODY - {"web-1"})


def test_cluster_network_policy(policy_world: World) -> None:
    policy_world.lab.apply(yaml.safe_load((ROOT / "manifests" / "clusternetworkpolicies.yaml").read_text()))
    until(lambda: CLUSTER_POLICY in policy_world.lab.kubectl("api-versions"), "the definition is served", pause_s=0.1)
    teams = {"namespaces": {"matchLabels": {"team": "b"}}}
    until(
        lambda: not _refused(policy_world, {
            "apiVersion": f"{CLUSTER_POLICY}/v1alpha2",
            "kind": "ClusterNetworkPolicy",
            "metadata": {"name": "no-team-b"},
            "spec": {
                "tier": "Admin",
                "priority": 10,
                "subject": {"namespaces": {"matchLabels": {"team": "a"}}},
                "ingress": [{"name": "b", "action": "Deny", "from": [teams]}],
            },
        }),
        "the policy is taken", pause_s=0.1,
    )  # fmt: skip
    try:
        until(
            lambda: policy_world.reached("web-1", OPEN) == {"web-2", "client-1", "client-2"},
            "team b is kept out",
            timeout_s=90,
            pause_s=0.1,
        )
    except AssertionError as e:
        raise AssertionError(f"{e}: {policy_world.lab.describe()}") from None


def _refused(world: World, document: dict[str, Any]) -> bool:
    try:
        world.apply(document)
    except RuntimeError:
        return True
    return False


# -- services ---------------------------------------------------------------------------------------------------------


def service(name: str, **spec: Any) -> dict[str, Any]:
    ports = [{"name": p.lower(), "protocol": p, "port": 80, "targetPort": OPEN} for p in ("TCP", "UDP")]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": "a"},
        "spec": {"selector": {"app": "web"}, "ports": ports, **spec},
    }


def test_services_are_policed_by_who_is_behind_them(policy_world: World) -> None:
    policy_world.apply(service("web"))
    address = policy_world.lab.get("service", "web", "-n", "a")["spec"]["clusterIP"]

    def reached() -> set[str]:
        return who_reach(policy_world.probes.values(), 80, address)

    clients = {"client-1", "client-2", "other-1", "other-2"}
    until(lambda: reached() >= clients, "the service is there", timeout_s=60, pause_s=0.1)
    policy_world.apply(kubernetes("clients", WEB, ingress=[{"from": [{"podSelector": CLIENT}], "ports": OPEN_PORTS}]))
    until(
        lambda: reached() & clients == {"client-1", "client-2"},
        "only the clients reach the service",
        timeout_s=30,
        pause_s=0.1,
    )
    for name in ("other-1", "other-2"):
        assert [policy_world.probes[name].reaches(80, address, protocol="tcp") for _ in range(6)] == [set()] * 6, name


def test_services_in_rules(policy_world: World) -> None:
    """As the only destination: by the service's address and by its pods', at its ports alone. As a source: its pods."""
    policy_world.apply(service("web"))
    address = policy_world.lab.get("service", "web", "-n", "a")["spec"]["clusterIP"]
    others = [policy_world.probes[name] for name in ("other-1", "other-2")]
    both = {"other-1", "other-2"}
    until(lambda: who_reach(others, 80, address) == both, "the service is there", timeout_s=60, pause_s=0.1)
    to_service = {"action": "Allow", "destination": {"services": {"name": "web", "namespace": "a"}}}
    egress = {"order": 1, "namespaceSelector": "team == 'b'", "types": ["Egress"], "egress": [to_service]}
    policy_world.apply(calico("GlobalNetworkPolicy", "default.to-web", egress))
    policy_world.until_reached("client-1", OPEN, EVERYBODY - {"client-1"} - both)
    policy_world.until_reached("web-1", OPEN, EVERYBODY - {"web-1"})
    policy_world.until_reached("web-1", CLOSED, {"web-2", "client-1", "client-2"})
    for protocol in ("tcp", "udp"):
        assert who_reach(others, 80, address, protocol) == both
    from_service = {"action": "Allow", "source": {"services": {"name": "web"}}}
    closed = {"order": 1, "selector": "app == 'client'", "types": ["Ingress"], "ingress": [from_service]}
    policy_world.apply(calico("NetworkPolicy", "default.from-web", closed, "a"))
    policy_world.until_reached("client-1", CLOSED, {"web-1", "web-2"})


# what stands in docs/policy.md
DNS_RECIPE = "Close every namespace but the system's, and keep DNS"


def recipe(heading: str) -> list[dict[str, Any]]:
    page = (ROOT / "docs" / "policy.md").read_text()
    [text] = re.findall(rf"(?ms)^### {re.escape(heading)}$.*?^```yaml\n(.*?)^```$", page)
    return list(yaml.safe_load_all(text))


def test_names_with_the_recipe_and_without(policy_world: World) -> None:
    """By the name service's own service address; before and after its packets pass kube-proxy's translation."""
    client, name = policy_world.probes["client-1"], f"named.a.svc.{DNS_DOMAIN}"
    policy_world.apply(service("named"))
    address = policy_world.lab.get("service", "named", "-n", "a")["spec"]["clusterIP"]

    def resolved() -> list[list[str]]:
        return [client.resolves(name, DNS_SERVICE, protocol=protocol) for protocol in ("udp", "tcp")]

    until(lambda: resolved() == [[address]] * 2, "the name service knows the service", timeout_s=60, pause_s=0.1)
    [closed] = recipe(DNS_RECIPE)
    try:
        for allows_dns in (True, False, True):
            egress = closed["spec"]["egress"] if allows_dns else []
            apply_by_calicoctl(policy_world, {**closed, "spec": {**closed["spec"], "egress": egress}})
            policy_world.until_reached("web-1", OPEN, set())
            wanted = [[address]] * 2 if allows_dns else [[], []]
            until(lambda wanted=wanted: resolved() == wanted, f"names are {wanted}", timeout_s=30, pause_s=0.1)
            assert [resolved() for _ in range(3)] == [wanted] * 3
    finally:
        policy_world.lab.calicoctl("delete", "globalnetworkpolicy", closed["metadata"]["name"])


def apply_by_calicoctl(world: World, document: dict[str, Any]) -> None:
    file = world.lab.directory / "document.json"
    file.write_text(json.dumps(document))
    world.lab.calicoctl("apply", "-f", str(file))


def test_node_ports_from_outside(policy_world: World) -> None:
    """With the local traffic policy the source stays what it was, and an ipBlock can name it."""
    policy_world.apply(service("outside", type="NodePort", externalTrafficPolicy="Local"))
    ports = policy_world.lab.get("service", "outside", "-n", "a")["spec"]["ports"]
    port = next(entry["nodePort"] for entry in ports if entry["protocol"] == "TCP")
    node = policy_world.lab.nodes[0]

    def reached() -> bool:
        done = policy_world.lab.plane.inside("timeout", "3", "bash", "-c", f"exec 3<>/dev/tcp/{node.address}/{port}")
        return _succeeds(done)

    until(reached, "the node port answers", timeout_s=60, pause_s=0.1)
    policy_world.apply(kubernetes("inside", WEB, ingress=[{"from": [{"podSelector": {}}]}]))
    until(lambda: not reached(), "nobody from outside", timeout_s=30, pause_s=0.1)
    gateway = {"ipBlock": {"cidr": "10.99.0.1/32"}}
    policy_world.apply(kubernetes("outside", WEB, ingress=[{"from": [gateway], "ports": OPEN_PORTS}]))
    until(reached, "the address that a policy names", timeout_s=30, pause_s=0.1)


@pytest.mark.parametrize("lab_cluster", ["iptables"], indirect=True)
def test_node_ports_at_the_hosts_loopback_address(policy_world: World) -> None:
    """In this mode kube-proxy serves them there; replies come from a pod of this node and from one of the other."""
    policy_world.apply(service("here", type="NodePort"))
    ports = policy_world.lab.get("service", "here", "-n", "a")["spec"]["ports"]
    port = next(entry["nodePort"] for entry in ports if entry["protocol"] == "TCP")
    for node in policy_world.lab.nodes:
        ask = node.inside("timeout", "3", "bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}")
        until(functools.partial(_succeeds, ask), "the node port answers", timeout_s=60, pause_s=0.1)
        assert all(_succeeds(ask) for _ in range(10)), "whichever pod is behind it"


def _succeeds(command: list[str | Path]) -> bool:
    return subprocess.run([str(word) for word in command], capture_output=True, timeout=30).returncode == 0


# -- under traffic ----------------------------------------------------------------------------------------------------


def only_clients(world: World) -> None:
    world.apply(kubernetes("clients", WEB, ingress=[{"from": [{"podSelector": CLIENT}], "ports": OPEN_PORTS}]))
    for web in ("web-1", "web-2"):
        world.until_reached(web, OPEN, {"client-1", "client-2"})


@pytest.mark.parametrize("whom", ["agent", "all"])
def test_an_agent_that_is_killed_under_traffic(policy_world: World, whom: str) -> None:
    only_clients(policy_world)
    web = policy_world.probes["web-2"]
    with (
        flowing(policy_world.probes["client-1"], web.address, allowed=OPEN, forbidden=CLOSED) as across,
        flowing(policy_world.probes["client-2"], web.address, allowed=OPEN, forbidden=CLOSED) as beside,
    ):
        before = tables(web)
        kill_agent(web, whom)
        until(lambda: in_force(web), "policies in force again", timeout_s=60, pause_s=0.1)
        assert tables(web) == before
    for counts in (across, beside):
        assert counts.sent > 200
        assert (counts.allowed, counts.forbidden) == (counts.sent, 0)


def tables(probe: Probe) -> set[str]:
    """In any order: an agent that starts replaces the table of masquerading, in one transaction, and it is the last."""
    return set(probe.node.run("nft", "list", "tables").splitlines())


def agents(probe: Probe) -> list[str]:
    """The process numbers of the agent's programs, the supervisor first."""
    first = (probe.node.directory / "calico-node.pid").read_text().strip()
    return [first, *probe.node.run("pgrep", "-P", first, check=False).split()]


def kill_agent(probe: Probe, whom: str) -> None:
    supervisor, *children = agents(probe)
    assert len(children) >= 2, children
    probe.node.run("kill", "-9", *([supervisor] if whom == "all" else []), *children)
    until(lambda: runs_anew(probe, children), "the agent runs again", timeout_s=30, pause_s=0.1)


def runs_anew(probe: Probe, before: list[str]) -> bool:
    now = agents(probe)[1:]
    return len(now) >= len(before) and set(now).isdisjoint(before)


def in_force(probe: Probe) -> bool:
    return _succeeds(probe.node.inside("/opt/cni/bin/calico-node", "-felix-ready"))


def test_policies_and_labels_change_under_traffic(policy_world: World) -> None:
    """What stays allowed loses nothing while policies of others come, change and go."""
    only_clients(policy_world)
    web, source = policy_world.probes["web-2"], policy_world.probes["client-1"]
    with flowing(source, web.address, allowed=OPEN, forbidden=CLOSED) as counts:
        for number in range(10):
            cidr = {"ipBlock": {"cidr": f"192.0.2.{number}/32"}}
            policy_world.apply(kubernetes(f"more-{number}", WEB, ingress=[{"from": [cidr]}]))
            policy_world.lab.kubectl("label", "pod", "-n", "b", "other-1", f"turn=t{number}", "--overwrite")
        for number in range(10):
            policy_world.lab.kubectl("delete", "networkpolicy", "-n", "a", f"more-{number}")
        policy_world.lab.kubectl("label", "pod", "-n", "b", "other-1", "turn-")
    assert counts.sent > 200
    assert (counts.allowed, counts.forbidden) == (counts.sent, 0)

    policy_world.lab.kubectl("label", "pod", "-n", "a", "client-1", "app=none", "--overwrite")
    try:
        policy_world.until_reached("web-2", OPEN, {"client-2"})
    finally:
        policy_world.lab.kubectl("label", "pod", "-n", "a", "client-1", "app=client", "--overwrite")
    policy_world.until_reached("web-2", OPEN, {"client-1", "client-2"})


def test_pods_that_start_while_a_policy_denies(policy_world: World) -> None:
    """From their first moment they try to send what they may not."""
    policy_world.apply(kubernetes("silence", {"matchLabels": {"app": "silent"}}, policyTypes=["Ingress", "Egress"]))
    sink = policy_world.probes["web-1"]
    loop = f"while :; do ping -i 0.1 {sink.address}; done"
    with hearing(sink) as heard:
        names = [f"silent-{number}" for number in range(8)]
        documents = [
            pod(name, "a", {"app": "silent"}, policy_world.lab.nodes[i % 2].name, ("sh", "-c", loop))
            for i, name in enumerate(names)
        ]
        loud = pod("loud", "a", {"app": "loud"}, policy_world.lab.nodes[1].name, ("sh", "-c", loop))
        policy_world.apply(*documents, loud)
        new = probes_of(policy_world.lab, "a", 4 + len(names) + 1)
        until(lambda: new["loud"].address in heard, "the one that may send is heard", timeout_s=30, pause_s=0.1)
    assert heard == {new["loud"].address}
    silent = [new[name].address for name in names]
    assert policy_world.probes["client-1"].reaches(OPEN, *silent, new["loud"].address, protocol="tcp") == {
        new["loud"].address
    }


def test_a_burst_of_pods_with_policies(policy_world: World) -> None:
    burst = {"matchLabels": {"app": "burst"}}
    clients = {"from": [{"podSelector": CLIENT}], "ports": OPEN_PORTS}
    policy_world.apply(kubernetes("burst", burst, namespace="b", ingress=[clients]))
    documents = [pod(f"burst-{i}", "b", {"app": "burst"}, policy_world.lab.nodes[i % 2].name) for i in range(BURST)]
    policy_world.apply(*documents)
    found = running_pods(policy_world.lab, "b", 2 + BURST, timeout_s=900)
    made = {p["status"]["podIP"] for p in found if p["metadata"]["name"].startswith("burst")}
    assert len(made) == BURST
    until(
        lambda: policy_world.probes["other-1"].reaches(OPEN, *made, protocol="tcp") == made,
        "all reached",
        timeout_s=30,
        pause_s=0.1,
    )
    assert policy_world.probes["other-2"].reaches(OPEN, *made, protocol="tcp") == made
    for name, port in (("other-1", CLOSED), ("web-1", OPEN), ("client-2", OPEN)):
        assert policy_world.probes[name].reaches(port, *made, protocol="tcp") == set(), name
