"""One suite for every WireGuard that the agent may meet: the kernel's, one outside of it, and the unit tests' fake."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError, LinkGone
from cni_calico.kernel.wireguard import device as real
from cni_calico.kernel.wireguard.curve25519 import public_key
from cni_calico.model.resources import Network
from cni_calico.model.wireguard import PeerChange, PrivateKey, WireguardChange, WireguardDevice, WireguardEndpoint
from tests.fakes.wireguard import FakeWireguard
from tests.netns.namespaces import Namespace, namespace
from tests.netns.outside import wireguard_outside

KEYS = [bytes((number,)) * 32 for number in range(1, 4)]
OWN = PrivateKey(bytes(range(32)))
PLACE = WireguardEndpoint(ip_address("192.0.2.1"), 51820)
PLACE_V6 = WireguardEndpoint(ip_address("2001:db8::1"), 51821)
_numbers = itertools.count()


def networks(*texts: str) -> frozenset[Network]:
    return frozenset(map(ip_network, texts))


class Door:
    """Calls one of them; ``name`` is its device."""

    def __init__(self, name: str, call: Callable[..., Any]) -> None:
        self.name, self._call = name, call

    def read(self) -> WireguardDevice:
        return self._call("read_device", self.name)

    def change(self, *peers: PeerChange, **settings: Any) -> WireguardDevice:
        self._call("change_device", self.name, WireguardChange(peers=peers, **settings))
        return self.read()

    def call(self, method: str, *arguments: Any) -> Any:
        return self._call(method, *arguments)


def _in_kernel(method: str, *arguments: Any) -> Any:
    return getattr(real, method)(*arguments, Deadline.after(30))


def real_door(ns: Namespace, name: str) -> Door:
    def call(method: str, *arguments: Any) -> Any:
        return ns.call(_in_kernel, method, *arguments)

    return Door(name, call)


@pytest.fixture(
    params=[
        "fake",
        pytest.param("outside", marks=pytest.mark.netns),
        pytest.param("kernel", marks=(pytest.mark.netns, pytest.mark.slow, pytest.mark.kernel("wireguard"))),
    ]
)
def door(request: pytest.FixtureRequest) -> Iterator[Door]:
    name = f"wg{next(_numbers)}-{os.getpid()}"
    with ExitStack() as stack:
        if request.param == "fake":
            fake = FakeWireguard()
            made = Door(name, lambda method, *arguments: getattr(fake, method)(*arguments, Deadline.after(30)))
        else:
            ns = stack.enter_context(namespace("wg"))
            if request.param == "outside":
                stack.enter_context(wireguard_outside(ns, name))
            made = real_door(ns, name)
        made.call("ensure_link", name, 1420, (ip_address("10.65.0.1"),))
        yield made


def test_what_is_set_is_read(door: Door) -> None:
    """Of a link that is there nothing is done a second time."""
    assert door.call("ensure_link", door.name, 1420, (ip_address("10.65.0.1"),)) == []
    assert door.call("ensure_link", door.name, 1420, None) == []
    found = door.change(
        PeerChange(KEYS[0], endpoint=PLACE, allowed=networks("10.65.1.0/26", "192.0.2.1/32"), keepalive_s=25),
        PeerChange(KEYS[1], endpoint=PLACE_V6, allowed=networks("fd00:65::/122")),
        private_key=OWN,
        port=0xCA11,
        mark=0x200000,
    )
    assert (found.public_key, found.port, found.mark) == (public_key(OWN.packed), 0xCA11, 0x200000)
    first, second = (found.peer(key) for key in KEYS[:2])
    assert first is not None and second is not None
    assert (first.endpoint, first.allowed, first.keepalive_s) == (PLACE, networks("10.65.1.0/26", "192.0.2.1/32"), 25)
    assert (second.endpoint, second.allowed, second.keepalive_s) == (PLACE_V6, networks("fd00:65::/122"), 0)
    assert first.handshake_s == second.handshake_s == 0


def test_a_change_of_one_thing_leaves_the_others(door: Door) -> None:
    before = door.change(PeerChange(KEYS[0], endpoint=PLACE, allowed=networks("10.65.1.0/26")), private_key=OWN)
    after = door.change(PeerChange(KEYS[0], keepalive_s=25))
    peer = after.peer(KEYS[0])
    assert peer is not None and (peer.endpoint, peer.allowed) == (PLACE, networks("10.65.1.0/26"))
    assert after.public_key == before.public_key


def test_a_network_is_the_last_ones(door: Door) -> None:
    found = door.change(
        PeerChange(KEYS[0], allowed=networks("10.65.1.0/26", "10.65.2.0/26")),
        PeerChange(KEYS[1], allowed=networks("10.65.1.0/26")),
        private_key=OWN,
    )
    allowed = {peer.public_key: peer.allowed for peer in found.peers}
    assert allowed == {KEYS[0]: networks("10.65.2.0/26"), KEYS[1]: networks("10.65.1.0/26")}


def test_networks_are_replaced(door: Door) -> None:
    door.change(PeerChange(KEYS[0], allowed=networks("10.65.1.0/26")), private_key=OWN)
    found = door.change(PeerChange(KEYS[0], allowed=networks("10.65.2.0/26")))
    assert [peer.allowed for peer in found.peers] == [networks("10.65.2.0/26")]
    assert door.change(PeerChange(KEYS[0], allowed=networks())).peers[0].allowed == networks()


def test_a_new_key_in_the_place_of_an_old_one(door: Door) -> None:
    """In one message: what was the old one's is the new one's, and nothing is nobody's meanwhile."""
    door.change(PeerChange(KEYS[0], endpoint=PLACE, allowed=networks("10.65.1.0/26")), private_key=OWN)
    found = door.change(
        PeerChange(KEYS[1], endpoint=PLACE, allowed=networks("10.65.1.0/26")), PeerChange(KEYS[0], remove=True)
    )
    assert [(peer.public_key, peer.allowed) for peer in found.peers] == [(KEYS[1], networks("10.65.1.0/26"))]


def test_who_is_not_there(door: Door) -> None:
    assert door.change(PeerChange(KEYS[0], remove=True), private_key=OWN).peers == ()
    assert door.change(PeerChange(KEYS[0], known_only=True, keepalive_s=25)).peers == ()


def test_the_own_key_is_no_peer(door: Door) -> None:
    own = door.change(private_key=OWN).public_key
    assert door.change(PeerChange(own, endpoint=PLACE)).peers == ()
    other = PrivateKey(bytes(range(1, 33)))
    door.change(PeerChange(public_key(other.packed), endpoint=PLACE), PeerChange(KEYS[0]))
    assert [peer.public_key for peer in door.change(private_key=other).peers] == [KEYS[0]]


def test_another_key_leaves_peers(door: Door) -> None:
    door.change(PeerChange(KEYS[0], endpoint=PLACE, allowed=networks("10.65.1.0/26")), private_key=OWN)
    found = door.change(private_key=PrivateKey(bytes(range(1, 33))))
    assert [(peer.public_key, peer.endpoint) for peer in found.peers] == [(KEYS[0], PLACE)]


def test_a_device_that_is_not_there(door: Door) -> None:
    assert door.call("read_device", f"{door.name}x") is None
    assert door.call("remove_device", f"{door.name}x") is False
    with pytest.raises(LinkGone, match="it is gone"):
        door.call("change_device", f"{door.name}x", WireguardChange(port=1))


def test_many_peers(door: Door) -> None:
    """More than a message holds, and a peer with more networks than one holds."""
    keys = [number.to_bytes(32, "big") for number in range(1, 301)]
    wide = frozenset(ip_network((0x0A000000 + number * 64, 26)) for number in range(1200))
    peers = [PeerChange(keys[0], endpoint=PLACE, allowed=wide)]
    peers += [
        PeerChange(key, endpoint=PLACE_V6, allowed=networks(f"fd00::{i:x}/128")) for i, key in enumerate(keys[1:])
    ]
    found = door.change(*peers, private_key=OWN)
    first = found.peer(keys[0])
    assert first is not None and first.allowed == wide and first.endpoint == PLACE
    assert {peer.public_key for peer in found.peers} == set(keys)
    assert sum(len(peer.allowed) for peer in found.peers) == len(wide) + len(keys) - 1


@pytest.mark.netns
def test_an_interface_of_others() -> None:
    with namespace("wg") as ns:
        ns.do("link", "add", "cct-foreign", "type", "bridge")
        before = ns.link("cct-foreign")
        for method, arguments in (
            ("read_device", ()),
            ("ensure_link", (1420, ())),
            ("change_device", (WireguardChange(port=1),)),
            ("remove_device", ()),
        ):
            with pytest.raises(KernelError, match=r"of kind bridge and not WireGuard's"):
                ns.call(_in_kernel, method, "cct-foreign", *arguments)
        assert ns.link("cct-foreign") == before


@pytest.mark.netns
@pytest.mark.slow
@pytest.mark.kernel("wireguard")
def test_a_change_that_fails_is_done_again() -> None:
    """Also one that the kernel has carried out, and whose answer is lost: ``netlink.wireguard-set``."""
    change = WireguardChange(private_key=OWN, peers=(PeerChange(KEYS[0], endpoint=PLACE),))
    with namespace("wg") as ns:
        ns.call(_in_kernel, "ensure_link", "cct-again", 1420, ())
        for when in ("before", "after"):
            with pytest.raises(KernelError):
                ns.call(_in_kernel, "change_device", "cct-again", change, fault=f"netlink.wireguard-set:{when}:1:fail")
            ns.call(_in_kernel, "change_device", "cct-again", change)
            [peer] = ns.call(_in_kernel, "read_device", "cct-again").peers
            assert (peer.public_key, peer.endpoint) == (KEYS[0], PLACE)
