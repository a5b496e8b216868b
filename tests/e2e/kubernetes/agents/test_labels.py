"""Block affinities as versions before Calico labelled them: a node's first ADD, its agent and the janitor find them.

Objects are laid down raw, without labels; who asked for what is in the API server's audit log.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from cni_calico.controllers.cluster import Cluster as Place
from cni_calico.controllers.counters import JanitorCounters
from cni_calico.controllers.janitor.options import JanitorOptions
from cni_calico.controllers.janitor.work import JanitorWork
from cni_calico.datastore.election import SoleElection
from cni_calico.log import SILENT
from tests.conftest import ROOT
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import CNI_USER, CONTROLLERS_USER, NODE_USER, Cluster
from tests.e2e.kubernetes.node import KubeNode
from tests.e2e.kubernetes.programs import agent_command, agent_environ
from tests.e2e.kubernetes.roles import RBAC, documents, used
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

CRD = "/apis/crd.projectcalico.org/v1"
AFFINITIES = f"{CRD}/blockaffinities"
BLOCKS = {"node1": "10.65.7.64/26", "node2": "10.65.9.0/26"}
LABELS = {"projectcalico.org/affinity-type", "projectcalico.org/hostname-hash", "projectcalico.org/ip-version"}


def lay_down(kube: Cluster, node: str, cidr: str, *, held: int = 0) -> None:
    """A block of a node, its first addresses held, and its affinity without labels."""
    name = cidr.translate(str.maketrans("./", "--"))
    kube.request(
        "POST",
        f"{CRD}/ipamblocks",
        {
            "apiVersion": "crd.projectcalico.org/v1",
            "kind": "IPAMBlock",
            "metadata": {"name": name},
            "spec": {
                "cidr": cidr,
                "affinity": f"host:{node}",
                "strictAffinity": False,
                "allocations": [0] * held + [None] * (64 - held),
                "unallocated": list(range(held, 64)),
                "attributes": [{"handle_id": "old", "secondary": {"node": node}}] if held else [],
                "deleted": False,
            },
        },
    )
    kube.request(
        "POST",
        AFFINITIES,
        {
            "apiVersion": "crd.projectcalico.org/v1",
            "kind": "BlockAffinity",
            "metadata": {"name": f"{node}-{name}"},
            "spec": {"cidr": cidr, "node": node, "state": "confirmed", "deleted": "false"},
        },
    )


def labels(kube: Cluster) -> dict[str, set[str]]:
    """Of every affinity by its block."""
    found = kube.request("GET", AFFINITIES)["items"]
    return {obj["spec"]["cidr"]: set(obj["metadata"].get("labels") or {}) for obj in found}


def unlabelled_lists(kube: Cluster, user: str, since: int) -> int:
    """How often a user asked for affinities without labels."""
    return sum(
        "labelSelector=%21projectcalico.org" in event["requestURI"]
        for event in kube.audited(since)
        if event["user"]["username"] == user
    )


def marker(node: KubeNode) -> Path:
    return node.root / "run" / "cni" / "ipam_upgraded"


@pytest.fixture(params=["one-shot", "served"])
def restricted_node(request: pytest.FixtureRequest, restricted: KubeNode) -> Iterator[KubeNode]:
    """With the rights of the manifest and no others."""
    with nullcontext() if request.param == "one-shot" else restricted.server():
        yield restricted


def block_of(address: str) -> str:
    return next((cidr for cidr in BLOCKS.values() if address.startswith(cidr.rpartition(".")[0])), "")


def add(node: KubeNode, make: MakeNamespace, name: str, **more: Any) -> str:
    """The address of a new pod."""
    node.kube.create_pod(node.namespace, name, node.nodename)
    reply = node.pod_call("ADD", name, name.encode().hex().ljust(64, "0"), make().path, **more)
    assert reply.ok, reply.document
    return str(reply.document["ips"][0]["address"])


@pytest.mark.parametrize("plugin", ["calico", "calico-ipam"])
def test_the_first_add_finds_the_nodes_own_blocks(
    plugin: str, restricted_node: KubeNode, make_pod_ns: MakeNamespace
) -> None:
    """Those of its own node, once: what comes later is the agent's, and costs an ADD no request."""
    kube = restricted_node.kube
    for name, cidr in BLOCKS.items():
        lay_down(kube, name, cidr, held=2)
    since = len(kube.audited())
    addresses = [add(restricted_node, make_pod_ns, f"p{i}", plugin=plugin) for i in range(3)]
    assert {block_of(address) for address in addresses} == {BLOCKS["node1"]}
    found = labels(kube)
    assert found[BLOCKS["node1"]] == LABELS and found[BLOCKS["node2"]] == set()
    assert marker(restricted_node).read_bytes() == b"" and marker(restricted_node).stat().st_mode & 0o777 == 0o644
    assert unlabelled_lists(kube, CNI_USER, since) == 1
    assert not used(kube, CNI_USER, since)[1]

    lay_down(kube, "node1", "10.65.20.0/26")
    add(restricted_node, make_pod_ns, "later", plugin=plugin)
    assert labels(kube)["10.65.20.0/26"] == set() and unlabelled_lists(kube, CNI_USER, since) == 1


def test_what_upstreams_plugin_has_done_is_not_done_again(
    restricted: KubeNode,
    make_pod_ns: MakeNamespace,
) -> None:
    node = restricted
    marker(node).parent.mkdir(parents=True)
    marker(node).touch()
    lay_down(node.kube, "node1", BLOCKS["node1"])
    since = len(node.kube.audited())
    add(node, make_pod_ns, "p")
    assert labels(node.kube)[BLOCKS["node1"]] == set() and not unlabelled_lists(node.kube, CNI_USER, since)


def test_a_server_looks_when_it_has_started(restricted: KubeNode, make_pod_ns: MakeNamespace) -> None:
    """Whatever the file says, and once: it is there before start-up has looked."""
    node = restricted
    marker(node).parent.mkdir(parents=True)
    marker(node).touch()
    lay_down(node.kube, "node1", BLOCKS["node1"], held=2)
    since = len(node.kube.audited())
    with node.server():
        assert {block_of(add(node, make_pod_ns, name)) for name in ("p", "q")} == {BLOCKS["node1"]}
    assert unlabelled_lists(node.kube, CNI_USER, since) == 1


def test_a_directory_that_cannot_be_written_is_no_failure(
    restricted_node: KubeNode, make_pod_ns: MakeNamespace
) -> None:
    marker(restricted_node).parent.write_text("in the way")
    lay_down(restricted_node.kube, "node1", BLOCKS["node1"])
    for name in ("p", "q"):
        assert block_of(add(restricted_node, make_pod_ns, name)) == BLOCKS["node1"]
    assert "cannot remember in" in (restricted_node.root / "cni.log").read_text()


def test_without_the_right_to_label_nothing_is_taken(restricted_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    """A second block beside one that cannot be seen would be a silent loss of addresses."""
    role = f"{RBAC}/clusterroles/calico-cni-plugin"
    stored = restricted_node.kube.request("GET", role)
    for rule in stored["rules"]:
        if rule["resources"] == ["blockaffinities"]:
            rule["verbs"].remove("update")
    restricted_node.kube.request("PUT", role, stored)
    lay_down(restricted_node.kube, "node1", BLOCKS["node1"])
    restricted_node.kube.create_pod(restricted_node.namespace, "p", restricted_node.nodename)
    reply = restricted_node.pod_call("ADD", "p", "1" * 64, make_pod_ns().path)
    assert not reply.ok and "blockaffinities" in reply.document["msg"] + reply.document["details"], reply.document
    assert (
        len(labels(restricted_node.kube)) == 1
        and not restricted_node.leftovers()
        and not marker(restricted_node).exists()
    )


def start_up(kube: Cluster, host: Namespace, root: Path) -> str:
    argv = ["nsenter", f"--net={host.path}", sys.executable, "-m", "cni_calico.nodeagent.main", "-startup"]
    done = subprocess.run(
        argv, cwd=ROOT, env=agent_environ(kube, root), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_every_start_of_the_agent_looks(restricted: KubeNode, agent_rights: Cluster) -> None:
    """Whatever the file says: an older version may have run on the node since the boot."""
    node, kube = restricted, agent_rights
    marker(node).parent.mkdir(parents=True)
    marker(node).touch()
    for cidr in (BLOCKS["node1"], "10.65.20.0/26"):
        lay_down(kube, "node1", cidr)
        lay_down(kube, "node2", cidr.replace("10.65", "10.66"))
        since = len(kube.audited())
        start_up(kube, node.host, node.root)
        found = labels(kube)
        assert found[cidr] == LABELS and found[cidr.replace("10.65", "10.66")] == set()
        assert not used(kube, NODE_USER, since)[1]
    since = len(kube.audited())
    start_up(kube, node.host, node.root)
    assert ("update", "blockaffinities") not in used(kube, NODE_USER, since)[0]


def test_a_bare_felix_looks_at_every_start(restricted: KubeNode, agent_rights: Cluster) -> None:
    """Without start-up, in the words of upstream's run script, and as no janitor; once while it runs."""
    node, kube = restricted, agent_rights
    marker(node).parent.mkdir(parents=True)
    marker(node).touch()
    environ = {
        **agent_environ(kube, node.root),
        "NODENAME": "",
        "DATASTORE_TYPE": "",
        "FELIX_FELIXHOSTNAME": "node1",
        "FELIX_DATASTORETYPE": "kubernetes",
        "CALICO_JANITOR": "false",
    }
    for cidr in (BLOCKS["node1"], "10.65.20.0/26"):
        elsewhere = cidr.replace("10.65", "10.66")
        lay_down(kube, "node1", cidr)
        lay_down(kube, "node2", elsewhere)
        since = len(kube.audited())
        with open(node.root / "felix.log", "ab") as log:
            agent = subprocess.Popen([*agent_command(node.host), "-felix"], env=environ, cwd=ROOT, stderr=log)
        try:
            until(lambda cidr=cidr: labels(kube)[cidr] == LABELS, f"{cidr} is labelled", 60)
        finally:
            agent.terminate()
            assert agent.wait(20) == 0, (node.root / "felix.log").read_text()
        assert labels(kube)[elsewhere] == set() and unlabelled_lists(kube, NODE_USER, since) == 1
        assert not used(kube, NODE_USER, since)[1]


def test_who_is_elected_labels_them(kube: Cluster) -> None:
    for name, cidr in BLOCKS.items():
        kube.create_node(name)
        lay_down(kube, name, cidr)
    environ = {**os.environ, "DATASTORE_TYPE": "kubernetes", "KUBECONFIG": kube.kubeconfig()}
    argv = [sys.executable, "-m", "tests.e2e.janitor_driver", "node1"]
    with subprocess.Popen(argv, env=environ, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as driver:
        try:
            until(lambda: all(found == LABELS for found in labels(kube).values()), "all are labelled", 60)
        finally:
            driver.terminate()


def test_the_janitor_labels_those_of_all_nodes(kube: Cluster) -> None:
    """With the rights of the controllers' manifest; a load balancer's affinity, too; and again later."""
    roles = [
        (d["kind"].lower() + "s", d)
        for d in documents("calico.yaml", "ClusterRole", "ClusterRoleBinding")
        if d["metadata"]["name"] == "calico-kube-controllers"
    ]
    for plural, document in roles:
        kube.ensure(f"{RBAC}/{plural}", document)
    store = kube.store("controllers-token")
    try:
        for name, cidr in BLOCKS.items():
            kube.create_node(name)
            lay_down(kube, name, cidr)
        virtual = {"cidr": "10.65.30.0/26", "node": "load-balancer", "state": "confirmed"}
        body = {"metadata": {"name": "load-balancer-10-65-30-0-26"}, "apiVersion": "crd.projectcalico.org/v1"}
        spec = {**virtual, "deleted": "false", "type": "virtual"}
        kube.request("POST", AFFINITIES, {**body, "kind": "BlockAffinity", "spec": spec})
        since = len(kube.audited())
        work = JanitorWork(
            Place(store, SILENT, store, is_kubernetes_datastore=True),
            SoleElection(),
            JanitorCounters(),
            JanitorOptions(labels_s=0.0),
            keep_lease=lambda: True,
            attempt=lambda doing, do: do(),
        )
        for _ in range(2):
            work.label_old_affinities()
            assert all(found == LABELS for found in labels(kube).values()), labels(kube)
            if "10.65.21.0/26" not in labels(kube):
                lay_down(kube, "node1", "10.65.21.0/26")
        virtuals = kube.request("GET", f"{AFFINITIES}/load-balancer-10-65-30-0-26")
        assert virtuals["metadata"]["labels"]["projectcalico.org/affinity-type"] == "virtual"
        assert virtuals["spec"] == spec
        assert not used(kube, CONTROLLERS_USER, since)[1]
    finally:
        store.close()
        for plural, document in reversed(roles):
            kube.request("DELETE", f"{RBAC}/{plural}/{document['metadata']['name']}")
