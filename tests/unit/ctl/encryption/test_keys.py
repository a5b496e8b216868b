"""Which Node's key can be used, and what the parameters want."""

from __future__ import annotations

from base64 import b64encode
from ipaddress import IPv4Interface

import pytest

from cni_calico.ctl.encryption.keys import judge_keys, wanted_by
from cni_calico.model.resources import Metadata, Node
from cni_calico.model.wireguard import MADE, with_published_key

KEY = b64encode(bytes(range(32))).decode()


def node(name: str, key: str, **annotations: str) -> Node:
    made = Node(Metadata(name, annotations=annotations), ipv4=IPv4Interface("192.0.2.1/24"))
    return with_published_key(made, 4, key)


def test_each_node_has_what_is_wrong_with_its_key() -> None:
    other = b64encode(bytes(range(1, 33))).decode()
    nodes = {
        "a": node("a", KEY, **{MADE[4]: "2026-01-01T00:00:00Z"}),
        "b": node("b", ""),
        "c": node("c", "garbage"),
        "d": node("d", other),
        "e": node("e", other),
    }
    found = {one.node: one for one in judge_keys(nodes, {"f": "no JSON"}, 4)}
    assert list(found) == ["a", "b", "c", "d", "e", "f"]
    assert found["a"].problem == "" and found["a"].made == "2026-01-01T00:00:00Z" and found["a"].key == KEY
    assert "no key" in found["b"].problem and "cannot be used" in found["c"].problem
    assert "node e has the same key" in found["d"].problem and "node d has the same key" in found["e"].problem
    assert found["f"].problem == "no JSON"
    assert all("no IPv6 address" in one.problem for one in judge_keys(nodes, {}, 6))


@pytest.mark.parametrize(
    ("annotation", "expected"), [("", ""), ("false", ""), ("No", ""), ("true", "true"), ("maybe", "maybe")]
)
def test_what_is_mandatory_fails_closed(annotation: str, expected: str) -> None:
    annotations = {"cni-calico.io/wireguard-strict": annotation, "cni-calico.io/wireguard-exempt": "a, b,"}
    wanted = wanted_by({"metadata": {"annotations": annotations}, "spec": {"wireguardEnabledV6": True}})
    assert (wanted.mandatory, wanted.exempt, wanted.families) == (expected, ("a", "b"), (6,))
    assert wanted_by({}).families == ()
