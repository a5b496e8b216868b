"""PURE: checks whether the stored address records agree, and reports each disagreement as a typed finding.

Rule: looks at decoded records only; each finding says in words and in fields what it is about, so that a tool can act
on it. An address is in use if an endpoint, a node's tunnel or a service has it; it is leaked if a block says it is
taken and nobody uses it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address

from cni_calico.ipam.block import holdings
from cni_calico.ipam.pools import pool_of
from cni_calico.model.identity import container_name
from cni_calico.model.keys import AffinityKey
from cni_calico.model.lasting import names_somebody, owners_of, parse_kept
from cni_calico.model.resources import Address, Affinity, Block, Handle, IPPool, Network, Node, WorkloadEndpoint

_WIREGUARD = ("interfaceIPv4Address", "interfaceIPv6Address")


class Inconsistency(StrEnum):
    CORRUPT = "corrupt record"
    LEAKED = "leaked address"
    DOUBLE = "address used twice"
    UNALLOCATED = "address in use but not allocated"
    OUTSIDE_POOLS = "address in use outside of any pool"
    NO_HANDLE_ID = "address without a handle"
    MISSING_HANDLE = "missing handle"
    HANDLE_COUNT = "wrong count in a handle"
    LEAKED_HANDLE = "handle without addresses"
    LOST_ORDINAL = "free address that is never given out"
    NO_BLOCK = "affinity without a block"
    NO_AFFINITY = "block without an affinity record"
    WRONG_AFFINITY = "affinity to another node's block"
    TWO_AFFINITIES = "block with two confirmed affinities"
    UNFINISHED = "unfinished claim or release of a block"
    BLOCK_OUTSIDE_POOLS = "block outside of any pool"
    UNKNOWN_NODE = "affinity of an unknown node"


@dataclass(frozen=True, slots=True)
class Finding:
    """``subject`` names the record; the other fields give the address, handle, block and node, where known."""

    problem: Inconsistency
    subject: str
    text: str
    address: Address | None = None
    block: Network | None = None
    handle_id: str | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """An address that a block records as taken, and who uses it."""

    address: Address
    block: Network
    ordinal: int
    handle_id: str | None
    attributes: Mapping[str, str]
    sequence_number: int | None
    users: tuple[str, ...] = ()

    @property
    def in_use(self) -> bool:
        return bool(self.users) or "service" in self.attributes or self.is_kept

    @property
    def is_kept(self) -> bool:
        """Whether it stays with an identity that outlasts its pods: the janitor says when that is over."""
        return self.handle_id is not None and parse_kept(self.handle_id, self.attributes) is not None


@dataclass(frozen=True, slots=True)
class Records:
    """Everything that is checked. ``corrupt`` is (key in words, why) for each record that could not be decoded; it is
    complete once the endpoints have been looked at, because these, and blocks, may be decoded only then.
    """

    blocks: Mapping[Network, Block] = field(default_factory=dict)
    handles: Mapping[str, Handle] = field(default_factory=dict)
    affinities: Mapping[AffinityKey, Affinity] = field(default_factory=dict)
    endpoints: Iterable[WorkloadEndpoint] = ()
    nodes: Sequence[Node] = ()
    pools: Sequence[IPPool] = ()
    corrupt: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class ConsistencyReport:
    """``taken``: how many addresses of each block are; ``on_nodes``: of each node that attributes name."""

    blocks: Mapping[Network, Block]
    taken: Mapping[Network, int]
    on_nodes: Mapping[str, int]
    users: Mapping[Address, tuple[str, ...]]
    findings: tuple[Finding, ...]

    @property
    def allocations(self) -> Iterator[Allocation]:
        """Made when they are asked for: of a large cluster they take a hundred megabytes."""
        return (found for block in self.blocks.values() for found in list_allocations(block, self.users))

    def of(self, *problems: Inconsistency) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.problem in problems)


# -- who uses what ----------------------------------------------------------------------------------------------------


def tunnel_addresses(node: Node) -> Iterator[tuple[Address, str]]:
    """(address, which tunnel) of a node."""
    for address, what in (
        (node.ipv4_ipip_tunnel, "IPIP"),
        (node.ipv4_vxlan_tunnel, "VXLAN"),
        (node.ipv6_vxlan_tunnel, "VXLAN v6"),
    ):
        if address is not None:
            yield address, f"{what} tunnel of node {node.metadata.name}"
    wireguard = node.extra.get("wireguard")
    for text in map(wireguard.get, _WIREGUARD) if isinstance(wireguard, Mapping) else ():
        address = _parse_address(text)
        if address is not None:
            yield address, f"WireGuard tunnel of node {node.metadata.name}"


def _parse_address(text: object) -> Address | None:
    try:
        return ip_address(text) if isinstance(text, str) else None
    except ValueError:
        return None


def list_users(endpoints: Iterable[WorkloadEndpoint], nodes: Iterable[Node]) -> dict[Address, tuple[str, ...]]:
    """Who uses each address; a node's tunnels of different kinds may share one."""
    users: dict[Address, list[str]] = {}
    for endpoint in endpoints:
        name = f"workload endpoint {endpoint.metadata.namespace}/{endpoint.metadata.name}"
        if called := container_name(endpoint):
            name += f" ({called})"
        for network in endpoint.ip_networks:
            users.setdefault(network.network_address, []).append(name)
    for node in nodes:
        for address, what in tunnel_addresses(node):
            users.setdefault(address, []).append(what)
    return {address: tuple(names) for address, names in users.items()}


def list_allocations(block: Block, users: Mapping[Address, tuple[str, ...]]) -> Iterator[Allocation]:
    for ordinal, index in enumerate(block.allocations):
        if index is not None:
            attribute, address = block.attributes[index], block.cidr[ordinal]
            yield Allocation(
                address,
                block.cidr,
                ordinal,
                attribute.handle_id,
                attribute.secondary,
                block.sequence_for.get(ordinal),
                users.get(address, ()),
            )


# -- the checks -------------------------------------------------------------------------------------------------------


def check_records(records: Records) -> ConsistencyReport:
    """Looks at each block once, and keeps of it only what is compared with other records."""
    users = list_users(records.endpoints, records.nodes)
    unallocated, held = set(users), _HeldByHandle()
    shared: set[Address] = set()
    taken: dict[Network, int] = {}
    on_nodes: Counter[str] = Counter()
    owners: dict[Network, str | None] = {}
    leaks: list[Finding] = []
    of_blocks: list[Finding] = []
    for cidr, block in records.blocks.items():
        allocations = tuple(list_allocations(block, users))
        taken[cidr], owners[cidr] = len(allocations), block.affinity
        on_nodes.update(found.attributes["node"] for found in allocations if "node" in found.attributes)
        unallocated.difference_update(found.address for found in allocations)
        shared |= _shared_addresses(block)
        leaks += _check_leaks(block, allocations)
        of_blocks += _check_block(block, records)
        held.add(block, records)
    findings = [
        *(Finding(Inconsistency.CORRUPT, subject, why) for subject, why in records.corrupt),
        *leaks,
        *_check_users(users, unallocated, shared, records.pools),
        *_check_handles(held, records),
        *of_blocks,
        *_check_affinities(owners, records),
    ]
    return ConsistencyReport(records.blocks, taken, on_nodes, users, tuple(findings))


def _check_leaks(block: Block, allocations: Iterable[Allocation]) -> Iterator[Finding]:
    virtual = (block.affinity or "").startswith("virtual:")
    for found in allocations:
        if not found.in_use and not virtual:
            yield Finding(
                Inconsistency.LEAKED,
                str(found.address),
                f"{found.address} is allocated to {describe_owner(found)} but nobody uses it",
                found.address,
                found.block,
                found.handle_id,
                found.attributes.get("node"),
            )
        if found.handle_id is None:
            text = f"{found.address} is allocated without a handle: nothing releases it"
            yield Finding(Inconsistency.NO_HANDLE_ID, str(found.address), text, found.address, found.block)


def describe_owner(found: Allocation) -> str:
    """The owner that an address was allocated to, from its attributes."""
    pod, namespace = found.attributes.get("pod"), found.attributes.get("namespace")
    if pod:
        return f"pod {namespace}/{pod}"
    kind, node = found.attributes.get("type"), found.attributes.get("node")
    if kind and node:
        return f"{kind} of node {node}"
    return f"handle {found.handle_id}"


def _shared_addresses(block: Block) -> set[Address]:
    """Those that two pods have because a virtual machine moves from one to the other."""
    both = {i for i, attribute in enumerate(block.attributes) if names_somebody(owners_of(attribute).alternate)}
    return {block.cidr[o] for o, index in enumerate(block.allocations) if index in both} if both else set()


def _check_users(
    users: Mapping[Address, tuple[str, ...]],
    unallocated: Collection[Address],
    shared: Collection[Address],
    pools: Sequence[IPPool],
) -> Iterator[Finding]:
    for address, names in users.items():
        usual = 2 if address in shared else 1
        if len(names) > usual and any(name.startswith("workload") for name in names):
            yield Finding(Inconsistency.DOUBLE, str(address), f"{address} is used by {' and '.join(names)}", address)
        if address not in unallocated:
            continue
        if pool_of(pools, address) is None:
            text = f"{address}, used by {names[0]}, is in no pool"
            yield Finding(Inconsistency.OUTSIDE_POOLS, str(address), text, address)
        else:
            text = f"{address}, used by {names[0]}, is not allocated: it may be given to somebody else"
            yield Finding(Inconsistency.UNALLOCATED, str(address), text, address)


class _HeldByHandle:
    """How many addresses each handle holds in which blocks, as the blocks say. Most hold one in one block, which all
    handles of that block share.
    """

    def __init__(self) -> None:
        self.of: dict[str, Mapping[Network, int]] = {}

    def add(self, block: Block, records: Records) -> None:
        alone: dict[int, Mapping[Network, int]] = {}
        for handle_id, count in holdings(block).items():
            folded = _folded(handle_id, records)
            before = self.of.get(folded)
            one = alone.setdefault(count, {block.cidr: count})
            self.of[folded] = one if before is None else {**before, **one}


def _check_handles(held: _HeldByHandle, records: Records) -> Iterator[Finding]:
    for folded, counts in held.of.items():
        if folded not in records.handles:
            addresses = sum(counts.values())
            text = f"handle {folded} holds {addresses} address(es) but has no record: a release by handle misses them"
            yield Finding(Inconsistency.MISSING_HANDLE, folded, text, block=next(iter(counts)), handle_id=folded)
    for handle_id, handle in records.handles.items():
        yield from _check_handle(handle_id, handle, held.of.get(handle_id, {}))


def _folded(handle_id: str, records: Records) -> str:
    """A handle ID in the form of its record (Kubernetes: names in lower case)."""
    lower = handle_id.lower()
    return lower if handle_id not in records.handles and lower in records.handles else handle_id


def _check_handle(handle_id: str, handle: Handle, held: Mapping[Network, int]) -> Iterator[Finding]:
    if not held and not any(handle.blocks.values()):
        yield Finding(Inconsistency.LEAKED_HANDLE, handle_id, f"handle {handle_id} holds nothing", handle_id=handle_id)
        return
    if not held:
        blocks = ", ".join(map(str, handle.blocks))
        text = f"handle {handle_id} claims addresses in {blocks}, where it has none"
        yield Finding(Inconsistency.LEAKED_HANDLE, handle_id, text, handle_id=handle_id)
        return
    for cidr in dict.fromkeys((*handle.blocks, *held)):
        said, has = handle.blocks.get(cidr, 0), held.get(cidr, 0)
        if said != has:
            text = f"handle {handle_id} says {said} address(es) in block {cidr}, which has {has}"
            yield Finding(Inconsistency.HANDLE_COUNT, handle_id, text, block=cidr, handle_id=handle_id)


def _check_block(block: Block, records: Records) -> Iterator[Finding]:
    cidr = block.cidr
    lost = len(block.allocations) - len(block.unallocated) - sum(index is not None for index in block.allocations)
    if lost:
        text = f"block {cidr} has {lost} free address(es) that it never gives out"
        yield Finding(Inconsistency.LOST_ORDINAL, f"block {cidr}", text, block=cidr)
    if pool_of(records.pools, cidr) is None:
        text = f"block {cidr} of {block.affinity or 'nobody'} is in no pool"
        yield Finding(Inconsistency.BLOCK_OUTSIDE_POOLS, f"block {cidr}", text, block=cidr, node=block.node)
    if block.affinity is not None:
        kind, _, owner = block.affinity.partition(":")
        if AffinityKey(owner, cidr, kind) not in records.affinities:
            text = f"block {cidr} belongs to {block.affinity}, which has no affinity record for it"
            yield Finding(Inconsistency.NO_AFFINITY, f"block {cidr}", text, block=cidr, node=owner)


def _check_affinities(owners: Mapping[Network, str | None], records: Records) -> Iterator[Finding]:
    confirmed: dict[Network, list[str]] = {}
    names = {node.metadata.name for node in records.nodes}
    for key, affinity in records.affinities.items():
        subject = f"affinity of {key.cidr} to {key.node}"
        found = _check_affinity(key, affinity, owners)
        if found is not None:
            yield Finding(found[0], subject, f"{subject}: {found[1]}", block=key.cidr, node=key.node)
        if key.type == "host" and names and key.node not in names:
            text = f"{subject}: there is no such node"
            yield Finding(Inconsistency.UNKNOWN_NODE, subject, text, block=key.cidr, node=key.node)
        if affinity.confirmed:
            confirmed.setdefault(key.cidr, []).append(key.node)
    for cidr, nodes in confirmed.items():
        if len(nodes) > 1:
            text = f"block {cidr} is confirmed for {' and '.join(nodes)}"
            yield Finding(Inconsistency.TWO_AFFINITIES, f"block {cidr}", text, block=cidr)


def _check_affinity(
    key: AffinityKey, affinity: Affinity, owners: Mapping[Network, str | None]
) -> tuple[Inconsistency, str] | None:
    """``owners``: the affinity of each block."""
    if not affinity.confirmed:
        return Inconsistency.UNFINISHED, f"its state is {affinity.state}"
    if key.cidr not in owners:
        return Inconsistency.NO_BLOCK, "there is no such block"
    if owners[key.cidr] != f"{key.type}:{key.node}":
        return Inconsistency.WRONG_AFFINITY, f"the block belongs to {owners[key.cidr] or 'nobody'}"
    return None
