"""Fragments of a user's in a real BIRD's configuration: named when it refuses them, in force when it takes them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.model.resources import Metadata, Resource
from tests.netns.agents import Store
from tests.netns.namespaces import namespace, until
from tests.netns.nodes import Node
from tests.netns.startups import add_card

pytestmark = [pytest.mark.netns, pytest.mark.bird]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with namespace("custom") as ns:
        add_card(ns, "eth0", "10.0.0.1/24")
        made = Node(ns, "n1", tmp_path / "n1", Store(tmp_path / "store.db"))
        made.more = {"CALICO_NETWORKING_BACKEND": "bird"}
        made.root.mkdir()
        made.calico_node("-startup")
        try:
            yield made
        finally:
            made.end()


def ask_bird(node: Node, socket: str, *words: str) -> str:
    argv = ["birdc", "-s", f"{node.root}/run/{socket}", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=20).stdout


def peer(name: str) -> Resource:
    return Resource("BGPPeer", Metadata(name), {"peerIP": "10.0.0.254", "asNumber": 65000})


def test_refused_and_taken(node: Node) -> None:
    custom = node.root / "custom"
    custom.mkdir()
    (custom / "peers.conf").write_text("hold time 30;\n")
    node.store.put(peer("tor"))
    node.run("-felix", "-confd")
    until(lambda: "Global_10_0_0_254" in ask_bird(node, "bird.ctl", "show", "protocols"), "the session is there", 30)
    assert "hold time 30;" in (node.root / "bird" / "bird.cfg").read_text()
    assert "Global_10_0_0_254" in ask_bird(node, "bird6.ctl", "show", "protocols")
    (custom / "global.conf").write_text("protocol nothing { }\n")
    node.store.put(Resource("BGPPeer", Metadata("tor2"), {"peerIP": "10.0.0.253", "asNumber": 65000}))
    until(lambda: "custom/global.conf" in (node.status().get("bgp") or ""), "the fragment is named", 30)
    shown = ask_bird(node, "bird.ctl", "show", "protocols")
    assert "Global_10_0_0_254" in shown and "Global_10_0_0_253" not in shown  # the old one is in force
    (custom / "global.conf").write_text("protocol static of_mine { ipv4; }\n")
    until(lambda: "of_mine" in ask_bird(node, "bird.ctl", "show", "protocols"), "it is in force", 60)
    until(lambda: node.status().get("bgp") == "", "and nothing is wrong any more", 30)
