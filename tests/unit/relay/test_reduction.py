"""A reduced object tells an agent what the whole one would."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.datastore.kubernetes.layout import read_pod
from cni_calico.datastore.kubernetes.relayed.served import BLOCKS, PARTIAL
from cni_calico.errors import CorruptRecord
from cni_calico.model.documents.codec import decode_block, decode_endpoint
from cni_calico.model.keys import BlockKey, ResourceKey
from cni_calico.model.kubernetes import custom, pods
from cni_calico.model.kubernetes.nodes import read_node
from cni_calico.nodeagent.view.snapshot import reduce_block as route_of
from cni_calico.policy.confirmed import held_in_block
from cni_calico.policy.records import labelled_workload
from cni_calico.relay.reduction import (
    affinity_of,
    reduce_account,
    reduce_block,
    reduce_held_block,
    reduce_node,
    reduce_own_block,
    reduce_pod,
    reduction_of,
)

NAMES = st.sampled_from(["a", "b-1", "node.example"])
LABELS = st.dictionaries(st.sampled_from(["app", "role", "x.io/y"]), st.sampled_from(["1", "two", ""]), max_size=3)
ADDRESSES = st.sampled_from(["10.0.0.1", "10.0.0.2", "fd00::1", "not-an-address", ""])
CIDR = "10.1.0.0/24"
MANAGED = [{"manager": "kubelet", "fieldsV1": {"f:x": {}}}]


def head(draw: Any, **annotations: str) -> dict[str, Any]:
    metadata = {
        "name": draw(NAMES),
        "uid": "u-1",
        "resourceVersion": "17",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": draw(LABELS),
        "managedFields": MANAGED,
        "annotations": {"other.io/thing": "x", **annotations},
    }
    if draw(st.booleans()):
        metadata["deletionTimestamp"] = "2026-01-01T00:01:00Z"
    return metadata


@st.composite
def nodes(draw: Any) -> dict[str, Any]:
    texts = {
        "projectcalico.org/IPv4Address": draw(st.sampled_from(["10.0.0.1/24", "10.0.0.1", "nonsense", ""])),
        "projectcalico.org/ASNumber": draw(st.sampled_from(["64512", "1.10", "many"])),
        "projectcalico.org/labels": draw(st.sampled_from(["", "{", '{"a": "b"}', '{"a": 1}'])),
        "projectcalico.org/Interfaces": draw(st.sampled_from(["", "[", '[{"name": "eth0"}]'])),
    }
    return {
        "metadata": head(draw, **texts),
        "spec": draw(st.sampled_from([{}, {"podCIDR": CIDR, "podCIDRs": [CIDR]}, {"podCIDRs": "wrong"}])),
        "status": {
            "addresses": draw(st.sampled_from([[], [{"type": "InternalIP", "address": "10.0.0.1"}], "wrong"])),
            "images": [{"names": ["i"] * 5}],
            "conditions": [{"type": "Ready", "lastHeartbeatTime": "now"}],
        },
    }


@st.composite
def some_pods(draw: Any) -> dict[str, Any]:
    texts: dict[str, str] = {}
    for name in (pods.POD_IP, pods.POD_IPS):
        if draw(st.booleans()):
            texts[name] = draw(
                st.sampled_from(["", "10.0.0.9/32", "10.0.0.0/8", "10.0.0.9/32,fd00::9/128", "nonsense"])
            )
    texts[pods.CONTAINER_ID] = draw(st.sampled_from(["", "c1"]))
    if draw(st.booleans()):
        texts[pods.FLOATING_IPS] = draw(st.sampled_from(['["1.2.3.4"]', "[", ""]))
    more = {
        "name": st.sampled_from(["http", ""]),
        "protocol": st.sampled_from(["TCP", "UDP", "ICMP"]),
        "hostPort": st.just(1),
    }
    port = st.fixed_dictionaries({"containerPort": st.sampled_from([0, 80, 8080])}, optional=more)
    container = st.fixed_dictionaries({"image": st.just("i" * 50), "ports": st.lists(port, max_size=2)})
    spec = {
        "nodeName": draw(st.sampled_from(["", "n1"])),
        "serviceAccountName": draw(st.sampled_from(["", "default", "x" * 70])),
        "hostNetwork": draw(st.sampled_from([False, False, True])),
        "containers": draw(st.lists(container, max_size=2)),
        "initContainers": draw(st.lists(container, max_size=1)),
    }
    status: dict[str, Any] = {"phase": draw(st.sampled_from(["Pending", "Running", "Failed", "Succeeded"]))}
    if draw(st.booleans()):
        status["podIP"] = draw(ADDRESSES)
    if draw(st.booleans()):
        status["podIPs"] = [{"ip": draw(ADDRESSES)} for _ in range(draw(st.integers(0, 2)))]
    metadata = head(draw, **texts)
    return {"metadata": {**metadata, "namespace": "space"}, "spec": spec, "status": status}


@st.composite
def blocks(draw: Any) -> dict[str, Any]:
    holders = draw(st.lists(st.sampled_from(["n1", "n2", ""]), max_size=5))
    allocations: list[Any] = [None] * 64
    attributes = []
    for i, holder in enumerate(holders):
        allocations[i * 3] = i
        said = {"node": holder, "pod": f"p{i}", "namespace": "space", "timestamp": "t"} if holder else {}
        entry: dict[str, Any] = {"handle_id": f"h{i}", "secondary": said}
        if other := draw(st.sampled_from(["", "", "", "n1", "n2", "broken"])):  # a virtual machine moves
            alternate = {"node": other, "pod": f"q{i}", "namespace": "space", "timestamp": "t"}
            entry["alternateOwnerAttrs"] = alternate if other != "broken" else other
        attributes.append(entry)
    if draw(st.integers(0, 9)) == 0:
        allocations[63] = 99  # no such attribute
    spec = {
        "cidr": draw(st.sampled_from(["10.0.0.0/26", "nonsense"])),
        "allocations": allocations,
        "unallocated": [i for i, held in enumerate(allocations) if held is None],
        "attributes": attributes,
        "strictAffinity": False,
        "deleted": draw(st.booleans()),
        "sequenceNumber": 5,
    }
    affinity = draw(st.sampled_from([None, "host:n1", "host:n2", "virtual:load-balancer"]))
    if affinity:
        spec["affinity"] = affinity
    elif draw(st.booleans()):
        spec["hostAffinity"] = "n1"
    return {"kind": "IPAMBlock", "metadata": head(draw), "spec": spec}


@given(nodes())
def test_a_node_is_read_alike(obj: dict[str, Any]) -> None:
    reduced = reduce_node(obj)
    assert reduced is not None
    try:
        whole: Any = read_node(obj, use_pod_cidr=True)
    except CorruptRecord as e:
        whole = str(e)
    try:
        told: Any = read_node(reduced, use_pod_cidr=True)
    except CorruptRecord as e:
        told = str(e)
    assert told == whole
    assert "managedFields" not in json.dumps(reduced)


def seen(obj: dict[str, Any]) -> Any:
    """What another node's policy engine makes of a pod."""
    try:
        found = read_pod(obj, "cali")
        if found is None:
            return None
        key, document = found
        assert isinstance(key, ResourceKey)
        return key, labelled_workload(decode_endpoint(key, dict(document)))
    except CorruptRecord as e:
        return str(e)


@given(some_pods())
def test_a_pod_is_seen_alike_by_other_nodes(obj: dict[str, Any]) -> None:
    reduced = reduce_pod(obj)
    expected = seen(obj)
    assert (reduced is None) == (expected is None)
    if reduced is not None:
        assert seen(reduced) == expected


def test_a_pod_is_a_fraction_of_its_size_and_a_heartbeat_is_no_change() -> None:
    obj = {
        "metadata": {
            "name": "p",
            "namespace": "s",
            "resourceVersion": "5",
            "labels": {"a": "b"},
            "managedFields": MANAGED,
        },
        "spec": {"nodeName": "n", "containers": [{"image": "i", "env": [{"name": "V", "value": "x" * 5000}]}]},
        "status": {"phase": "Pending", "podIPs": [{"ip": "10.0.0.1"}], "conditions": [{"type": "Ready"}]},
    }
    running = {**obj, "status": {**obj["status"], "phase": "Running", "conditions": []}}
    assert reduce_pod(obj) == reduce_pod(running)
    assert len(json.dumps(reduce_pod(obj))) < 300


def read(obj: dict[str, Any], own: str) -> Any:
    try:
        key, document = custom.read_object(obj)
        assert isinstance(key, BlockKey)
        return route_of(decode_block(key, document), own)
    except CorruptRecord as e:
        return str(e)


@given(blocks())
def test_a_block_routes_alike_on_other_nodes(obj: dict[str, Any]) -> None:
    reduced = reduce_block(obj)
    assert reduced is not None
    told, whole = read({"kind": "IPAMBlock", **reduced}, "n3"), read(obj, "n3")
    assert told == whole  # its owner, and who borrowed which address
    other = read({"kind": "IPAMBlock", **reduced}, "n2")
    if not isinstance(whole, str) and whole is not None and whole.node == "n1":
        borrower = read(obj, "n2")
        assert (other.held, other.away) == (borrower.held, borrower.away)  # a borrower knows its pods


@given(blocks())
def test_the_owner_of_a_block_is_told_its_pods(obj: dict[str, Any]) -> None:
    reduced = reduce_own_block(obj)
    assert reduced is not None
    told, whole = read({"kind": "IPAMBlock", **reduced}, "n1"), read(obj, "n1")
    assert told == whole
    if not isinstance(whole, str) and whole is not None:
        assert (told.used, told.held) == (whole.used, whole.held)
        assert PARTIAL not in reduced["spec"]


@given(blocks())
def test_a_block_confirms_as_much_as_the_whole_one(obj: dict[str, Any]) -> None:
    def confirms(document: dict[str, Any]) -> Any:
        try:
            key, found = custom.read_object(document)
            assert isinstance(key, BlockKey)
            return held_in_block(decode_block(key, found))
        except CorruptRecord as e:
            return str(e)

    reduced = reduce_held_block(obj)
    assert reduced is not None
    assert confirms({"kind": "IPAMBlock", **reduced}) == confirms(obj)


def test_a_block_is_selected_by_its_owner() -> None:
    assert affinity_of({"spec": {"affinity": "host:n1"}}) == "host:n1"
    assert affinity_of({"spec": {"hostAffinity": "n1"}}) == "host:n1"
    assert affinity_of({"spec": {}}) == affinity_of({"spec": "wrong"}) == ""


def test_other_records_are_whole_without_kubernetes_bookkeeping() -> None:
    reduce = reduction_of("/apis/crd.projectcalico.org/v1/tiers")
    applied = "kubectl.kubernetes.io/last-applied-configuration"
    obj = {
        "kind": "Tier",
        "apiVersion": "crd.projectcalico.org/v1",
        "metadata": {"name": "t", "managedFields": MANAGED, "annotations": {"a": "b", applied: "{}"}},
        "spec": {"order": 5},
    }
    assert reduce(obj) == {"metadata": {"name": "t", "annotations": {"a": "b"}}, "spec": {"order": 5}}
    assert reduction_of(BLOCKS) is reduce_block


def test_an_account_is_its_labels() -> None:
    metadata = {"name": "default", "namespace": "s", "uid": "u", "labels": {"a": "b"}}
    assert reduce_account({"metadata": metadata, "secrets": [{"name": "x"}]}) == {"metadata": metadata}
