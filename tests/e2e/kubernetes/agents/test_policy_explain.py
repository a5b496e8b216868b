"""``calicoctl policy`` on a real API server: policies of Kubernetes and of Calico decide together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cni_calico.ctl.main import run
from tests.e2e.kubernetes.cluster import Cluster

pytestmark = pytest.mark.kubernetes

SPACE = "explained"
POLICIES = f"/apis/networking.k8s.io/v1/namespaces/{SPACE}/networkpolicies"
Calicoctl = Callable[..., str]


@pytest.fixture
def kube_calicoctl(kube: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Calicoctl]:
    config = tmp_path / "calicoctl.cfg"
    config.write_text(
        "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nmetadata:\n"
        f"spec:\n  datastoreType: kubernetes\n  kubeconfig: {kube.kubeconfig()}\n"
    )

    def call(*argv: str) -> str:
        assert run(["-c", str(config), *argv], {}) == 0, capsys.readouterr()
        return capsys.readouterr().out

    kube.ensure_namespace(SPACE, labels={"team": "x"})
    kube.create_node("n1")
    for name, address, app in (("client", "10.65.0.10", "client"), ("server", "10.65.0.11", "server")):
        pod = kube.create_pod(SPACE, name, "n1", labels={"app": app})
        pod["status"] = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
        kube.request("PUT", f"/api/v1/namespaces/{SPACE}/pods/{name}/status", pod)
    yield call
    kube.request("DELETE", POLICIES)
    kube.empty()


def ask(calicoctl: Calicoctl) -> str:
    return calicoctl("policy", "explain", "--from", f"{SPACE}/client", "--to", f"{SPACE}/server", "--port", "80")


def test_policies_of_both_kinds_decide(kube_calicoctl: Calicoctl, kube: Cluster, tmp_path: Path) -> None:
    assert f"ingress of {SPACE}/server: allowed by rule 1 of Profile kns.{SPACE}" in ask(kube_calicoctl)
    peer = {"namespaceSelector": {"matchLabels": {"team": "x"}}, "podSelector": {"matchLabels": {"app": "client"}}}
    for name, ingress in (("close", []), ("open", [{"from": [peer], "ports": [{"port": 80}]}])):
        spec = {"podSelector": {"matchLabels": {"app": "server"}}, "policyTypes": ["Ingress"], "ingress": ingress}
        body = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}, "spec": spec}
        kube.request("POST", POLICIES, body)
        denied = "DENIED at the end of tier default"
        allowed = f"allowed by rule 1 of KubernetesNetworkPolicy {SPACE}/open in tier default"
        assert f"ingress of {SPACE}/server: {allowed if ingress else denied}" in ask(kube_calicoctl)
    deny = tmp_path / "deny.yaml"
    deny.write_text(
        "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkPolicy\nmetadata: {name: deny}\n"
        "spec: {order: 1, selector: app == 'server', types: [Ingress], ingress: [{action: Deny}]}\n"
    )
    kube_calicoctl("apply", "-f", str(deny))
    assert f"ingress of {SPACE}/server: DENIED by rule 1 of GlobalNetworkPolicy deny in tier default" in ask(
        kube_calicoctl
    )
    shown = kube_calicoctl("policy", "show", f"{SPACE}/server")
    order = ["GlobalNetworkPolicy deny", f"{SPACE}/close", f"{SPACE}/open"]
    places = [shown.index(word) for word in order]
    assert places == sorted(places)


def test_an_address_that_only_the_annotation_names_is_in_no_selector(kube_calicoctl: Calicoctl, kube: Cluster) -> None:
    claim = {"cni.projectcalico.org/podIPs": "10.65.0.99/32", "cni.projectcalico.org/podIP": "10.65.0.99/32"}
    kube.create_pod(SPACE, "claims", "n1", labels={"app": "client"}, annotations=claim)
    assert "10.65.0.99 (not confirmed)" in kube_calicoctl("policy", "show", f"{SPACE}/claims")
    asked = ("policy", "explain", "--to", f"{SPACE}/server", "--port", "80", "--from")
    assert "an address outside (10.65.0.99)" in kube_calicoctl(*asked, "10.65.0.99")
    assert f"egress of {SPACE}/client" in kube_calicoctl(*asked, "10.65.0.10")


HOSTS = """
apiVersion: crd.projectcalico.org/v1
kind: HostEndpoint
metadata: {name: by-kubectl, labels: {role: host}}
spec: {node: n1, interfaceName: eth0}
---
apiVersion: crd.projectcalico.org/v1
kind: GlobalNetworkPolicy
metadata: {name: default.by-kubectl}
spec: {selector: role == 'host', ingress: [{action: Allow, protocol: TCP, destination: {ports: [10250]}}]}
---
apiVersion: crd.projectcalico.org/v1
kind: GlobalNetworkPolicy
metadata: {name: default.forwarded}
spec: {selector: role == 'host', applyOnForward: true, types: [Ingress], ingress: [{action: Pass}]}
"""


def test_hosts_as_kubectl_stores_them(kube_calicoctl: Calicoctl, kube: Cluster) -> None:
    """Without defaults and unchecked: a policy without types governs both directions; the Node has the address."""
    kube.kubectl("annotate", "node", "n1", "projectcalico.org/IPv4Address=172.31.0.1/24")
    kube.kubectl("apply", "-f", "-", stdin=HOSTS)
    outside, host = "198.51.100.1", "172.31.0.1"
    for source, destination, port, said in (
        (outside, host, "10250", "(the host itself): allowed by rule 1 of GlobalNetworkPolicy by-kubectl"),
        (outside, host, "80", "(the host itself): DENIED because no policy and no profile allows it"),
        (outside, host, "22", "(the host itself): allowed, it is a failsafe port"),
        (host, outside, "80", "egress of HostEndpoint by-kubectl (the host itself): DENIED at the end of tier default"),
        (outside, f"{SPACE}/server", "80", f"ingress of {SPACE}/server: allowed by rule 1 of Profile kns.{SPACE}"),
    ):
        answer = kube_calicoctl("policy", "explain", "--from", source, "--to", destination, "--port", port)
        assert said in answer, answer
