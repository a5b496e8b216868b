"""Fragments of a user's in a real BIRD's configuration: named when it refuses them, in force when it takes them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cni_calico.model.resources import Metadata, Resource
from tests.deadlines import until
from tests.netns.nodes import Node

pytestmark = [pytest.mark.netns, pytest.mark.bird]


@pytest.fixture
def bird_node(agent_node: Node) -> Node:
    """Set up with BIRD as its backend; no part is running."""
    agent_node.more = {"CALICO_NETWORKING_BACKEND": "bird"}
    agent_node.calico_node("-startup")
    return agent_node


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
    until(lambda: "of_mine" in ask_bird(bird_node, "bird.ctl", "show", "protocols"), "it is in force", 20)
    until(lambda: bird_node.status().get("bgp") == "", "and nothing is wrong any more", 30)


def test_templates_of_bird_1_are_named_and_the_node_stays_up(bird_node: Node) -> None:
    """Those that lie there at the start, and one that is mounted later; the status forgets what is gone."""
    templates = bird_node.root / "templates"
    templates.mkdir()
    (templates / "bird.cfg.template").write_text("router id {{$router_id}};\n")
    bird_node.store.put(peer("tor"))
    bird_node.run("-felix", "-confd")
    until(lambda: named_templates(bird_node) == ["bird.cfg.template"], "the template is named", 20)
    (templates / "bird_ipam.cfg.template").write_text("{{range gets}}")
    (templates / "mine.template").write_text("{{.}}")
    until(
        lambda: named_templates(bird_node) == ["bird.cfg.template", "bird_ipam.cfg.template", "mine.template"],
        "so are the others",
        20,
    )
    shown = subprocess.run(
        [sys.executable, "-m", "cni_calico.ctl.main", "node", "status"],
        env=bird_node.environ(),
        capture_output=True,
        text=True,
    )
    for text in (bird_node.calico_node("-show-status").stdout, shown.stdout):
        assert "templates/bird_ipam.cfg.template: is a template for BIRD 1.6 and is NOT USED" in text
    assert "templates/mine.template" in bird_node.log()
    assert "Global_10_0_0_254" in ask_bird(bird_node, "bird.ctl", "show", "protocols")
    assert bird_node.calico_node("-felix-live", check=False).returncode == 0
    for path in templates.iterdir():
        path.unlink()
    until(lambda: not named_templates(bird_node), "nothing is named any more", 20)


def named_templates(node: Node) -> list[str]:
    """In the agent's status."""
    texts = [text for text in node.status().get("bgp_problems", []) if "NOT USED" in text]
    return sorted(text.partition(":")[0].removeprefix("templates/") for text in texts)
