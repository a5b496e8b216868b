"""Two ends decide alone and agree: properties over generated clusters, and the rules one by one."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.nodeagent.bgp.config.peers import MESH_WARN, Peer, desired_peers
from cni_calico.nodeagent.bgp.config.render import hash_router_id, render_bird_config
from tests.unit.nodeagent.bgp.config.clusters import document, make_snapshot, node, secret, this

LABELS = ["rr", "a", "b"]
SELECTORS = ["", "all()", *(f"has({label})" for label in LABELS), "!has(a)"]


@st.composite
def clusters(draw: st.DrawFn) -> list[dict[str, Any]]:
    count = draw(st.integers(2, 5))
    documents: list[Any] = []
    for i in range(count):
        labels = dict.fromkeys(draw(st.sets(st.sampled_from(LABELS))), "yes")
        bgp: dict[str, Any] = {}
        if "rr" in labels and draw(st.booleans()):
            bgp["routeReflectorClusterID"] = draw(st.sampled_from(["1.1.1.1", "2.2.2.2"]))
        if draw(st.booleans()):
            bgp["asNumber"] = draw(st.sampled_from([64512, 65000]))
        ipv6 = f"fd31::{i + 1}/64" if draw(st.booleans()) else ""
        documents.append(node(f"n{i}", f"10.0.0.{i * 3 + 1}/24", ipv6, labels, **bgp))
    for i in range(draw(st.integers(0, 3))):
        spec: dict[str, Any] = {"reversePeering": draw(st.sampled_from(["Auto", "Manual"]))}
        where = draw(st.sampled_from(["all", "node", "selector"]))
        if where == "node":
            spec["node"] = f"n{draw(st.integers(0, count - 1))}"
        elif where == "selector":
            spec["nodeSelector"] = draw(st.sampled_from(SELECTORS))
        if draw(st.booleans()):
            spec["peerSelector"] = draw(st.sampled_from(SELECTORS[1:]))
        else:
            spec["peerIP"] = f"10.0.0.{draw(st.integers(0, count - 1)) * 3 + 1}"
            spec["asNumber"] = draw(st.sampled_from([64512, 65000]))
        documents.append(document("BGPPeer", f"p{i}", **spec))
    mesh = draw(st.booleans())
    documents.append(document("BGPConfiguration", "default", nodeToNodeMeshEnabled=mesh))
    return documents


def sessions(documents: list[dict[str, Any]], name: str) -> dict[str, Peer]:
    found = desired_peers(make_snapshot([*documents, this(name)]))
    return {str(peer.address): peer for peer in found.peers}


@settings(max_examples=150, deadline=None)
@given(clusters())
def test_both_ends_of_a_session(documents: list[dict[str, Any]]) -> None:
    names = [d["metadata"]["name"] for d in documents if d["kind"] == "Node"]
    manual = any(d["kind"] == "BGPPeer" and d["spec"]["reversePeering"] == "Manual" for d in documents)
    by_node = {name: sessions(documents, name) for name in names}
    for name, own in by_node.items():
        for peer in own.values():
            assert peer.node != name, "never with itself"
            assert peer.source is not None
            back = by_node[peer.node].get(str(peer.source)) if peer.node else None
            right_as = peer.as_number == next(
                d["spec"]["bgp"].get("asNumber", 64512) for d in documents if d["metadata"]["name"] == peer.node
            )
            if not manual and right_as:
                assert back is not None, f"{name} -> {peer.node} has no other end"
            if back is not None:
                assert not (peer.passive and back.passive), "nobody would connect"
                if peer.kind == back.kind == "Mesh":
                    assert peer.passive != back.passive


@settings(max_examples=50, deadline=None)
@given(clusters(), st.randoms())
def test_the_order_of_records_does_not_matter(documents: list[dict[str, Any]], random: Any) -> None:
    shuffled = list(documents)
    random.shuffle(shuffled)
    assert render_bird_config(make_snapshot([*shuffled, this("n0")])) == render_bird_config(
        make_snapshot([*documents, this("n0")])
    )


def test_passive_compares_texts() -> None:
    """From the node record to the side that waits, on both ends."""
    documents = [node("a", "10.0.0.9/24", "fd31::a/64"), node("b", "10.0.0.10/24", "fd31::10/64")]
    on_a, on_b = sessions(documents, "a"), sessions(documents, "b")
    assert not on_a["10.0.0.10"].passive  # "10.0.0.10" < "10.0.0.9"
    assert on_b["10.0.0.9"].passive
    assert on_b["fd31::a"].passive
    assert not on_a["fd31::10"].passive


def test_passwords_are_shown_nowhere() -> None:
    """Neither values nor problems, as logs would have them."""
    spec = {"peerIP": "10.0.0.9", "asNumber": 65001, "password": {"secretKeyRef": {"name": "s", "key": "k"}}}
    for password in ("hunter2", 'hunter2"', "hunter2\n"):
        snapshot = make_snapshot(
            [node("a", "10.0.0.1/24"), document("BGPPeer", "p", **spec), secret("s", k=password), this("a")]
        )
        config = render_bird_config(snapshot)
        assert "hunter2" not in repr((snapshot, config, desired_peers(snapshot)))
        assert bool(config.peers) == (password == "hunter2")


def test_a_large_mesh_is_warned_about() -> None:
    def problems(count: int) -> list[str]:
        documents = [node(f"n{i}", f"10.0.{i // 250}.{i % 250 + 1}/16") for i in range(count)]
        return [str(p) for p in desired_peers(make_snapshot([*documents, this("n0")])).problems]

    assert problems(MESH_WARN) == []
    (warning,) = problems(MESH_WARN + 1)
    assert "route reflectors" in warning


def test_router_id_of_a_name() -> None:
    """First byte 228 in the digest of "node-17": 196 after the 32 that keep it out of multicast."""
    import hashlib

    seen = set()
    for i in range(100):
        name = f"node-{i}"
        digest = hashlib.sha256(name.encode()).digest()
        first = digest[0] - 32 if digest[0] > 223 else digest[0]
        seen.add(digest[0] > 223)
        assert hash_router_id(name).packed == bytes([first]) + digest[1:4]
    assert seen == {True, False}
