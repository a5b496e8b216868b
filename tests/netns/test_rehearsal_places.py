"""``calico-node -rehearse`` with every datastore, and with legacy iptables: it says the same, and changes nothing."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.connect import open_datastore
from cni_calico.datastore.interface import Datastore, Write
from cni_calico.deadline import Deadline
from cni_calico.model.access import DatastoreConfig
from cni_calico.model.keys import EverythingList, ResourceKey, ResourceList
from tests.contract.etcd_process import single
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.node import Relay
from tests.netns.policing.lab import DENY_B, Lab, lab
from tests.netns.policing.test_legacy import LEGACY
from tests.netns.test_rehearsal import by_kind, environ_of, node_command
from tests.netns.test_takeover import listed, prepare
from tests.netns.watched import Watched, run_watched

pytestmark = pytest.mark.netns
CLOSED = {**DENY_B, "selector": "all()", "types": ["Ingress", "Egress"]}


def rehearsed(node: Lab, environ: dict[str, str]) -> tuple[Watched, dict[str, Any]]:
    found = run_watched(node_command("-rehearse"), environ, node.host.path, except_for=environ["DATASTORE_PATH"])
    return found, json.loads(found.output or b"{}")


def unchanged(store: Datastore, kinds: tuple[str, ...]) -> list[tuple[object, object]]:
    """What is stored, with the revisions."""
    items = (item for kind in kinds for item in store.list(ResourceList(kind), Deadline.after(10)).items)
    return sorted((str(item.key), str(item.revision)) for item in items)


@pytest.mark.etcd
def test_with_etcd(tmp_path: Path) -> None:
    with single() as etcd, lab(tmp_path) as node:
        prepare(node)
        assert node.passes("b", "a", 4711)
        node.put("GlobalNetworkPolicy", "closed", CLOSED)
        url = etcd.urls[0]
        store = open_datastore(DatastoreConfig("etcdv3", etcd_endpoints=etcd.urls))
        copied = [Write.put(item.key, item.value) for item in node.stored(EverythingList())]
        store.commit(tuple(copied), Deadline.after(30))
        before = unchanged(store, ("GlobalNetworkPolicy", "WorkloadEndpoint", "FelixConfiguration"))
        rules = listed(node)
        environ = environ_of(tmp_path, DATASTORE_TYPE="etcdv3", ETCD_ENDPOINTS=url)
        with closing(Relay(node.host, int(url.rpartition(":")[2]))):
            found, document = rehearsed(node, environ)
        assert (found.status, found.writes, document["trouble"]) == (0, [], [])
        assert listed(node) == rules
        assert unchanged(store, ("GlobalNetworkPolicy", "WorkloadEndpoint", "FelixConfiguration")) == before
        kinds = by_kind(document)
        assert any(text.startswith("add table ip calico-policy") for text in kinds["tables"])
        (denied,) = [one for one in document["denied"] if one["traffic"] == "udp/4711"]
        assert denied["why"] == "ingress: rule 1 of GlobalNetworkPolicy closed"
        store.close()


@pytest.mark.etcd
def test_with_kubernetes(kube: Cluster, tmp_path: Path) -> None:
    kube.create_node("n1", podCIDR="10.65.0.0/24")
    pods = {"a": "10.65.0.1", "b": "10.65.0.2"}
    for name, ip in pods.items():
        annotations = {"cni.projectcalico.org/podIP": f"{ip}/32", "cni.projectcalico.org/podIPs": f"{ip}/32"}
        made = kube.create_pod("space", name, "n1", annotations=annotations)
        path = f"/api/v1/namespaces/space/pods/{name}/status"
        status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}
        kube.request("PUT", path, {**made, "status": {**made.get("status", {}), **status}})
    with lab(tmp_path) as node, closing(kube.store()) as store:
        for item in store.list(ResourceList("WorkloadEndpoint", "space"), Deadline.after(20)).items:
            spec = item.value["spec"]
            node.connect(spec["pod"], spec["interfaceName"], pods[spec["pod"]])
        chain = "add chain ip other f { type filter hook forward priority -9; }"
        node.host.run("nft", f"add table ip other; {chain}; add rule ip other f ct state new counter")
        assert node.passes("b", "a", 4711)
        key = ResourceKey("GlobalNetworkPolicy", "closed")
        document: dict[str, Any] = {
            "kind": key.kind,
            "apiVersion": "projectcalico.org/v3",
            "metadata": {"name": "closed"},
        }
        store.commit((Write.put(key, {**document, "spec": CLOSED}),), Deadline.after(20))
        before = unchanged(store, ("GlobalNetworkPolicy", "FelixConfiguration", "ClusterInformation"))
        rules = listed(node)
        environ = environ_of(tmp_path, DATASTORE_TYPE="kubernetes", KUBECONFIG=kube.kubeconfig())
        since = len(kube.audited())
        with closing(Relay(node.host, int(kube.url.rpartition(":")[2]))):
            found, document = rehearsed(node, environ)
        assert (found.status, found.writes, document["trouble"]) == (0, [], [])
        assert listed(node) == rules
        assert unchanged(store, ("GlobalNetworkPolicy", "FelixConfiguration", "ClusterInformation")) == before
        assert {one["verb"] for one in kube.audited(since)} <= {"get", "list", "watch"}
        kinds = by_kind(document)
        assert any(text.startswith("add table ip calico-policy") for text in kinds["tables"])
        (denied,) = [one for one in document["denied"] if one["traffic"] == "udp/4711"]
        assert denied["from"].startswith("space/b ") and denied["to"].startswith("space/a ")


def test_with_legacy_iptables(tmp_path: Path) -> None:
    """Where the agent would enforce by legacy iptables, and where rules of ours are there already."""
    with lab(tmp_path) as node:
        node.add("a", "10.65.0.1")
        node.add("b", "10.65.0.2")
        node.put_profile("kns.default")
        node.put("GlobalNetworkPolicy", "closed", CLOSED)
        environ = environ_of(tmp_path, **LEGACY)
        before = saved(node)
        found, document = rehearsed(node, environ)
        assert (found.status, found.writes, document["trouble"]) == (0, [], [])
        assert saved(node) == before
        assert any(text.startswith("add table ip calico-policy") for text in by_kind(document)["tables"])
        said = "then 1 policies are in force for 2 workloads (by legacy iptables and IP sets)"
        assert any(text.startswith(said) for text in document["notes"]), document["notes"]


def saved(node: Lab) -> str:
    programs = "iptables-legacy-save", "ip6tables-legacy-save"
    sets = node.host.run("ipset", "save", check=False).stdout
    texts = "".join(node.host.run(program).stdout for program in programs) + sets
    return "\n".join(line for line in texts.splitlines() if not line.startswith("#"))
