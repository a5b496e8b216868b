"""Two versions of ours on the records of one cluster of projectcalico.org/v3: the first that knows the group and this
one share them; the last that does not know it refuses them, and changes nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from cni_calico.model.access import NATIVE_GROUP
from cni_calico.model.keys import CLUSTER_KINDS, NAMESPACED_KINDS
from tests.conftest import ROOT
from tests.e2e import mixed
from tests.e2e.kubernetes.cluster import NATIVE_ROOT, Cluster, plurals_of
from tests.e2e.kubernetes.moving.test_mixed import turns_on
from tests.e2e.kubernetes.moving.versions import (
    BEFORE_NATIVE,
    FIRST_NATIVE,
    OlderVersion,
    agent_settings,
    sources_of,
    without_bookkeeping,
)
from tests.e2e.kubernetes.node import KubeNode
from tests.e2e.mixed import Turns
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns, pytest.mark.slow]

# what an object of each kind may say; the kinds that are not here say nothing
ALLOW = [{"action": "Allow", "protocol": "TCP", "source": {"nets": ["10.0.0.0/8"]}, "destination": {"ports": [80]}}]
POLICY = {"tier": "sec", "order": 10, "selector": "app == 'web'", "types": ["Ingress"], "ingress": ALLOW}
SPECS: dict[str, dict[str, Any]] = {
    "Tier": {"order": 10, "defaultAction": "Pass"},
    "IPPool": {"cidr": "10.65.0.0/16", "blockSize": 28, "vxlanMode": "Always", "natOutgoing": True},
    "IPReservation": {"reservedCIDRs": ["10.65.0.0/28"]},
    "BGPPeer": {"peerIP": "192.0.2.1", "asNumber": 64512, "nodeSelector": "all()"},
    "BGPConfiguration": {"asNumber": 64513, "serviceClusterIPs": [{"cidr": "10.96.0.0/16"}]},
    "BGPFilter": {"exportV4": [{"action": "Accept", "cidr": "10.0.0.0/8", "matchOperator": "In"}]},
    "FelixConfiguration": {"ipipMTU": 1400, "healthPort": 9199},
    "HostEndpoint": {"node": "node1", "interfaceName": "eth7", "expectedIPs": ["192.0.2.7"]},
    "CalicoNodeStatus": {"node": "node1", "classes": ["BGP"], "updatePeriodSeconds": 10},
    "KubeControllersConfiguration": {"controllers": {"node": {"syncLabels": "Enabled"}}},
    "NetworkSet": {"nets": ["192.0.2.0/24"]},
    "GlobalNetworkSet": {"nets": ["192.0.2.0/24", "2001:db8::/64"]},
    "GlobalNetworkPolicy": POLICY,
    "NetworkPolicy": POLICY,
    "StagedGlobalNetworkPolicy": {**POLICY, "stagedAction": "Set"},
    "StagedNetworkPolicy": {**POLICY, "stagedAction": "Set"},
    "StagedKubernetesNetworkPolicy": {"podSelector": {}, "policyTypes": ["Ingress"], "stagedAction": "Set"},
}
# kinds that have no object of their own there, or whose objects are Kubernetes' or only the agent's to write
OTHERS = {"Node", "Profile", "WorkloadEndpoint", "ClusterInformation"}


@pytest.fixture
def older(native_node: KubeNode, tmp_path_factory: pytest.TempPathFactory) -> OlderVersion:
    return _version(FIRST_NATIVE, native_node, tmp_path_factory)


@pytest.fixture
def unaware(native_node: KubeNode, tmp_path_factory: pytest.TempPathFactory) -> OlderVersion:
    return _version(BEFORE_NATIVE, native_node, tmp_path_factory)


def _version(commit: str, node: KubeNode, factory: pytest.TempPathFactory) -> OlderVersion:
    sources = sources_of(commit, factory.mktemp("older"))
    if sources is None:
        pytest.skip("the history of this repository is not here")
    return OlderVersion(sources, node)


def test_pods_are_added_and_deleted_by_either(
    native_node: KubeNode, older: OlderVersion, make_pod_ns: MakeNamespace
) -> None:
    """Blocks, affinities, handles and endpoints: each pod is deleted by the version that has not added it."""
    mixed.take_turns(_turns(native_node, older), make_pod_ns, seed=16)


def test_calls_are_repeated_by_the_other(
    native_node: KubeNode, older: OlderVersion, make_pod_ns: MakeNamespace
) -> None:
    mixed.repeated_calls_meet(_turns(native_node, older), make_pod_ns)


def _turns(node: KubeNode, older: OlderVersion) -> Turns:
    return replace(turns_on(node, NATIVE_GROUP), upstream=older)


@pytest.mark.parametrize("native_node", ["one-shot"], indirect=True)
def test_every_kind_is_written_and_read_by_both(native_node: KubeNode, older: OlderVersion) -> None:
    """Nothing of an object changes because the other version has read it and written it back."""
    kube = native_node.kube
    kube.empty(NATIVE_ROOT)
    resources = [resource(kind, "ours") for kind in every_kind()]
    assert len(resources) > 15
    apply(kube, resources)
    mine = objects(kube)  # and what every cluster has, which the first command makes
    assert len(mine) > len(resources)
    # read by the older one, and written back as they are
    for kind in every_kind():
        read = older.calicoctl("get", kind, name_of(kind, "ours"), *scope(kind), "-o", "json")
        assert read.returncode == 0, (kind, read)
        again = older.calicoctl("replace", "-f", "-", stdin=read.stdout)
        assert again.returncode == 0, (kind, again)
        assert objects(kube) == mine, kind
    # changed by the older one, read by this one and written back
    labelled = [{**each, "metadata": {**each["metadata"], "labels": {"by": "older"}}} for each in resources]
    done = older.calicoctl("apply", "-f", "-", stdin=listed(labelled))
    assert done.returncode == 0, done
    theirs = objects(kube)
    assert [found["metadata"].get("labels", {}).get("by") for found in theirs.values()].count("older") == len(resources)
    for kind in every_kind():
        read = calicoctl(kube, "get", kind, name_of(kind, "ours"), *scope(kind), "-o", "json")
        assert read.returncode == 0 and json.loads(read.stdout)["metadata"]["labels"]["by"] == "older", (kind, read)
        again = calicoctl(kube, "replace", "-f", "-", stdin=read.stdout)
        assert again.returncode == 0, (kind, again)
        assert objects(kube) == theirs, kind
    # made by the older one
    kube.empty(NATIVE_ROOT)
    done = older.calicoctl("apply", "-f", "-", stdin=listed(resources))
    assert done.returncode == 0, done
    made = objects(kube)
    assert specs(made) | _versions(mine) == specs(mine)


@pytest.mark.parametrize("native_node", ["one-shot"], indirect=True)
def test_agents_of_both_start_on_the_same_records(native_node: KubeNode, older: OlderVersion) -> None:
    """Whichever comes second finds everything made, and leaves it as it is."""
    kube = native_node.kube
    for first, second in ((older.start_up, _start_up(native_node)), (_start_up(native_node), older.start_up)):
        kube.empty(NATIVE_ROOT)
        kube.create_node("node1")
        assert (done := first()).returncode == 0, done
        made = objects(kube)
        assert {name.partition("/")[0] for name in made} >= {"clusterinformations", "felixconfigurations", "tiers"}
        assert (done := second()).returncode == 0, done
        assert specs(objects(kube)) | _versions(made) == specs(made) | _versions(made)


@pytest.mark.parametrize("native_node", ["one-shot"], indirect=True)
def test_a_version_that_does_not_know_the_group_is_refused(
    native_node: KubeNode, unaware: OlderVersion, pod_ns: Namespace
) -> None:
    kube = native_node.kube
    apply(kube, [resource("GlobalNetworkPolicy", "p"), resource("Tier", "sec")])
    node, before = kube.request("GET", "/api/v1/nodes/node1"), objects(kube)
    read = unaware.calicoctl("get", "ippools")
    assert read.returncode == 1 and not read.stdout, read
    written = unaware.calicoctl("apply", "-f", "-", stdin=listed([resource("GlobalNetworkSet", "s")]))
    assert written.returncode == 1, written
    container = turns_on(native_node, NATIVE_GROUP).make(0)
    reply = unaware.call("ADD", container, pod_ns)
    assert reply.rc != 0 and pod_ns.link("eth0") is None, reply
    started = unaware.start_up(WAIT_FOR_DATASTORE="false")
    assert started.returncode != 0, started
    for said in (read.stderr, written.stderr, str(reply.document), started.stdout + started.stderr):
        assert "crd.projectcalico.org" in said, said
    assert objects(kube) == before
    assert without_bookkeeping(kube.request("GET", "/api/v1/nodes/node1")) == without_bookkeeping(node)
    served = {group["name"] for group in kube.request("GET", "/apis")["groups"]}
    assert "projectcalico.org" in served and "crd.projectcalico.org" not in served


def _start_up(node: KubeNode) -> Any:
    def run() -> subprocess.CompletedProcess[str]:
        command = ["nsenter", f"--net={node.host.path}", sys.executable, "-m", "cni_calico.nodeagent.main", "-startup"]
        environ = {"PATH": os.environ["PATH"], **agent_settings(node)}
        return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120)

    return run


def _versions(made: dict[str, Any]) -> dict[str, Any]:
    """The object that says which version runs, which may differ."""
    return {name: spec for name, spec in specs(made).items() if name.startswith("clusterinformations/")}


def every_kind() -> list[str]:
    return [kind for kind in (*CLUSTER_KINDS, *NAMESPACED_KINDS) if kind not in OTHERS]


def name_of(kind: str, name: str) -> str:
    return {"BGPConfiguration": "default", "KubeControllersConfiguration": "default", "Tier": "sec"}.get(kind, name)


def scope(kind: str) -> list[str]:
    return ["-n", "space"] if kind in NAMESPACED_KINDS else []


def resource(kind: str, name: str) -> dict[str, Any]:
    metadata = {"name": name_of(kind, name), **({"namespace": "space"} if kind in NAMESPACED_KINDS else {})}
    return {"apiVersion": NATIVE_GROUP, "kind": kind, "metadata": metadata, "spec": SPECS.get(kind, {})}


def listed(resources: list[dict[str, Any]]) -> str:
    """A tier comes before what is in it."""
    ordered = sorted(resources, key=lambda each: each["kind"] != "Tier")
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": ordered})


def apply(kube: Cluster, resources: list[dict[str, Any]]) -> None:
    done = calicoctl(kube, "apply", "-f", "-", stdin=listed(resources))
    assert done.returncode == 0, done


def calicoctl(kube: Cluster, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "DATASTORE_TYPE": "kubernetes", "KUBECONFIG": kube.kubeconfig()}
    command = [sys.executable, "-m", "cni_calico.ctl.main", *words]
    return subprocess.run(command, input=stdin, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=120)


def objects(kube: Cluster) -> dict[str, Any]:
    """plural/name -> the object as the API server has it"""
    return {
        f"{plural}/{found['metadata']['name']}": without_bookkeeping(found)
        for plural in plurals_of(NATIVE_ROOT)
        for found in kube.request("GET", f"{NATIVE_ROOT}/{plural}")["items"]
    }


def specs(found: dict[str, Any]) -> dict[str, Any]:
    return {name: each["spec"] for name, each in found.items()}
