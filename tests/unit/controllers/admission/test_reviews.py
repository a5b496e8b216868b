"""What an API server asks: what can be read, and that nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.controllers.admission.reviews import (
    ALLOWED,
    AdmissionAnswer,
    Asker,
    UnreadableReview,
    parse_review,
    render_answer,
    tier_of,
)


def request_of(**changes: Any) -> dict[str, Any]:
    policy = {"metadata": {"name": "a1"}, "spec": {"tier": "sec"}}
    request: dict[str, Any] = {
        "uid": "u1",
        "kind": {"group": "projectcalico.org", "version": "v3", "kind": "GlobalNetworkPolicy"},
        "name": "a1",
        "operation": "CREATE",
        "userInfo": {"username": "alice", "groups": ["dev"], "extra": {"scopes": ["x", "y"]}},
        "object": policy,
        "oldObject": None,
        **changes,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def test_a_review() -> None:
    found = parse_review(json.dumps(request_of()).encode())
    assert (found.uid, found.verb, found.kind, found.name, found.namespace) == (
        *("u1", "create", "GlobalNetworkPolicy", "a1", ""),
    )
    assert found.asker == Asker("alice", "", ("dev",), (("scopes", ("x", "y")),))
    assert found.new is not None and tier_of(found.kind, found.new) == "sec" and found.old is None


def test_a_deletion_of_a_collection_names_its_object() -> None:
    old = {"metadata": {"name": "one", "namespace": "n"}, "spec": {}}
    document = request_of(operation="DELETE", name="", namespace="n", object=None, oldObject=old)
    found = parse_review(json.dumps(document).encode())
    assert (found.verb, found.name, found.namespace) == ("delete", "one", "n")
    assert found.old is not None and tier_of(found.kind, found.old) == "default"


@pytest.mark.parametrize(
    "changes",
    [
        {"uid": ""},
        {"uid": 7},
        {"operation": "CONNECT"},
        {"object": None},
        {"object": "text"},
        {"object": {"metadata": []}},
        {"oldObject": {"metadata": {"name": "a1"}}},
        {"operation": "UPDATE"},
        {"operation": "DELETE"},
        {"userInfo": None},
        {"userInfo": {"username": ""}},
        {"userInfo": {"username": "alice", "groups": "admins"}},
        {"userInfo": {"username": "alice", "groups": [1]}},
        {"userInfo": {"username": "alice", "extra": {"k": [None]}}},
        {"kind": "GlobalNetworkPolicy"},
        {"namespace": 3},
    ],
)
def test_what_cannot_be_read(changes: dict[str, Any]) -> None:
    with pytest.raises(UnreadableReview):
        parse_review(json.dumps(request_of(**changes)).encode())


@pytest.mark.parametrize("spec", [{"tier": 5}, {"tier": ["sec"]}, "text", ["tier"]])
def test_a_tier_that_cannot_be_read(spec: Any) -> None:
    with pytest.raises(UnreadableReview):
        tier_of("NetworkPolicy", {"spec": spec})


def test_kubernetes_own_staged_policies_are_in_the_default_tier() -> None:
    assert tier_of("StagedKubernetesNetworkPolicy", {"spec": {"tier": "sec"}}) == "default"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=40)
@given(st.sampled_from(sorted(request_of()["request"])), JSON)
def test_any_field_may_hold_anything(field: str, value: Any) -> None:
    try:
        found = parse_review(json.dumps(request_of(**{field: value})).encode())
    except UnreadableReview:
        return
    assert found.asker.user and found.uid and found.verb == "create"


@given(st.binary(max_size=200))
def test_any_bytes(body: bytes) -> None:
    with pytest.raises(UnreadableReview):
        parse_review(body)


def test_deep_json() -> None:
    with pytest.raises(UnreadableReview):
        parse_review(b"[" * 200_000)


def test_answers() -> None:
    assert render_answer("u1", ALLOWED)["response"] == {"uid": "u1", "allowed": True}
    denied = render_answer("u1", AdmissionAnswer("no"))
    assert (denied["apiVersion"], denied["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    status = {"status": "Failure", "message": "no", "reason": "Forbidden", "code": 403}
    assert denied["response"] == {"uid": "u1", "allowed": False, "status": status}
