"""PURE: reasons to doubt that the node's address is the right one of several.

Rule: a doubt never changes the choice; it is logged, counted and shown by "calicoctl node status". The typical case is
a host with two network cards: the Node has eth1's address, the top-of-rack router peers with eth0's, and nothing is
routed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from cni_calico.errors import InvalidConfig
from cni_calico.model.host import HostInterface
from cni_calico.model.resources import Address
from cni_calico.model.selectors import parse_selector
from cni_calico.nodeagent.startup.address import Found


@dataclass(frozen=True, slots=True)
class Doubt:
    """``code`` is "kubernetes-internal-ip", "default-route", "bgp-peer" or "address" (it vanished, or is nowhere)."""

    code: str
    family: int
    text: str


@dataclass(frozen=True, slots=True)
class PeerAddress:
    """A BGP peer that is configured for this node in particular."""

    name: str
    address: Address


def select_doubts(
    family: int,
    found: Found,
    interfaces: Sequence[HostInterface],
    *,
    default_interface: str = "",
    internal_ips: Iterable[Address] = (),
    peers: Iterable[PeerAddress] = (),
) -> tuple[Doubt, ...]:
    """All reasons to doubt ``found``, for one family."""
    if found.address is None:
        return ()
    chosen = f"the node's IPv{family} address {found.address} ({found.interface or 'on no interface'})"
    doubts = []
    internal = [address for address in internal_ips if address.version == family]
    if internal and found.address.ip not in internal:
        doubts.append(
            Doubt(
                "kubernetes-internal-ip",
                family,
                f"{chosen} is not the InternalIP that Kubernetes has for it ({', '.join(map(str, internal))})",
            )
        )
    if found.detected and default_interface and found.interface and default_interface != found.interface:
        doubts.append(
            Doubt(
                "default-route", family, f"{chosen} is not on the interface of the default route ({default_interface})"
            )
        )
    doubts += _peer_doubts(family, found, chosen, interfaces, peers)
    return tuple(doubts)


def _peer_doubts(
    family: int, found: Found, chosen: str, interfaces: Sequence[HostInterface], peers: Iterable[PeerAddress]
) -> list[Doubt]:
    assert found.address is not None
    doubts = []
    for peer in peers:
        if peer.address.version != family or peer.address in found.address.network:
            continue
        nearer = [
            f"{address} ({interface.name})"
            for interface in interfaces
            for address in interface.addresses
            if address.version == family and peer.address in address.network
        ]
        where = f"; it can be reached directly from {', '.join(nearer)}" if nearer else ""
        doubts.append(
            Doubt("bgp-peer", family, f"{chosen} is not in the subnet of BGPPeer {peer.name} ({peer.address}){where}")
        )
    return doubts


def select_node_peers(
    specs: Iterable[tuple[str, Any]], node: str, labels: Mapping[str, str]
) -> tuple[PeerAddress, ...]:
    """The BGPPeers (name, spec) that name this node or select it by its labels; malformed ones are left out."""
    peers = []
    for name, spec in specs:
        if not isinstance(spec, Mapping):
            continue
        address = _parse_peer_ip(spec.get("peerIP"))
        if address is not None and _is_for(spec, node, labels):
            peers.append(PeerAddress(name, address))
    return tuple(peers)


def _is_for(spec: Mapping[str, Any], node: str, labels: Mapping[str, str]) -> bool:
    if spec.get("node"):
        return bool(spec["node"] == node)
    selector = spec.get("nodeSelector")
    if not isinstance(selector, str) or not selector or selector.strip() == "all()":
        return False  # a global peer: route reflectors and the like are many hops away on purpose
    try:
        return parse_selector(selector).matches(labels)
    except InvalidConfig:
        return False


def _parse_peer_ip(text: Any) -> Address | None:
    """An address, "a.b.c.d:port" or "[v6]:port"."""
    if not isinstance(text, str):
        return None
    bare = text[1:].partition("]")[0] if text.startswith("[") else text
    if bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        return ip_address(bare)
    except ValueError:
        return None
