"""Which stages of host endpoints a recorded flow has passed, in every way that it may have taken.

Rule: the order is that of the packet filter (``policy.judge.host_path``). An interface that records do not tell is any
of those that have a host endpoint and lead to other hosts; where there is only one such host endpoint it is assumed to
be on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import product

from cni_calico.ctl.addresses import TUNNELS
from cni_calico.ctl.policy.at_hosts.facts import KnownHosts
from cni_calico.ctl.policy.interfaces import LOOPBACK, NodeHosts
from cni_calico.model.interface_patterns import is_excluded
from cni_calico.model.keys import ResourceKey
from cni_calico.policy.hosts import ALL_INTERFACES
from cni_calico.policy.judge.host_path import EndPlace, host_stages
from cni_calico.policy.wanted import Direction, Packed, PolicyReach


@dataclass(frozen=True, slots=True)
class PlacedEnd:
    """One end of a flow. ``node``: where it is, "" if that is not known or in no node."""

    address: Packed
    is_workload: bool
    node: str


@dataclass(frozen=True, slots=True)
class PassedStage:
    """``key``: the host endpoint of the interface; ``everywhere``: that of the node's interfaces without one."""

    node: str
    key: ResourceKey
    everywhere: ResourceKey | None
    reach: PolicyReach
    direction: Direction


HostWay = tuple[PassedStage, ...]


class PassedWays:
    def __init__(self, facts: KnownHosts) -> None:
        self._facts = facts

    def place(self, address: Packed, reporter: str) -> PlacedEnd:
        """An end that is no workload. ``reporter``: the node that told of the flow."""
        own = ip_address(address)
        return PlacedEnd(address, False, reporter if own.is_loopback else self._facts.at.get(address, ""))

    def between(self, source: PlacedEnd, destination: PlacedEnd) -> list[HostWay]:
        """At the nodes of both ends."""
        nodes = [node for node in dict.fromkeys((source.node, destination.node)) if node]
        return self._through(nodes, source, destination)

    def across(self, node: str, source: PlacedEnd, destination: PlacedEnd) -> list[HostWay]:
        """At a node that reported it."""
        return self._through([node], source, destination)

    def _through(self, nodes: list[str], source: PlacedEnd, destination: PlacedEnd) -> list[HostWay]:
        each = [list(dict.fromkeys(self._on(node, source, destination))) for node in nodes]
        return [tuple(stage for way in ways for stage in way) for ways in product(*each)]

    def _on(self, node: str, source: PlacedEnd, destination: PlacedEnd) -> Iterator[HostWay]:
        view = self._facts.views.get(node)
        if view is None:
            yield ()
            return
        for places in product(self._places(node, source), self._places(node, destination)):
            if places == ("host", "workload") and source.node != node:
                continue  # nobody decides about that, so it is not recorded
            stages = host_stages(*places)
            at = {stage.at for stage in stages}
            ends = [_seen_from(node, end, place) for end, place in zip((source, destination), places, strict=True)]
            nothing: tuple[ResourceKey | None, ...] = (None,)
            ins = self._outer(view, ends[0], ends[1], places[1], node, ends[1]) if "in" in at else nothing
            outs = self._outer(view, ends[1], ends[0], places[0], node, ends[1]) if "out" in at else nothing
            everywhere = view.everywhere()
            for came, goes in product(ins, outs):
                keys = {"in": came, "out": goes, "workloads": everywhere, "loopback": view.at_loopback()}
                yield tuple(
                    PassedStage(node, key, everywhere, stage.reach, stage.direction)
                    for stage in stages
                    if (key := keys[stage.at]) is not None
                )

    def _places(self, node: str, end: PlacedEnd) -> tuple[EndPlace, ...]:
        if end.node == node:
            return ("workload",) if end.is_workload else ("host",)
        if end.is_workload or end.node or node in self._facts.known:
            return ("elsewhere",)
        return ("elsewhere", "host")  # its addresses are not known

    def _outer(
        self, view: NodeHosts, peer: PlacedEnd, own: PlacedEnd, place: EndPlace, node: str, destination: PlacedEnd
    ) -> tuple[ResourceKey | None, ...]:
        """The host endpoints of the interface through which packets from or to ``peer`` may go; ``own``: the other end,
        which is at ``place``; ``destination``: one of the two.
        """
        tunnel: str | None = ""
        if destination.is_workload and (peer.node or place == "elsewhere"):
            tunnel = self._facts.tunnel_to(ip_address(destination.address))
            if tunnel:
                return (view.at_interface(tunnel),)
        address = ip_address(own.address)
        if place == "host" and (address in view.devices or address.is_loopback):
            return (view.at_address(address),)
        if peer.node and tunnel == "" and self._has_uplink(view):
            return (view.at_uplink(),)
        return _leading_out(view, with_tunnels=tunnel is None)

    def _has_uplink(self, view: NodeHosts) -> bool:
        """Whether it is known which interface leads to other nodes."""
        return any(address in view.devices for address in view.main)


def _seen_from(node: str, end: PlacedEnd, place: EndPlace) -> PlacedEnd:
    return end if place == "elsewhere" else PlacedEnd(end.address, end.is_workload, node)


def _leading_out(view: NodeHosts, *, with_tunnels: bool) -> tuple[ResourceKey | None, ...]:
    """Of the interfaces that the Node says it has; if it says nothing, of those that have a host endpoint."""
    found: dict[ResourceKey | None, None] = {}
    if with_tunnels:
        found |= dict.fromkeys(view.at_interface(name) for name in TUNNELS)
    devices = sorted({name for name in view.devices.values() if _is_outer(view, name)})
    if devices and view.main and all(address in view.devices for address in view.main):
        found |= dict.fromkeys(_of_device(view, name) for name in devices)
        return tuple(found)
    for key, host in view.hosts.items():
        if not host.interface:
            found[key] = None
        elif _is_outer(view, host.interface):
            found[view.at_interface(host.interface)] = None
    everywhere = view.everywhere()
    if everywhere is not None:
        found[everywhere] = None
    return tuple(found) or (None,)


def _of_device(view: NodeHosts, name: str) -> ResourceKey | None:
    if is_excluded(name, view.felix.interface_exclude):
        return None
    return view.at_interface(name, *(address for address, device in view.devices.items() if device == name))


def _is_outer(view: NodeHosts, interface: str) -> bool:
    inner = (ALL_INTERFACES, LOOPBACK, *TUNNELS)
    return interface not in inner and not interface.startswith(view.felix.interface_prefixes)
