"""PURE: the data plane that this node must have, from the snapshot and the host's interfaces.

Rule: the same inputs give the same value, in whatever order they come; nothing here knows what exists already (delta.py
compares) or how it is made (apply.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, collapse_addresses, ip_network
from typing import Any

from cni_calico.model.host import ForwardingEntry, HostInterface, HostRoute, NeighbourEntry, TunnelDevice
from cni_calico.model.resources import Address, IPPool, Network
from cni_calico.nodeagent.context.features import MASQUERADE_RANDOM, SNAT_RANDOM
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane import encapsulation
from cni_calico.nodeagent.dataplane import endpoints as desired_endpoints
from cni_calico.nodeagent.dataplane import routes as desired_routes
from cni_calico.nodeagent.dataplane.bandwidth import NO_LIMITS, DesiredBandwidth, desired_bandwidth
from cni_calico.nodeagent.dataplane.encryption.desired import DesiredEncryption
from cni_calico.nodeagent.dataplane.encryption.families import concerns
from cni_calico.nodeagent.dataplane.encryption.guard import DesiredGuard
from cni_calico.nodeagent.dataplane.floating import FloatingAddress, desired_floating, floating_routes
from cni_calico.nodeagent.dataplane.switching import select_staying
from cni_calico.nodeagent.view.present import select_present
from cni_calico.nodeagent.view.snapshot import Snapshot
from cni_calico.plugin.network.plan import Sysctl


@dataclass(frozen=True, slots=True)
class Nat:
    """What is masqueraded in one family: from ``sources`` to anywhere except ``exclusions``, both sorted, no overlaps.

    ``to`` is an address to use instead of the outgoing interface's, ``ports`` (low, high) or None. ``random``: the
    kernel chooses ports at random. ``partial``: a record that it is made from cannot be read, so existing rules stay as
    they are.
    """

    family: int
    sources: tuple[Network, ...] = ()
    exclusions: tuple[Network, ...] = ()
    to: IPv4Address | None = None
    ports: tuple[int, int] | None = None
    out_interface: str = ""
    random: bool = True
    partial: bool = False


@dataclass(frozen=True, slots=True)
class Desired:
    """``routes_enabled`` False: routes are left alone. ``mtu`` is for workloads (/var/lib/calico/mtu), 0: unknown.

    ``additive``: tunnel devices, their neighbours and the routes to other nodes are added and changed, none is removed.
    ``encryption``: without families that may only seem disabled, because parameters cannot be read.
    ``held``: devices that have to wait: if they are there, they are left as they are.
    ``guard_is_off``: it was read that encryption is not mandatory, also that nothing else selects this node.
    ``lacking``: by device name, why a tunnel device that a pool asks for cannot be described yet.
    ``links``: the names of the interfaces that it was made for, by index; None: they have to be read.
    """

    devices: dict[str, TunnelDevice] = field(default_factory=dict)
    routes: frozenset[HostRoute] = frozenset()
    neighbours: frozenset[NeighbourEntry] = frozenset()
    forwarding: frozenset[ForwardingEntry] = frozenset()
    settings: tuple[Sysctl, ...] = ()
    unsigned: tuple[desired_endpoints.Unsigned, ...] = ()
    nat: tuple[Nat, ...] = ()
    forward_prefixes: tuple[str, ...] = ()
    mtu: int = 0
    routes_enabled: bool = True
    additive: bool = False
    problems: tuple[str, ...] = ()
    lacking: dict[str, str] = field(default_factory=dict)
    held: frozenset[str] = frozenset()
    bandwidth: DesiredBandwidth = NO_LIMITS
    floating: tuple[FloatingAddress, ...] = ()
    encryption: tuple[DesiredEncryption, ...] = ()
    guard: DesiredGuard | None = None
    guard_is_off: bool = False
    links: Mapping[int, str] | None = None


def desired_state(
    snapshot: Snapshot,
    interfaces: Sequence[HostInterface],
    felix: FelixSettings,
    backend: str,
    also: Sequence[IPPool] = (),
    moves: desired_endpoints.Moves = desired_endpoints.NOBODY,
) -> Desired:
    """All of it. Without a record of this node only workloads are handled. ``also``: pools that nothing goes through
    now, whose tunnel devices have to be there (switching.py).
    """
    own = snapshot.own
    present = select_present(snapshot.endpoints, interfaces)
    routes = desired_endpoints.desired_endpoint_routes(present, felix, moves)
    settings = desired_endpoints.host_settings(felix) + desired_endpoints.desired_endpoint_settings(present)
    bandwidth, said = desired_bandwidth(present, interfaces)
    floating, unused = desired_floating(present, snapshot, interfaces, felix, backend)
    routes |= floating_routes(floating, felix)
    problems = [*snapshot.problems, *said, *unused]
    devices: dict[str, TunnelDevice] = {}
    lacking: dict[str, str] = {}
    neighbours: set[NeighbourEntry] = set()
    entries: set[ForwardingEntry] = set()
    unknown = own is None and snapshot.incomplete
    if own is None and not unknown:
        problems.append(f"there is no Node {snapshot.node}: run calico-node -startup")
    elif own is not None and backend != "none":
        devices, lacking = encapsulation.desired_devices(own, (*snapshot.pools, *also), interfaces, felix, backend)
        problems += [f"cannot make {name}: {why}" for name, why in lacking.items() if name not in devices]
        usable = frozenset(devices).difference(lacking)
        for family in _families(felix):
            fabric = desired_routes.Fabric(family, snapshot, interfaces, usable, felix, backend)
            remote = desired_routes.desired_remote_routes(fabric, snapshot.blocks)
            if moves.elevated:  # IPAM may not know yet that a machine has come
                came = {route.dst for route in routes if route.device in moves.elevated}
                remote = {route for route in remote if route.dst not in came}
            routes |= remote
            routes |= desired_routes.desired_blackholes(fabric, snapshot.blocks)
            hops, vteps = desired_routes.desired_vteps(fabric)
            neighbours |= hops
            entries |= vteps
    encryption: tuple[DesiredEncryption, ...] = ()
    guard = None
    unread = snapshot.unread_of("FelixConfiguration")
    if felix.wireguard_strict:
        from cni_calico.nodeagent.dataplane.encryption.guard import describe_mandatory, desired_guard

        guard = desired_guard(snapshot, interfaces, felix)
        problems += describe_mandatory(snapshot, felix)
    if not unknown and concerns(felix, own, {interface.name for interface in interfaces}):
        from cni_calico.nodeagent.dataplane.encryption.desired import desired_encryption

        each = (desired_encryption(snapshot, interfaces, felix, family) for family in (4, 6))
        encryption = tuple(one for one in each if one.enabled or not unread)
    return Desired(
        devices=devices,
        routes=frozenset(routes),
        neighbours=frozenset(neighbours),
        forwarding=frozenset(entries),
        settings=tuple(settings),
        unsigned=desired_endpoints.select_unsigned(present, interfaces, snapshot.handles),
        nat=tuple(desired_nat(snapshot, family, felix) for family in _families(felix)),
        forward_prefixes=felix.interface_prefixes,
        mtu=0 if unknown else encapsulation.workload_mtu(own, snapshot.pools, interfaces, felix, backend),
        routes_enabled=not felix.route_sync_disabled,
        additive=snapshot.incomplete,
        problems=tuple(problems),
        lacking=lacking,
        bandwidth=bandwidth,
        floating=floating,
        encryption=encryption,
        guard=guard,
        guard_is_off=not felix.wireguard_strict and own is not None and not unread,
        links={interface.index: interface.name for interface in interfaces},
    )


def with_staying_routes(
    desired: Desired,
    snapshot: Snapshot,
    leaving: Sequence[IPPool],
    interfaces: Sequence[HostInterface],
    actual: Sequence[HostRoute],
    felix: FelixSettings,
    backend: str,
) -> Desired:
    """Routes as the ``leaving`` pools had them stay until others are in their place."""
    names = {pool.metadata.name for pool in leaving}
    pools = (*leaving, *(pool for pool in snapshot.pools if pool.metadata.name not in names))
    before = desired_state(replace(snapshot, pools=pools), interfaces, felix, backend)
    staying = select_staying(before.routes, desired.routes, actual)
    return replace(desired, routes=desired.routes | staying)


def with_routes_in_doubt(
    desired: Desired, snapshot: Snapshot, actual: Sequence[HostRoute], felix: FelixSettings
) -> Desired:
    """Existing routes that may belong to an endpoint that cannot be read, or is in doubt, stay."""
    kept = desired_endpoints.select_routed_claims(actual, snapshot.unproven)
    if snapshot.unread_of("WorkloadEndpoint"):
        kept |= desired_endpoints.select_unclaimed_routes(actual, desired.routes, felix)
    return replace(desired, routes=desired.routes | kept)


def _families(felix: FelixSettings) -> tuple[int, ...]:
    return (4, 6) if felix.ipv6_support else (4,)


def desired_nat(snapshot: Snapshot, family: int, felix: FelixSettings) -> Nat:
    """Pools that may no longer be used still masquerade: their workloads still exist."""
    pools = [pool for pool in snapshot.pools if pool.cidr.version == family]
    excluded = [pool.cidr for pool in pools]
    made_from = ["IPPool", "FelixConfiguration"]
    if felix.nat_exclusions == "IPPoolsAndHostIPs":
        excluded += [_single(address) for address in desired_routes.addresses_of(snapshot.nodes, family)]
        made_from.append("Node")
    to = felix.nat_address if family == 4 else None
    return Nat(
        family,
        _collapsed([pool.cidr for pool in pools if pool.nat_outgoing]),
        _collapsed(excluded),
        to=to,
        ports=_ports(felix.nat_port_range),
        out_interface=felix.nat_interface,
        random=dict(felix.features).get(MASQUERADE_RANDOM if to is None else SNAT_RANDOM, True),
        partial=bool(snapshot.unread_of(*made_from)),
    )


def _single(address: Address) -> Network:
    return ip_network(address)


def _collapsed(networks: Sequence[Any]) -> tuple[Network, ...]:
    """``networks`` of one family."""
    return tuple(sorted(collapse_addresses(networks)))


def _ports(text: str) -> tuple[int, int] | None:
    low, _, high = text.partition(":")
    return (int(low), int(high or low)) if low.isdecimal() and (high or low).isdecimal() else None
