"""calico-node takes a host over whose HostEndpoint upstream's agent enforces: what is forbidden stays so at every
moment, what is allowed goes on, and then upstream's rules are gone.

Rule: upstream's rules have the form of its agent's for a host endpoint by name; the records that they come from are in
the datastore of the agent, which runs as a whole.
"""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Resource
from tests.deadlines import until
from tests.netns.agents import Store
from tests.netns.namespaces import Namespace, namespace
from tests.netns.nodes import Node
from tests.netns.policing.lab import BUFFER, RCVBUFFORCE, socket_in

pytestmark = pytest.mark.netns

HOST, OTHER = "10.0.0.1", "10.0.0.2"
ALLOWED, FORBIDDEN = 80, 81
ACCEPT = "0x10000/0x10000"
UPSTREAM = f"""\
*filter
:cali-INPUT - [0:0]
:cali-from-host-endpoint - [0:0]
:cali-fh-eth0 - [0:0]
:cali-failsafe-in - [0:0]
:cali-pi-default.web - [0:0]
-A INPUT -m comment --comment "cali:Cz_u1IQiXIMmKD4c" -j cali-INPUT
-A cali-INPUT -m mark --mark {ACCEPT} -j ACCEPT
-A cali-INPUT -j MARK --set-xmark 0x0/0xf0000
-A cali-INPUT -j cali-from-host-endpoint
-A cali-INPUT -m mark --mark {ACCEPT} -j ACCEPT
-A cali-from-host-endpoint -i eth0 -g cali-fh-eth0
-A cali-fh-eth0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A cali-fh-eth0 -m conntrack --ctstate INVALID -j DROP
-A cali-fh-eth0 -j cali-failsafe-in
-A cali-fh-eth0 -j MARK --set-xmark 0x0/0x10000
-A cali-fh-eth0 -j cali-pi-default.web
-A cali-fh-eth0 -m mark --mark {ACCEPT} -j RETURN
-A cali-fh-eth0 -j DROP
-A cali-failsafe-in -p tcp -m multiport --dports 22 -j ACCEPT
-A cali-pi-default.web -p udp -m multiport --dports {ALLOWED} -j MARK --set-xmark {ACCEPT}
-A cali-pi-default.web -m mark --mark {ACCEPT} -j RETURN
COMMIT
"""
ENDPOINT = Resource("HostEndpoint", Metadata("h", labels={"host": "yes"}), {"node": "n1", "interfaceName": "eth0"})
POLICY = Resource(
    "GlobalNetworkPolicy",
    Metadata("web"),
    {
        "tier": "default",
        "order": 10,
        "selector": "host == 'yes'",
        "types": ["Ingress"],
        "ingress": [{"action": "Allow", "protocol": "UDP", "destination": {"ports": [ALLOWED]}}],
    },
)


@dataclass
class Taken:
    """``variant`` of iptables has upstream's rules; ``other`` is a host on the wire."""

    node: Node
    other: Namespace
    variant: str

    def upstreams(self) -> list[str]:
        """Lines of upstream's rules."""
        saved = self.node.ns.run(f"iptables-{self.variant}-save").stdout
        return [line for line in saved.splitlines() if "cali-" in line and "cali-p-" not in line]


BY_IPTABLES = "legacy to legacy"  # our policies are in legacy iptables, too


@pytest.fixture(params=["legacy", "nft"])
def taken(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Taken]:
    variant = request.param.partition(" ")[0]
    with namespace("n1") as ns, namespace("other") as other:
        ns.do("link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", other.name)
        for end, address in ((ns, HOST), (other, OTHER)):
            end.do("addr", "add", f"{address}/24", "dev", "eth0")
            end.do("link", "set", "eth0", "up")
        node = Node(ns, "n1", tmp_path / "n1", Store(tmp_path / "store.db"))
        node.root.mkdir()
        node.calico_node("-startup")
        node.store.put(ENDPOINT, POLICY)
        rules = tmp_path / "rules"
        rules.write_text(UPSTREAM)
        ns.run(f"iptables-{variant}-restore", "--noflush", str(rules))
        if request.param == BY_IPTABLES:
            node.more = {"FELIX_NFTABLESMODE": "Disabled"}
        try:
            yield Taken(node, other, variant)
        finally:
            node.end()


@contextmanager
def sending(taken: Taken) -> Iterator[dict[int, int]]:
    """New connections to both ports all the time; port -> packets that arrived, complete when the block has ended."""
    counts, ending = {ALLOWED: 0, FORBIDDEN: 0, 0: 0}, threading.Event()
    arrived = socket_in(taken.node.ns, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    arrived.setsockopt(socket.SOL_SOCKET, RCVBUFFORCE, BUFFER)
    out = socket_in(taken.other, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)

    def packet(port: int) -> bytes:
        """From a port that no connection has had lately."""
        source = 1024 + counts[0] % 60000
        return source.to_bytes(2, "big") + port.to_bytes(2, "big") + (12).to_bytes(2, "big") + bytes(2) + b"flow"

    def send() -> None:
        while not ending.is_set():
            for port in (ALLOWED, FORBIDDEN):
                out.sendto(packet(port), (HOST, 0))
            counts[0] += 1
            ending.wait(0.001)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield counts
    finally:
        ending.set()
        thread.join()
        counts[0] += 1
        last = packet(ALLOWED)
        out.sendto(last, (HOST, 0))
        arrived.settimeout(20)
        with arrived, out:
            while (data := arrived.recv(4096)[20:]) != last:
                counts[int.from_bytes(data[2:4], "big")] += 1


@pytest.mark.parametrize("taken", ["legacy", "nft", BY_IPTABLES], indirect=True)
def test_a_host_endpoint_is_taken_over_under_traffic(taken: Taken) -> None:
    assert taken.upstreams()
    with sending(taken) as counts:
        taken.node.run().until_ready()
        until(lambda: not taken.upstreams(), "upstream's rules are gone", 60)
        after = counts[0] + 100
        until(lambda: counts[0] > after, "packets after that")
    assert counts[FORBIDDEN] == 0
    assert counts[ALLOWED] == counts[0] - 1  # the last one ends the count
    by_iptables = bool(taken.node.more)
    assert ("calico-policy" in taken.node.ns.run("nft", "list", "tables").stdout) is not by_iptables
    assert ("-j cali-p-INPUT" in taken.node.ns.run("iptables-legacy-save").stdout) is by_iptables
    said = taken.node.calicoctl("node", "status").stdout
    assert re.search(r"1 host", said), said
    assert ("legacy iptables and IP sets" in said) is by_iptables, said


def said(taken: Taken, words: str) -> str:
    """The sentence about policies, once it has these words."""
    sentence = str((taken.node.status().get("policing") or {}).get("sentence"))
    return sentence if words in sentence else ""


@pytest.mark.parametrize("taken", [BY_IPTABLES], indirect=True)
def test_kube_proxy_in_ipvs_mode_keeps_upstreams_rules(taken: Taken) -> None:
    """It is not ready, and nothing of ours decides, until that mode is over."""
    taken.node.ns.do("link", "add", "kube-ipvs0", "type", "veth", "peer", "name", "ipvs-peer")
    before = taken.upstreams()
    with sending(taken) as counts:
        taken.node.run("-felix")
        why = until(lambda: said(taken, "kube-proxy runs in mode ipvs"), "it says why it is not ready", 60)
        assert why.startswith("no policy is enforced by this agent: ") and "FELIX_TAKEOVERWITHIPVS=true" in why
        assert "legacy iptables" in why
        assert taken.node.calico_node("-felix-ready", check=False).returncode != 0
        assert taken.upstreams() == before
        assert "NOBODY ENFORCES" not in taken.node.log()
        taken.node.ns.do("link", "del", "kube-ipvs0")
        until(lambda: not taken.upstreams(), "upstream's rules are gone", 60)
    assert counts[FORBIDDEN] == 0 and counts[ALLOWED] == counts[0] - 1


@pytest.mark.parametrize("taken", ["nft", BY_IPTABLES], indirect=True)
def test_kube_proxy_in_ipvs_mode_that_is_supported_or_told_to_go_on(taken: Taken) -> None:
    by_iptables = bool(taken.node.more)
    taken.node.ns.do("link", "add", "kube-ipvs0", "type", "veth", "peer", "name", "ipvs-peer")
    taken.node.more = {**taken.node.more, **({"FELIX_TAKEOVERWITHIPVS": "true"} if by_iptables else {})}
    taken.node.run("-felix")
    until(lambda: not taken.upstreams(), "upstream's rules are gone", 60)
    if by_iptables:
        until(lambda: "mode ipvs" in str(taken.node.status().get("policing")), "the mode is reported", 60)
    else:
        assert "chain ipvs-from" in taken.node.ns.run("nft", "list", "ruleset").stdout


def test_what_would_no_longer_be_enforced_keeps_upstreams_rules(taken: Taken) -> None:
    """With policies switched off, the HostEndpoint and what selects it are named, and a probe fails, until they go."""
    taken.node.more = {"FELIX_POLICYENFORCEMENT": "Disabled"}
    before = taken.upstreams()
    with sending(taken) as counts:
        taken.node.run("-felix")
        [why] = until(lambda: taken.node.status().get("unmet"), "it says why it is not ready", 60)
        assert "what GlobalNetworkPolicy web says about HostEndpoint h" in why
        assert "FELIX_TAKEOVERWITHOUTPOLICIES=true" in why
        assert taken.node.calico_node("-felix-ready", check=False).returncode != 0
        assert taken.upstreams() == before
    assert counts[FORBIDDEN] == 0 and counts[ALLOWED] == counts[0] - 1
    for kind, name in (("GlobalNetworkPolicy", "web"), ("HostEndpoint", "h")):
        taken.node.store.remove(ResourceKey(kind, name))
    taken.node.until_applied()
    assert not taken.upstreams()
