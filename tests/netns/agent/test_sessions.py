"""BGP and BFD with a router, and a host endpoint that cuts them: the agent says so, and they are cut."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni_calico.model.resources import Metadata, Resource
from tests.deadlines import until
from tests.netns.agents import Store
from tests.netns.bird.cluster import Lab, make_lab
from tests.netns.nodes import Node

pytestmark = [pytest.mark.netns, pytest.mark.bird]

TOR = "10.0.0.250"
ROUTER = f"""router id {TOR};
log stderr all;
protocol device {{ }}
protocol bfd {{ interface "*" {{ min rx interval 100 ms; min tx interval 100 ms; multiplier 3; }}; }}
protocol bgp n1 {{
  local {TOR} port 1179 as 65000; neighbor 10.0.0.1 port 1790 as 64512; direct; bfd on;
  connect delay time 1; connect retry time 1; error wait time 1, 1;
  ipv4 {{ import all; export none; }};
}}
"""


@pytest.fixture
def routed(tmp_path: Path) -> Iterator[tuple[Lab, Node]]:
    with make_lab(tmp_path) as lab:
        lab.node("tor", f"{TOR}/24").apply_text(ROUTER)
        ns = lab.namespace("n1")
        lab.plug(ns, "eth0", "0", "10.0.0.1/24")
        node = Node(ns, "n1", tmp_path / "n1", Store(tmp_path / "store.db"))
        node.more = {"CALICO_NETWORKING_BACKEND": "bird", "FELIX_FAILSAFEINBOUNDHOSTPORTS": "tcp:22"}
        node.root.mkdir()
        try:
            yield lab, node
        finally:
            node.end()


def put(node: Node, kind: str, name: str, spec: dict[str, Any], **annotations: str) -> None:
    node.store.put(Resource(kind, Metadata(name, annotations=annotations), spec))


def warned(node: Node, text: str) -> bool:
    return any(text in said for said in (node.status().get("policing") or {}).get("warnings", ()))


def test_what_cuts_a_session_is_named_and_the_rule_mends_it(routed: tuple[Lab, Node]) -> None:
    lab, node = routed
    put(node, "BGPConfiguration", "default", {"listenPort": 1790, "nodeToNodeMeshEnabled": False})
    put(node, "BGPPeer", "tor", {"peerIP": f"{TOR}:1179", "asNumber": 65000}, **{"cni-calico.io/bfd": "true"})
    node.run().until_applied()
    until(lambda: lab.nodes["tor"].established() == {"n1"}, "the session with BFD", 60)
    put(node, "HostEndpoint", "h", {"node": "n1", "interfaceName": "*"})
    for text in (
        f"HostEndpoint h cuts this node off for BFD with {TOR} (UDP 3784)",
        f"HostEndpoint h cuts this node from BFD with {TOR} (UDP 3784)",
        f"HostEndpoint h cuts this node from BGP with {TOR} (TCP 1179)",
    ):
        until(lambda text=text: warned(node, text), text, 60)
    until(lambda: lab.nodes["tor"].established() == set(), "BFD ends the session", 60)
    shown = node.calicoctl("node", "status", check=False).stdout
    assert f"HostEndpoint h cuts this node off for BFD with {TOR} (UDP 3784): give a policy that selects it" in shown
    bfd = {"action": "Allow", "protocol": "UDP", "destination": {"ports": ["3784:3785"]}}
    bgp = {"action": "Allow", "protocol": "TCP", "destination": {"ports": [1179, 1790]}}
    spec = {"selector": "all()", "types": ["Ingress", "Egress"], "ingress": [bfd, bgp], "egress": [bfd, bgp]}
    put(node, "GlobalNetworkPolicy", "routing", spec)
    until(lambda: lab.nodes["tor"].established() == {"n1"}, "the session is back", 60)
    until(lambda: not warned(node, "cuts this node"), "nothing is said any more", 60)
