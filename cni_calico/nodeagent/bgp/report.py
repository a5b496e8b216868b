"""PURE: the status of a CalicoNodeStatus resource: the state of this node's BIRD, its sessions, its routes.

Rule: only the classes that the resource asks for; field names and values are upstream's. BIRD 2 speaks both families,
so one daemon appears under both names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cni_calico.nodeagent.bgp.bird.routes import BirdRoute
from cni_calico.nodeagent.bgp.bird.status import BirdStatus, PeerStatus

DEFAULT_PERIOD_S = 10
_PEER_KINDS = {"node-to-node mesh": "NodeMesh", "global": "GlobalPeer", "node specific": "NodePeer"}
_STATES = ("Idle", "Connect", "Active", "OpenSent", "OpenConfirm", "Established", "Close")
_SOURCES = (("kernel", "Kernel"), ("static", "Static"), ("direct", "Direct"), ("Mesh_", "NodeMesh"))


def parse_period_s(spec: Mapping[str, Any]) -> int:
    """How often a resource is to be filled; 0 (also for something that is not a number): never again."""
    period = spec.get("updatePeriodSeconds", DEFAULT_PERIOD_S)
    return period if isinstance(period, int) and not isinstance(period, bool) and period > 0 else 0


def wants_routes(spec: Mapping[str, Any]) -> bool:
    return "Routes" in _classes(spec)


def _classes(spec: Mapping[str, Any]) -> tuple[str, ...]:
    asked = spec.get("classes")
    return tuple(asked) if isinstance(asked, (list, tuple)) else ()


def render_report(
    spec: Mapping[str, Any], bird: BirdStatus | None, routes: Iterable[BirdRoute], now: str
) -> dict[str, Any]:
    """The status; ``bird`` is None if BIRD does not answer. ``now`` is in RFC 3339."""
    classes = _classes(spec)
    report: dict[str, Any] = {}
    if "Agent" in classes:
        report["agent"] = {"birdV4": _render_daemon(bird), "birdV6": _render_daemon(bird)}
    if "BGP" in classes:
        report["bgp"] = _render_sessions(() if bird is None else bird.peers)
    if "Routes" in classes:
        known = {} if bird is None else {peer.name: peer for peer in bird.peers}
        listed = [(route.version, _render_route(route, known)) for route in routes]
        report["routes"] = {f"routesV{v}": [route for version, route in listed if version == v] for v in (4, 6)}
    return {"lastUpdated": now, **report}


def _render_daemon(bird: BirdStatus | None) -> dict[str, str]:
    if bird is None:
        return {"state": "NotReady"}
    return {
        "state": "Ready" if bird.running and not bird.recovering else "NotReady",
        "version": bird.version,
        "routerID": bird.router_id,
        "lastBootTime": bird.last_reboot,
        "lastReconfigurationTime": bird.last_reconfiguration,
    }


def _render_sessions(peers: Iterable[PeerStatus]) -> dict[str, Any]:
    listed = list(peers)
    out: dict[str, Any] = {}
    for version in (4, 6):
        of_family = [peer for peer in listed if peer.version == version]
        up = sum(peer.established for peer in of_family)
        out[f"numberEstablishedV{version}"] = up
        out[f"numberNotEstablishedV{version}"] = len(of_family) - up
        out[f"peersV{version}"] = [_render_peer(peer) for peer in of_family]
    return out


def _render_peer(peer: PeerStatus) -> dict[str, str]:
    return {
        "peerIP": peer.address,
        "type": _PEER_KINDS.get(peer.kind, "NodePeer"),
        "state": peer.state if peer.state in _STATES else "Idle",  # a session that is stopped
        "since": peer.since,
    }


def _render_route(route: BirdRoute, peers: Mapping[str, PeerStatus]) -> dict[str, Any]:
    return {
        "type": "FIB" if route.selected else "RIB",
        "destination": route.destination,
        "gateway": route.gateway or ("N/A" if route.kind == "unicast" else route.kind),
        "interface": route.interface,
        "learnedFrom": _render_source(route, peers),
    }


def _render_source(route: BirdRoute, peers: Mapping[str, PeerStatus]) -> dict[str, str]:
    kind = next((kind for start, kind in _SOURCES if route.protocol.startswith(start)), "BGPPeer")
    if kind not in ("NodeMesh", "BGPPeer"):
        return {"sourceType": kind}
    peer = peers.get(route.protocol)
    return {"sourceType": kind, "peerIP": route.learned_from or (peer.address if peer else "")}
