"""What is read of an endpoint in one go is what the codec reads, and what the codec refuses is never read."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.errors import CorruptRecord
from cni_calico.model.documents.codec import decode_endpoint
from cni_calico.model.documents.kinds import ENDPOINT
from cni_calico.model.documents.resources import METADATA
from cni_calico.model.keys import ResourceKey
from cni_calico.policy.plain_workloads import plain_workload
from cni_calico.policy.records import Labelled, labelled_workload

KEY = ResourceKey("WorkloadEndpoint", "n2-k8s-p1-eth0", "shop")
USUAL: dict[str, Any] = {
    "kind": "WorkloadEndpoint",
    "apiVersion": "projectcalico.org/v3",
    "metadata": {
        "name": KEY.name,
        "namespace": KEY.namespace,
        "uid": "u",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"app": "web", "projectcalico.org/namespace": "other", "pcns.stage": "x"},
        "annotations": {"a": "b"},
    },
    "spec": {
        "orchestrator": "k8s",
        "workload": "",
        "node": "n2",
        "containerID": "c",
        "pod": "p1",
        "serviceAccountName": "default",
        "endpoint": "eth0",
        "ipNetworks": ["10.65.0.1/32", "fd00::1/128", "10.65.0.1/32"],
        "profiles": ["kns.shop", "ksa.shop.default"],
        "interfaceName": "cali1",
        "mac": "ee:ee:ee:ee:ee:ee",
        "newer": {"field": 1},
    },
}


def usually(document: Any) -> Labelled | str | None:
    try:
        return labelled_workload(decode_endpoint(KEY, document))
    except CorruptRecord as e:
        return str(e)


def agrees(document: Any) -> bool:
    """Whether it was read in one go, and then as usual."""
    found = plain_workload(KEY, document, "n1")
    assert found is None or found == usually(document)
    return found is not None


def test_the_usual_document_is_read_in_one_go() -> None:
    assert agrees(USUAL)
    assert plain_workload(KEY, USUAL, "n2") is None, "this node's own"


FIELDS = [
    *(("metadata", field.name) for field in METADATA),
    *(("spec", field.name) for field in ENDPOINT),
    *(("", name) for name in ("kind", "apiVersion", "metadata", "spec", "status")),
]
ODD: list[Any] = [None, "", "x", 7, True, {}, [], {"a": 1}, {"a": "b"}, [1], ["x"], [None], [{}], ["10.0.0.0/24"]]
ODD += [
    ["10.0.0.01/32"],
    ["10.0.0.1"],
    ["fe80::1%eth0/128"],
    ["10.0.0.1/32", "fd00::/64"],
    ["fd00::1/0128"],
    ["\x00/32"],
]


@pytest.mark.parametrize(("part", "name"), FIELDS)
def test_every_field_with_every_odd_value(part: str, name: str) -> None:
    for value in ODD:
        document = deepcopy(USUAL)
        (document[part] if part else document)[name] = value
        agrees(document)
    document = deepcopy(USUAL)
    (document[part] if part else document).pop(name, None)
    agrees(document)


texts = st.sampled_from(["", "a", "k8s", "n1", "n2", "projectcalico.org/serviceaccount", "pcns.x", "pcsa.y", KEY.name])
networks = st.sampled_from(
    ["10.0.0.1/32", "10.0.0.2/32", "fd00::2/128", "FD00::2/128", "10.0.0.1/33", "10.0.0.0/8", "x"]
)
values = texts | st.none() | st.integers() | st.lists(texts | networks, max_size=3) | st.dictionaries(texts, texts)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(st.sampled_from([field for field in FIELDS if field[0]]), values, max_size=4),
    st.lists(networks, max_size=3),
    st.dictionaries(texts, texts, max_size=4),
)
def test_any_document(changes: dict[tuple[str, str], Any], nets: list[str], labels: dict[str, str]) -> None:
    document = deepcopy(USUAL)
    document["spec"]["ipNetworks"], document["metadata"]["labels"] = nets, labels
    for (part, name), value in changes.items():
        document[part][name] = value
    agrees(document)
