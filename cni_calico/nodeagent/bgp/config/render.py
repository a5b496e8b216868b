"""PURE: the BIRD configuration of a node: bird.cfg, which includes bird_aggr.cfg and bird_ipam.cfg.

Rule: the same snapshot gives the same bytes, so a changed text means a changed meaning. Symbols are defined before
their use: bird_aggr.cfg, then bird_ipam.cfg, then the protocols.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address

from cni_calico.model.digests import sha256
from cni_calico.model.resources import Network
from cni_calico.model.wireguard import DEFAULT_NAMES, published_key
from cni_calico.nodeagent.bgp.config.aggregation import desired_statics, render_aggregation, render_statics
from cni_calico.nodeagent.bgp.config.filters import render_filter
from cni_calico.nodeagent.bgp.config.findings import WARNING, BgpProblem
from cni_calico.nodeagent.bgp.config.fragments import GLOBAL, Fragments, find_strays
from cni_calico.nodeagent.bgp.config.lexical import render_block, render_text
from cni_calico.nodeagent.bgp.config.lifelines import BGP_PORT
from cni_calico.nodeagent.bgp.config.peers import WORKLOAD, Peer, desired_peers
from cni_calico.nodeagent.bgp.config.pools import (
    AgentRoutes,
    render_communities,
    render_export,
    render_kernel_filter,
    render_priorities,
)
from cni_calico.nodeagent.bgp.config.services import EXCLUDE_LABEL, ServiceRoutes, select_service_routes
from cni_calico.nodeagent.bgp.config.sessions import render_debug, render_peer, render_template
from cni_calico.nodeagent.bgp.config.snapshot import BgpSnapshot
from cni_calico.nodeagent.bgp.config.values import parse_cluster_id

MAIN, AGGREGATION, IPAM = "bird.cfg", "bird_aggr.cfg", "bird_ipam.cfg"
RECOVERY_WAIT_S = 60  # after a restart, new routes wait this long for peers that do not come back (BIRD: 240)
_LOG = {
    "debug": "all",
    "info": "{ info, remote, warning, error, auth, fatal, bug }",
    "none": "{ warning, error, auth, fatal, bug }",
}
_HEAD = "# Written by calico-node. Changes are overwritten."


@dataclass(frozen=True, slots=True)
class BirdConfig:
    """``files`` by name, empty if there is no BGP on this node; ``peers`` are the sessions in them."""

    files: Mapping[str, str] = field(repr=False)  # they contain passwords
    peers: tuple[Peer, ...] = ()
    problems: tuple[BgpProblem, ...] = ()


def hash_router_id(node_name: str) -> IPv4Address:
    """The first four bytes of SHA-256(node name), the first one less 32 when it is over 223 (multicast and above)."""
    first, *rest = sha256(node_name.encode("utf-8", "surrogateescape")).digest()[:4]
    return IPv4Address(bytes([first - 32 if first > 223 else first, *rest]))


def select_router_id(snapshot: BgpSnapshot) -> IPv4Address:
    """CALICO_ROUTER_ID, else the node's IPv4 address; for a node without one the hash of its name."""
    chosen = snapshot.environment.router_id
    if isinstance(chosen, IPv4Address):
        return chosen
    own = snapshot.own
    if chosen == "hash" or own is None or own.ipv4 is None:
        return hash_router_id(snapshot.node_name)
    return own.ipv4.ip


def _service_routes(snapshot: BgpSnapshot, version: int) -> ServiceRoutes:
    labels = snapshot.own.metadata.labels if snapshot.own is not None else {}
    environment = snapshot.environment
    return select_service_routes(
        snapshot.services,
        snapshot.configuration,
        environment.advertise_cluster_ips or snapshot.configuration.service_cluster_cidrs,
        node=environment.node_name or snapshot.node_name,
        excluded=labels.get(EXCLUDE_LABEL) == "true",
        version=version,
    )


def _render_aggregation_file(
    snapshot: BgpSnapshot, peers: tuple[Peer, ...], services: Mapping[int, ServiceRoutes]
) -> str:
    lines = [_HEAD]
    for version in snapshot.environment.families:
        statics = desired_statics(snapshot.blocks, services[version].announced, peers, version)
        lines += render_statics(statics, version)
        lines += render_aggregation(snapshot.blocks, version, snapshot.configuration.normal_priority(version))
    return "\n".join(lines) + "\n"


def _render_ipam_file(snapshot: BgpSnapshot, services: Mapping[int, ServiceRoutes]) -> str:
    own = snapshot.own
    reflector = own is not None and bool(own.route_reflector_cluster_id)
    lines = [_HEAD]
    for version in snapshot.environment.families:
        normal = snapshot.configuration.normal_priority(version)
        interface = None if own is None else (own.ipv4 if version == 4 else own.ipv6)
        network = None if interface is None else interface.network
        lines += render_priorities(version, normal)
        lines += render_communities(snapshot.configuration.prefix_advertisements, version)
        lines += render_export(snapshot.pools, services[version], version, reflector=reflector)
        lines += render_kernel_filter(
            snapshot.pools, services[version], network, version, normal, _made_by_agent(snapshot, version, network)
        )
    return "\n".join(lines) + "\n"


def _made_by_agent(snapshot: BgpSnapshot, version: int, network: Network | None) -> AgentRoutes | None:
    if not snapshot.agent_makes_routes:
        return None
    others = (node for name, node in snapshot.nodes.items() if name != snapshot.node_name)
    held = (node.ipv4 if version == 4 else node.ipv6 for node in others)
    addresses = (address.ip for address in held if address is not None)
    return AgentRoutes(tuple(sorted(a for a in addresses if network is not None and a in network)))


def _render_kernel(version: int, severity: str, fragments: Fragments) -> list[str]:
    channel = f"ipv{version} {{ import all; export filter calico_kernel_programming_v{version}; }};"
    lines = [
        *render_debug("none" if severity == "info" else severity),
        "metric 0;  # else every route gets metric 32",
        "learn;",
        "persist;  # routes outlive BIRD",
        "scan time 2;",
        "merge paths on;",
        "graceful restart;",
        channel,
        *fragments.lines(f"kernel{version}.conf"),
    ]
    return render_block(f"protocol kernel kernel_v{version}", lines)


def _render_direct(snapshot: BgpSnapshot) -> list[str]:
    without = [*snapshot.configuration.ignored_interfaces]
    without += [f"{prefix}*" for prefix in snapshot.environment.interface_prefixes]
    without.append("kube-ipvs*")  # it has an address for every cluster IP
    if snapshot.own is not None:  # what they have is announced with this node's blocks
        without += [name for family, name in DEFAULT_NAMES.items() if published_key(snapshot.own, family)]
    patterns = [*(f"-{render_text(pattern)}" for pattern in dict.fromkeys(without)), render_text("*")]
    families = [f"ipv{version};" for version in snapshot.environment.families]
    return render_block("protocol direct direct1", [*families, f"interface {', '.join(patterns)};"])


def _render_filters(peers: tuple[Peer, ...], snapshot: BgpSnapshot) -> list[str]:
    """The functions of the filters in use."""
    values = {value.name: value for peer in peers for value in peer.filters}
    used = {(value.name, peer.address.version) for peer in peers for value in peer.filters}
    lines = []
    for name, version in sorted(used):
        for direction in ("import", "export"):
            if values[name].has(direction, version):
                normal = snapshot.configuration.normal_priority(version)
                lines += render_filter(values[name], direction, version, normal)
    return lines


def _render_peers(peers: tuple[Peer, ...], snapshot: BgpSnapshot, cluster_id: str) -> list[str]:
    own = snapshot.own
    lines = []
    for peer in peers:
        address = None if own is None else (own.ipv4 if peer.address.version == 4 else own.ipv6)
        if address is not None:
            inside = peer.kind == WORKLOAD  # it finds BGP's own port, whatever the node's address or port is
            own_port = snapshot.listen_port(snapshot.node_name)
            lines += render_peer(
                peer,
                address,
                listen_port=BGP_PORT if inside and own_port else own_port,
                bind=snapshot.configuration.bind_node_ip and not inside,
                cluster_id=cluster_id,
                fragments=snapshot.fragments,
            )
    return lines


def _render_main(snapshot: BgpSnapshot, peers: tuple[Peer, ...], cluster_id: str) -> str:
    severity = snapshot.configuration.log_severity
    lines = [
        _HEAD,
        f"log stderr {_LOG[severity]};",
        'timeformat protocol "%FT%T%z";  # one word, read back by status.py',
        f"router id {select_router_id(snapshot)};",
        f"graceful restart wait {RECOVERY_WAIT_S};",
        f'include "{AGGREGATION}";',
        f'include "{IPAM}";',
        *snapshot.fragments.lines(GLOBAL),
        *render_block("protocol device device1", [*render_debug(severity), "scan time 2;"]),
        *_render_direct(snapshot),
    ]
    if any(peer.bfd for peer in peers) and not snapshot.fragments.has_bfd:
        lines += render_block("protocol bfd bfd1", [])
    for version in snapshot.environment.families:
        lines += _render_kernel(version, severity, snapshot.fragments)
        lines += render_template(version, severity, snapshot.fragments)
    lines += _render_filters(peers, snapshot)
    lines += _render_peers(peers, snapshot, cluster_id)
    return "\n".join(lines) + "\n"


def _select_cluster_id(snapshot: BgpSnapshot) -> tuple[str, tuple[BgpProblem, ...]]:
    """The cluster ID as BIRD reads it; "" makes BIRD use the router ID."""
    text = snapshot.own.route_reflector_cluster_id if snapshot.own is not None else ""
    parsed = parse_cluster_id(text) if text else None
    if text and parsed is None:
        why = f"routeReflectorClusterID {text[:40]!r} is no IPv4 address: the router ID is used instead"
        return "", (BgpProblem(f"Node {snapshot.node_name}", why, WARNING),)
    return "" if parsed is None else str(parsed), ()


def render_bird_config(snapshot: BgpSnapshot) -> BirdConfig:
    """The node's configuration. Never fails: what cannot be rendered is left out and listed in its problems."""
    if snapshot.environment.backend != "bird":
        return BirdConfig({}, (), snapshot.problems)
    peerings = desired_peers(snapshot)
    cluster_id, found = _select_cluster_id(snapshot)
    services = {version: _service_routes(snapshot, version) for version in snapshot.environment.families}
    files = {
        AGGREGATION: _render_aggregation_file(snapshot, peerings.peers, services),
        IPAM: _render_ipam_file(snapshot, services),
        MAIN: _render_main(snapshot, peerings.peers, cluster_id),
    }
    strays = find_strays(snapshot.fragments.texts, (peer.bgp_peer for peer in peerings.peers))
    return BirdConfig(files, peerings.peers, (*snapshot.problems, *peerings.problems, *found, *strays))
