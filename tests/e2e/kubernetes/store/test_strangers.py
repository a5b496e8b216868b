"""Others at the same records: Kubernetes' Python client and kubectl write and read every kind, kubectl writes what
calicoctl would refuse, and Kubernetes' own controllers take away what has lost its owner.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client
from kubernetes.config import load_kube_config

from cni_calico.ctl.main import run as run_calicoctl
from cni_calico.datastore.interface import Write
from cni_calico.errors import DatastoreUnavailable, PoolExhausted
from cni_calico.ipam.allocator import Allocator
from cni_calico.ipam.assign import AssignRequest
from cni_calico.model.access import CRD_ROOT, NATIVE_GROUP
from cni_calico.model.keys import (
    CLUSTER_KINDS,
    NAMESPACED_KINDS,
    PLURALS,
    AffinityKey,
    BlockKey,
    BlockList,
    HandleKey,
    IPAMConfigKey,
    Key,
    ResourceKey,
    ResourceList,
)
from cni_calico.model.kubernetes import custom, native
from tests.conftest import ROOT
from tests.deadlines import soon, until
from tests.e2e.kubernetes.cluster import NATIVE_ROOT, Cluster, native_cluster
from tests.e2e.kubernetes.programs import kubernetes_controllers
from tests.fixtures.kubernetes import NAMESPACE

pytestmark = pytest.mark.kubernetes

POOL = ip_network("10.80.0.0/16")
# kinds that have no object of their own there, or whose objects are Kubernetes'
DERIVED = {"Node", "Profile", "WorkloadEndpoint"}
SPECS: dict[str, dict[str, Any]] = {
    "IPPool": {"cidr": "10.65.0.0/16"},
    "IPReservation": {"reservedCIDRs": ["10.65.0.0/28"]},
    "BGPPeer": {"peerIP": "192.0.2.1", "asNumber": 64512},
    "HostEndpoint": {"node": "n1", "interfaceName": "eth0"},
    "CalicoNodeStatus": {"node": "n1", "classes": ["BGP"], "updatePeriodSeconds": 10},
    "ClusterInformation": {"datastoreReady": True},
    "KubeControllersConfiguration": {"controllers": {}},
    "NetworkSet": {"nets": ["192.0.2.0/24"]},
    "GlobalNetworkSet": {"nets": ["192.0.2.0/24"]},
}


@pytest.fixture(params=[CRD_ROOT, NATIVE_ROOT])
def each_group(request: pytest.FixtureRequest) -> Iterator[tuple[Cluster, str]]:
    cluster: Cluster = native_cluster() if request.param == NATIVE_ROOT else request.getfixturevalue("kube")
    cluster.empty(request.param)
    cluster.ensure_namespace(NAMESPACE)
    yield cluster, request.param


@pytest.fixture
def native_one() -> Cluster:
    cluster = native_cluster()
    cluster.empty(NATIVE_ROOT)
    cluster.ensure_namespace(NAMESPACE)
    return cluster


def python_client(cluster: Cluster) -> Any:
    configuration = client.Configuration()
    load_kube_config(cluster.kubeconfig(), client_configuration=configuration)
    return client.CustomObjectsApi(client.ApiClient(configuration))


def every_kind() -> list[ResourceKey]:
    kinds = [(kind, "") for kind in CLUSTER_KINDS] + [(kind, NAMESPACE) for kind in NAMESPACED_KINDS]
    return [ResourceKey(kind, "default", namespace) for kind, namespace in kinds if kind not in DERIVED]


def test_kubernetes_python_client_and_we_read_what_the_other_wrote(each_group: tuple[Cluster, str]) -> None:
    cluster, root = each_group
    group, _, version = root.removeprefix("/apis/").partition("/")
    form = native if root == NATIVE_ROOT else custom
    store, theirs = cluster.store(), python_client(cluster)
    keys = every_kind()
    assert len(keys) > 17
    for key in keys:
        document = {"metadata": {"name": key.name, "labels": {"by": "client"}}, "spec": SPECS.get(key.kind, {})}
        body = form.object_of(key, document)
        place = (group, version, *([key.namespace] if key.namespace else []), PLURALS[key.kind])
        create = theirs.create_namespaced_custom_object if key.namespace else theirs.create_cluster_custom_object
        create(*place, body)
        found = store.get(key, soon())
        assert found is not None and found.value["metadata"]["labels"]["by"] == "client", key
        [listed] = store.list(ResourceList(key.kind), soon()).items
        assert listed == found
        changed = {**found.value, "metadata": {**found.value["metadata"], "labels": {"by": "us"}}}
        store.commit([Write.update(found, changed)], soon())
        get = theirs.get_namespaced_custom_object if key.namespace else theirs.get_cluster_custom_object
        read = get(*place, form.place_of(key).name)
        assert form.read_object(read)[1]["metadata"]["labels"] == {"by": "us"}
        assert {**read["spec"], **SPECS.get(key.kind, {})} == read["spec"]
    store.close()


BLOCK = ip_network("10.65.0.0/26")
# what is stored of addresses, as it is in etcd
OF_ADDRESSES: dict[Key, dict[str, Any]] = {
    AffinityKey("n1", BLOCK): {"state": "confirmed", "deleted": False},
    HandleKey("net.c1"): {"block": {str(BLOCK): 1}, "deleted": False},
    BlockKey(BLOCK): {
        **{"cidr": str(BLOCK), "affinity": "host:n1", "attributes": [], "sequenceNumber": 1, "deleted": False},
        **{"allocations": [None] * 64, "unallocated": list(range(64))},
    },
    IPAMConfigKey(): {"strict_affinity": True, "auto_allocate_blocks": True, "maxBlocksPerHost": 3},
}


def test_kubectl_and_we_read_what_the_other_wrote(each_group: tuple[Cluster, str]) -> None:
    """Also records of addresses, which only programs write: somebody puts them back from a backup."""
    cluster, root = each_group
    form = native if root == NATIVE_ROOT else custom
    resources = {
        key: {"metadata": {"name": key.name, "labels": {"by": "kubectl"}}, "spec": SPECS.get(key.kind, {})}
        for key in every_kind()
    }
    documents: dict[Key, dict[str, Any]] = {**resources, **OF_ADDRESSES}
    objects = [form.object_of(key, document) for key, document in documents.items()]
    cluster.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    store = cluster.store()
    for key, document in documents.items():
        found = store.get(key, soon())
        assert found is not None, key
        if key in OF_ADDRESSES:
            assert {**found.value, **document} == found.value, key
        else:
            assert found.value["metadata"]["labels"]["by"] == "kubectl"
        store.commit([Write.update(found, found.value)], soon())
    store.close()
    group = root.removeprefix("/apis/").partition("/")[0]
    places = {key: form.place_of(key) for key in documents}
    plurals = ",".join(sorted({f"{place.plural}.{group}" for place in places.values()}))
    read = json.loads(cluster.kubectl("get", plurals, "-A", "-o", "json"))["items"]
    assert dict(map(form.read_object, read)).keys() == documents.keys()


def test_the_pages_first_command_says_which_api_the_cluster_speaks(
    each_group: tuple[Cluster, str], tmp_path: Path
) -> None:
    cluster, root = each_group
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    title, _, rest = page.partition("\n## ")
    assert title.count("\n") < 3 and rest.startswith("Which API does your cluster speak?\n\n```sh\n")
    [command] = rest.partition("```sh\n")[2].partition("```")[0].splitlines()
    path = f"{Path(cluster.kubectl_path).parent}:/usr/bin:/bin"
    environ = {"PATH": path, "KUBECONFIG": cluster.kubeconfig(), "HOME": str(tmp_path)}  # where kubectl has its cache
    done = subprocess.run(["sh", "-c", command], env=environ, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [root.removeprefix("/apis/")]


def test_what_kubectl_gets_past_the_api_server_spoils_nothing_else(
    native_one: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Selectors and networks that are none, a protocol that does not exist, a tier that does not, a name that is
    derived elsewhere, pools that overlap and pools that nobody can use; what calicoctl says of them.
    """
    policy = {"selector": "not a selector((", "ingress": [{"action": "Allow"}]}
    nets = {"ingress": [{"action": "Allow", "source": {"nets": ["999.1.1.1/99"]}}]}
    protocol = {"ingress": [{"action": "Allow", "protocol": "FOO"}]}
    strange: list[tuple[ResourceKey, dict[str, Any]]] = [
        (ResourceKey("GlobalNetworkPolicy", "selector"), policy),
        (ResourceKey("GlobalNetworkPolicy", "nets"), nets),
        (ResourceKey("GlobalNetworkPolicy", "protocol"), protocol),
        (ResourceKey("GlobalNetworkPolicy", "tierless"), {"tier": "nowhere", "types": ["Ingress"]}),
        (ResourceKey("NetworkPolicy", "knp.default.foo", NAMESPACE), {}),
        (ResourceKey("IPPool", "a-host-bits"), {"cidr": "10.77.1.3/24"}),
        (ResourceKey("IPPool", "a-selector"), {"cidr": "10.78.0.0/24", "nodeSelector": "((("}),
        (ResourceKey("IPPool", "a-small"), {"cidr": "10.79.0.0/28"}),
        (ResourceKey("IPPool", "z-over"), {"cidr": "10.80.0.0/24", "blockSize": 28}),
    ]
    store = native_one.store()
    try:
        good = (ResourceKey("IPPool", "good"), {"cidr": "10.80.0.0/16"})
        for key, spec in (good, *strange):
            native_one.kubectl("apply", "-f", "-", stdin=json.dumps(native.object_of(key, {"spec": spec})))
        native_one.create_node("n1")
        kinds = ("GlobalNetworkPolicy", "NetworkPolicy", "IPPool")
        read: list[Key] = [each.key for kind in kinds for each in store.list(ResourceList(kind), soon()).items]
        assert sorted(map(str, read)) == sorted(str(key) for key, _ in (good, *strange))
        [given] = Allocator(store).assign(AssignRequest("n1", "net.c1", {}, num4=1), soon())
        assert given.address.compressed.startswith(("10.77.1.", "10.80."))
        native_one.kubectl("delete", "ippools.projectcalico.org", "a-host-bits")
        [given] = Allocator(store).assign(AssignRequest("n1", "net.c2", {}, num4=1), soon())
        assert given.address.compressed.startswith("10.80.")
        # our definitions refuse blocks of any size; upstream's take them (tests/unit/ipam/test_unusable.py)
        large = native.object_of(ResourceKey("IPPool", "large"), {"spec": {"cidr": "11.0.0.0/8", "blockSize": 8}})
        said = native_one.kubectl("apply", "-f", "-", stdin=json.dumps(large), check=False)
        assert "blockSize must be from 20 to 32" in said
        # nor may a pool be given a blockSize later: somebody makes it anew, over blocks of the size that it had
        changed = native.object_of(good[0], {"spec": {**good[1], "blockSize": 27}})
        said = native_one.kubectl("apply", "-f", "-", stdin=json.dumps(changed), check=False)
        assert "blockSize cannot be changed" in said
        native_one.kubectl("delete", "ippools.projectcalico.org", "z-over", "good")
        native_one.kubectl("apply", "-f", "-", stdin=json.dumps(changed))
        native_one.create_node("n2")
        [given] = Allocator(store).assign(AssignRequest("n1", "net.c3", {}, num4=1), soon())
        with pytest.raises(PoolExhausted) as caught:
            Allocator(store).assign(AssignRequest("n2", "net.c4", {}, num4=1), soon())
        assert "IPPool good gets no new blocks" in str(caught.value.details)
        [block] = [item.key for item in store.list(BlockList(), soon()).items if item.key.cidr.overlaps(POOL)]
        assert block.cidr.prefixlen == 26 and given.address in block.cidr
        environ = {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": native_one.kubeconfig()}
        capsys.readouterr()
        assert run_calicoctl(["ipam", "show"], environ) == 0
        said = capsys.readouterr().err
        for words in (
            "IPPool a-selector: its nodeSelector is wrong",
            "IPPool a-small gives no addresses: 10.79.0.0/28 is smaller than one of its blocks",
            f"IPPool good gets no new blocks, because its blockSize is not that of block {block.cidr} in it",
        ):
            assert words in said
        assert run_calicoctl(["policy", "show", "--all"], environ) == 0
        said = capsys.readouterr().err
        for name in ("selector", "nets", "protocol"):
            assert f"GlobalNetworkPolicy {name} is not in force" in said
    finally:
        store.close()


def test_a_deletion_that_waits_says_what_for(native_one: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": native_one.kubeconfig()}
    waiting = {"type": "Ready", "status": "False", "reason": "Terminating", "message": "Waiting for 1 policy"}
    held = {
        "ippools/p": ("IPPool", "projectcalico.org/ippool-finalizer", {"cidr": "10.65.0.0/16"}),
        "tiers/t": ("Tier", "projectcalico.org/tier-controller", {"order": 1}),
    }
    for path, (kind, finalizer, spec) in held.items():
        metadata = {"name": path[-1], "finalizers": [finalizer]}
        body = {"apiVersion": NATIVE_GROUP, "kind": kind, "metadata": metadata, "spec": spec}
        made = native_one.request("POST", f"{NATIVE_ROOT}/{path[:-2]}", body)
        if kind == "Tier":
            condition = {**waiting, "lastTransitionTime": "2026-11-20T12:00:00Z"}
            native_one.request("PUT", f"{NATIVE_ROOT}/{path}/status", {**made, "status": {"conditions": [condition]}})
        try:
            assert run_calicoctl(["delete", kind, path[-1]], environ) == 0
            said = capsys.readouterr().err
            assert f"{kind} {path[-1]} is being deleted and still there. It waits for {finalizer}" in said
            assert "calico-kube-controllers does that when no" in said
            assert (waiting["message"] in said) == (kind == "Tier")
        finally:
            clear = {"metadata": {"finalizers": None}}
            native_one.request("PATCH", f"{NATIVE_ROOT}/{path}", clear, content_type="application/merge-patch+json")
    native_one.request("POST", f"{NATIVE_ROOT}/tiers", {**body, "metadata": {"name": "u"}})
    assert run_calicoctl(["delete", "tier", "u"], environ) == 0
    assert "still there" not in capsys.readouterr().err


def test_a_webhook_that_is_down_is_named(native_one: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    """As Calico's operator leaves it when its pods are gone; nothing was written, and nobody has to find out."""
    environ = {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": native_one.kubeconfig()}
    hooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
    rule = {
        "apiGroups": ["projectcalico.org"],
        "apiVersions": ["v3"],
        "operations": ["*"],
        "resources": ["globalnetworksets"],
    }
    hook = {
        "name": "tiered-rbac.projectcalico.org",
        "clientConfig": {"url": "https://127.0.0.1:1/rbac"},
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    head = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    key, numbers = ResourceKey("GlobalNetworkSet", "s"), itertools.count()
    store = native_one.store()
    document = {"metadata": {"name": "s"}, "spec": {"nets": []}}
    store.commit([Write.create(key, document)], soon())
    native_one.request("POST", hooks, {**head, "metadata": {"name": "down"}, "webhooks": [hook]})
    try:

        def refused() -> bool:
            """The API server hears of its configuration a little later."""
            try:
                store.commit([Write.put(key, {**document, "spec": {"nets": [f"10.0.0.{next(numbers)}"]}})], soon())
            except DatastoreUnavailable as e:
                return "webhook tiered-rbac.projectcalico.org does not answer" in e.details
            return False

        until(refused, "the webhook is called", 60)
        assert run_calicoctl(["label", "globalnetworkset", "s", "a=b"], environ) == 1
        said = capsys.readouterr().err
        assert "failed calling webhook" in said and "nothing was written" in said and "may have been done" not in said
    finally:
        native_one.request("DELETE", f"{hooks}/down")
        store.close()


@pytest.mark.slow
def test_what_has_lost_its_owner_is_taken_away(native_one: Cluster, tmp_path: Path) -> None:
    """By Kubernetes' garbage collector: of a tier that somebody deletes, and of one that never was."""
    store = native_one.store()
    with kubernetes_controllers(native_one, tmp_path / "controllers.log"):
        tier = ResourceKey("Tier", "sec")
        [made] = store.commit([Write.create(tier, {"metadata": {"name": "sec"}, "spec": {"order": 1}})], soon()).stored

        def owned(name: str, uid: str) -> ResourceKey:
            key = ResourceKey("GlobalNetworkPolicy", name)
            owner = {"apiVersion": "projectcalico.org/v3", "kind": "Tier", "name": "sec", "uid": uid}
            metadata = {"name": name, "ownerReferences": [owner]}
            store.commit([Write.create(key, {"metadata": metadata, "spec": {"tier": "default"}})], soon())
            return key

        kept, lost = owned("kept", made.uid), owned("lost", "00000000-0000-4000-8000-000000000000")
        until(lambda: store.get(lost, soon()) is None, "the policy whose owner never was is gone", 120)
        assert store.get(kept, soon()) is not None
        store.commit([Write.remove(tier)], soon())
        until(lambda: store.get(kept, soon()) is None, "the policy goes with its owner", 120)
    store.close()
