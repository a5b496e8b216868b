"""What is encrypted besides packets from pod to pod: services, ports of nodes, hosts, borrowed addresses."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from tests.deadlines import until
from tests.netns.encrypted import EncryptedPair, Stream, encrypted_pair
from tests.netns.namespaces import Namespace
from tests.netns.nodes import Pod
from tests.netns.steps import told_steps
from tests.unit.nodeagent.fabric import pool

pytestmark = [pytest.mark.netns, pytest.mark.stock, pytest.mark.slow, pytest.mark.timeout(900)]
SMALL = replace(pool("10.65.0.0/29", "Always"), block_size=30)


def pings(ns: Namespace, address: str, token: bytes) -> bool:
    return ns.run("ping", "-c1", "-W1", "-s64", "-p", token.hex(), address, check=False).returncode == 0


def answered(stream: Stream, ns: Namespace, address: str, what: str) -> None:
    before = stream.readable()
    until(partial(pings, ns, address, stream.token), what, 60, pause_s=0.2)
    stream.arrive(5)
    assert stream.readable() == before, what


def test_ways_between_nodes(tmp_path: Path, record_property: pytest.RecordProperty) -> None:
    """With a pool as it is, then with natOutgoing."""
    told = told_steps(record_property, "encryption")
    with told as steps, encrypted_pair(tmp_path, (SMALL,)) as pair:
        pair.enable()
        pair.until_encrypted()
        stream = pair.stream()
        stream.arrive(20)
        steps.skip(stream)
        outside, borrowed = _services(pair), _borrowed(pair)
        for nat in (False, True):
            pair.store.put(replace(SMALL, nat_outgoing=nat))
            hosts = [node.ns for node in pair.nodes.values()]
            until(lambda nat=nat, hosts=hosts: {masquerades(ns) for ns in hosts} == {nat}, "natOutgoing", pause_s=0.2)
            _answered_by_every_way(pair, stream, outside)
            answered(stream, pair.pods["n2"].ns, borrowed.addresses[0], "a borrowed address")
            answered(stream, borrowed.ns, pair.pods["n2"].addresses[0], "and from there")
            steps.ended(f"ways between nodes, {'natOutgoing' if nat else 'as it is'}", stream)


def masquerades(ns: Namespace) -> bool:
    return "masquerade" in ns.run("nft", "list", "table", "ip", "calico", check=False).stdout


def _services(pair: EncryptedPair) -> Namespace:
    """What kube-proxy makes of a service, and of a port of a node's; a host outside of the cluster."""
    hosts = [pair.nodes[name].ns for name in ("n1", "n2")]
    to = f"dnat to {pair.pods['n2'].addresses[0]}"
    hosts[0].run("nft", "add table ip nat; add chain ip nat pre { type nat hook prerouting priority -100; }")
    hosts[0].run("nft", f"add rule ip nat pre ip daddr 10.96.0.1 {to}; add rule ip nat pre iifname eth1 {to}")
    hosts[0].run("nft", "add chain ip nat post { type nat hook postrouting priority 100; }")
    hosts[0].run("nft", "add rule ip nat post ct original ip daddr 192.0.2.1 masquerade")
    outside = pair.lab.namespace("outside")
    pair.lab.plug(hosts[0], "eth1", "1", "192.0.2.1/24")
    pair.lab.plug(outside, "eth0", "1", "192.0.2.9/24")
    return outside


def _answered_by_every_way(pair: EncryptedPair, stream: Stream, outside: Namespace) -> None:
    host = pair.nodes["n1"].ns
    pods = [pair.pods[name] for name in ("n1", "n2")]
    answered(stream, pods[0].ns, "10.0.0.2", "a pod reaches the other node")
    answered(stream, pods[1].ns, "10.0.0.1", "and the other way round")
    answered(stream, host, pods[1].addresses[0], "a host reaches a pod of the other node")
    answered(stream, pods[0].ns, "10.96.0.1", "a service whose pod is on the other node")
    answered(stream, outside, "192.0.2.1", "from outside, forwarded to the other node's pod")


def _borrowed(pair: EncryptedPair) -> Pod:
    """A pod of n1 with an address of n2's block."""
    theirs = next(ip_network(route) for route in pair.routed("n1") if ip_network(route).prefixlen == 30)
    for label in "bcd":
        pod = pair.add_pod("n1", label)
        if ip_address(pod.addresses[0]) in theirs:
            break
    assert ip_address(pod.addresses[0]) in theirs
    return pod
