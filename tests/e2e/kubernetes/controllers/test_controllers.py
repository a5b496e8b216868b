"""calico-kube-controllers as a process, on a real API server, its etcd and the rights of the manifests."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from cni_calico.controllers.cluster import Cluster as Controlled
from cni_calico.controllers.janitor.run import make_election
from cni_calico.datastore.election import Terms
from cni_calico.datastore.ensure import ensure_record
from cni_calico.datastore.etcd.compaction import KEY, EtcdCompaction
from cni_calico.datastore.etcd.config import EtcdConfig
from cni_calico.datastore.etcd.messages import pb
from cni_calico.datastore.etcd.store import EtcdStore
from cni_calico.datastore.interface import Datastore, Write
from cni_calico.errors import Compacted, DatastoreError
from cni_calico.ipam.allocator import Allocator, AssignRequest
from cni_calico.log import Log
from cni_calico.model.documents.codec import encode, new_metadata
from cni_calico.model.keys import ResourceKey, ResourceList
from cni_calico.model.resources import IPPool
from tests.conftest import ROOT
from tests.contract.etcd_process import single
from tests.deadlines import soon, until
from tests.e2e.kubernetes.cluster import CONTROLLERS_USER, Cluster, free_port, running_cluster
from tests.e2e.kubernetes.definitions import defined, served_by_calicos_api_server
from tests.e2e.kubernetes.programs import controllers, on_etcd
from tests.e2e.kubernetes.records import POLICY, SETTINGS, prepare, profile, wipe
from tests.e2e.kubernetes.roles import rights

pytestmark = pytest.mark.kubernetes


@pytest.fixture
def controllers_etcd(kube: Cluster) -> Iterator[EtcdStore]:
    """The API server's own etcd, as many clusters have it, without Calico's records."""
    store = EtcdStore(EtcdConfig(endpoints=(f"http://127.0.0.1:{kube.etcd_port}",)))
    wipe(store)
    yield store
    wipe(store)
    store.close()


@pytest.fixture
def etcd_alone() -> Iterator[EtcdStore]:
    """An etcd that no API server compacts."""
    with single() as cluster:
        store = EtcdStore(EtcdConfig(endpoints=tuple(cluster.urls)))
        yield store
        store.close()


def test_etcd_follows_kubernetes(kube: Cluster, controllers_etcd: EtcdStore, tmp_path: Path) -> None:
    port = free_port()
    prepare(controllers_etcd, port)
    foreign = ResourceKey("NetworkPolicy", "default.mine", "space")
    controllers_etcd.commit(
        [Write.create(foreign, {"metadata": {"name": foreign.name, "namespace": "space"}, "spec": {}})], soon()
    )
    stale = ResourceKey("Profile", "kns.long-gone")
    controllers_etcd.commit([Write.create(stale, {"metadata": {"name": stale.name}, "spec": {}})], soon())
    kube.create_node("n1", metadata={"labels": {"zone": "a"}})
    node = ResourceKey("Node", "own-name")
    refs = {"orchRefs": [{"orchestrator": "k8s", "nodeName": "n1"}]}
    metadata = {"name": node.name, "labels": {"mine": "1"}}
    controllers_etcd.commit([Write.create(node, {"kind": "Node", "metadata": metadata, "spec": refs})], soon())
    kube.create_pod("space", "web-0", "n1", labels={"app": "web"})
    kube.request(
        "PATCH",
        "/api/v1/namespaces/space/pods/web-0/status",
        {"status": {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}},
        content_type="application/merge-patch+json",
    )
    endpoint = ResourceKey("WorkloadEndpoint", "n1-k8s-web--0-eth0", "space")
    document = {
        "kind": endpoint.kind,
        "metadata": {"name": endpoint.name, "namespace": "space", "labels": {"old": "1"}},
        "spec": {"interfaceName": "cali1", "node": "n1", "orchestrator": "k8s", "pod": "web-0", "endpoint": "eth0"},
    }
    controllers_etcd.commit([Write.create(endpoint, document)], soon())
    with rights(kube, "calico-etcd.yaml"), controllers(kube, tmp_path, **on_etcd(kube)) as process:
        until(lambda: profile(controllers_etcd, "kns.space"), "the namespace's profile", 60)
        made = profile(controllers_etcd, "kns.space")
        assert made["spec"]["labelsToApply"]["pcns.projectcalico.org/name"] == "space"
        assert made["metadata"]["uid"] and made["metadata"]["creationTimestamp"]
        until(lambda: controllers_etcd.get(stale, soon()) is None, "a profile without namespace goes", 30)

        def labels() -> Any:
            found = controllers_etcd.get(endpoint, soon())
            return None if found is None else found.value["metadata"]["labels"]

        until(lambda: labels().get("app") == "web", "the pod's labels", 30)
        assert labels()["projectcalico.org/namespace"] == "space" and "old" not in labels()

        def of_node() -> Any:
            found = controllers_etcd.get(node, soon())
            return None if found is None else found.value["metadata"]["labels"]

        until(lambda: of_node() == {"mine": "1", "zone": "a"}, "the node's labels", 30)

        # what changes while it runs
        kube.kubectl("label", "node", "n1", "zone-", "rack=7")
        until(lambda: of_node() == {"mine": "1", "rack": "7"}, "the node's labels change", 30)
        kube.kubectl("label", "--overwrite", "namespace", "space", "team=red")
        until(
            lambda: profile(controllers_etcd, "kns.space")["spec"]["labelsToApply"].get("pcns.team") == "red",
            "its label",
            30,
        )
        kube.kubectl("label", "-n", "space", "pod", "web-0", "late=yes")
        until(lambda: labels().get("late") == "yes", "a label that the pod got later", 30)
        kube.kubectl("create", "serviceaccount", "-n", "space", "bot")
        until(lambda: profile(controllers_etcd, "ksa.space.bot"), "the account's profile", 30)
        kube.kubectl("apply", "-n", "space", "-f", "-", stdin=json.dumps(POLICY))
        key = ResourceKey("NetworkPolicy", "knp.default.web", "space")
        until(lambda: controllers_etcd.get(key, soon()), "the policy", 30)
        stored = controllers_etcd.get(key, soon())
        assert stored is not None
        assert stored.value["spec"]["selector"] == "projectcalico.org/orchestrator == 'k8s' && app == 'web'"
        # somebody else's changes are put right, and what nobody needs is not written
        controllers_etcd.commit([Write.update(stored, {**stored.value, "spec": {"order": 1}})], soon())
        until(lambda: controllers_etcd.get(key, soon()).value["spec"].get("order") == 1000, "it is put right", 30)
        kube.kubectl("delete", "-n", "space", "networkpolicy", "web")
        kube.kubectl("delete", "-n", "space", "serviceaccount", "bot")
        until(lambda: controllers_etcd.get(key, soon()) is None, "the policy goes", 30)
        until(lambda: profile(controllers_etcd, "ksa.space.bot") is None, "the account's profile goes", 30)
        assert controllers_etcd.get(foreign, soon()) is not None

        # what it says of itself
        until(lambda: process.check_status() == (0, "Ready"), "ready", 60)
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
        assert "calico_controllers_leader 1" in page
        until(lambda: "# TYPE ipam_blocks gauge" in read_metrics(port), "what upstream's dashboards ask for", 30)
        found = controllers_etcd.get(SETTINGS, soon())
        assert found is not None
        assert found.value["status"]["runningConfig"]["prometheusMetricsPort"] == port
        assert found.value["status"]["environmentVars"]["ENABLED_CONTROLLERS"] == on_etcd(kube)["ENABLED_CONTROLLERS"]
        # a live change
        other = free_port()
        controllers_etcd.commit(
            [Write.update(found, {**found.value, "spec": {"prometheusMetricsPort": other}})], soon()
        )
        until(lambda: answers(other) and not answers(port), "metrics move", 30)
        assert process.process.poll() is None
        assert process.end() == 0
    assert "Traceback" not in process.log.read_text()
    assert "forbidden" not in process.log.read_text()
    kube.kubectl("label", "namespace", "space", "team-")


def read_metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        text: str = page.read().decode()
        return text


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            return bool(page.status == 200)
    except OSError:
        return False


def test_another_takes_over_when_one_ends(kube: Cluster, controllers_etcd: EtcdStore, tmp_path: Path) -> None:
    prepare(controllers_etcd, 0)
    only = on_etcd(kube, ENABLED_CONTROLLERS="namespace")
    with (
        rights(kube, "calico-etcd.yaml"),
        controllers(kube, tmp_path / "a", **only) as first,
        controllers(kube, tmp_path / "b", **only) as second,
    ):
        until(lambda: profile(controllers_etcd, "kns.space"), "the namespace's profile", 60)
        leads = [one for one in (first, second) if "these controllers lead" in one.log.read_text()]
        assert len(leads) == 1
        assert leads[0].end() == 0
        controllers_etcd.commit([Write.remove(ResourceKey("Profile", "kns.space"))], soon())
        until(lambda: profile(controllers_etcd, "kns.space"), "the other one makes it again", 60)


def test_an_agent_that_leads_hands_over(kube: Cluster, controllers_etcd: EtcdStore, tmp_path: Path) -> None:
    """The agents came first: their janitor holds the lease, and renews it."""
    prepare(controllers_etcd, 0)
    agent = make_election(Controlled(controllers_etcd, Log("none")), "n1", Terms())
    assert agent.campaign(soon())
    environ = on_etcd(kube, ENABLED_CONTROLLERS="namespace")
    with rights(kube, "calico-etcd.yaml"), controllers(kube, tmp_path, **environ) as process:
        until(lambda: not agent.campaign(soon()), "the agent gives it up", 60, pause_s=0.5)
        until(lambda: profile(controllers_etcd, "kns.space"), "the namespace's profile", 60)
        assert not agent.campaign(soon())
        assert process.end() == 0


def shorten_the_grace(store: Datastore) -> None:
    """What a test of upstream's does: another program takes an address for a pod that does not exist, under any handle,
    and the grace period is changed from 15 minutes to 5 seconds while the controllers run.
    """
    pool = IPPool(new_metadata("p", uid="u", now="2026-11-20T12:06:00Z"), ip_network("10.65.0.0/16"), 26)
    store.commit([Write.put(ResourceKey("IPPool", "p"), encode(pool))], soon())
    attributes = {"node": "nowhere", "namespace": "space", "pod": "none"}
    request = AssignRequest(node="nowhere", handle_id="some-handle", attributes=attributes, num4=1)
    Allocator(store).assign(request, soon())

    def shorten(document: Any) -> Any:
        node = {**document["spec"]["controllers"]["node"], "leakGracePeriod": "5s"}
        spec = {**document["spec"], "controllers": {**document["spec"]["controllers"], "node": node}}
        return {**document, "spec": spec}

    ensure_record(store, SETTINGS, shorten, soon())
    until(lambda: not Allocator(store).addresses_of("some-handle", soon()), "the address is released", 60)


def test_on_kubernetes_its_configuration_is_made_and_the_role_suffices(kube: Cluster, tmp_path: Path) -> None:
    store = kube.store()
    environ = {"DATASTORE_TYPE": "kubernetes", "ENABLED_CONTROLLERS": "node"}
    since = len(kube.audited())
    with rights(kube, "calico.yaml"), controllers(kube, tmp_path, **environ) as process:
        until(lambda: process.check_status() == (0, "Ready"), "ready", 60)

        def status() -> Any:
            found = store.get(SETTINGS, soon())
            return None if found is None else found.value.get("status")

        until(status, "the configuration and its status", 60)
        node = status()["runningConfig"]["controllers"]["node"]
        assert (node["reconcilerPeriod"], node["syncLabels"], node["leakGracePeriod"]) == ("5m0s", "Disabled", "15m0s")
        assert node["hostEndpoint"] == {"autoCreate": "Disabled", "createDefaultHostEndpoint": "Enabled"}
        assert store.get(SETTINGS, soon()).value["spec"]["controllers"]["node"]["leakGracePeriod"] == "15m0s"
        shorten_the_grace(store)
        assert process.end() == 0
    store.close()
    refused = [
        event["requestURI"]
        for event in kube.audited(since)
        if event["user"]["username"] == CONTROLLERS_USER and event.get("responseStatus", {}).get("code") == 403
    ]
    assert not refused
    assert "Traceback" not in process.log.read_text()


def test_compaction_takes_turns_as_the_api_server_does(etcd_alone: EtcdStore) -> None:
    one, other = EtcdCompaction(etcd_alone), EtcdCompaction(etcd_alone)
    assert one.step(soon()) == 0  # the first look: nothing is old enough
    assert other.step(soon()) == 0
    key = ResourceKey("Profile", "kns.x")
    before = etcd_alone.commit([Write.create(key, {"metadata": {"name": "kns.x"}})], soon()).revision
    etcd_alone.commit([Write.put(key, {"metadata": {"name": "kns.x"}, "spec": {}})], soon())
    first = one.step(soon())  # its second: to where etcd was at its first
    assert 0 < first < int(before)
    assert other.step(soon()) == 0  # somebody was faster
    second = other.step(soon())
    assert second > int(before)
    with pytest.raises(Compacted):
        etcd_alone.list(ResourceList("Profile"), soon(), revision=before)
    stored = etcd_alone.cluster.read("Range", pb.RangeRequest(key=KEY), "read the key", soon()).kvs[0]
    assert int(stored.value) == second and stored.version == 3


def test_everything_else_is_refused(kube: Cluster, tmp_path: Path) -> None:
    for manifest, refused in (
        (
            "calico.yaml",
            [
                ("get", "secrets"),
                ("list", "namespaces"),
                ("update", "services"),
                ("delete", "ippools.crd.projectcalico.org"),
            ],
        ),
        ("calico-etcd.yaml", [("get", "secrets"), ("patch", "nodes"), ("delete", "pods"), ("list", "ippools")]),
    ):
        with rights(kube, manifest):
            for verb, resource in refused:
                answer = kube.kubectl("auth", "can-i", verb, resource, "-A", token="controllers-token", check=False)
                assert answer.splitlines()[-1].startswith("no"), (manifest, verb, resource, answer)
    with pytest.raises(DatastoreError):
        kube.store("controllers-token").list(ResourceList("Node"), soon())


@pytest.mark.slow
def test_without_the_definitions_it_waits_and_says_what_is_missing(tmp_path: Path) -> None:
    """Applied later, they are found: nothing has to be started again."""
    environ = {"DATASTORE_TYPE": "kubernetes", "ENABLED_CONTROLLERS": "node"}
    with running_cluster() as kube, rights(kube, "calico.yaml"), controllers(kube, tmp_path, **environ) as process:
        until(lambda: "Calico's custom resource definitions" in process.log.read_text(), "what is missing", 90)
        code, says = process.check_status()
        assert code == 1 and says != "Ready" and process.process.poll() is None
        kube.kubectl("apply", "--server-side", "-f", str(ROOT / "manifests" / "crds.yaml"))
        until(lambda: process.check_status() == (0, "Ready"), "ready", 120)
        until(lambda: "these controllers lead" in process.log.read_text(), "it works", 60)
        assert process.end() == 0
    assert "Traceback" not in process.log.read_text()


ON_KUBERNETES = {"DATASTORE_TYPE": "kubernetes", "ENABLED_CONTROLLERS": "node"}


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_migration_of_the_datastore_is_refused_by_name(kube: Cluster, tmp_path: Path, when: str) -> None:
    group = "migration.projectcalico.org"
    migration = {"kind": "DatastoreMigration", "apiVersion": f"{group}/v1beta1", "metadata": {"name": "v1-to-v3"}}
    with defined(kube, group, "v1beta1", "DatastoreMigration") as path, rights(kube, "calico.yaml"):
        if when == "before":
            kube.request("POST", path, migration)
        with controllers(kube, tmp_path, **ON_KUBERNETES) as process:
            if when == "after":
                until(lambda: "these controllers lead" in process.log.read_text(), "it works", 90)
                kube.request("POST", path, migration)
            assert process.process.wait(90) == 1
    assert (
        "DatastoreMigration v1-to-v3: these controllers, and all nodes, keep the records in crd."
        in process.log.read_text()
    )


def test_calicos_api_server_is_no_reason_to_refuse(kube: Cluster, tmp_path: Path) -> None:
    """It serves the other group, out of the records that we know."""
    with (
        served_by_calicos_api_server(kube),
        rights(kube, "calico.yaml"),
        controllers(kube, tmp_path, **ON_KUBERNETES) as process,
    ):
        until(lambda: process.check_status() == (0, "Ready"), "ready", 90)
        assert process.end() == 0
