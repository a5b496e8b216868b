"""PURE: what a node's BGP sessions need from the policies of its host endpoints: BGP itself, and BFD beside it.

Rule: only what certainly carries a session is named. BIRD asks for no echoes of BFD (RFC 5880, 6.8.9), so their port is
only in the rule that is proposed, for routers that send them all the same. Of many sessions with nodes the first ones
stand for all: what cuts one of them cuts the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cni_calico.nodeagent.bgp.config.peers import GLOBAL, MESH, WORKLOAD, Peer
from cni_calico.nodeagent.bgp.config.sessions import is_near
from cni_calico.nodeagent.bgp.config.snapshot import BgpSnapshot
from cni_calico.policy.lifelines import TCP, UDP, Lifeline
from cni_calico.policy.wanted import Direction

BGP_PORT = 179
BFD_PORT, BFD_ECHO_PORT, BFD_MULTIHOP_PORT = 3784, 3785, 4784  # RFC 5881, 4; RFC 5883, 5
_PEERS = 40  # at most this many sessions are judged, those with other routers first
_BOTH: tuple[Direction, ...] = ("ingress", "egress")


def desired_lifelines(snapshot: BgpSnapshot, peers: Iterable[Peer]) -> tuple[Lifeline, ...]:
    """The connections of the sessions of ``snapshot``'s own node."""
    own = snapshot.own
    if own is None:
        return ()
    listen_port = snapshot.listen_port(snapshot.node_name) or BGP_PORT
    chosen = sorted((peer for peer in peers if peer.kind != WORKLOAD), key=lambda peer: bool(peer.node))[:_PEERS]
    found: list[Lifeline] = []
    for peer in chosen:
        own_network = own.ipv4 if peer.address.version == 4 else own.ipv6
        found += _of_bgp(peer, listen_port)
        found += _of_bfd(peer, near=own_network is not None and is_near(peer, own_network))
    return tuple(found)


def _of_bgp(peer: Peer, listen_port: int) -> Iterator[Lifeline]:
    """Whichever end connects; between nodes of a mesh, or of a global BGPPeer, only one does."""
    what = f"BGP with {peer.address}"
    if not peer.passive:
        yield Lifeline(what, "egress", peer.address, peer.port or BGP_PORT, TCP)
    if peer.passive or not (peer.kind == MESH or (peer.kind == GLOBAL and peer.node)):
        yield Lifeline(what, "ingress", peer.address, listen_port, TCP)


def _of_bfd(peer: Peer, *, near: bool) -> Iterator[Lifeline]:
    """Both ends send; one direction alone is no session."""
    if not peer.bfd:
        return
    port, also = (BFD_PORT, (BFD_ECHO_PORT,)) if near else (BFD_MULTIHOP_PORT, ())
    for direction in _BOTH:
        yield Lifeline(f"BFD with {peer.address}", direction, peer.address, port, UDP, also, alone=True)
