"""Who is awaited after a new key, and when that is told."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

from cni_calico.model.resources import Metadata, Node
from cni_calico.model.wireguard import WireguardDevice, WireguardEndpoint, WireguardPeer, awaited_by, with_awaited
from cni_calico.nodeagent.dataplane.encryption.desired import DesiredEncryption, DesiredPeer
from cni_calico.nodeagent.dataplane.encryption.following import FOLLOWED_S, TOLD_S, begin_following

END = WireguardEndpoint(ip_address("192.0.2.2"), 51820)
KEYS = {name: bytes([number]) * 32 for number, name in enumerate("bcd", 1)}
DESIRED = DesiredEncryption(4, "wg", peers=tuple(DesiredPeer(name, key, END) for name, key in KEYS.items()))


def device(**handshakes: int) -> WireguardDevice:
    return WireguardDevice(
        b"k" * 32, peers=tuple(WireguardPeer(KEYS[name], END, handshake_s=s) for name, s in handshakes.items())
    )


def test_who_had_a_handshake_is_awaited_until_the_next() -> None:
    following = begin_following(device(b=100, c=100, d=0), 5.0)
    assert following.look(DESIRED, device(b=100, c=100, d=0), 5.0) and following.told == ("b", "c")
    assert following.look(DESIRED, device(b=101, c=100, d=0), 6.0) and following.told == (
        "b",
        "c",
    )  # one by one
    assert following.look(DESIRED, device(b=101, c=100), 5.0 + TOLD_S) and following.told == ("c",)
    assert not following.look(DESIRED, device(b=101, c=100), 5.0 + FOLLOWED_S) and following.told == ("c",)
    assert not following.look(DESIRED, device(b=101, c=102), 6.0 + FOLLOWED_S) and following.told == ()


def test_a_handshake_in_the_second_of_the_one_before_counts() -> None:
    """A key may be replaced at once after another one."""
    before, after = (
        WireguardDevice(b"k" * 32, peers=(WireguardPeer(KEYS["b"], END, handshake_s=100, handshake_ns=ns),))
        for ns in (200, 300)
    )
    following = begin_following(before, 5.0)
    assert following.look(DESIRED, before, 5.0) and following.told == ("b",)
    assert not following.look(DESIRED, after, 5.1) and following.told == ()


def test_nobody_is_awaited_who_is_no_peer_any_more_or_never_answered() -> None:
    following = begin_following(device(b=100, c=0), 5.0)
    assert following.look(DESIRED, device(), 5.0) and following.told == ("b",)
    assert not following.look(replace(DESIRED, peers=()), device(), 6.0) and following.told == ()


def test_it_is_told_in_the_node() -> None:
    node = Node(Metadata("a", annotations={"theirs": "stays"}))
    told = with_awaited(node, 4, ("b", "c"))
    assert awaited_by(told, 4) == ("b", "c") and awaited_by(told, 6) == ()
    assert with_awaited(told, 4, ()) == node and with_awaited(node, 6, ()) is node
