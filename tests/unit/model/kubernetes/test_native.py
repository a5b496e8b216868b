"""Records as projectcalico.org/v3 objects: what is stored where; arbitrary objects only raise CorruptRecord."""

import copy
import json
import pathlib
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.errors import CorruptRecord, RecordRefused
from cni_calico.model.keys import AffinityKey, BlockKey, HandleKey, IPAMConfigKey, ResourceKey
from cni_calico.model.kubernetes import custom, native
from cni_calico.model.kubernetes.groups import CUSTOM, group_named

VECTORS = pathlib.Path(__file__).parents[3] / "golden" / "vectors"
CIDR = ip_network("10.65.99.0/26")
SERVERS = {"uid": "u-1", "resourceVersion": "7", "creationTimestamp": "2026-08-01T00:00:00Z", "generation": 2}
OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "u-2"}


def policy(name="web", **metadata):
    return {
        "apiVersion": "projectcalico.org/v3",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": "ns", **SERVERS, "managedFields": [{"manager": "kubectl"}], **metadata},
        "spec": {"tier": "default", "selector": "all()"},
    }


def test_a_resource_is_the_object_itself():
    obj = policy(labels={"a": "b"}, annotations={"c": "d"}, ownerReferences=[OWNER], finalizers=["x/y"])
    key, document = native.read_object(obj)
    assert key == ResourceKey("NetworkPolicy", "web", "ns")
    assert document["metadata"] == {
        "name": "web",
        "namespace": "ns",
        "uid": "u-1",
        "creationTimestamp": "2026-08-01T00:00:00Z",
        "labels": {"a": "b"},
        "annotations": {"c": "d"},
        "ownerReferences": [OWNER],
        "finalizers": ["x/y"],
    }
    assert native.object_of(key, document, obj) == obj


def test_names_have_no_tier_in_them():
    plain, dotted = (native.read_object(policy(name))[0] for name in ("foo", "default.foo"))
    assert (plain.name, dotted.name) == ("foo", "default.foo")
    assert [native.place_of(key).name for key in (plain, dotted)] == ["foo", "default.foo"]


def test_owners_and_finalizers_stay_unless_the_document_says_what_they_shall_be():
    key, document = native.read_object(policy())
    stored = policy(ownerReferences=[OWNER], finalizers=["x/y"])
    assert native.object_of(key, document, stored)["metadata"]["finalizers"] == ["x/y"]
    without = {**document, "metadata": {**document["metadata"], "finalizers": []}}
    made = native.object_of(key, without, stored)["metadata"]
    assert (made["finalizers"], made["ownerReferences"]) == ([], [OWNER])


def test_a_new_object_has_nothing_of_the_servers_and_always_a_spec():
    key, document = native.read_object(policy())
    del document["spec"]
    made = native.object_of(key, document)
    assert made["metadata"] == {"name": "web", "namespace": "ns"} and made["spec"] == {}


def test_deleted_of_an_affinity_is_a_boolean_and_labels_stand_in_the_object():
    key = AffinityKey("n", CIDR)
    obj = native.object_of(key, {"state": "pendingDeletion", "deleted": True})
    assert obj["spec"] == {"state": "pendingDeletion", "deleted": True, "cidr": str(CIDR), "node": "n", "type": "host"}
    assert obj["metadata"] == {"name": "n-10-65-99-0-26", "labels": custom.affinity_labels(key)}
    assert native.read_object(obj) == (key, {"state": "pendingDeletion", "deleted": True})


def test_configuration_has_another_kind_and_plural():
    document = {"strict_affinity": True, "auto_allocate_blocks": False, "maxBlocksPerHost": 3, "later": 1}
    obj = native.object_of(IPAMConfigKey(), document)
    assert obj["kind"] == "IPAMConfiguration" and native.place_of(IPAMConfigKey()).plural == "ipamconfigurations"
    assert native.read_object(obj) == (IPAMConfigKey(), document)
    with pytest.raises(CorruptRecord, match="IPAMConfig"):
        native.read_object({**obj, "kind": "IPAMConfig"})


def test_handles_are_lower_cased_in_names_only():
    key = HandleKey("Net.ABC")
    obj = native.object_of(key, {"block": {}, "deleted": False})
    assert obj["metadata"] == {"name": "net.abc"} and native.read_object(obj)[0] == key


@pytest.mark.parametrize("owner", ["host:a b", "host:", "cluster:x", "host:é"])
def test_a_block_of_an_owner_that_no_object_can_name_is_refused(owner):
    with pytest.raises(RecordRefused, match=r"10\.65\.99\.0/26: in projectcalico\.org/v3 no block can belong to"):
        native.object_of(BlockKey(CIDR), {"cidr": str(CIDR), "affinity": owner})


def test_everything_that_upstream_stored_in_the_other_group_means_the_same_in_this_one():
    for path in VECTORS.glob("k8s-0*.json"):
        dump = json.loads(path.read_text())
        for plural, objects in dump.items():
            if plural in ("nodes", "pods"):
                continue
            for obj in objects:
                key, document = CUSTOM.read_object(obj)
                made = native.object_of(key, document)
                again, read = native.read_object(made)
                assert again == key
                assert {k: v for k, v in read.items() if k != "metadata"} == {
                    k: v for k, v in document.items() if k != "metadata"
                }
                assert custom.METADATA not in (made["metadata"].get("annotations") or {})


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["", "x", "10.65.99.0/26", "host"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "cidr", "a"]), inner),
    max_leaves=6,
)
KINDS = ["NetworkPolicy", "IPPool", "IPAMBlock", "BlockAffinity", "IPAMHandle", "IPAMConfiguration", "Pod", None]


@given(
    st.sampled_from(KINDS), st.sampled_from(["metadata", "spec"]), st.sampled_from(["", "name", "cidr"]), JSON_VALUES
)
def test_arbitrary_objects_raise_nothing_but_corrupt_record(kind, part, field, value):
    obj = copy.deepcopy(policy(labels={"a": "b"}))
    obj["kind"] = kind
    if field:
        obj[part][field] = value
    else:
        obj[part] = value
    try:
        key, document = group_named("projectcalico.org/v3").read_object(obj)
    except CorruptRecord:
        return
    native.object_of(key, document)
