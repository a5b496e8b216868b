"""``-allocate-tunnel-addrs``: this node's tunnel addresses, one per kind, allocated from IPAM and published in the
Node.

Rule: an address is published only while its allocation is ours: it is allocated before it is written to the Node, and
cleared there before it is released, by the agent ``LEAVING_S`` after the last pool wanted it. The handle shows what is
ours, so a start that was interrupted between the two steps finds its address again. While a pool cannot be read,
nothing is released: the address may belong to that pool.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cni_calico.daemon.keeper import Keeper
from cni_calico.datastore.ensure import ensure_record
from cni_calico.deadline import Deadline
from cni_calico.errors import AddressInUse, AddressOutsidePools, CalicoError, CorruptRecord, IPAMError
from cni_calico.ipam.allocator import Allocator
from cni_calico.ipam.assign import AssignRequest
from cni_calico.model.documents.codec import decode_node, decode_pool, encode_node
from cni_calico.model.keys import ResourceList
from cni_calico.model.resources import Address, IPPool, Network, Node
from cni_calico.model.selectors import parse_selector
from cni_calico.model.wireguard import published_address, published_key, with_published_address
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.startup.node_record import key_of
from cni_calico.nodeagent.view.snapshot import Snapshot

TUNNELS_S = 300.0
LEAVING_S = 30.0  # as long as other nodes may still reach this one by the kind of tunnel that its pools had before


@dataclass(frozen=True, slots=True)
class TunnelKind:
    """A kind of tunnel address: its family, IPAM names, and the Node's field ("": what WireGuard's device has)."""

    name: str
    family: int
    handle: str
    type: str
    field: str

    def handle_of(self, node: str) -> str:
        return f"{self.handle}-{node}"

    def told_by(self, node: Node) -> Address | None:
        """The address that the Node has."""
        if not self.field:
            return published_address(node, self.family)
        told: Address | None = getattr(node, self.field)
        return told

    def told_to(self, node: Node, address: Any) -> Node:
        """The Node with this address."""
        if not self.field:
            return with_published_address(node, self.family, address)
        fields: Any = {self.field: address}
        return replace(node, **fields)


@dataclass(frozen=True, slots=True)
class Pools:
    readable: Sequence[IPPool]
    complete: bool


WIREGUARD = "WireGuard"
KINDS = (
    TunnelKind("IPIP", 4, "ipip-tunnel-addr", "ipipTunnelAddress", "ipv4_ipip_tunnel"),
    TunnelKind("VXLAN", 4, "vxlan-tunnel-addr", "vxlanTunnelAddress", "ipv4_vxlan_tunnel"),
    TunnelKind("VXLAN IPv6", 6, "vxlan-v6-tunnel-addr", "vxlanV6TunnelAddress", "ipv6_vxlan_tunnel"),
    TunnelKind(WIREGUARD, 4, "wireguard-tunnel-addr", "wireguardTunnelAddress", ""),
    TunnelKind("WireGuard IPv6", 6, "wireguard-v6-tunnel-addr", "wireguardV6TunnelAddress", ""),
)


def select_tunnel_pools(kind: TunnelKind, node: Node, pools: Sequence[IPPool]) -> list[IPPool]:
    """PURE: the pools that an address of this kind may come from; none: the node needs no such address."""
    found = []
    if not kind.field and not published_key(node, kind.family):
        return []  # whatever pools there are: it is not enabled, or this node has no device
    for pool in pools:
        mode = "" if not kind.field else pool.ipip_mode if kind.name == "IPIP" else pool.vxlan_mode
        if pool.cidr.version != kind.family or mode == "Never" or not pool.usable or "Tunnel" not in pool.allowed_uses:
            continue
        try:
            if parse_selector(pool.node_selector).matches(node.metadata.labels):
                found.append(pool)
        except CalicoError:
            continue  # a pool that cannot be used
    return found


def allocate_tunnel_addresses(
    context: Context,
    node: str,
    *,
    pod_cidrs: Sequence[Network] = (),
    may_release: Callable[[TunnelKind], bool] = lambda kind: True,
) -> tuple[str, ...]:
    """Put all kinds in order once; returns what was changed. A kind that fails does not stop the others.

    ``may_release`` is asked for a kind that no pool wants any more.

    ``pod_cidrs`` are the node's, if addresses are host-local's (USE_POD_CIDR). Raises DatastoreError, and the last
    failure of a kind after all were tried.
    """
    allocator = Allocator(context.store)
    pools = _read_pools(context)
    changed: list[str] = []
    failure: CalicoError | None = None
    for kind in KINDS:
        try:
            changed += _bring_in_order(context, allocator, kind, node, pools, pod_cidrs, may_release)
        except IPAMError as e:
            context.log.error(f"cannot get the node's {kind.name} tunnel address: {e}")
            failure = e
    if failure is not None:
        raise failure
    return tuple(changed)


def read_pod_cidrs(context: Context) -> tuple[Network, ...]:
    """The node's pod CIDRs, if host-local IPAM assigns addresses from them. Raises DatastoreError."""
    if not context.settings.use_pod_cidr or context.kubernetes is None:
        return ()
    return context.kubernetes.read_facts(context.deadline()).pod_cidrs


def _read_pools(context: Context) -> Pools:
    """The pools by name; ``complete`` False: some cannot be read."""
    listing = context.store.list(ResourceList("IPPool"), context.deadline())
    pools, complete = [], not listing.unreadable
    for _, why in listing.unreadable:
        context.log.warning(f"{why}; no tunnel address is taken from it")
    for item in listing.items:
        try:
            pools.append(decode_pool(item.key, item.value))
        except CorruptRecord as e:
            context.log.warning(f"{e}; no tunnel address is taken from it")
            complete = False
    return Pools(sorted(pools, key=lambda pool: pool.metadata.name), complete)


def _bring_in_order(
    context: Context,
    allocator: Allocator,
    kind: TunnelKind,
    name: str,
    pools: Pools,
    pod_cidrs: Sequence[Network],
    may_release: Callable[[TunnelKind], bool],
) -> list[str]:
    deadline = context.deadline()
    stored = context.store.get(key_of(name), deadline)
    if stored is None:
        return []  # start-up makes the record first
    node = decode_node(key_of(name), stored.value)
    usable = select_tunnel_pools(kind, node, pools.readable)
    told = kind.told_by(node)
    if told is not None and not usable and pools.complete and not may_release(kind):
        return []
    if context.settings.use_pod_cidr:
        return _tell_static(context, kind, name, told, usable=bool(usable) or not pools.complete, pod_cidrs=pod_cidrs)
    held = [item.address for item in allocator.addresses_of(kind.handle_of(name), deadline)]
    if not pools.complete and (held or told is not None):
        return []
    if not usable:
        return _give_back(context, allocator, kind, name, told, held)
    good = [address for address in held if _in_pools(address, usable)]
    if told in good:
        return []
    if good:
        return _tell(context, kind, name, good[0])
    changed = _give_back(context, allocator, kind, name, told, held)
    address = _assign(allocator, kind, name, told, usable, deadline)
    context.log.info(f"the node's {kind.name} tunnel address is {address}")
    return changed + _tell(context, kind, name, address)


def _tell_static(
    context: Context, kind: TunnelKind, name: str, told: Address | None, *, usable: bool, pod_cidrs: Sequence[Network]
) -> list[str]:
    """Publish addresses that host-local gives to no pod: the first of the pod CIDR for VXLAN, the second for IPIP and
    for WireGuard.
    """
    cidr = next((cidr for cidr in pod_cidrs if cidr.version == kind.family), None)
    if cidr is None:
        return []
    wanted = cidr.network_address + (1 if kind.name in ("IPIP", WIREGUARD) else 0) if usable else None
    return [] if wanted == told else _tell(context, kind, name, wanted)


def _in_pools(address: Address, pools: Sequence[IPPool]) -> bool:
    return any(address.version == pool.cidr.version and address in pool.cidr for pool in pools)


def _assign(
    allocator: Allocator, kind: TunnelKind, node: str, told: Address | None, pools: Sequence[IPPool], deadline: Deadline
) -> Address:
    """Allocate the address that the Node has already, if nobody holds it (IPAM may have been restored without it), else
    any.
    """
    handle, attributes = kind.handle_of(node), {"node": node, "type": kind.type}
    if told is not None and _in_pools(told, pools):
        try:
            return allocator.assign_address(told, handle, attributes, node, deadline).address
        except (AddressInUse, AddressOutsidePools):
            pass
    names: Mapping[str, Any] = {f"num{kind.family}": 1, f"pools{kind.family}": tuple(str(p.cidr) for p in pools)}
    return allocator.assign(AssignRequest(node, handle, attributes, use="Tunnel", **names), deadline)[0].address


def _give_back(
    context: Context, allocator: Allocator, kind: TunnelKind, name: str, told: Address | None, held: Sequence[Address]
) -> list[str]:
    changed = _tell(context, kind, name, None) if told is not None else []
    if held:
        released = allocator.release_handle(kind.handle_of(name), context.deadline())
        changed += [f"released {kind.name} tunnel address {address}" for address in released]
    return changed


def _tell(context: Context, kind: TunnelKind, name: str, address: Address | Network | None) -> list[str]:
    def desired(old: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if old is None:
            return None
        return encode_node(kind.told_to(decode_node(key_of(name), old), address))

    changed = ensure_record(context.store, key_of(name), desired, context.deadline()).changed
    return [f"{kind.name} tunnel address of Node {name}: {address}"] if changed else []


@dataclass(slots=True)
class TunnelKeeper:
    """Checks again when something that tunnel addresses depend on has changed: pools, this node's labels and published
    addresses.
    """

    context: Context
    node: str
    keeper: Keeper = field(init=False)
    _depends: object = None
    _unwanted: dict[str, float] = field(default_factory=dict)  # since when, by the kind's name

    def __post_init__(self) -> None:
        self.keeper = Keeper("tunnel addresses", self._do, TUNNELS_S, self.context.log, self.context.troubles)

    def _do(self) -> None:
        if self.context.settings.backend == "none":
            return
        before, self._unwanted = self._unwanted, {}
        now = time.monotonic()

        def may_release(kind: TunnelKind) -> bool:
            since = self._unwanted[kind.name] = before.get(kind.name, now)
            return now - since >= LEAVING_S

        allocate_tunnel_addresses(
            self.context, self.node, pod_cidrs=read_pod_cidrs(self.context), may_release=may_release
        )
        self.keeper.interval_s = LEAVING_S if self._unwanted else TUNNELS_S

    def use(self, snapshot: Snapshot) -> None:
        own = snapshot.own
        told = None if own is None else [kind.told_by(own) for kind in KINDS]
        keys = None if own is None else [bool(published_key(own, family)) for family in (4, 6)]
        labels = {} if own is None else own.metadata.labels
        depends = (snapshot.pools, told, keys, sorted(labels.items()))
        if depends != self._depends:
            self._depends = depends
            self.keeper.wake()
