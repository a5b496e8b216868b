"""What sessions need from host endpoints: which end connects, on which port, and BFD over one hop or several."""

from __future__ import annotations

from typing import Any

import pytest

from cni_calico.nodeagent.bgp.config.lifelines import desired_lifelines
from cni_calico.nodeagent.bgp.config.peers import desired_peers
from cni_calico.nodeagent.bgp.config.render import render_bird_config
from tests.unit.nodeagent.bgp.config.clusters import Document, document, make_snapshot, node, this

NODES = [node("n1", "10.0.0.1/24", "fd00::1/64"), node("n2", "10.0.0.2/24", "fd00::2/64")]
MESH_OFF = document("BGPConfiguration", "default", nodeToNodeMeshEnabled=False)


def needs(*documents: Document, at: str = "n1") -> set[tuple[Any, ...]]:
    """(purpose, direction, protocol, port, further ports) of IPv4."""
    snapshot = make_snapshot([this(at), *NODES, *documents])
    lines = desired_lifelines(snapshot, desired_peers(snapshot).peers)
    return {
        (line.what, line.direction, line.protocol, line.port, line.also) for line in lines if line.other.version == 4
    }


def test_in_the_mesh_one_end_connects() -> None:
    ports = document("BGPConfiguration", "default", listenPort=1790)
    own = document("BGPConfiguration", "node.n2", listenPort=1799)
    assert needs(at="n1") == {("BGP with 10.0.0.2", "ingress", 6, 179, ())}  # the smaller text is passive
    assert needs(at="n2") == {("BGP with 10.0.0.1", "egress", 6, 179, ())}
    assert needs(ports, own, at="n1") == {("BGP with 10.0.0.2", "ingress", 6, 1790, ())}
    assert needs(ports, own, at="n2") == {("BGP with 10.0.0.1", "egress", 6, 1790, ())}


@pytest.mark.parametrize(
    ("peer", "more", "bfd"),
    [
        ("10.0.0.254", {}, (3784, (3785,))),
        ("192.0.2.254", {}, (4784, ())),
        ("10.0.0.254", {"ttlSecurity": 1}, (4784, ())),
    ],
)
def test_a_router_with_bfd(peer: str, more: dict[str, Any], bfd: tuple[int, tuple[int, ...]]) -> None:
    tor = document("BGPPeer", "tor", peerIP=f"{peer}:1179", asNumber=65000, **more)
    tor["metadata"]["annotations"] = {"cni-calico.io/bfd": "true"}
    listen = document("BGPConfiguration", "default", nodeToNodeMeshEnabled=False, listenPort=1790)
    assert needs(tor, listen) == {
        (f"BGP with {peer}", "egress", 6, 1179, ()),
        (f"BGP with {peer}", "ingress", 6, 1790, ()),
        (f"BFD with {peer}", "egress", 17, *bfd),
        (f"BFD with {peer}", "ingress", 17, *bfd),
    }
    text = render_bird_config(make_snapshot([this("n1"), *NODES, tor, listen])).files["bird.cfg"]
    assert ("direct;" in text) == (bfd[0] == 3784)  # BIRD chooses the port by that


def test_routers_come_first_of_many_and_without_a_node_there_is_nothing() -> None:
    many = [node(f"m{i}", f"10.0.1.{i}/16") for i in range(1, 100)]
    peers = [document("BGPPeer", "all", peerSelector="all()"), document("BGPPeer", "t", peerIP="10.0.0.9", asNumber=7)]
    found = needs(*many, *peers, MESH_OFF)
    assert {line[0] for line in found} >= {"BGP with 10.0.0.9"} and 40 <= len(found) <= 80
    assert desired_lifelines(make_snapshot([this("other"), *NODES]), ()) == ()
