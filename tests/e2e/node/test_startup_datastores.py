"""``calico-node -startup`` as a process on each of the three datastores, on a host with two network cards.

The cards eth0 and eth1 are in different subnets, the default route is on eth0, eth1 is the newer one; docker0, a Docker
bridge, a pod's interface and a veth make noise. ``calicoctl`` tells what is stored, whatever the datastore is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.deadlines import until
from tests.e2e.host import etcd_in
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.node import Relay
from tests.netns.namespaces import Namespace, namespace
from tests.netns.startups import add_card

ETH0, ETH1 = "10.0.0.5/24", "172.20.1.5/16"
PEER = {"apiVersion": "projectcalico.org/v3", "kind": "BGPPeer", "metadata": {"name": "tor"}}
KUBEADM = "networking:\n  podSubnet: 10.244.0.0/16,fd44::/112\n"


@dataclass
class Host:
    """One node's directories; ``environ`` names the datastore."""

    ns: Namespace
    root: Path
    environ: dict[str, str]
    kube: Cluster | None = None
    more: dict[str, str] = field(default_factory=dict)

    def start(self, *, check: bool = True, name: str = "n1", **environ: str) -> subprocess.CompletedProcess[str]:
        own = {
            "NODENAME": name,
            "CALICO_RUN_DIR": f"{self.root}/{name}/run",
            "CALICO_STATE_DIR": f"{self.root}/{name}/lib",
            "CALICO_LOG_DIR": f"{self.root}/{name}/log",
            "CALICO_NODENAME_FILE": f"{self.root}/{name}/lib/nodename",
            "CALICO_DISABLE_FILE_LOGGING": "true",
        }
        return self._run("nodeagent", "-startup", check=check, **own, **self.more, **environ)

    def calicoctl(self, *arguments: str, stdin: str = "") -> str:
        return self._run("ctl", *arguments, stdin=stdin).stdout

    def _run(
        self, program: str, *arguments: str, stdin: str = "", check: bool = True, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        argv = ["nsenter", f"--net={self.ns.path}", sys.executable, "-m", f"cni_calico.{program}.main", *arguments]
        env = {"PATH": os.environ["PATH"], **self.environ, **environ}
        done = subprocess.run(argv, input=stdin, env=env, cwd=ROOT, capture_output=True, text=True, timeout=90)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def stored(self) -> dict[str, list[dict[str, Any]]]:
        """By kind, with the records' own revisions; the lists' are the datastore's, which others write to as well."""
        return {kind: json.loads(self.calicoctl("get", kind, "-o", "json"))["items"] for kind in KINDS}

    def get(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.calicoctl("get", kind, name, "-o", "json"))
        return found

    def bgp(self, name: str = "n1") -> dict[str, Any]:
        found: dict[str, Any] = self.get("node", name)["spec"].get("bgp", {})
        return found

    def kubernetes_node(self, name: str, *addresses: str) -> None:
        """The node as its kubelet would have it, where the datastore is Kubernetes."""
        if self.kube is None:
            return
        self.kube.create_node(name)
        listed = [{"type": "InternalIP", "address": address} for address in addresses]
        merge = "application/merge-patch+json"
        body = {"status": {"addresses": listed}}
        self.kube.request("PATCH", f"/api/v1/nodes/{name}/status", body, content_type=merge)


def two_cards(ns: Namespace) -> None:
    add_card(ns, "eth0", ETH0, "fd00::5/64")
    add_card(ns, "eth1", ETH1, "fd01::5/64")
    for bridge, address in (("docker0", "172.17.0.1/16"), ("br-3fa8c1", "172.18.0.1/16")):
        ns.do("link", "add", bridge, "type", "bridge")
        ns.do("addr", "add", address, "dev", bridge)
        ns.do("link", "set", bridge, "up")
    add_card(ns, "cali123", "10.65.0.9/32")
    add_card(ns, "veth-a", "192.0.2.77/24")
    ns.do("route", "add", "default", "via", "10.0.0.1")
    ns.do("-6", "route", "add", "default", "via", "fd00::1")


@pytest.fixture(
    params=[
        "local",
        pytest.param("etcd", marks=pytest.mark.etcd),
        pytest.param("kubernetes", marks=pytest.mark.kubernetes),
    ]
)
def host_on_any_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Host]:
    with ExitStack() as stack:
        ns = stack.enter_context(namespace("twonic"))
        two_cards(ns)
        if request.param == "local":
            yield Host(ns, tmp_path, {"DATASTORE_TYPE": "local", "DATASTORE_PATH": f"{tmp_path}/store.db"})
            return
        if request.param == "etcd":
            member = stack.enter_context(etcd_in(ns, tmp_path))
            yield Host(ns, tmp_path, {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": member.client_url})
            return
        kube: Cluster = request.getfixturevalue("kube")
        stack.callback(Relay(ns, kube.port).close)
        made = Host(ns, tmp_path, {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": kube.kubeconfig()}, kube)
        made.kubernetes_node("n1", "10.0.0.5", "fd00::5")
        yield made


KINDS = ("node", "ippool", "clusterinformation", "felixconfiguration")
METHODS = (
    ({}, ETH0, None),  # first-found: the default route's
    ({"IP6": "autodetect"}, ETH0, "fd00::5/64"),
    ({"IP_AUTODETECTION_METHOD": "interface=eth0"}, ETH0, None),
    ({"IP_AUTODETECTION_METHOD": "skip-interface=eth1"}, ETH0, None),
    ({"IP_AUTODETECTION_METHOD": "cidr=192.0.2.128/25,10.0.0.0/24"}, ETH0, None),
    ({"IP_AUTODETECTION_METHOD": "can-reach=203.0.113.9"}, ETH0, None),
    ({"IP6": "autodetect", "IP6_AUTODETECTION_METHOD": "can-reach=fd00::99"}, ETH0, "fd00::5/64"),
)


@pytest.mark.netns
@pytest.mark.slow
def test_every_method(host_on_any_store: Host) -> None:
    for environ, v4, v6 in METHODS:
        host_on_any_store.start(IP="autodetect", **environ)
        found = host_on_any_store.bgp()
        assert found["ipv4Address"] == v4, environ
        assert v6 is None or found["ipv6Address"] == v6, environ
    recorded = {
        entry["name"]: entry["addresses"] for entry in host_on_any_store.get("node", "n1")["spec"]["interfaces"]
    }
    assert list(recorded) == ["eth0", "eth1"] and recorded["eth1"][0] == "172.20.1.5"
    assert (host_on_any_store.root / "n1" / "lib" / "nodename").read_text() == "n1"


@pytest.mark.netns
@pytest.mark.kubernetes
@pytest.mark.parametrize("host_on_any_store", ["kubernetes"], indirect=True)
def test_the_address_that_kubernetes_knows(host_on_any_store: Host) -> None:
    both = {f"{ip}_AUTODETECTION_METHOD": "kubernetes-internal-ip" for ip in ("IP", "IP6")}
    host_on_any_store.start(IP="autodetect", IP6="autodetect", **both)
    assert (host_on_any_store.bgp()["ipv4Address"], host_on_any_store.bgp()["ipv6Address"]) == (ETH0, "fd00::5/64")


@pytest.mark.netns
def test_a_peer_on_the_other_card_is_told(host_on_any_store: Host) -> None:
    spec = {"node": "n1", "peerIP": "10.0.0.1", "asNumber": 65000}
    host_on_any_store.calicoctl("apply", "-f", "-", stdin=json.dumps({**PEER, "spec": spec}))
    said = host_on_any_store.start(IP="autodetect", IP_AUTODETECTION_METHOD="interface=eth1").stderr
    assert "is not in the subnet of BGPPeer tor (10.0.0.1)" in said and f"directly from {ETH0} (eth0)" in said
    assert "is not on the interface of the default route (eth0)" in said
    assert ("is not the InternalIP that Kubernetes has for it" in said) == (host_on_any_store.kube is not None)
    assert (
        "BGPPeer tor" not in host_on_any_store.start(IP="autodetect", IP_AUTODETECTION_METHOD="interface=eth0").stderr
    )


@pytest.mark.netns
def test_an_address_another_node_has(host_on_any_store: Host) -> None:
    host_on_any_store.kubernetes_node("n2", "10.0.0.6")
    host_on_any_store.start(name="n2", IP=ETH1)
    on_eth1 = {"IP": "autodetect", "IP_AUTODETECTION_METHOD": "interface=eth1"}
    done = host_on_any_store.start(check=False, **on_eth1)
    assert done.returncode == 1 and "node n2 already has the IPv4 address 172.20.1.5" in done.stderr
    assert "Traceback" not in done.stderr and not (host_on_any_store.root / "n1" / "lib" / "nodename").exists()
    host_on_any_store.start(IP=ETH0)
    done = host_on_any_store.start(check=False, **on_eth1)  # detected on what n2 has: ours is stale
    assert done.returncode == 1 and "ipv4Address" not in host_on_any_store.bgp()
    host_on_any_store.start(**on_eth1, DISABLE_NODE_IP_CHECK="true")
    assert host_on_any_store.bgp()["ipv4Address"] == ETH1


@pytest.mark.netns
def test_an_address_that_disappears_and_ipv6_that_never_was(host_on_any_store: Host) -> None:
    only = {"IP": "autodetect", "IP_AUTODETECTION_METHOD": "interface=eth0"}
    host_on_any_store.start(**only)
    host_on_any_store.ns.do("addr", "del", ETH0, "dev", "eth0")
    assert "is kept" in host_on_any_store.start(**only).stderr and host_on_any_store.bgp()["ipv4Address"] == ETH0
    host_on_any_store.ns.do("addr", "add", "10.0.0.77/24", "dev", "eth0")
    for address, card in (("fd00::5/64", "eth0"), ("fd01::5/64", "eth1")):
        host_on_any_store.ns.do("addr", "del", address, "dev", card)
    until(lambda: "fe80" in str(host_on_any_store.ns.ip("-6", "addr", "show", "dev", "eth0")), "a link-local address")
    assert "goes without IPv6" in host_on_any_store.start(**only, IP6="autodetect").stderr
    assert host_on_any_store.bgp()["ipv4Address"] == "10.0.0.77/24" and "ipv6Address" not in host_on_any_store.bgp()


@pytest.mark.netns
def test_what_a_start_leaves(host_on_any_store: Host) -> None:
    """AS number, reference, pools, the cluster's records; again: nothing changes. What is there is not replaced."""
    if host_on_any_store.kube is not None:
        metadata = {"name": "kubeadm-config", "namespace": "kube-system"}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        host_on_any_store.kube.ensure_namespace("kube-system")
        host_on_any_store.kube.ensure(
            "/api/v1/namespaces/kube-system/configmaps", {**body, "data": {"ClusterConfiguration": KUBEADM}}
        )
    # 192.168/16 is free unless a card is in it
    add_card(host_on_any_store.ns, "eth2", "192.168.3.4/24")
    environ = {"IP": ETH0, "AS": "64512.7", "CALICO_K8S_NODE_REF": "n1", "CLUSTER_TYPE": "k8s,bgp"}
    try:
        host_on_any_store.start(**environ)
        stored = host_on_any_store.stored()
        host_on_any_store.start(**environ)
        again = host_on_any_store.stored()
    finally:
        if host_on_any_store.kube is not None:
            host_on_any_store.kube.request("DELETE", "/api/v1/namespaces/kube-system/configmaps/kubeadm-config")
    assert stored == again
    node = host_on_any_store.get("node", "n1")["spec"]
    assert node["bgp"]["asNumber"] == (64512 << 16) + 7
    assert {"nodeName": "n1", "orchestrator": "k8s"} in node["orchRefs"]
    pools = {item["metadata"]["name"]: item["spec"]["cidr"] for item in stored["ippool"]}
    types = host_on_any_store.get("clusterinformation", "default")["spec"]["clusterType"]
    if host_on_any_store.kube is None:
        assert pools["default-ipv4-ippool"] == "172.16.0.0/16" and pools["default-ipv6-ippool"].startswith("fd")
        assert types == "k8s,bgp"
        assert host_on_any_store.get("felixconfiguration", "node.n1")["spec"] == {
            "defaultEndpointToHostAction": "Return"
        }
    else:
        assert pools == {"default-ipv4-ippool": "10.244.0.0/16", "default-ipv6-ippool": "fd44::/112"}
        assert types == "kdd,k8s,bgp,kubeadm"
    assert len(json.loads(host_on_any_store.calicoctl("get", "tier", "-o", "json"))["items"]) == 3
