"""What has stopped a move between the API groups, or lost something in it: upstream's migration, and imports of ours
that are killed, records that only one of the groups can keep, and two that would be one.
"""

from __future__ import annotations

import json
import os
import signal
import tarfile
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cni_calico.controllers.elsewhere import read_why_refused
from cni_calico.ctl.datastore.migrate import importing
from cni_calico.ctl.main import run
from cni_calico.datastore.interface import Write
from cni_calico.datastore.kubernetes import group as groups
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.errors import DatastoreUnsupported
from cni_calico.install.steps import find_api_group
from cni_calico.kernel.files import Files
from cni_calico.model.access import API_GROUP, CRD_ROOT, NATIVE_GROUP
from cni_calico.model.keys import CLUSTER, EverythingList, Key, ResourceKey, etcd_path
from tests.deadlines import soon, until
from tests.e2e.kubernetes.cluster import NATIVE_ROOT, Cluster, native_cluster
from tests.e2e.kubernetes.definitions import defined
from tests.e2e.kubernetes.manifests.test_installed_group import TEMPLATE, in_a_pod
from tests.e2e.kubernetes.node import KubeNode
from tests.netns.namespaces import Namespace

pytestmark = pytest.mark.kubernetes

FORMAT = "cni-calico/datastore-export/v1"
BLOCK = "/calico/ipam/v2/assignment/ipv4/block/10.65.0.0-26"


@pytest.fixture
def emptied() -> Iterator[Cluster]:
    cluster = native_cluster()
    cluster.empty(NATIVE_ROOT)
    yield cluster
    cluster.empty(NATIVE_ROOT)


def resource(kind: str, name: str, spec: Any, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": NATIVE_GROUP, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def path_of(kind: str, name: str) -> str:
    return etcd_path(ResourceKey(kind, name))


def write_export(directory: Path, records: dict[str, Any]) -> str:
    cluster = {etcd_path(CLUSTER): resource("ClusterInformation", "default", {"datastoreReady": False})}
    path = directory / "export.json"
    path.write_text(json.dumps({"format": FORMAT, "records": {**cluster, **records}}))
    return str(path)


def calicoctl(kube: Cluster, *words: str, group: str = "") -> int:
    environ = {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": kube.kubeconfig(), "CALICO_API_GROUP": group}
    return run(["datastore", "migrate", *words], environ)


def some_records() -> dict[str, Any]:
    """Of every way in which they are written: after owners, records of addresses, a handle with a capital letter."""
    owner = {"apiVersion": NATIVE_GROUP, "kind": "Tier", "name": "sec", "uid": ""}
    block = {"cidr": "10.65.0.0/26", "affinity": "host:n1", "allocations": [0] + [None] * 63, "strictAffinity": False}
    handle = "Net1.C0FFEE"
    return {
        path_of("Tier", "sec"): resource("Tier", "sec", {"order": 5, "defaultAction": "Deny"}),
        path_of("GlobalNetworkPolicy", "sec.a"): resource(
            "GlobalNetworkPolicy", "sec.a", {"tier": "sec", "types": ["Ingress"]}, ownerReferences=[owner]
        ),
        path_of("IPPool", "p"): resource("IPPool", "p", {"cidr": "10.65.0.0/16", "blockSize": 26}),
        path_of("GlobalNetworkSet", "s"): resource("GlobalNetworkSet", "s", {"nets": ["10.9.0.0/24"]}),
        BLOCK: {**block, "attributes": [{"handle_id": handle, "secondary": {}}], "unallocated": list(range(1, 64))},
        "/calico/ipam/v2/host/n1/ipv4/block/10.65.0.0-26": {"state": "confirmed", "deleted": False},
        f"/calico/ipam/v2/handle/{handle}": {"handleID": handle, "block": {"10.65.0.0/26": 1}, "deleted": False},
    }


def stored(kube: Cluster) -> dict[Key, Any]:
    """Without what Kubernetes made of each."""
    found: dict[Key, Any] = {}
    with closing(kube.store()) as store:
        for item in store.list(EverythingList(), soon()).items:
            metadata = item.value.get("metadata") or {}
            named = {
                name: [each["name"] for each in metadata[name]] for name in ("ownerReferences",) if name in metadata
            }
            value = {name: part for name, part in item.value.items() if name != "metadata"}
            found[item.key] = (value, named, metadata.get("annotations"))
    return found


def import_until_killed(kube: Cluster, path: str, at: int) -> bool:
    """Whether the import was killed (SIGKILL): at its write number ``at // 2``, before it is sent if that is odd, else
    when it has been answered.
    """
    kubeconfig = kube.kubeconfig()
    child = os.fork()
    if not child:
        count, lock, plain = 0, threading.Lock(), KubernetesAPI.send

        def send(api: KubernetesAPI, request: Any, deadline: Any) -> Any:
            nonlocal count
            if request.method == "GET":
                return plain(api, request, deadline)
            with lock:
                count += 2
                mine = count
            if mine == at + 1:
                os.kill(os.getpid(), signal.SIGKILL)
            answer = plain(api, request, deadline)
            if mine == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        try:
            KubernetesAPI.send = send
            environ = {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": kubeconfig}
            os._exit(run(["datastore", "migrate", "import", "-f", path], environ))
        finally:
            os._exit(99)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def is_marked(kube: Cluster) -> bool:
    [cluster] = kube.request("GET", f"{NATIVE_ROOT}/clusterinformations")["items"]
    return bool(importing(cluster))


def test_an_import_that_is_killed_anywhere_is_resumed(
    emptied: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each run goes a little further than the one before, until one ends by itself; what is there then is what a run
    without a stop leaves, and until then nobody can unlock it.
    """
    path = write_export(tmp_path, some_records())
    assert not import_until_killed(emptied, path, 0)
    wanted = stored(emptied)
    assert len(wanted) == len(some_records()) + 1
    emptied.empty(NATIVE_ROOT)
    at = 3  # the first write is that of the lock
    while import_until_killed(emptied, path, at):
        at += 1
        if not is_marked(emptied):  # killed after the last write, and before it could say so
            break
        assert calicoctl(emptied, "unlock") == 1
        assert "an import of it was not finished" in capsys.readouterr().err
    assert at > 2 * len(some_records())
    assert stored(emptied) == wanted
    assert calicoctl(emptied, "unlock") == 0


def policies(*names: str) -> dict[str, Any]:
    spec = {"tier": "default", "types": ["Ingress"]}
    found = ((name, resource("GlobalNetworkPolicy", name, spec)) for name in names)
    return {path_of("GlobalNetworkPolicy", name): document for name, document in found}


@pytest.mark.parametrize("words", [(), ("--dry-run=server",)], ids=["import", "dry run"])
def test_two_records_that_would_be_one_object_are_named_and_nothing_is_written(
    kube: Cluster, emptied: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    handles = {f"/calico/ipam/v2/handle/{name}": {"handleID": name, "block": {}} for name in ("Net.c1", "net.c1")}
    both = write_export(tmp_path, policies("foo", "default.foo"))
    assert calicoctl(kube, "import", "-f", both, *words) == 1
    said = capsys.readouterr().err
    assert "GlobalNetworkPolicy foo and GlobalNetworkPolicy default.foo" in said and "Rename or delete one" in said
    for cluster, root in ((kube, CRD_ROOT), (emptied, NATIVE_ROOT)):
        path = write_export(tmp_path, handles)
        assert calicoctl(cluster, "import", "-f", path, *words) == 1
        assert "handle Net.c1 and handle net.c1" in capsys.readouterr().err.replace("IPAM ", "")
        for plural in ("clusterinformations", "globalnetworkpolicies", "ipamhandles"):
            assert not cluster.request("GET", f"{root}/{plural}")["items"]


def test_in_the_newer_group_they_are_two_policies(emptied: Cluster, tmp_path: Path) -> None:
    assert calicoctl(emptied, "import", "-f", write_export(tmp_path, policies("foo", "default.foo"))) == 0
    found = emptied.request("GET", f"{NATIVE_ROOT}/globalnetworkpolicies")["items"]
    assert sorted(each["metadata"]["name"] for each in found) == ["default.foo", "foo"]


def test_two_objects_that_are_one_policy_are_not_exported_as_one(
    kube: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An older version's object, and one that somebody has made with kubectl."""
    cluster = resource("ClusterInformation", "default", {"datastoreReady": True})
    kube.request("POST", f"{CRD_ROOT}/clusterinformations", {**cluster, "apiVersion": API_GROUP})
    for name in ("foo", "default.foo"):
        body = {"apiVersion": API_GROUP, "kind": "GlobalNetworkPolicy", "metadata": {"name": name}, "spec": {}}
        kube.request("POST", f"{CRD_ROOT}/globalnetworkpolicies", body)
    assert calicoctl(kube, "lock") == 0
    assert calicoctl(kube, "export", "-o", str(tmp_path / "all.json")) == 1
    said = capsys.readouterr().err
    assert "several records are GlobalNetworkPolicy foo" in said and "objects foo and default.foo" in said
    kube.request("DELETE", f"{CRD_ROOT}/globalnetworkpolicies/default.foo")
    assert calicoctl(kube, "export", "-o", str(tmp_path / "all.json")) == 0


def test_what_the_newer_definitions_refuse_is_listed_before_anything_is_locked(
    emptied: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With each of these upstream's migration tries for ever, while no pod gets an address."""
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": ""}
    wrong = {
        path_of("Tier", "kube-admin"): resource("Tier", "kube-admin", {"order": 1000, "defaultAction": "Deny"}),
        path_of("HostEndpoint", "h"): resource("HostEndpoint", "h", {"interfaceName": "eth0"}),
        path_of("GlobalNetworkSet", "t"): resource("GlobalNetworkSet", "t", {}, ownerReferences=[owner]),
        BLOCK: {**some_records()[BLOCK], "affinity": "host:a b"},
    }
    path = write_export(tmp_path, {**some_records(), **wrong})
    assert calicoctl(emptied, "import", "-f", path, "--dry-run=server") == 1
    said = capsys.readouterr()
    refused = [line for line in said.out.splitlines() if line.startswith("Refused ")]
    assert len(refused) == len(wrong), refused
    for name in ("Tier kube-admin", "HostEndpoint h", "GlobalNetworkSet t", "block 10.65.0.0/26"):
        assert any(line.startswith(f"Refused {name}:") for line in refused), (name, refused)
    for plural in ("clusterinformations", "tiers", "ipamblocks", "ipamhandles"):
        assert not emptied.request("GET", f"{NATIVE_ROOT}/{plural}")["items"]


def test_the_group_that_is_seen_after_a_migration_of_upstreams(
    emptied: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Complete, and the older definitions are still there: whoever is told no group sees the old, locked records, and
    neither gives out addresses nor works on them as a controller; who is told the new one works. Once the definitions
    have been deleted nobody takes that for an empty datastore.
    """
    migration = "migration.projectcalico.org"
    phase = {"metadata": {"name": "v1-to-v3"}, "status": {"phase": "Complete"}}
    uids = []
    with (
        defined(emptied, "crd.projectcalico.org", "v1", "ClusterInformation") as older,
        defined(emptied, migration, "v1beta1", "DatastoreMigration") as migrations,
        closing(emptied.store()) as old,
    ):
        monkeypatch.setattr(groups, "_decided", {})  # as in a process of its own
        emptied.request(
            "POST", migrations, {"kind": "DatastoreMigration", "apiVersion": f"{migration}/v1beta1", **phase}
        )
        for path, group, ready in (
            (older, API_GROUP, False),
            (f"{NATIVE_ROOT}/clusterinformations", NATIVE_GROUP, True),
        ):
            document = resource("ClusterInformation", "default", {"datastoreReady": ready})
            uids.append(emptied.request("POST", path, {**document, "apiVersion": group})["metadata"]["uid"])
        locked = old.get(CLUSTER, soon())
        assert locked is not None and locked.value["spec"]["datastoreReady"] is False
        assert f"keep the records in {API_GROUP}" in read_why_refused(old, soon())
        assert calicoctl(emptied, "unlock") == 1
        assert f"records in {NATIVE_GROUP} are unlocked" in capsys.readouterr().err
        with closing(KubernetesStore(emptied.access(api_group=NATIVE_GROUP))) as pinned:
            assert read_why_refused(pinned, soon()) == ""
            pinned.commit([Write.create(ResourceKey("Tier", "sec"), resource("Tier", "sec", {"order": 5}))], soon())
    # deleting the migration has deleted the older definitions, too

    def is_refused() -> bool:
        """The API server goes on serving a type for a moment, and longer lists its group."""
        try:
            return old.get(CLUSTER, soon()) is None and False
        except DatastoreUnsupported as e:
            return f"the API server does not know /apis/{API_GROUP}/" in str(e)

    until(is_refused, "who has seen the older group is told that it is gone", 30)
    monkeypatch.setattr(groups, "_decided", {})
    with closing(emptied.store()) as new:
        found = new.get(CLUSTER, soon())
        assert found is not None and found.uid == uids[1] and new.get(ResourceKey("Tier", "sec"), soon())


def test_the_older_definitions_are_applied_to_a_cluster_of_the_newer_group(
    emptied: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever is told the group goes on. Installer, import and everybody else are refused and told what to remove; none
    of upstream's programs would see that there are records.
    """
    document = resource("ClusterInformation", "default", {"datastoreReady": False})
    emptied.request("POST", f"{NATIVE_ROOT}/clusterinformations", document)
    path = write_export(tmp_path, some_records())
    before = emptied.request("GET", f"{NATIVE_ROOT}/clusterinformations")["items"]
    with defined(emptied, "crd.projectcalico.org", "v1", "ClusterInformation"), closing(emptied.store()) as unpinned:
        monkeypatch.setattr(groups, "_decided", {})  # as in a process of its own
        with pytest.raises(DatastoreUnsupported, match="cannot tell which records are in use") as caught:
            unpinned.get(CLUSTER, soon())
        assert "remove the definitions of crd.projectcalico.org" in caught.value.details
        with pytest.raises(DatastoreUnsupported, match="cannot tell which records are in use"):
            find_api_group(in_a_pod(emptied, tmp_path / "pod", "admin-token"), TEMPLATE, Files(), soon())
        for words in (("import", "-f", path), ("unlock",)):
            assert calicoctl(emptied, *words) == 1
            said = capsys.readouterr().err
            assert "remove the definitions of crd.projectcalico.org" in said, words
        assert emptied.request("GET", f"{NATIVE_ROOT}/clusterinformations")["items"] == before
        assert not emptied.request("GET", f"{CRD_ROOT}/clusterinformations")["items"]
        assert calicoctl(emptied, "import", "-f", path, group=NATIVE_GROUP) == 0
        assert calicoctl(emptied, "unlock", group=NATIVE_GROUP) == 0
        with closing(KubernetesStore(emptied.access(api_group=NATIVE_GROUP))) as pinned:
            assert read_why_refused(pinned, soon()) == "" and pinned.get(ResourceKey("Tier", "sec"), soon())
    monkeypatch.setattr(groups, "_decided", {})


def test_status_and_diagnostics_say_which_group_it_is_and_warn_of_the_other(
    emptied: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A group is named, and the records of the other one are unlocked: it starts, and never are both unlocked."""
    document = resource("ClusterInformation", "default", {"datastoreReady": False})
    emptied.request("POST", f"{NATIVE_ROOT}/clusterinformations", document)
    environ = {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": emptied.kubeconfig()}
    run(["cluster", "status"], environ)
    assert f"API: {NATIVE_GROUP}, found in the cluster" in capsys.readouterr().out
    environ["CALICO_API_GROUP"] = NATIVE_GROUP
    archive = tmp_path / "diags.tar.gz"
    with defined(emptied, "crd.projectcalico.org", "v1", "ClusterInformation") as older:
        theirs = {**document, "apiVersion": API_GROUP, "spec": {"datastoreReady": True}}
        emptied.request("POST", older, theirs)
        assert run(["cluster", "status"], environ) == 1
        shown = capsys.readouterr()
        assert f"API: {NATIVE_GROUP}, named by the configuration" in shown.out
        assert f"the records in {API_GROUP} are unlocked too" in shown.out + shown.err
        assert calicoctl(emptied, "unlock", group=NATIVE_GROUP) == 1
        assert run(["cluster", "diags", "-o", str(archive)], environ) == 0
    with tarfile.open(archive) as tar:
        [said] = [tar.extractfile(member) for member in tar if member.name.endswith("/api-group")]
        assert said is not None
        assert said.read().decode().splitlines() == [
            f"{NATIVE_GROUP}, named by the configuration",
            f"the records in {API_GROUP} are unlocked too",
        ]


def test_a_network_whose_name_makes_no_name_of_an_object(native_node: KubeNode, pod_ns: Namespace) -> None:
    native_node.kube.create_pod(native_node.namespace, "web", native_node.nodename)
    before = native_node.dump()
    refused = native_node.pod_call("ADD", "web", "c0" * 32, pod_ns.path, name="Net_1")
    assert not refused.ok and refused.document["code"] == 7, refused.document
    assert f"cannot take addresses as Net_1.{'c0' * 32}" in refused.document["msg"]
    assert native_node.dump() == before and native_node.pod_call("DEL", "web", "c0" * 32, pod_ns.path, name="Net_1").ok
