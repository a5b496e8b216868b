"""Fragments of a user's in a real BIRD's configuration: named when it refuses them, in force when it takes them."""

from __future__ import annotations

import subprocess

import pytest

from cni_calico.model.resources import Metadata, Resource
from tests.netns.namespaces import until
from tests.netns.nodes import Node

pytestmark = [pytest.mark.netns, pytest.mark.bird]


@pytest.fixture
def bird_node(node: Node) -> Node:
    """Set up with BIRD as its backend; no part is running."""
    node.more = {"CALICO_NETWORKING_BACKEND": "bird"}
    node.calico_node("-startup")
    return node


def ask_bird(node: Node, socket: str, *words: str) -> str:
    argv = ["birdc", "-s", f"{node.root}/run/{socket}", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=20).stdout


def peer(name: str) -> Resource:
    return Resource("BGPPeer", Metadata(name), {"peerIP": "10.0.0.254", "asNumber": 65000})


def test_refused_and_taken(bird_node: Node) -> None:
    custom = bird_node.root / "custom"
    custom.mkdir()
    (custom / "peers.conf").write_text("hold time 30;\n")
    bird_node.store.put(peer("tor"))
    bird_node.run("-felix", "-confd")
    until(
        lambda: "Global_10_0_0_254" in ask_bird(bird_node, "bird.ctl", "show", "protocols"), "the session is there", 30
    )
    assert "hold time 30;" in (bird_node.root / "bird" / "bird.cfg").read_text()
    assert "Global_10_0_0_254" in ask_bird(bird_node, "bird6.ctl", "show", "protocols")
    (custom / "global.conf").write_text("protocol nothing { }\n")
    bird_node.store.put(Resource("BGPPeer", Metadata("tor2"), {"peerIP": "10.0.0.253", "asNumber": 65000}))
    until(lambda: "custom/global.conf" in (bird_node.status().get("bgp") or ""), "the fragment is named", 30)
    shown = ask_bird(bird_node, "bird.ctl", "show", "protocols")
    assert "Global_10_0_0_254" in shown and "Global_10_0_0_253" not in shown  # the old one is in force
    (custom / "global.conf").write_text("protocol static of_mine { ipv4; }\n")
    until(lambda: "of_mine" in ask_bird(bird_node, "bird.ctl", "show", "protocols"), "it is in force", 60)
    until(lambda: bird_node.status().get("bgp") == "", "and nothing is wrong any more", 30)
