"""PURE: everything that BGP on one node is decided from, as one frozen value built from the records.

Rule: a record that cannot be understood is missing from the snapshot and listed in its problems; building it never
fails. Environment variables are read here too, and nowhere below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address

from cni_calico.model.documents.fields import Wrong, parse_network
from cni_calico.model.keys import AffinityKey
from cni_calico.model.resources import Affinity, Interface, IPPool, Network, Node
from cni_calico.nodeagent.bgp.config.configuration import BgpConfiguration
from cni_calico.nodeagent.bgp.config.filters import BgpFilter
from cni_calico.nodeagent.bgp.config.findings import BgpProblem
from cni_calico.nodeagent.bgp.config.fragments import Fragments
from cni_calico.nodeagent.bgp.config.peerspec import PeerSpec
from cni_calico.nodeagent.bgp.config.records import BgpRecords
from cni_calico.nodeagent.bgp.config.services import Service
from cni_calico.nodeagent.bgp.config.values import SecretRef, parse_interface_pattern
from cni_calico.nodeagent.bgp.config.workloads import LocalWorkload

BACKENDS = ("bird", "vxlan", "none")


@dataclass(frozen=True, slots=True)
class LocalBlock:
    """A block of this node; only a confirmed one represents the addresses in it."""

    cidr: Network
    confirmed: bool = True


@dataclass(frozen=True, slots=True)
class BgpInterface:
    """An interface of this host with an address on it: used to find peers that are on another network."""

    name: str
    address: Interface


@dataclass(frozen=True, slots=True)
class BgpEnvironment:
    """``router_id`` is an address, "hash" or "" (the node's IPv4 address); ``node_name`` is the name in Kubernetes."""

    backend: str = "bird"
    router_id: IPv4Address | str = ""
    advertise_cluster_ips: tuple[Network, ...] = ()
    node_name: str = ""
    interface_prefixes: tuple[str, ...] = ("cali",)
    ipv6: bool = True  # False: this kernel does not have the family
    problems: tuple[BgpProblem, ...] = ()

    @property
    def families(self) -> tuple[int, ...]:
        return (4, 6) if self.ipv6 else (4,)


@dataclass(frozen=True, slots=True)
class BgpSnapshot:
    """``configuration`` is this node's (its own resource merged in); ``filters`` maps a wrong filter to None.
    ``workloads``: of this node, if any BGPPeer is for them. ``agent_makes_routes``: to other nodes' blocks, as far as
    no router stands between.
    """

    node_name: str
    nodes: Mapping[str, Node]
    pools: tuple[IPPool, ...] = ()
    blocks: tuple[LocalBlock, ...] = ()
    configuration: BgpConfiguration = field(default_factory=BgpConfiguration)
    global_listen_port: int = 0
    listen_ports: Mapping[str, int] = field(default_factory=dict)
    peers: tuple[PeerSpec, ...] = ()
    filters: Mapping[str, BgpFilter | None] = field(default_factory=dict)
    services: tuple[Service, ...] = ()
    secrets: Mapping[SecretRef, str] = field(default_factory=dict, repr=False)
    environment: BgpEnvironment = BgpEnvironment()
    interfaces: tuple[BgpInterface, ...] = ()
    fragments: Fragments = field(default_factory=Fragments)
    problems: tuple[BgpProblem, ...] = ()
    agent_makes_routes: bool = False
    workloads: tuple[LocalWorkload, ...] = ()

    @property
    def own(self) -> Node | None:
        return self.nodes.get(self.node_name)

    def listen_port(self, node: str) -> int:
        """The port that a node listens on if one is configured, else 0."""
        return self.listen_ports.get(node) or self.global_listen_port


def _parse_networks(text: str, variable: str, problems: list[BgpProblem]) -> tuple[Network, ...]:
    out = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            out.append(parse_network(part, variable))
        except Wrong as e:
            problems.append(BgpProblem(f"environment {variable}", str(e)))
    return tuple(out)


def _parse_prefixes(text: str, problems: list[BgpProblem]) -> tuple[str, ...]:
    out = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            out.append(parse_interface_pattern(part, "FELIX_INTERFACEPREFIX"))
        except Wrong as e:
            problems.append(BgpProblem("environment FELIX_INTERFACEPREFIX", str(e)))
    return tuple(out)


def _parse_router_id(text: str, problems: list[BgpProblem]) -> IPv4Address | str:
    if text in ("", "hash"):
        return text
    try:
        address = IPv4Address(text)
    except ValueError:
        address = IPv4Address(0)
    if int(address):
        return address
    problems.append(BgpProblem("environment CALICO_ROUTER_ID", f'expected an IPv4 address or "hash", got {text!r}'))
    return ""


def parse_bgp_environment(environ: Mapping[str, str], *, node_name: str) -> BgpEnvironment:
    """The BGP settings in the environment; unknown values are reported and replaced by their defaults."""
    problems: list[BgpProblem] = []
    backend = environ.get("CALICO_NETWORKING_BACKEND", "").strip() or "bird"
    if backend not in BACKENDS:
        text = f"expected one of {', '.join(BACKENDS)}, got {backend!r}; BGP is on"
        problems.append(BgpProblem("environment CALICO_NETWORKING_BACKEND", text))
        backend = "bird"
    prefixes = _parse_prefixes(environ.get("FELIX_INTERFACEPREFIX", ""), problems)
    return BgpEnvironment(
        backend=backend,
        router_id=_parse_router_id(environ.get("CALICO_ROUTER_ID", "").strip(), problems),
        advertise_cluster_ips=_parse_networks(
            environ.get("CALICO_ADVERTISE_CLUSTER_IPS", ""), "CALICO_ADVERTISE_CLUSTER_IPS", problems
        ),
        node_name=environ.get("CALICO_K8S_NODE_REF", "") or node_name,
        interface_prefixes=prefixes or ("cali",),
        ipv6=environ.get("FELIX_IPV6SUPPORT", "").strip().lower() not in ("false", "0", "no", "n", "f"),
        problems=tuple(problems),
    )


def select_blocks(affinities: Iterable[tuple[AffinityKey, Affinity]], node_name: str) -> tuple[LocalBlock, ...]:
    """The blocks of a node in address order."""
    blocks = [
        LocalBlock(key.cidr, affinity.confirmed)
        for key, affinity in affinities
        if key.node == node_name and key.type == "host" and not affinity.deleted
    ]
    return tuple(sorted(blocks, key=lambda b: (b.cidr.version, b.cidr.network_address, b.cidr.prefixlen)))


def snapshot_of(
    records: BgpRecords,
    node_name: str,
    *,
    nodes: Iterable[Node],
    pools: Iterable[IPPool] = (),
    blocks: Iterable[LocalBlock] = (),
    services: Iterable[Service] = (),
    secrets: Mapping[SecretRef, str] | None = None,
    environment: BgpEnvironment | None = None,
    interfaces: Iterable[BgpInterface] = (),
) -> BgpSnapshot:
    """The records, combined with what other parts know."""
    environment = environment or BgpEnvironment(node_name=node_name)
    return BgpSnapshot(
        node_name=node_name,
        nodes={node.metadata.name: node for node in sorted(nodes, key=lambda n: n.metadata.name)},
        pools=tuple(sorted(pools, key=lambda p: (p.cidr.version, p.cidr.network_address))),
        blocks=tuple(blocks),
        configuration=records.configuration,
        global_listen_port=records.global_listen_port,
        listen_ports=records.listen_ports,
        peers=records.peers,
        filters=records.filters,
        services=tuple(sorted(services, key=lambda s: (s.namespace, s.name))),
        secrets=secrets or {},
        environment=environment,
        interfaces=tuple(interfaces),
        problems=(*environment.problems, *records.problems),
    )
