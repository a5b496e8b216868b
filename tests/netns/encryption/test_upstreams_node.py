"""A node of upstream's: its records as upstream's agent writes them, and a WireGuard device as that agent keeps it.

Rule: nothing of ours runs there. Its peers may send from blocks and tunnels' addresses only, it shakes hands when it
has something to send, and its records stay as they are.
"""

from __future__ import annotations

import json
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.ensure import ensure_record
from cni_calico.datastore.local.store import LocalStore
from cni_calico.kernel.wireguard.device import change_device, make_private_key, read_device
from cni_calico.model.keys import ResourceKey
from cni_calico.model.wireguard import (
    PeerChange,
    WireguardChange,
    WireguardEndpoint,
    parse_public_key,
    render_public_key,
)
from tests.deadlines import soon, until
from tests.kernels.features import has
from tests.netns.encrypted import Capture, EncryptedPair, encrypted_pair
from tests.netns.nodes import Pod
from tests.netns.outside import wireguard_outside
from tests.unit.nodeagent.fabric import pool

pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(has("wireguard"), reason="devices outside of the kernel, which only a test can make"),
]
MARK = "0x200000/0x200000"
BLOCK, DEVICE_ADDRESS, POD_ADDRESS = "10.65.77.0/26", "10.65.77.1", "10.65.77.9"


def record(key: str) -> dict[str, Any]:
    """The Node of upstream's calico-node v3.32 in etcd, with WireGuard."""
    return {
        "kind": "Node",
        "apiVersion": "projectcalico.org/v3",
        "metadata": {
            "name": "up",
            "uid": "0d7d9b1c-8a3e-4c6e-9d5f-6f0a6a3c9e11",
            "creationTimestamp": "2026-11-01T09:00:00Z",
            "labels": {"kubernetes.io/hostname": "up"},
        },
        "spec": {
            "addresses": [{"address": "10.0.0.77/24", "type": "CalicoNodeIP"}, {"address": "10.0.0.77"}],
            "bgp": {"ipv4Address": "10.0.0.77/24"},
            "ipv4VXLANTunnelAddr": "10.65.77.2",
            "vxlanTunnelMACAddr": "66:40:b3:ea:00:77",
            "wireguard": {"interfaceIPv4Address": DEVICE_ADDRESS},
        },
        "status": {"podCIDRs": [""], "wireguardPublicKey": key},
    }


def upstreams_node(pair: EncryptedPair) -> tuple[Any, str, bytes]:
    """Its namespace, its device's name, and its key."""
    ns = pair.lab.namespace("up")
    pair.lab.plug(ns, "eth0", "0", "10.0.0.77/24")
    ns.set_sysctl("ipv4/ip_forward", "1")
    device = f"{pair.devices['n1']}up"
    pair.lab.stack.enter_context(wireguard_outside(ns, device))
    change = WireguardChange(private_key=make_private_key(), port=51820, mark=0x200000)
    ns.call(change_device, device, change, soon())
    ns.do("addr", "add", f"{DEVICE_ADDRESS}/32", "dev", device)
    ns.do("link", "set", device, "up", "mtu", "1440")
    ns.do("rule", "add", "not", "fwmark", MARK, "lookup", "1", "priority", "99")
    found = ns.call(read_device, device, soon())
    return ns, device, found.public_key


def follow(pair: EncryptedPair, ns: Any, device: str) -> None:
    """As upstream's agent follows what n1's record says: one peer, and routes at once."""
    key = parse_public_key(pair.told_keys()["n1"])
    networks = frozenset({ip_network(f"{pair.pods['n1'].addresses[0]}/26", strict=False)})
    place = WireguardEndpoint(ip_address("10.0.0.1"), 51820)
    ns.call(change_device, device, WireguardChange(peers=(PeerChange(key, endpoint=place, allowed=networks),)), soon())
    for network in networks:
        ns.do("route", "replace", str(network), "dev", device, "scope", "link", "table", "1", "proto", "boot")


def test_beside_a_node_of_upstreams(tmp_path: Path) -> None:
    with encrypted_pair(tmp_path, (pool("10.65.0.0/16", "Always"),)) as pair:
        pair.enable()
        pair.until_encrypted()
        ns, device, key = upstreams_node(pair)
        written = record(render_public_key(key))
        store = LocalStore(str(pair.store.path))
        ensure_record(store, ResourceKey("Node", "up"), lambda _: written, soon())
        store.close()
        pair.store.put_block(BLOCK, "up")
        inside = pair.lab.namespace("uppod")
        inside.do("link", "add", "eth0", "type", "veth", "peer", "name", "caliup", "netns", ns.name)
        inside.do("addr", "add", f"{POD_ADDRESS}/32", "dev", "eth0")
        inside.do("link", "set", "eth0", "up")
        inside.do("route", "add", "default", "dev", "eth0")
        ns.do("link", "set", "caliup", "up")
        ns.set_sysctl("ipv4/conf/caliup/proxy_arp", "1")
        ns.do("route", "add", f"{POD_ADDRESS}/32", "dev", "caliup")
        ns.do("route", "add", "default", "dev", "eth0")  # which proxy ARP needs
        follow(pair, ns, device)
        until(lambda: BLOCK in pair.routed("n1"), "n1 sends what is for that node encrypted", 60)

        theirs = Pod(inside, "up", addresses=[POD_ADDRESS])
        seen = Capture(ns, "eth0", b"")
        stream = pair.stream_between((pair.pods["n1"], theirs))
        stream.arrive(30)
        assert stream.readable() == 0
        seen.take_in()
        assert seen.udp_to.get(51820, 0) >= 60
        seen.close()

        pair.rotate("n1")
        before = pair.told_keys()["n1"]
        until(lambda: pair.told_keys()["n1"] != before, "n1 has another key", 60)
        old = PeerChange(parse_public_key(before), remove=True)
        ns.call(change_device, device, WireguardChange(peers=(old,)), soon())  # two messages, as upstream's
        follow(pair, ns, device)
        stream.arrive(30)
        assert stream.readable() == 0

        store = LocalStore(str(pair.store.path))
        kept = store.get(ResourceKey("Node", "up"), soon())
        store.close()
        assert kept is not None and json.dumps(kept.value, sort_keys=True) == json.dumps(written, sort_keys=True)
