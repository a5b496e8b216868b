"""PURE: what encryption needs on this node, for one family: the device, its peers, and who is reached how, and why.

Rule: a network belongs to one node. What IPAM says of an address (whose block it is in, whom it was lent to) comes
before what a Node says of itself, and what two nodes claim with equal right is neither's. A node that cannot be a peer
is plain, with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from typing import TypeVar

from cni_calico.ipam.pools import pool_of
from cni_calico.model.host import HostInterface
from cni_calico.model.resources import Address, Network, Node
from cni_calico.model.wireguard import (
    DEVICE_KINDS,
    WireguardEndpoint,
    parse_public_key,
    published_address,
    published_key,
    render_public_key,
    rotation_of,
)
from cni_calico.nodeagent.context.encryption import select_tables
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.encapsulation import DEFAULT_MTU, MTU_MIN, OVERHEAD, endpoint_of, holder_of
from cni_calico.nodeagent.dataplane.encryption.families import of_family
from cni_calico.nodeagent.dataplane.encryption.guard import mandatory_networks
from cni_calico.nodeagent.view.snapshot import BlockRoute, Snapshot

SetElement = TypeVar("SetElement")
_MTU_MIN = {4: MTU_MIN, 6: 1280}
HOSTS_TOO = "wireguardHostEncryptionEnabled is not supported: what hosts send one another is not encrypted, pods are"
_MARK_BIT = 5  # the sixth of the mask, as upstream


@dataclass(frozen=True, slots=True)
class DesiredPeer:
    """A node that packets can be encrypted for. ``networks``, sorted, are what is sent to it. ``host``: what it may
    send from besides is its own address, that of ``endpoint``. There may be a thousand, so nothing is in it that can be
    made of the rest.
    """

    node: str
    key: bytes
    endpoint: WireguardEndpoint
    networks: tuple[Network, ...] = ()
    host: bool = False

    @property
    def hosts(self) -> tuple[Network, ...]:
        return (ip_network(self.endpoint.address),) if self.host else ()

    @property
    def allowed(self) -> Set[Network]:
        return AllowedNetworks(self)


class AllowedNetworks(Set[Network]):
    """What a peer may send from, as a set that is made whenever somebody looks: a thousand real ones are a megabyte."""

    __slots__ = ("_peer",)

    def __init__(self, peer: DesiredPeer) -> None:
        self._peer = peer

    @classmethod
    def _from_iterable(cls, it: Iterable[SetElement]) -> frozenset[SetElement]:
        return frozenset(it)

    def __iter__(self) -> Iterator[Network]:
        yield from self._peer.networks
        yield from self._peer.hosts

    def __len__(self) -> int:
        return len(self._peer.networks) + self._peer.host

    def __contains__(self, network: object) -> bool:
        return network in self._peer.networks or network in self._peer.hosts

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, AllowedNetworks) and other._peer is self._peer) or super().__eq__(other)

    __hash__ = Set._hash


@dataclass(frozen=True, slots=True)
class DesiredEncryption:
    """One family. ``enabled`` False: what is there of it goes. ``impossible``: why this node cannot encrypt at all, ""
    if it can. ``address`` None: it has none yet. ``told``: the key that this node's Node has, ``renew``: the same if it
    is to be replaced; as text. ``found``: the device as it is, so that a change of it by others is one of this value;
    ``others``: the names of other interfaces of its kind.
    ``host_table``: for what this node's pods send to other nodes' own addresses, 0: there is none.
    ``mandatory``: what is not encrypted does not go; ``prohibited``: the networks of which that is told to the sender.

    ``plain``: by node, why packets to it are not encrypted; ``plain_networks``: what those nodes have. ``own``: this
    node's networks. ``partial``: a record that this is made from cannot be read, so nothing is taken away.
    """

    family: int
    name: str
    enabled: bool = True
    mtu: int = 0
    port: int = 0
    mark: int = 0
    table: int = 0
    host_table: int = 0
    priority: int = 0
    keepalive_s: int = 0
    threading: bool = False
    address: Address | None = None
    peers: tuple[DesiredPeer, ...] = ()
    plain: Mapping[str, str] = field(default_factory=dict)
    plain_networks: frozenset[Network] = frozenset()
    own: frozenset[Network] = frozenset()
    impossible: str = ""
    told: str = ""
    renew: str = ""
    mandatory: bool = False
    prohibited: frozenset[Network] = frozenset()
    problems: tuple[str, ...] = ()
    partial: bool = False
    others: tuple[str, ...] = ()
    found: HostInterface | None = None


def mark_of(mask: int) -> int:
    """The bit of marks that WireGuard's own packets have; 0: the mask has too few."""
    bits = [1 << at for at in range(32) if mask >> at & 1]
    return bits[_MARK_BIT] if len(bits) > _MARK_BIT else 0


def desired_encryption(
    snapshot: Snapshot, interfaces: Sequence[HostInterface], felix: FelixSettings, family: int
) -> DesiredEncryption:
    settings = of_family(felix, family)
    mark, tables = mark_of(felix.mark_mask), select_tables(felix.route_tables, 2)
    table, host_table = (*tables, 0, 0)[:2]
    basis = DesiredEncryption(
        family=family,
        name=settings.name,
        port=settings.port,
        mark=mark,
        table=table,
        host_table=host_table if felix.wireguard_priority > 1 else 0,
        priority=felix.wireguard_priority,
        keepalive_s=felix.wireguard_keepalive_s,
        threading=felix.wireguard_threading,
        told="" if snapshot.own is None else published_key(snapshot.own, family),
        partial=snapshot.incomplete,
        others=tuple(one.name for one in interfaces if one.kind in DEVICE_KINDS and one.name != settings.name),
        found=next((one for one in interfaces if one.name == settings.name), None),
    )
    if not settings.enabled:
        return replace(basis, enabled=False)
    own = snapshot.own
    end = None if own is None else endpoint_of(own, family)
    impossible = ""
    if own is None or end is None:
        impossible = f"this node has no IPv{family} address"
    elif not mark:
        impossible = f"NftablesMarkMask {felix.mark_mask:#x} has fewer than {_MARK_BIT + 1} bits"
    elif not table:
        impossible = "RouteTableRanges has no table for it"
    if own is None or end is None or impossible:
        return replace(basis, impossible=impossible)
    problems = [HOSTS_TOO] if felix.wireguard_hosts else []
    holder = holder_of(end.address, interfaces)
    mtu = _mtu(settings.mtu, DEFAULT_MTU if holder is None else holder.mtu, family, settings.name, problems)
    claims = _claims(snapshot, family, problems)
    networks: dict[str, list[Network]] = {name: [] for name in snapshot.nodes}
    for network, name in claims.items():
        networks.setdefault(name, []).append(network)
    hosts = _with_own_address(snapshot, family)
    keys = Counter(published_key(node, family) for node in snapshot.nodes.values())
    peers, plain = [], {}
    plain_networks: set[Network] = set()
    for name in sorted(networks.keys() - {snapshot.node}):
        node = snapshot.nodes.get(name)
        found = _peer(name, node, family, settings.port, keys, basis.told)
        if isinstance(found, str):
            plain[name] = found
            if not felix.wireguard_strict or name in felix.wireguard_exempt:
                plain_networks.update(networks[name])
            continue
        host = name in hosts and ip_network(found[1].address) not in claims
        peers.append(DesiredPeer(name, found[0], found[1], tuple(sorted(networks.pop(name), key=_order)), host))
    return replace(
        basis,
        mtu=mtu,
        address=_own_address(own, snapshot, family, claims),
        peers=tuple(peers),
        plain=plain,
        plain_networks=frozenset(plain_networks),
        own=frozenset(networks.get(snapshot.node, ())),
        mandatory=bool(felix.wireguard_strict),
        prohibited=frozenset(mandatory_networks(snapshot, family)) if felix.wireguard_strict else frozenset(),
        renew=rotation_of(own, family) and basis.told,
        problems=tuple(problems),
    )


def _order(network: Network) -> tuple[int, int]:
    """Of one family."""
    return int(network.network_address), network.prefixlen


def _mtu(wanted: int, below: int, family: int, name: str, problems: list[str]) -> int:
    most = max(below - OVERHEAD[f"wireguard{family}"], _MTU_MIN[family])
    if not wanted:
        return most
    if wanted < _MTU_MIN[family]:
        problems.append(f"the MTU of {name} is {_MTU_MIN[family]}: {wanted} is too small for IPv{family}")
        return _MTU_MIN[family]
    if wanted > most:
        problems.append(
            f"the MTU {wanted} of {name} is more than the {most} that fit: large packets are sent in pieces"
        )
    return wanted


def _peer(
    name: str, node: Node | None, family: int, port: int, keys: Mapping[str, int], own_key: str
) -> tuple[bytes, WireguardEndpoint] | str:
    """The key and the place, or why it is plain."""
    if node is None:
        return "there is no Node of this name"
    end = endpoint_of(node, family)
    if end is None:
        return f"it has no IPv{family} address"
    text = published_key(node, family)
    if not text:
        return "it has no key: encryption is not enabled there, or not possible"
    if text == own_key:
        return "it has this node's key: one of the two records is a copy, or somebody's attack"
    if keys[text] > 1:
        return "another node has the same key: one of the two records is a copy, or somebody's attack"
    try:
        return parse_public_key(text), WireguardEndpoint(end.address, port)
    except ValueError as e:
        return f"its key is none: {e}"


def _claims(snapshot: Snapshot, family: int, problems: list[str]) -> dict[Network, str]:
    """The node that each network belongs to."""
    claims: dict[Network, str] = {}
    holder: str | None
    blocks = [block for block in snapshot.blocks if block.cidr.version == family]
    for block in blocks:
        if block.node is not None:
            claims[block.cidr] = block.node
        for address, holder in block.lent.items():
            claims[ip_network(address)] = holder
    owners: dict[Network, BlockRoute] = {block.cidr: block for block in blocks}
    lengths = sorted({block.cidr.prefixlen for block in blocks}, reverse=True)
    said: dict[Network, str] = {}
    for name, address, what in _tunnel_addresses(snapshot, family):
        network = ip_network(address)
        around = next((owners[at] for n in lengths if (at := network.supernet(new_prefix=n)) in owners), None)
        holder = claims.get(network) or (None if around is None else around.node)
        if holder is None and pool_of(snapshot.pools, network) is None:
            problems.append(f"the {what} address {address} of node {name} is in no pool: it is not sent to that node")
        elif holder is not None and holder != name:
            problems.append(f"the {what} address {address} of node {name} is node {holder}'s: it is not sent to {name}")
        elif said.setdefault(network, name) != name:
            problems.append(f"nodes {said[network]} and {name} have the same {what} address {address}")
        elif holder is None:
            claims[network] = name
    return claims


def _tunnel_addresses(snapshot: Snapshot, family: int) -> Iterator[tuple[str, Address, str]]:
    for name in sorted(snapshot.nodes):
        node = snapshot.nodes[name]
        found: list[tuple[Address | None, str]] = [(published_address(node, family), "WireGuard")]
        if family == 4:
            found += [(node.ipv4_ipip_tunnel, "IPIP"), (node.ipv4_vxlan_tunnel, "VXLAN")]
        else:
            found.append((node.ipv6_vxlan_tunnel, "VXLAN"))
        yield from ((name, address, what) for address, what in found if address is not None)


def _with_own_address(snapshot: Snapshot, family: int) -> set[str]:
    """The nodes whose address is nobody else's, neither another node's nor, perhaps, a pod's."""
    ends = {name: end for name, node in snapshot.nodes.items() if (end := endpoint_of(node, family)) is not None}
    count = Counter(end.address for end in ends.values())
    networks = [block.cidr for block in snapshot.blocks] + [pool.cidr for pool in snapshot.pools]
    pods = {(net.prefixlen, net.network_address) for net in networks if net.version == family}
    lengths = {length for length, _ in pods}

    def is_hosts(address: Address) -> bool:
        around = ((n, ip_network((address, n), strict=False).network_address) for n in lengths)
        return count[address] == 1 and not any(each in pods for each in around)

    return {name for name, end in ends.items() if is_hosts(end.address)}


def _own_address(own: Node, snapshot: Snapshot, family: int, claims: Mapping[Network, str]) -> Address | None:
    """Unless another node has it."""
    address = published_address(own, family)
    if address is None or claims.get(ip_network(address), snapshot.node) != snapshot.node:
        return None
    return address


def render_plain(desired: DesiredEncryption) -> Iterator[str]:
    """A sentence for each plain node."""
    for name, why in desired.plain.items():
        what = "not sent" if desired.mandatory else "NOT ENCRYPTED"
        yield f"IPv{desired.family} packets to node {name} are {what}: {why}"


def described_key(key: bytes) -> str:
    """The beginning of a public key, by which people tell keys apart."""
    return render_public_key(key)[:8] if key else "none"
