"""PURE: Calico's records as validated values; model/documents/codec.py converts them from and to JSON. Rule: they are
frozen; addresses are ``ipaddress`` objects; every class keeps in ``extra`` the JSON fields it does not know, so that
writing a record back loses nothing. Source: what upstream stores, tests/golden/vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from typing import Any

Extra = Mapping[str, Any]

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Interface = IPv4Interface | IPv6Interface


def is_within(inner: Network, outer: Network) -> bool:
    """Whether all of ``inner`` is in ``outer``; never for networks of two families."""
    if isinstance(inner, IPv4Network):
        return isinstance(outer, IPv4Network) and inner.subnet_of(outer)
    return isinstance(outer, IPv6Network) and inner.subnet_of(outer)


@dataclass(frozen=True, slots=True)
class Metadata:
    """``resource_version`` is never stored: readers fill it in from the key's revision for display."""

    name: str
    namespace: str = ""
    uid: str = ""
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resource:
    """Any API resource; kinds with a class of their own below are read through ``codec.decode_<kind>``."""

    kind: str
    metadata: Metadata
    spec: Mapping[str, Any] = field(default_factory=dict)
    status: Mapping[str, Any] | None = None
    extra: Extra = field(default_factory=dict)


BLOCK_SIZES = {4: (20, 32, 26), 6: (116, 128, 122)}  # lowest, highest, default prefix length of blocks


@dataclass(frozen=True, slots=True)
class IPPool:
    """Defaults on read: blockSize 26/122, nodeSelector all(), uses Workload + Tunnel, assignmentMode Automatic."""

    metadata: Metadata
    cidr: Network
    block_size: int
    node_selector: str = "all()"
    namespace_selector: str = ""
    allowed_uses: tuple[str, ...] = ("Workload", "Tunnel")
    assignment_mode: str = "Automatic"
    ipip_mode: str = "Never"
    vxlan_mode: str = "Never"
    nat_outgoing: bool = False
    disabled: bool = False
    disable_bgp_export: bool = False
    allocatable: bool = True  # False: status condition Allocatable=False
    extra: Extra = field(default_factory=dict)  # unknown spec fields
    status: Mapping[str, Any] | None = None

    @property
    def usable(self) -> bool:
        return not self.disabled and not self.metadata.deletion_timestamp and self.allocatable and self.has_blocks

    @property
    def has_blocks(self) -> bool:
        """Whether a block of its size fits into it, and may be that large: all of a block is in memory."""
        low, high, _ = BLOCK_SIZES[self.cidr.version]
        return low <= self.block_size <= high and self.block_size >= self.cidr.prefixlen


@dataclass(frozen=True, slots=True)
class IPReservation:
    metadata: Metadata
    reserved_cidrs: tuple[Network, ...] = ()
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterInformation:
    metadata: Metadata
    cluster_guid: str = ""
    cluster_type: str = ""
    calico_version: str = ""
    datastore_ready: bool | None = None  # None: absent; only False stops requests
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Node:
    """``ipv4``/``ipv6`` include their prefix length, tunnel addresses do not."""

    metadata: Metadata
    ipv4: IPv4Interface | None = None
    ipv6: IPv6Interface | None = None
    ipv4_ipip_tunnel: IPv4Address | None = None
    as_number: int | None = None
    route_reflector_cluster_id: str = ""
    ipv4_vxlan_tunnel: IPv4Address | None = None
    ipv6_vxlan_tunnel: IPv6Address | None = None
    vxlan_tunnel_mac: str = ""
    vxlan_tunnel_mac_v6: str = ""
    orch_refs: tuple[Mapping[str, Any], ...] = ()
    addresses: tuple[Mapping[str, Any], ...] = ()
    interfaces: tuple[Mapping[str, Any], ...] = ()
    bgp_extra: Extra = field(default_factory=dict)
    extra: Extra = field(default_factory=dict)
    status: Mapping[str, Any] | None = None
    bgp_present: bool = False  # whether spec.bgp was there, even empty


@dataclass(frozen=True, slots=True)
class IPNAT:
    internal_ip: Address
    external_ip: Address
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndpointPort:
    name: str
    port: int
    protocol: str = "TCP"
    host_port: int = 0
    host_ip: str = ""
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WorkloadEndpoint:
    metadata: Metadata
    orchestrator: str
    node: str
    endpoint: str  # the interface name inside the container (CNI_IFNAME)
    interface_name: str  # the host side
    container_id: str = ""
    pod: str = ""
    service_account: str = ""
    workload: str = ""
    mac: str = ""
    ip_networks: tuple[Network, ...] = ()
    ip_nats: tuple[IPNAT, ...] = ()
    profiles: tuple[str, ...] = ()
    ports: tuple[EndpointPort, ...] = ()
    allow_spoofed_source_prefixes: tuple[Network, ...] = ()
    qos_controls: Mapping[str, Any] | None = None
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Attribute:
    """The holder of an address: what an ``allocations`` index refers to."""

    handle_id: str | None
    secondary: Mapping[str, str] = field(default_factory=dict)
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Block:
    """An allocation block. ``affinity`` is "host:<node>", "virtual:<name>" or None.

    ``allocations[ordinal]`` is an index into ``attributes`` or None; ``unallocated`` holds the free ordinals in the
    order in which they will be assigned; ``sequence_for`` the block's sequence number when each ordinal was taken.
    """

    cidr: Network
    affinity: str | None
    allocations: tuple[int | None, ...]
    unallocated: tuple[int, ...]
    attributes: tuple[Attribute, ...] = ()
    sequence_number: int = 0
    sequence_for: Mapping[int, int] = field(default_factory=dict)
    affinity_claim_time: str = ""
    deleted: bool = False
    extra: Extra = field(default_factory=dict)

    @property
    def node(self) -> str | None:
        """The node of a host affinity."""
        return self.affinity[5:] if self.affinity is not None and self.affinity.startswith("host:") else None

    @property
    def empty(self) -> bool:
        return len(self.unallocated) == len(self.allocations)


@dataclass(frozen=True, slots=True)
class Affinity:
    """``state`` is pending, confirmed or pendingDeletion; "" is read as confirmed."""

    state: str
    deleted: bool = False
    extra: Extra = field(default_factory=dict)

    @property
    def confirmed(self) -> bool:
        return self.state in ("confirmed", "") and not self.deleted


@dataclass(frozen=True, slots=True)
class Handle:
    """The number of addresses per block held under one handle; deleted when it holds none."""

    blocks: Mapping[Network, int]
    deleted: bool = False
    extra: Extra = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class IPAMConfig:
    """A field absent in the record means False or 0; ``max_blocks_per_host`` 0 means 20."""

    strict_affinity: bool = False
    auto_allocate_blocks: bool = False
    max_blocks_per_host: int = 0
    extra: Extra = field(default_factory=dict)


Record = (
    Resource
    | IPPool
    | IPReservation
    | ClusterInformation
    | Node
    | WorkloadEndpoint
    | Block
    | Affinity
    | Handle
    | IPAMConfig
)


def is_deleted(record: object) -> bool:
    """Whether a record of address management is marked as deleted but not yet removed."""
    return isinstance(record, Block | Handle | Affinity) and record.deleted
