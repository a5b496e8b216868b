"""Records that go from one API group to the other and back, by export and import; never are both unlocked."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cni_calico.ctl.main import run
from cni_calico.datastore.etcd.config import EtcdConfig
from cni_calico.datastore.etcd.store import EtcdStore
from cni_calico.datastore.interface import Datastore, Write
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.errors import DatastoreUnsupported
from cni_calico.model.access import API_GROUP, CRD_ROOT, NATIVE_GROUP
from cni_calico.model.keys import CLUSTER, EverythingList, HandleKey, Key, ResourceKey
from cni_calico.model.kubernetes import custom
from tests.conftest import ROOT
from tests.deadlines import soon
from tests.e2e.kubernetes.cluster import BIN, NATIVE_ROOT, Cluster, native_cluster, running_cluster

pytestmark = pytest.mark.kubernetes

VECTORS = Path(__file__).parents[3] / "golden" / "vectors"


def records(store: Datastore) -> dict[Key, Any]:
    """What does not depend on the group: no identities, and nothing that is Kubernetes' own."""
    found: dict[Key, Any] = {}
    for item in store.list(EverythingList(), soon()).items:
        if not (isinstance(item.key, ResourceKey) and item.key.kind in ("Node", "WorkloadEndpoint", CLUSTER.kind)):
            value = {name: part for name, part in item.value.items() if name != "metadata"}
            value.setdefault("maxBlocksPerHost", 0) if "auto_allocate_blocks" in value else None
            found[item.key] = value
    return found


def populate(store: Datastore) -> None:
    dump = json.loads((VECTORS / "k8s-06-agents.json").read_text())
    for plural in (plural for plural in dump if plural not in ("nodes", "pods")):
        for obj in dump[plural]:
            key, document = custom.read_object(obj)
            store.commit([Write.put(key, document)], soon())
    # a name with a capital letter, which stops upstream's migration
    store.commit([Write.put(HandleKey("Net1.C0FFEE"), {"block": {}, "deleted": False})], soon())


def calicoctl(kube: Cluster, group: str, *words: str, code: int = 0) -> None:
    environ = {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": kube.kubeconfig(), "CALICO_API_GROUP": group}
    assert run(["datastore", "migrate", *words], environ) == code


def is_ready(store: Datastore) -> bool:
    found = store.get(CLUSTER, soon())
    return found is not None and bool(found.value["spec"]["datastoreReady"])


@pytest.mark.slow
def test_there_and_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there, back = str(tmp_path / "there.json"), str(tmp_path / "back.json")
    with running_cluster() as kube:
        kube.apply_definitions()
        older, newer = (kube.store(), KubernetesStore(kube.access(api_group=NATIVE_GROUP)))
        populate(older)
        before = records(older)
        assert is_ready(older) and len(before) > 10
        calicoctl(kube, NATIVE_GROUP, "import", "-f", there, code=1)
        kube.apply_definitions(NATIVE_ROOT)
        calicoctl(kube, API_GROUP, "lock")
        calicoctl(kube, API_GROUP, "export", "-o", there)
        calicoctl(kube, NATIVE_GROUP, "import", "-f", there)
        assert (is_ready(older), is_ready(newer)) == (False, False)
        calicoctl(kube, NATIVE_GROUP, "import", "-f", there, code=1)  # it holds records already
        calicoctl(kube, NATIVE_GROUP, "unlock")
        calicoctl(kube, API_GROUP, "unlock", code=1)
        assert "records in projectcalico.org/v3 are unlocked" in capsys.readouterr().err
        assert (is_ready(older), is_ready(newer)) == (False, True)
        assert records(newer) == before
        calicoctl(kube, NATIVE_GROUP, "lock")
        calicoctl(kube, NATIVE_GROUP, "export", "-o", back)
        for plural in ("ippools", "ipamblocks", "blockaffinities", "ipamhandles", "clusterinformations"):
            kube.request("DELETE", f"{CRD_ROOT}/{plural}")
        with pytest.raises(DatastoreUnsupported, match="records in the latter only"):
            kube.store().get(CLUSTER, soon())  # another process, which nobody has told the group
        calicoctl(kube, API_GROUP, "import", "-f", back)
        calicoctl(kube, API_GROUP, "unlock")
        assert (is_ready(older), is_ready(newer)) == (True, False)
        assert records(older) == before
        capsys.readouterr()


@pytest.mark.slow
def test_the_pages_way_back(tmp_path: Path) -> None:
    """Where an earlier move has left its locked records, and a pool has a finalizer."""
    text = (ROOT / "docs" / "calicoctl.md").read_text().partition("### Back from projectcalico.org/v3")[2]
    there, last = re.findall(r"(?s)```sh\n(.*?)```", text.partition("In a move to Kubernetes")[0])
    (tmp_path / "manifests").symlink_to(ROOT / "manifests")
    program = tmp_path / "bin" / "calicoctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m cni_calico.ctl.main "$@"\n')
    program.chmod(0o755)
    with running_cluster() as kube:
        for root in (CRD_ROOT, NATIVE_ROOT):
            kube.apply_definitions(root)
        for name, group in (("v1", API_GROUP), ("v3", NATIVE_GROUP)):
            spec = {"datastoreType": "kubernetes", "kubeconfig": kube.kubeconfig(), "calicoAPIGroup": group}
            document = {"apiVersion": NATIVE_GROUP, "kind": "CalicoAPIConfig", "metadata": {}, "spec": spec}
            (tmp_path / f"{name}.cfg").write_text(json.dumps(document))
        older, newer = (KubernetesStore(kube.access(api_group=group)) for group in (API_GROUP, NATIVE_GROUP))
        populate(newer)
        before = records(newer)
        put(older, ResourceKey("IPPool", "left"), {"cidr": "10.99.0.0/16"})
        put(older, CLUSTER, {"datastoreReady": False})
        held = json.dumps({"metadata": {"finalizers": ["projectcalico.org/ippool-finalizer"]}})
        [pool, *_] = kube.request("GET", f"{NATIVE_ROOT}/ippools")["items"]
        path = f"{NATIVE_ROOT}/ippools/{pool['metadata']['name']}"
        kube.request("PATCH", path, json.loads(held), content_type="application/merge-patch+json")
        environ = {"PATH": f"{program.parent}:{BIN}:{os.environ['PATH']}", "KUBECONFIG": kube.kubeconfig()}

        def carry_out(script: str) -> None:
            command = ["bash", "-euo", "pipefail", "-c", script]
            done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240)
            assert done.returncode == 0, done.stdout + done.stderr

        carry_out(there)
        assert (is_ready(older), is_ready(newer)) == (False, False)
        carry_out(last)
        with closing(kube.store()) as unpinned:  # the group is seen again by everybody
            assert is_ready(unpinned) and records(unpinned) == before
        served = kube.request("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
        assert {each["spec"]["group"] for each in served} == {"crd.projectcalico.org"}


def put(store: Datastore, key: ResourceKey, spec: Any, owner: ResourceKey | None = None, uid: str = "") -> str:
    """The UID of what was made."""
    metadata: dict[str, Any] = {"name": key.name}
    if owner is not None:
        reference = {"apiVersion": NATIVE_GROUP, "kind": owner.kind, "name": owner.name, "uid": uid}
        metadata["ownerReferences"] = [reference]
    document = {"apiVersion": NATIVE_GROUP, "kind": key.kind, "metadata": metadata, "spec": spec}
    return store.commit([Write.create(key, document)], soon()).stored[0].uid


def owner_uids(store: Datastore, key: ResourceKey) -> list[str]:
    found = store.get(key, soon())
    assert found is not None
    return [each["uid"] for each in found.value["metadata"].get("ownerReferences", [])]


SEC, LOST = ResourceKey("Tier", "sec"), ResourceKey("Tier", "lost")
OWNED, ORPHAN = ResourceKey("GlobalNetworkPolicy", "owned"), ResourceKey("GlobalNetworkPolicy", "orphan")
SETS = ResourceKey("GlobalNetworkSet", "sets")


@pytest.fixture
def exported(kube: Cluster, tmp_path: Path) -> Path:
    """Of a cluster with custom resources, with owners, and with an address's record that has no place in the other."""
    store = kube.store()
    tier = put(store, SEC, {"order": 5})
    policy = put(store, OWNED, {"tier": "sec"}, SEC, tier)
    put(store, SETS, {}, OWNED, policy)
    put(store, ORPHAN, {}, LOST, "00000000-0000-4000-8000-000000000000")
    store.commit([Write.create(HandleKey("Net1.C0FFEE"), {"block": {}, "deleted": False})], soon())
    store.commit([Write.put(CLUSTER, {"metadata": {"name": "default"}, "spec": {"datastoreReady": False}})], soon())
    calicoctl(kube, API_GROUP, "export", "-o", str(tmp_path / "all.json"))
    store.close()
    return tmp_path / "all.json"


def test_what_is_owned_is_owned_by_the_same_afterwards(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    native = native_cluster()
    native.empty(NATIVE_ROOT)
    calicoctl(native, NATIVE_GROUP, "import", "-f", str(exported))
    assert "Skipped Tier lost: as owner of GlobalNetworkPolicy orphan" in capsys.readouterr().out
    store = native.store()
    for key, owner in ((OWNED, SEC), (SETS, OWNED)):
        found = store.get(owner, soon())
        assert found is not None and owner_uids(store, key) == [found.uid]
    assert owner_uids(store, ORPHAN) == []
    assert store.get(HandleKey("Net1.C0FFEE"), soon()) is not None
    store.close()
    native.empty(NATIVE_ROOT)


def test_records_of_etcd_are_the_same_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    native, exported = native_cluster(), str(tmp_path / "all.json")
    native.empty(NATIVE_ROOT)
    on_etcd = {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": f"http://127.0.0.1:{native.etcd_port}"}
    source = EtcdStore(EtcdConfig((on_etcd["ETCD_ENDPOINTS"],)))
    populate(source)
    put(source, SEC, {"order": 5})
    put(source, OWNED, {"tier": "sec"}, SEC, "00000000-0000-4000-8000-000000000001")
    try:
        for words in (["lock"], ["export", "-o", exported]):
            assert run(["datastore", "migrate", *words], on_etcd) == 0
        calicoctl(native, NATIVE_GROUP, "import", "-f", exported, "--dry-run=server")
        calicoctl(native, NATIVE_GROUP, "import", "-f", exported)
        calicoctl(native, NATIVE_GROUP, "unlock")
        with closing(native.store()) as target:
            assert (is_ready(source), is_ready(target)) == (False, True)
            moved, before = records(target), records(source)
            assert len(moved) > 10 and moved.keys() == before.keys()
            for key, value in before.items():
                if isinstance(key, ResourceKey):  # the definitions have defaults
                    assert value["spec"].items() <= moved[key]["spec"].items(), key
                else:
                    assert moved[key] == value
            owner = target.get(SEC, soon())
            assert owner is not None and owner_uids(target, OWNED) == [owner.uid]
    finally:
        for item in source.list(EverythingList(), soon()).items:
            source.commit([Write.delete(item)], soon())
        source.close()
        native.empty(NATIVE_ROOT)


def test_a_dry_run_lists_what_would_be_refused(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    native = native_cluster()
    native.empty(NATIVE_ROOT)
    calicoctl(native, NATIVE_GROUP, "import", "-f", str(exported), "--dry-run=server")
    assert "records can be imported" in capsys.readouterr().out
    text = json.loads(exported.read_text())
    records = text["records"]
    [path] = [path for path in records if path.endswith("/owned")]
    records[path.replace("/owned", "/Owned")] = {**records.pop(path), "metadata": {"name": "Owned"}}
    block = {"cidr": "10.65.0.0/26", "affinity": "host:a b", "allocations": [None] * 64, "attributes": []}
    records["/calico/ipam/v2/assignment/ipv4/block/10.65.0.0-26"] = {**block, "unallocated": list(range(64))}
    exported.write_text(json.dumps(text))
    calicoctl(native, NATIVE_GROUP, "import", "-f", str(exported), "--dry-run=server", code=1)
    said = capsys.readouterr()
    assert "Refused GlobalNetworkPolicy Owned: " in said.out and "no block can belong to 'host:a b'" in said.out
    assert "cannot import: 2 records are refused" in said.err
    for plural in ("tiers", "globalnetworkpolicies", "ipamhandles", "clusterinformations"):
        assert not native.request("GET", f"{NATIVE_ROOT}/{plural}")["items"]
