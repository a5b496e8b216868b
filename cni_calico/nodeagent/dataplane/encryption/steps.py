"""PURE: how a device and its routes become what is wanted without losing a packet; the clocks are given.

Rule: a peer is there before a route leads to it, and its route is gone before it is. A new peer is primed: a keepalive
has WireGuard send an initiation at once. Two that cross cost 5 s, so the node with the smaller key primes at once, the
other PRIME_AFTER_S later if there was no handshake. The route comes with the first handshake, or PATIENCE_S later all
the same, as upstream's at once; at once, too, where encryption is mandatory. A key that takes another's place is one
message: the new one is added, primed, and the old one removed, and the routes stay. A device gets its first peers when
it has its address: what an IPv4 interface without one receives is dropped where rp_filter is on, and a handshake tells
the other to send.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from functools import partial

from cni_calico.model.host import PROTO_BOOT, HostRoute
from cni_calico.model.resources import Network
from cni_calico.model.wireguard import PeerChange, WireguardChange, WireguardDevice, WireguardPeer
from cni_calico.nodeagent.dataplane.encryption.desired import DesiredEncryption, DesiredPeer
from cni_calico.nodeagent.dataplane.encryption.order import widened

PRIME_S = 25  # the keepalive of a peer that is primed
PRIME_AFTER_S, PATIENCE_S = 0.15, 10.0
QUIET_S, LEAVING_S = 10.0, 60.0


@dataclass(slots=True)
class KnownPeer:
    """``since``: when this key was first seen; ``replaces``: it took another key's place."""

    key: bytes
    since: float
    replaces: bool
    routed: bool
    settled: bool = False
    told: bool = False


@dataclass(frozen=True, slots=True)
class EncryptionSteps:
    """In this order: ``change``; ``routes`` and ``host_routes`` (all that the two tables are to have), some before the
    plain routes and some after them (order.py); ``removals``: peers, and networks of peers. Of the routes there may be
    thousands, so they are made whenever somebody looks at them, as they are until the next plan.

    ``waiting``: nodes whose first handshake is awaited; ``overdue``: nodes whose route came without one; ``renewed``:
    nodes that have another key than before.
    """

    change: WireguardChange | None = None
    routes: Collection[HostRoute] = ()
    host_routes: Collection[HostRoute] = ()
    removals: WireguardChange | None = None
    waiting: tuple[str, ...] = ()
    overdue: tuple[str, ...] = ()
    renewed: tuple[str, ...] = ()


class _Made(Collection[HostRoute]):
    """Routes, none of them twice."""

    def __init__(self, make: Callable[[], Iterator[HostRoute]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[HostRoute]:
        return self._make()

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return any(True for _ in self)

    def __contains__(self, route: object) -> bool:
        return any(route == one for one in self)


@dataclass(slots=True)
class Stepping:
    """What is remembered of a family from pass to pass: the peers by their nodes."""

    known: dict[str, KnownPeer] = field(default_factory=dict)

    def plan(
        self, desired: DesiredEncryption, device: WireguardDevice, present: Iterable[HostRoute], now: float
    ) -> EncryptionSteps:
        """``present``: the routes that the table has."""
        if desired.address is None and not device.peers:
            desired = _without_peers(desired)
        actual = {peer.public_key: peer for peer in device.peers}
        through: set[Network] = set()
        if any(peer.node not in self.known for peer in desired.peers):
            through = {route.dst for route in present if route.device == desired.name}
        wanted = {peer.key: peer.allowed for peer in desired.peers}
        wide = widened(wanted, {key: peer.allowed for key, peer in actual.items()})
        replaced: list[bytes] = []
        changes: list[tuple[bool, PeerChange]] = []
        waiting, overdue, renewed = [], [], []
        for peer in desired.peers:
            there = actual.get(peer.key)
            known = self._known(peer, there, through, now)
            if known.replaces and known.since == now:
                replaced.append(self.known[peer.node].key)
                if replaced[-1] != peer.key:
                    renewed.append(peer.node)
            self.known[peer.node] = known
            shaken = there is not None and there.handshake_s > 0
            if shaken or now - known.since >= PATIENCE_S:
                known.settled = True
                if not shaken and not (known.told or (known.routed and not desired.mandatory)):
                    known.told = True
                    overdue.append(peer.node)
                known.routed = True
            known.routed = known.routed or desired.mandatory
            if not known.settled:
                waiting.append(peer.node)
            keepalive_s = _keepalive_of(desired, device, known, now)
            allowed = wanted[peer.key]
            change = _difference(peer, there, keepalive_s, wide.get(peer.key, allowed))
            if change is not None:
                changes.append((_loses(allowed, there), change))
        for node in self.known.keys() - {peer.node for peer in desired.peers}:
            del self.known[node]
        gone = [PeerChange(key, remove=True) for key in replaced if key in actual and key not in wanted]
        late = actual.keys() - wanted.keys() - set(replaced)
        ordered = [change for _, change in sorted(changes, key=lambda one: one[0])] + gone
        removals = [PeerChange(key, remove=True) for key in sorted(late)]
        removals += [PeerChange(key, allowed=wanted[key], known_only=True) for key in wide]
        if desired.partial:
            removals.clear()
        return EncryptionSteps(
            change=WireguardChange(peers=tuple(ordered)) if ordered else None,
            routes=_Made(partial(self._routes, desired)),
            host_routes=_Made(partial(self._host_routes, desired)),
            removals=WireguardChange(peers=tuple(removals)) if removals else None,
            waiting=tuple(waiting),
            overdue=tuple(overdue),
            renewed=tuple(renewed),
        )

    def _known(self, peer: DesiredPeer, there: WireguardPeer | None, through: set[Network], now: float) -> KnownPeer:
        known = self.known.get(peer.node)
        if known is not None and known.key == peer.key:
            known.key = peer.key  # equal, and the other one may go
            return known
        if known is not None:
            return KnownPeer(peer.key, now, replaces=True, routed=known.routed)
        # an earlier run's, or another agent's: what works goes on
        routed = there is not None and not through.isdisjoint(peer.networks)
        return KnownPeer(peer.key, now, replaces=False, routed=routed)

    def _routes(self, desired: DesiredEncryption) -> Iterator[HostRoute]:
        scope = "link" if desired.family == 4 else "global"
        around: set[Network] = set()
        plain = set(desired.plain_networks | desired.own)
        for peer in desired.peers:
            if not self.known[peer.node].routed:
                plain.update(peer.networks)
        longest = max((network.prefixlen for network in plain), default=0)
        for peer in desired.peers:
            if not self.known[peer.node].routed:
                continue
            for one in peer.networks:
                yield HostRoute(one, desired.name, scope=scope, protocol=PROTO_BOOT)
                if one.prefixlen < longest or one in desired.prohibited:
                    around.add(one)
        for network in desired.prohibited - around - plain:
            around.add(network)
            yield HostRoute(network, kind="prohibit", protocol=PROTO_BOOT)
        # what no route is around goes to the main table without; what is there stays while not all is known
        yield from map(throw, plain if desired.partial else _inside(plain, around))

    def _host_routes(self, desired: DesiredEncryption) -> Iterator[HostRoute]:
        """The nodes' own addresses, which only what comes from this node's pods asks for."""
        scope = "link" if desired.family == 4 else "global"
        for peer in desired.peers:
            if self.known[peer.node].routed:
                yield from (HostRoute(one, desired.name, scope=scope, protocol=PROTO_BOOT) for one in peer.hosts)


def shared_with(desired: DesiredEncryption) -> Callable[[WireguardPeer], WireguardPeer]:
    """Of peers that are read, what is as it is wanted becomes the wanted one's own: a thousand are a megabyte else."""
    wanted = {peer.key: peer for peer in desired.peers}

    def share(found: WireguardPeer) -> WireguardPeer:
        peer = wanted.get(found.public_key)
        if peer is None:
            return found
        return replace(
            found,
            public_key=peer.key,
            endpoint=peer.endpoint if found.endpoint == peer.endpoint else found.endpoint,
            allowed=peer.allowed if found.allowed == peer.allowed else found.allowed,
        )

    return share


def _without_peers(desired: DesiredEncryption) -> DesiredEncryption:
    """Their networks go plain, unless encryption is mandatory."""
    theirs = {network for peer in desired.peers for network in peer.networks}
    plain = desired.plain_networks if desired.mandatory else desired.plain_networks | theirs
    return replace(desired, peers=(), plain_networks=plain)


def _inside(networks: Iterable[Network], around: Iterable[Network]) -> Iterator[Network]:
    """Those that are in a larger one of ``around``."""
    firsts = {(one.prefixlen, int(one.network_address)) for one in around}
    lengths = sorted({length for length, _ in firsts})
    for network in networks:
        first, bits = int(network.network_address), network.max_prefixlen
        shorter = (length for length in lengths if length < network.prefixlen)
        if any((length, first >> (bits - length) << (bits - length)) in firsts for length in shorter):
            yield network


def throw(network: Network) -> HostRoute:
    """The main table decides."""
    return HostRoute(network, kind="throw", protocol=PROTO_BOOT)


def _keepalive_of(desired: DesiredEncryption, device: WireguardDevice, known: KnownPeer, now: float) -> int:
    if known.settled:
        return desired.keepalive_s
    first = known.replaces or device.public_key < known.key or now - known.since >= PRIME_AFTER_S
    return PRIME_S if first else desired.keepalive_s


def _loses(allowed: Set[Network], there: WireguardPeer | None) -> bool:
    """Whether others may get a network of it, which they must before it is gone here."""
    return there is not None and bool(there.allowed - allowed)


def _difference(
    peer: DesiredPeer, there: WireguardPeer | None, keepalive_s: int, allowed: Set[Network]
) -> PeerChange | None:
    if there is None:
        return PeerChange(peer.key, endpoint=peer.endpoint, allowed=allowed, keepalive_s=keepalive_s)
    change = PeerChange(
        peer.key,
        endpoint=None if there.endpoint == peer.endpoint else peer.endpoint,
        allowed=None if there.allowed == allowed else allowed,
        keepalive_s=None if there.keepalive_s == keepalive_s else keepalive_s,
        known_only=True,
    )
    nothing = change.endpoint is None and change.allowed is None and change.keepalive_s is None
    return None if nothing else change


@dataclass(slots=True)
class Leaving:
    """A device that is not wanted any more, whose peers may not know it yet."""

    since: float
    quiet_since: float
    received: int = -1

    def is_over(self, device: WireguardDevice, now: float) -> bool:
        """Nobody has sent for QUIET_S, or LEAVING_S have passed."""
        received = sum(peer.received for peer in device.peers)
        if received != self.received:
            self.received, self.quiet_since = received, now
        silent = now - self.quiet_since >= QUIET_S or not device.peers
        return silent or now - self.since >= LEAVING_S
