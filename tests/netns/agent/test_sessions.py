"""Sessions with routers: what ends them and what cuts them is told, also when they are up again."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cni_calico.deadline import Deadline
from cni_calico.model.resources import Metadata, Resource
from cni_calico.nodeagent.bgp.bird.control import BirdControl, read_status
from cni_calico.nodeagent.bgp.bird.session_ends import KEPT
from cni_calico.nodeagent.bgp.keeper import SESSIONS_S
from tests.deadlines import until
from tests.netns.agents import Store
from tests.netns.bird.cluster import Lab, make_lab
from tests.netns.nodes import Node

pytestmark = [pytest.mark.netns, pytest.mark.bird]

TOR = "10.0.0.250"
SECOND = "10.0.0.251"


NO_SYN = "tcp dport 1179 tcp flags & (syn | ack) == syn drop"
BFD = 'protocol bfd { interface "*" { min rx interval 100 ms; min tx interval 100 ms; multiplier 3; }; }'


def router(address: str, *, bfd: bool = True) -> str:
    return f"""router id {address};
log stderr all;
protocol device {{ }}
{BFD if bfd else ""}
protocol bgp n1 {{
  local {address} port 1179 as 65000; neighbor 10.0.0.1 port 1790 as 64512; direct; {"bfd on;" if bfd else ""}
  connect delay time 1; connect retry time 1; error wait time 1, 1;
  ipv4 {{ import all; export none; }};
}}
"""


@pytest.fixture
def routed(tmp_path: Path) -> Iterator[tuple[Lab, Node]]:
    with make_lab(tmp_path) as lab:
        lab.node("tor", f"{TOR}/24").apply_text(router(TOR))
        ns = lab.namespace("n1")
        lab.plug(ns, "eth0", "0", "10.0.0.1/24")
        node = Node(ns, "n1", tmp_path / "n1", Store(tmp_path / "store.db"))
        node.more = {"CALICO_NETWORKING_BACKEND": "bird", "FELIX_FAILSAFEINBOUNDHOSTPORTS": "tcp:22"}
        node.root.mkdir()
        try:
            yield lab, node
        finally:
            node.end()


def up(node: Node) -> set[str]:
    """The addresses of the node's own BIRD with sessions."""
    status = read_status(f"{node.root}/run/bird.ctl", Deadline.after(10))
    return {peer.address for peer in status.peers if peer.established}


def order(lab: Lab, name: str, command: str) -> str:
    """A command of a router's operator, and what it says."""
    with BirdControl(lab.nodes[name].controller.paths.socket, Deadline.after(10)) as control:
        return "\n".join(text for _, text in control.tell(command, Deadline.after(10)).lines)


def put(node: Node, kind: str, name: str, spec: dict[str, Any], **annotations: str) -> None:
    node.store.put(Resource(kind, Metadata(name, annotations=annotations), spec))


def warned(node: Node, text: str) -> bool:
    return any(text in said for said in (node.status().get("policing") or {}).get("warnings", ()))


def peer(node: Node, name: str, address: str, *, bfd: bool = True) -> None:
    annotations = {"cni-calico.io/bfd": "true"} if bfd else {}
    put(node, "BGPPeer", name, {"peerIP": f"{address}:1179", "asNumber": 65000}, **annotations)


def test_why_sessions_ended_is_known_when_they_are_up_again(routed: tuple[Lab, Node]) -> None:
    """In the status, also of the next agent; and a probe that succeeds names the peer that is down. Without BFD, which
    may be first to see the end: that counts as an error, after which BIRD waits longer each time. The router connects
    and is never connected to: a connection that it refused would replace the reason, maybe before the agent looks.
    """
    lab, node = routed
    closed = f"add table ip t; add chain ip t in {{ type filter hook input priority 0; }}; add rule ip t in {NO_SYN}"
    lab.nodes["tor"].ns.run("nft", closed)
    lab.nodes["tor"].apply_text(router(TOR, bfd=False))
    lab.node("second", f"{SECOND}/24").apply_text(router(SECOND, bfd=False))
    put(node, "BGPConfiguration", "default", {"listenPort": 1790, "nodeToNodeMeshEnabled": False})
    peer(node, "tor", TOR, bfd=False)
    peer(node, "second", SECOND, bfd=False)
    node.run().until_applied()
    until(lambda: all(lab.nodes[name].established() for name in ("tor", "second")), "both sessions", 60)
    probe = ("-bird-ready", "-threshold-time=0s")
    until(lambda: node.calico_node(*probe, check=False).stdout == "", "nothing to say of two sessions", 60)
    assert "BGP: no mesh; 2 sessions by BGPPeers" in node.calicoctl("show").stdout

    def ends() -> list[dict[str, str]]:
        known = node.status().get("bgp_ends") or {}
        return list(known.get("Global_10_0_0_250_port_1179", ()))

    def flap() -> bool:
        """Up for some looks, as sessions are. Whether the agent has seen the end: one that is busy may have missed that
        the session was up.
        """
        before, since = ends(), time.monotonic()
        until(lambda: TOR in up(node) and time.monotonic() - since > 5 * SESSIONS_S, "it is up", 60)
        order(lab, "tor", "disable n1")
        ended = time.monotonic()
        until(lambda: ends() != before or time.monotonic() - ended > 25 * SESSIONS_S, "the agent looks", 60)
        order(lab, "tor", "enable n1")
        return ends() != before

    for _ in range(KEPT + 1):
        until(flap, "the agent has seen its end", 240)
    until(lambda: TOR in up(node), "it is up again", 60)
    assert len(ends()) == KEPT and {end["reason"] for end in ends()} == {"Received: Administrative shutdown"}
    shown = node.calicoctl("node", "status").stdout
    assert "Sessions that ended, the last three times of each:" in shown
    assert shown.count(f"  {TOR}: Received: Administrative shutdown") == KEPT
    order(lab, "second", "disable n1")
    told = until(lambda: node.calico_node(*probe).stdout, "the probe names it", 60)
    assert told.startswith("calico-node: BIRD is ready: 1 of 2 BGP sessions are established") and SECOND in told
    before = node.status()["pid"]
    node.calico_node("sv", "restart", "/etc/service/enabled/felix")
    until(lambda: node.status().get("pid") not in (None, before), "another agent", 60)
    assert len(ends()) == KEPT


def test_what_cuts_a_session_is_named_and_the_rule_mends_it(routed: tuple[Lab, Node]) -> None:
    lab, node = routed
    put(node, "BGPConfiguration", "default", {"listenPort": 1790, "nodeToNodeMeshEnabled": False})
    peer(node, "tor", TOR)
    node.run().until_applied()
    until(lambda: lab.nodes["tor"].established() == {"n1"}, "the session", 60)
    until(
        lambda: re.search(r"^10\.0\.0\.1 .* Up ", order(lab, "tor", "show bfd sessions"), re.M),
        "BFD, which is later",
        60,
    )
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
