"""Metrics of encryption: from what the agent says, what the device has, and what Nodes say."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

import pytest

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.model.resources import Metadata, Node
from cni_calico.model.wireguard import (
    MADE,
    WireguardDevice,
    WireguardEndpoint,
    WireguardPeer,
    with_published_key,
)
from cni_calico.nodeagent.dataplane.encryption.desired import DesiredEncryption, DesiredPeer
from cni_calico.nodeagent.dataplane.encryption.told import tell_encryption
from cni_calico.nodeagent.status import peers
from cni_calico.nodeagent.status.encryption_metrics import collect_encryption
from cni_calico.nodeagent.view.snapshot import Snapshot

KEYS = {name: bytes([number]) * 32 for number, name in enumerate("abcd", 1)}
END = WireguardEndpoint(ip_address("192.0.2.2"), 51820)
DESIRED = DesiredEncryption(
    family=4,
    name="wireguard.cali",
    port=51820,
    mtu=1440,
    peers=(DesiredPeer("b", KEYS["b"], END), DesiredPeer("c", KEYS["c"], END)),
    plain={"d": "it has no key"},
    mandatory=True,
)


def text(name: str) -> str:
    return b64encode(KEYS[name]).decode()


def node(name: str, **annotations: str) -> Node:
    made = Node(Metadata(name, annotations=annotations))
    return made if name == "d" else with_published_key(made, 4, text(name))


SNAPSHOT = Snapshot(
    "a", nodes={**{name: node(name) for name in "bcd"}, "a": node("a", **{MADE[4]: "2026-01-01T00:00:00Z"})}
)


def collected(said: Mapping[str, Any], *, of_devices: bool = True) -> dict[str, float]:
    found = collect_encryption(said, SNAPSHOT, of_devices=of_devices)
    samples = [sample for family in found for sample in family.samples]
    return {" ".join((one.name, *one.labels.values())): one.value for one in samples}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    shaken = WireguardPeer(KEYS["b"], END, handshake_s=1000, sent=5, received=7)
    found = WireguardDevice(KEYS["a"], 51820, peers=(shaken, WireguardPeer(KEYS["c"], END), WireguardPeer(b"x" * 32)))
    monkeypatch.setattr(peers, "read_device", lambda name, deadline: found)
    monkeypatch.setattr(peers.nft, "count_packets", lambda *_: 3)


@pytest.mark.usefixtures("device")
def test_peers_by_what_becomes_of_packets_to_them() -> None:
    said = {"4": tell_encryption(DESIRED, KEYS["a"], ["c"], renewed=2)}
    found = collected(said)
    states = {name: value for name, value in found.items() if name.startswith("calico_encryption_peers")}
    assert states == {f"calico_encryption_peers 4 {state}": 1 for state in ("encrypted", "waiting", "plain")}
    assert found["calico_encryption_in_force 4"] == 1 and found["calico_encryption_guard_drops_total"] == 3
    assert found["calico_encryption_key_age_seconds 4"] > 0
    assert found["calico_encryption_peer_key_changes_total 4"] == 2
    assert found[f"wireguard_meta a wireguard.cali 51820 {text('a')}"] == 1
    its = f"a {text('a')} {text('b')} 192.0.2.2:51820"
    assert (found[f"wireguard_bytes_sent {its}"], found[f"wireguard_bytes_rcvd {its}"]) == (5, 7)
    assert found[f"wireguard_latest_handshake_seconds {its}"] == 1000
    assert found[f"wireguard_latest_handshake_seconds a {text('a')} {text('c')} 192.0.2.2:51820"] == 0
    assert not any(name.startswith("wireguard") for name in collected(said, of_devices=False))
    (family,) = peers.read_families(said, SNAPSHOT.nodes, Deadline.after(5))
    assert [(one.node, one.state, one.why) for one in family.peers] == [
        ("", "no Node", ""),
        ("b", "encrypted", ""),
        ("c", "waiting", ""),
        ("d", "plain", "it has no key"),
    ]


@pytest.mark.usefixtures("device")
def test_what_is_not_in_force_is_not() -> None:
    found = collected({"4": tell_encryption(DESIRED, b"", (), "there is no WireGuard here")})
    assert found["calico_encryption_in_force 4"] == 0
    assert not any(name.startswith(("wireguard", "calico_encryption_key_age")) for name in found)


def test_nothing_where_it_is_off_and_no_less_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert collected({}) == {}

    def gone(name: str, deadline: Deadline) -> WireguardDevice | None:
        raise KernelError(f"cannot read {name}")

    monkeypatch.setattr(peers, "read_device", gone)
    monkeypatch.setattr(peers.nft, "count_packets", lambda *_: 0)
    said = {"4": tell_encryption(DESIRED, KEYS["a"], ())}
    found = collected(said)
    assert found["calico_encryption_in_force 4"] == 0 and found["calico_encryption_peers 4 plain"] == 1
    (family,) = peers.read_families(said, SNAPSHOT.nodes, Deadline.after(5))
    assert (family.failing, family.unread) == ("", "cannot read wireguard.cali")  # it may be in force all the same
    monkeypatch.setattr(peers, "read_device", lambda name, deadline: None)
    (family,) = peers.read_families(said, SNAPSHOT.nodes, Deadline.after(5))
    assert (family.failing, family.unread) == ("there is no interface wireguard.cali", "")
    assert collected(said)["calico_encryption_in_force 4"] == 0
