"""PURE: the BGP sessions of this node: the full mesh, global, node-specific and selected peers, and their reverse.

Rule: both ends decide independently and agree. What the records make one node configure, they make the other end
configure too: which side is passive follows from comparing the addresses' texts, reverse peerings from the same
BGPPeer. A peering that cannot be configured is left out and reported; everything else continues.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from cni_calico.model.resources import Address, Node
from cni_calico.nodeagent.bgp.config.filters import BgpFilter
from cni_calico.nodeagent.bgp.config.findings import NOTE, WARNING, BgpProblem
from cni_calico.nodeagent.bgp.config.peerspec import PeerSpec, left_out
from cni_calico.nodeagent.bgp.config.snapshot import BgpSnapshot
from cni_calico.nodeagent.bgp.config.values import password_fault
from cni_calico.nodeagent.bgp.config.workloads import select_peerings

MESH, GLOBAL, NODE, WORKLOAD = "Mesh", "Global", "Node", "Local_Workload"
MESH_WARN = 100


@dataclass(frozen=True, slots=True)
class Peer:
    """A BGP session to configure. ``kind``: MESH, GLOBAL, NODE or WORKLOAD. ``origin`` says in words where it is from.

    ``node`` is the peer's Calico node, "" for another router. ``cluster_id`` is set for a route reflector's client.
    ``bgp_peer``: the resource, "" in the mesh. ``at``: of a workload's session, its interface on the host and the
    address at which it finds the host. ``source`` None: the kernel chooses. Otherwise the number 0 and None
    mean BIRD's default.
    """

    kind: str
    origin: str
    address: Address
    as_number: int
    local_as: int
    port: int = 0
    node: str = ""
    source: Address | None = None
    passive: bool = False
    client: bool = False
    password: str = field(default="", repr=False)
    restart_time_s: int | None = None
    keepalive_s: int | None = None
    ttl_hops: int = 0
    next_hop: str = ""
    allow_local_as: int = 0
    reachable_by: Address | None = None
    filters: tuple[BgpFilter, ...] = ()
    bgp_peer: str = ""
    bfd: bool = False
    at: tuple[str, Address] | None = None

    @property
    def name(self) -> str:
        """BIRD's protocol name, the one that upstream's tools look for."""
        place = str(self.address).replace(".", "_").replace(":", "_")
        return f"{self.kind}_{place}" + (f"_port_{self.port}" if self.port and self.kind != MESH else "")

    @property
    def internal(self) -> bool:
        return self.as_number == self.local_as


@dataclass(frozen=True, slots=True)
class Peerings:
    """All sessions of a node in the order in which they are rendered, and what could not be configured."""

    peers: tuple[Peer, ...]
    problems: tuple[BgpProblem, ...]


def node_address(node: Node, version: int) -> Address | None:
    interface = node.ipv4 if version == 4 else node.ipv6
    return None if interface is None else interface.ip


def compare_passive(own: Address, peer: Address) -> bool:
    """Whether our side is passive: upstream compares the addresses as texts, byte by byte ("10.0.0.9" >
    "10.0.0.10").
    """
    return str(peer) > str(own)


class _PeerDecision:
    """One decision: the snapshot, this node's facts and the problems found so far."""

    def __init__(self, snapshot: BgpSnapshot, own: Node) -> None:
        self.snapshot = snapshot
        self.own = own
        self.name = snapshot.node_name
        self.problems: list[BgpProblem] = []
        self.by_address: dict[Address, Node] = {}
        for node in snapshot.nodes.values():
            for version in (4, 6):
                address = node_address(node, version)
                if address is not None:
                    self.by_address.setdefault(address, node)

    def as_of(self, node: Node) -> int:
        return node.as_number or self.snapshot.configuration.as_number

    def own_address(self, version: int) -> Address | None:
        return node_address(self.own, version) if version in self.snapshot.environment.families else None

    def problem(self, about: str, text: str, severity: str = "error") -> None:
        self.problems.append(left_out(BgpProblem(about, text, severity)))

    def matches(self, selector_owner: PeerSpec, node: Node) -> bool:
        """Whether a BGPPeer's local side includes a node."""
        if selector_owner.node:
            return selector_owner.node == node.metadata.name
        selector = selector_owner.node_selector
        return selector is None or selector.matches(node.metadata.labels)

    # -- who ----------------------------------------------------------------------------------------------------------

    def mesh(self) -> Iterator[Peer]:
        configuration = self.snapshot.configuration
        if not configuration.mesh or self.own.route_reflector_cluster_id:
            return
        others = [
            node
            for name, node in self.snapshot.nodes.items()
            if name != self.name and not node.route_reflector_cluster_id
        ]
        password = ""
        if configuration.mesh_password is not None:
            password = self.snapshot.secrets.get(configuration.mesh_password, "")
            fault = self.password_fault(configuration.mesh_password in self.snapshot.secrets, password)
            if fault:
                ref = configuration.mesh_password
                text = f"the full mesh is left out: key {ref.key} of Secret {ref.name} {fault}"
                self.problems.append(BgpProblem("BGPConfiguration default", text))
                return
        if len(others) >= MESH_WARN:
            text = f"a full mesh of {len(others) + 1} nodes: use route reflectors above {MESH_WARN} nodes"
            self.problems.append(BgpProblem("BGPConfiguration default", text, WARNING))
        for node in others:
            for version in (4, 6):
                peer = self.towards(MESH, f"node {node.metadata.name}", node, version)
                if peer is not None:
                    yield replace(peer, password=password, restart_time_s=configuration.mesh_restart_time_s)

    def towards(self, kind: str, origin: str, node: Node, version: int) -> Peer | None:
        """The session with another node, None if one of them has no address of that family."""
        address, own = node_address(node, version), self.own_address(version)
        if address is None or own is None:
            return None
        if address == own:
            text = f"node {node.metadata.name} has the address {own} of this node: there is no session with it"
            self.problems.append(BgpProblem(f"Node {self.name}", text))
            return None
        return Peer(
            kind=kind,
            origin=origin,
            address=address,
            as_number=self.as_of(node),
            local_as=self.as_of(self.own),
            port=self.snapshot.listen_port(node.metadata.name),
            node=node.metadata.name,
            source=own,
            passive=kind != NODE and compare_passive(own, address),
        )

    def forward(self, spec: PeerSpec) -> Iterator[Peer]:
        """The sessions that a BGPPeer asks this node for, but for those with workloads."""
        if spec.workload_selector is not None or not self.matches(spec, self.own):
            return
        kind = GLOBAL if spec.is_global else NODE
        if spec.peer_selector is not None:
            for name, node in self.snapshot.nodes.items():
                if name != self.name and spec.peer_selector.matches(node.metadata.labels):
                    for version in (4, 6):
                        peer = self.towards(kind, spec.about, node, version)
                        if peer is not None:
                            yield from self.with_spec(peer, spec)
        elif spec.address is not None:
            yield from self.to_address(kind, spec, spec.address)

    def to_address(self, kind: str, spec: PeerSpec, address: Address) -> Iterator[Peer]:
        own = self.own_address(address.version)
        if own is None:
            self.problem(spec.about, f"peer {address}: this node has no IPv{address.version} address", NOTE)
            return
        if address == own:
            severity = NOTE if kind == GLOBAL or spec.node_selector is not None else "error"
            self.problem(spec.about, f"peer {address} is this node itself", severity)
            return
        node = self.by_address.get(address)
        port = spec.port
        if node is not None and not port and self.as_of(node) == spec.as_number:
            port = self.snapshot.listen_port(node.metadata.name)
        if node is None:
            self.warn_other_network(spec, address)
        peer = Peer(
            kind=kind,
            origin=spec.about,
            address=address,
            as_number=spec.as_number,
            local_as=self.as_of(self.own),
            port=port,
            node="" if node is None else node.metadata.name,
            source=own,
            passive=kind == GLOBAL and node is not None and compare_passive(own, address),
        )
        yield from self.with_spec(peer, spec)

    def reverse(self, spec: PeerSpec) -> Iterator[Peer]:
        """The sessions that another node opens to this one because of a BGPPeer that selects us as the peer."""
        if spec.workload_selector is not None or not spec.reverse or not self.is_target(spec):
            return
        versions = (4, 6) if spec.address is None else (spec.address.version,)
        for name, node in self.snapshot.nodes.items():
            if name == self.name or not self.matches(spec, node):
                continue
            for version in versions:
                peer = self.towards(NODE, spec.about, node, version)
                if peer is not None:
                    peer = replace(peer, as_number=spec.local_as or peer.as_number)
                    # these settings describe the far end's side of the session, so they are not copied
                    shared = replace(
                        spec, local_as=0, allow_local_as=0, reachable_by=None, keep_external_next_hop=False
                    )
                    yield from self.with_spec(peer, shared)

    def is_target(self, spec: PeerSpec) -> bool:
        if spec.peer_selector is not None:
            return spec.peer_selector.matches(self.own.metadata.labels)
        if spec.address is None or spec.address != self.own_address(spec.address.version):
            return False
        port = self.snapshot.listen_port(self.name)
        return spec.as_number == self.as_of(self.own) and (not spec.port or not port or spec.port == port)

    def with_workloads(self) -> Iterator[Peer]:
        """The sessions with workloads of this node, which open them."""
        specs = [
            one for one in self.snapshot.peers if one.workload_selector is not None and self.matches(one, self.own)
        ]
        families = [version for version in (4, 6) if self.own_address(version) is not None]
        addresses = self.snapshot.configuration.workload_peering
        for found in select_peerings(specs, self.snapshot.workloads, addresses, families) if specs else ():
            if isinstance(found, BgpProblem):
                self.problems.append(found)
                continue
            spec, workload = found.spec, found.workload
            peer = Peer(
                kind=WORKLOAD,
                origin=f"{spec.about} with {workload.shown}",
                address=found.address,
                as_number=spec.as_number,
                local_as=self.as_of(self.own),
                passive=True,
                at=(workload.interface, found.at),
            )
            yield from self.with_spec(peer, replace(spec, password=None, ttl_hops=0, bfd=False))

    # -- how ----------------------------------------------------------------------------------------------------------

    def with_spec(self, peer: Peer, spec: PeerSpec) -> Iterator[Peer]:
        """The session with the settings of its BGPPeer; nothing if they cannot be applied."""
        password = ""
        if spec.password is not None:
            password = self.snapshot.secrets.get(spec.password, "")
            fault = self.password_fault(spec.password in self.snapshot.secrets, password)
            if fault:
                text = f"peer {peer.address}: key {spec.password.key} of Secret {spec.password.name} {fault}"
                self.problem(spec.about, text)
                return
        filters = self.filters_of(spec, peer)
        if filters is None:
            return
        local_as = spec.local_as or peer.local_as
        next_hop = spec.next_hop
        if spec.keep_external_next_hop and peer.as_number != local_as:
            next_hop = "keep"
        yield replace(
            peer,
            local_as=local_as,
            source=None if spec.source_none else peer.source,
            client=self.is_client(peer, local_as),
            password=password,
            restart_time_s=spec.restart_time_s,
            keepalive_s=spec.keepalive_s,
            ttl_hops=spec.ttl_hops,
            next_hop=next_hop,
            allow_local_as=spec.allow_local_as,
            reachable_by=spec.reachable_by,
            filters=filters,
            bgp_peer=spec.name,
            bfd=spec.bfd,
        )

    def password_fault(self, found: bool, password: str) -> str:
        return password_fault(password) if found else "does not exist or cannot be read"

    def filters_of(self, spec: PeerSpec, peer: Peer) -> tuple[BgpFilter, ...] | None:
        """The filters in order; None if one of them is malformed."""
        out = []
        for name in spec.filters:
            if name not in self.snapshot.filters:
                text = f"peer {peer.address}: there is no BGPFilter {name}; the session is made without it"
                self.problems.append(BgpProblem(spec.about, text, WARNING))
                continue
            value = self.snapshot.filters[name]
            if value is None:
                self.problem(spec.about, f"peer {peer.address}: its BGPFilter {name} is malformed")
                return None
            out.append(value)
        return tuple(out)

    def is_client(self, peer: Peer, local_as: int) -> bool:
        """On a route reflector every internal peer is a client, except reflectors of the same cluster."""
        cluster = self.own.route_reflector_cluster_id
        if not cluster or peer.as_number != local_as:
            return False
        node = self.snapshot.nodes.get(peer.node)
        return node is None or node.route_reflector_cluster_id != cluster

    def warn_other_network(self, spec: PeerSpec, address: Address) -> None:
        """Warn of a peer on a network of this host that the node's address is not in: a common mistake on hosts with
        two NICs.
        """
        own = self.own.ipv4 if address.version == 4 else self.own.ipv6
        if own is None or address in own.network:
            return
        for interface in self.snapshot.interfaces:
            there = interface.address
            if there.version == address.version and address in there.network and there.ip != own.ip:
                text = (
                    f"peer {address} is on the network of interface {interface.name} ({there}), but this node's address"
                    f" is {own}: the peer must know us by {own.ip}, or the node needs the other address"
                    " (IP_AUTODETECTION_METHOD)"
                )
                self.problems.append(BgpProblem(spec.about, text, WARNING))
                return


def _collect(decision: _PeerDecision) -> dict[tuple[Address, int], Peer]:
    """Explicit sessions by address and port; global ones win over node-specific ones, and those over reverse ones."""
    chosen: dict[tuple[Address, int], Peer] = {}
    specs = decision.snapshot.peers
    groups = (
        (spec for spec in specs if spec.is_global),
        (spec for spec in specs if not spec.is_global),
    )
    for group in groups:
        for spec in group:
            for peer in decision.forward(spec):
                first = chosen.setdefault((peer.address, peer.port), peer)
                if first.origin != peer.origin:
                    text = f"peer {peer.address} is configured by {first.origin} already; this one has no effect"
                    decision.problems.append(BgpProblem(spec.about, text, NOTE))
    for spec in specs:
        for peer in decision.reverse(spec):
            chosen.setdefault((peer.address, peer.port), peer)
    return chosen


def desired_peers(snapshot: BgpSnapshot) -> Peerings:
    """Every session that this node must have, by kind and address, and the problems."""
    own = snapshot.own
    if own is None:
        text = "there is no Node record, so there is no BGP session"
        return Peerings((), (BgpProblem(f"Node {snapshot.node_name}", text),))
    decision = _PeerDecision(snapshot, own)
    chosen = _collect(decision)
    explicit = {address for address, _ in chosen}
    for peer in decision.mesh():
        if peer.address in explicit:
            continue  # BIRD would have two sessions with one neighbour, one of which never comes up
        first = chosen.setdefault((peer.address, 0), peer)
        if first is not peer:
            text = f"{peer.origin} and {first.origin} have the same address {peer.address}; the latter gets the session"
            decision.problems.append(BgpProblem(f"Node {peer.node}", text))
    for peer in decision.with_workloads():
        first = chosen.setdefault((peer.address, peer.port), peer)
        if first is not peer:
            text = f"{peer.address} of a workload is the peer of {first.origin} already"
            decision.problem(f"BGPPeer {peer.bgp_peer}", text)
    order = {MESH: 0, GLOBAL: 1, NODE: 2, WORKLOAD: 3}
    peers = sorted(chosen.values(), key=lambda p: (order[p.kind], p.address.version, p.address, p.port))
    return Peerings(tuple(peers), tuple(dict.fromkeys(decision.problems)))
