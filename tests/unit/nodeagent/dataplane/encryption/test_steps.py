"""The order of steps, on a device with the kernel's rules: no route without a peer, no key without its place."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cni_calico.deadline import Deadline
from cni_calico.model.host import HostRoute
from cni_calico.model.wireguard import (
    PeerChange,
    PrivateKey,
    WireguardChange,
    WireguardDevice,
    WireguardEndpoint,
    WireguardPeer,
)
from cni_calico.nodeagent.dataplane.encryption.desired import DesiredEncryption, DesiredPeer
from cni_calico.nodeagent.dataplane.encryption.steps import (
    LEAVING_S,
    PATIENCE_S,
    PRIME_AFTER_S,
    PRIME_S,
    QUIET_S,
    EncryptionSteps,
    Leaving,
    Stepping,
    shared_with,
    throw,
)
from tests.fakes.wireguard import FakeWireguard

NAME = "wireguard.cali"
PLACE = WireguardEndpoint(ip_address("10.0.0.2"), 51820)
NETWORK = ip_network("10.65.2.0/26")
OWN = ip_network("10.65.1.0/26")
ROUTE = HostRoute(NETWORK, NAME, scope="link", protocol=3)


def key(number: int) -> bytes:
    return bytes((number,)) * 32


def peer(number: int = 2, *networks: Any, node: str = "n2") -> DesiredPeer:
    return DesiredPeer(node, key(number), PLACE, networks or (NETWORK,))


def desired(*peers: DesiredPeer, **more: Any) -> DesiredEncryption:
    more.setdefault("address", ip_address("10.65.1.7"))
    return DesiredEncryption(4, NAME, peers=peers, own=frozenset((OWN,)), **more)


class Host:
    """A kernel, and the steps that it was told."""

    def __init__(self, own_key: int = 1) -> None:
        self.kernel = FakeWireguard()
        self.kernel.ensure_link(NAME, 1440, (), Deadline.after(5))
        self.kernel.devices[NAME] = WireguardDevice(key(own_key))
        self.stepping = Stepping()
        self.routes: frozenset[HostRoute] = frozenset()
        self.now = 100.0

    def run(self, wanted: DesiredEncryption) -> EncryptionSteps:
        steps = self.stepping.plan(wanted, self.kernel.devices[NAME], self.routes, self.now)
        steps = replace(steps, routes=frozenset(steps.routes), host_routes=frozenset(steps.host_routes))
        for change in (steps.change, None, steps.removals):
            if change is None:
                self.routes = frozenset(steps.routes)
            else:
                self.kernel.change_device(NAME, change, Deadline.after(5))
                self.check(wanted)
        self.check(wanted)
        return steps

    def check(self, wanted: DesiredEncryption) -> None:
        """What leads to the device, a peer takes."""
        allowed = [network for one in self.kernel.devices[NAME].peers for network in one.allowed]
        assert len(allowed) == len(set(allowed))
        for route in self.routes:
            if route.device and route.dst in {network for one in wanted.peers for network in one.networks}:
                assert route.dst in allowed

    def keepalive(self) -> int:
        [one] = self.kernel.devices[NAME].peers
        return one.keepalive_s


def test_the_route_waits_for_the_handshake() -> None:
    host = Host()
    steps = host.run(desired(peer()))
    assert steps.waiting == ("n2",) and not host.routes
    host.kernel.shake(NAME, key(2), 50)
    steps = host.run(desired(peer()))
    assert host.routes == {ROUTE} and not steps.waiting and not steps.overdue
    assert host.keepalive() == 0
    assert host.run(desired(peer())).change is None


def test_the_route_comes_without_one_in_the_end() -> None:
    host = Host()
    host.run(desired(peer()))
    host.now += PATIENCE_S
    assert host.run(desired(peer())).overdue == ("n2",)
    assert ROUTE in host.routes
    assert host.run(desired(peer())).overdue == ()


def test_the_smaller_key_begins() -> None:
    first, second = Host(own_key=1), Host(own_key=3)
    for host in (first, second):
        host.run(desired(peer(2), keepalive_s=7))
    assert (first.keepalive(), second.keepalive()) == (PRIME_S, 7)
    second.now += PRIME_AFTER_S
    second.run(desired(peer(2), keepalive_s=7))
    assert second.keepalive() == PRIME_S


def test_another_key_is_one_message_and_the_route_stays() -> None:
    host = Host()
    host.run(desired(peer()))
    host.kernel.shake(NAME, key(2), 50)
    host.run(desired(peer()))
    before = len(host.kernel.changes)
    steps = host.run(desired(peer(9)))
    assert len(host.kernel.changes) == before + 1 and steps.removals is None
    [change] = host.kernel.changes[before:]
    assert [(one.public_key, one.remove) for one in change.peers] == [(key(9), False), (key(2), True)]
    assert host.keepalive() == PRIME_S and ROUTE in host.routes


def test_no_peer_before_the_device_has_its_address() -> None:
    """Nor is what it has taken away when the address is."""
    host = Host()
    steps = host.run(desired(peer(), address=None))
    assert steps == EncryptionSteps(routes=frozenset(), host_routes=frozenset())
    strict = desired(peer(), address=None, mandatory=True, prohibited=frozenset((NETWORK,)))
    assert host.run(strict).routes == {HostRoute(NETWORK, kind="prohibit", protocol=3)}
    host.run(desired(peer()))
    host.kernel.shake(NAME, key(2), 50)
    host.run(desired(peer()))
    assert host.run(desired(peer(), address=None)).change is None
    assert host.routes == {ROUTE}


def test_a_peer_goes_after_its_route() -> None:
    host = Host()
    host.run(desired(peer()))
    host.kernel.shake(NAME, key(2), 50)
    host.run(desired(peer()))
    steps = host.run(desired(plain_networks=frozenset((NETWORK,))))
    assert steps.change is None and steps.removals == WireguardChange(peers=(PeerChange(key(2), remove=True),))
    assert not host.routes


def test_what_an_earlier_agent_left_goes_on() -> None:
    """Also while the other does not answer."""
    host = Host()
    host.run(desired(peer()))
    host.routes = frozenset((ROUTE,))
    host.stepping = Stepping()
    host.run(desired(peer()))
    assert ROUTE in host.routes


def test_nothing_is_taken_away_while_records_cannot_be_read() -> None:
    host = Host()
    host.run(desired(peer()))
    assert host.run(desired(partial=True)).removals is None
    assert host.run(desired()).removals is not None


def test_only_what_is_inside_of_a_route_is_an_exception() -> None:
    """The main table has the others anyhow; while not all is known none of them goes."""
    host, lent, far = Host(), ip_network("10.65.2.9/32"), ip_network("10.65.7.0/26")
    plain = frozenset((lent, far))
    host.run(desired(peer(), plain_networks=plain))
    assert not host.routes
    host.kernel.shake(NAME, key(2), 50)
    host.run(desired(peer(), plain_networks=plain))
    assert host.routes == {ROUTE, throw(lent)}
    host.run(desired(peer(), plain_networks=plain, partial=True))
    assert host.routes == {ROUTE, throw(lent), throw(far), throw(OWN)}


def test_strangers_go() -> None:
    host = Host()
    host.kernel.change_device(NAME, WireguardChange(peers=(PeerChange(key(8)),)), Deadline.after(5))
    host.run(desired(peer()))
    assert [one.public_key for one in host.kernel.devices[NAME].peers] == [key(2)]


def test_what_differs_is_set_and_nothing_else() -> None:
    host = Host()
    host.run(desired(peer()))
    host.kernel.change_device(
        NAME, WireguardChange(peers=(PeerChange(key(2), endpoint=replace_port(PLACE, 7)),)), Deadline.after(5)
    )
    change = host.run(desired(peer())).change
    assert change is not None and change.peers == (PeerChange(key(2), endpoint=PLACE, known_only=True),)


def replace_port(place: WireguardEndpoint, port: int) -> WireguardEndpoint:
    return WireguardEndpoint(place.address, port)


def test_a_device_leaves_when_it_is_quiet() -> None:
    device = WireguardDevice(key(1))
    assert Leaving(0.0, 0.0).is_over(device, 0.0)  # nobody knows it
    one = replace(device, peers=(FakePeer,))
    leaving = Leaving(0.0, 0.0)
    assert not leaving.is_over(one, 0.0)
    assert not leaving.is_over(replace(device, peers=(replace(FakePeer, received=9),)), QUIET_S)
    assert leaving.is_over(replace(device, peers=(replace(FakePeer, received=9),)), 2 * QUIET_S)
    talking = Leaving(0.0, 0.0)
    times = range(0, int(LEAVING_S), 5)
    assert not any(talking.is_over(replace(device, peers=(replace(FakePeer, received=t),)), t) for t in times)
    assert talking.is_over(replace(device, peers=(replace(FakePeer, received=1 << 20),)), LEAVING_S)


def _fake_peer() -> Any:
    host = Host()
    host.run(desired(peer()))
    return host.kernel.devices[NAME].peers[0]


FakePeer = _fake_peer()
NODES = ("n2", "n3", "n4")
NETWORKS = [ip_network((0x0A410000 + number * 64, 26)) for number in range(4)]
NETWORKS += [ip_network((0x0A410000 + number * 64 + 9, 32)) for number in range(4)]  # lent ones


class StepsMachine(RuleBasedStateMachine):
    """Records in any order, handshakes, time, restarts: what leads to the device, a peer takes, and it settles."""

    def __init__(self) -> None:
        super().__init__()
        self.host = Host()
        self.keys: dict[str, int] = {}
        self.owners: dict[Any, str] = {}

    def wanted(self) -> DesiredEncryption:
        # a key that two nodes have is neither's; what a node without one has goes plain
        usable = {node: number for node, number in self.keys.items() if list(self.keys.values()).count(number) == 1}
        peers = [
            DesiredPeer(node, key(number), PLACE, tuple(n for n, owner in self.owners.items() if owner == node))
            for node, number in sorted(usable.items())
        ]
        plain = frozenset(n for n, owner in self.owners.items() if owner not in usable)
        return replace(desired(*peers), own=frozenset(), plain_networks=plain)

    @rule(node=st.sampled_from(NODES), number=st.integers(2, 6))
    def told_key(self, node: str, number: int) -> None:
        self.keys[node] = number

    @rule(node=st.sampled_from(NODES))
    def lost_key(self, node: str) -> None:
        self.keys.pop(node, None)

    @rule(network=st.sampled_from(NETWORKS), node=st.sampled_from(NODES))
    def moved_block(self, network: Any, node: str) -> None:
        self.owners[network] = node

    @rule(number=st.integers(2, 6))
    def shaken(self, number: int) -> None:
        self.host.kernel.shake(NAME, key(number), 50)

    @rule(seconds=st.sampled_from((0.0, 1.0, PATIENCE_S)))
    def later(self, seconds: float) -> None:
        self.host.now += seconds

    @rule()
    def restarted(self) -> None:
        self.host.stepping = Stepping()

    @rule(private=st.binary(min_size=32, max_size=32))
    def rotated(self, private: bytes) -> None:
        change = WireguardChange(private_key=PrivateKey(private))
        self.host.kernel.change_device(NAME, change, Deadline.after(5))

    def leads_to(self, address: Any) -> bytes | None:
        """The key that a packet is encrypted for; None: the main table is asked."""
        route = max(
            (one for one in self.host.routes if address in one.dst), key=lambda one: one.dst.prefixlen, default=None
        )
        if route is None or route.kind == "throw":
            return None
        peers = self.host.kernel.devices[NAME].peers
        allowed = [(net, one.public_key) for one in peers for net in one.allowed if address in net]
        return max(allowed, key=lambda pair: pair[0].prefixlen)[1]

    @invariant()
    def holds(self) -> None:
        wanted = self.wanted()
        self.host.run(wanted)
        device = self.host.kernel.devices[NAME]
        assert {one.public_key: one.allowed for one in device.peers} == {p.key: p.allowed for p in wanted.peers}
        for network, owner in self.owners.items():
            peer = next((one for one in wanted.peers if one.node == owner), None)
            leads_to = self.leads_to(network[-1])
            assert leads_to in (None, peer and peer.key)
            assert leads_to or peer is None or not self.host.stepping.known[owner].routed
        assert self.host.run(wanted).change is None  # the same again is nothing


TestSteps = StepsMachine.TestCase
TestSteps.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)


def test_where_it_is_mandatory_nothing_goes_beside_it() -> None:
    """Routes at once; what has no peer is prohibited, and what is this node's, or exempt, is not."""
    host = Host()
    exempt, pool = ip_network("10.65.9.0/26"), ip_network("10.65.0.0/16")
    wanted = desired(
        peer(), mandatory=True, prohibited=frozenset((pool, NETWORK, OWN)), plain_networks=frozenset((exempt,))
    )
    steps = host.run(wanted)
    prohibited = HostRoute(pool, kind="prohibit", protocol=3)
    assert host.routes == {ROUTE, throw(OWN), throw(exempt), prohibited} and steps.waiting == ("n2",)
    host.now += PATIENCE_S
    assert host.run(wanted).overdue == ("n2",)
    assert host.run(wanted).overdue == ()


def test_what_is_read_shares_what_is_wanted() -> None:
    """A peer that is as it is to be takes no memory of its own; one that differs is as it was read."""
    wanted = desired(replace(peer(2), host=True), peer(3, OWN, node="n3"))
    read = [
        WireguardPeer(bytes(bytearray(key(2))), PLACE, frozenset((NETWORK, ip_network("10.0.0.2/32"))), handshake_s=9),
        WireguardPeer(key(3), WireguardEndpoint(PLACE.address, 9), frozenset((NETWORK,))),
        WireguardPeer(key(4)),
    ]
    share = shared_with(wanted)
    shared = [share(one) for one in read]
    assert shared == read
    first, second, third = shared
    assert first.public_key is wanted.peers[0].key and first.endpoint is PLACE
    assert first.allowed == wanted.peers[0].allowed and not isinstance(first.allowed, frozenset)
    assert second.endpoint != PLACE and second.allowed == {NETWORK} and third is read[2]


def test_networks_that_a_peer_may_send_from_are_a_set() -> None:
    allowed, same = (replace(peer(2), host=True).allowed for _ in range(2))
    own = ip_network("10.0.0.2/32")
    assert allowed == same == {NETWORK, own} and hash(allowed) == hash(frozenset((NETWORK, own)))
    assert allowed != peer(2).allowed and len(allowed) == 2
    assert frozenset((NETWORK, OWN)) - allowed == {OWN} and allowed - {NETWORK} == frozenset((own,))
    assert OWN not in allowed and own in allowed
