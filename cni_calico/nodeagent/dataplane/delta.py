"""PURE: desired minus actual: what must be added, changed and removed.

Rule: what is not ours is never removed. Ours are: routes of protocol 80, routes on workloads' interfaces, static
neighbours and forwarding entries of our tunnel devices, and these devices themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from cni_calico.model.host import PROTO_CALICO, HostRoute, TunnelDevice
from cni_calico.model.resources import Network
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.endpoints import is_workload_interface

KernelItem = TypeVar("KernelItem")


@dataclass(frozen=True, slots=True)
class Changes(Generic[KernelItem]):
    """In the order in which they can be carried out: additions before removals, so that nothing is ever missing."""

    add: tuple[KernelItem, ...] = ()
    remove: tuple[KernelItem, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.add or self.remove)


def plan_set(desired: Iterable[KernelItem], actual: Iterable[KernelItem]) -> Changes[KernelItem]:
    """For things that are either equal or different, and all ours; none is desired twice. It keeps none that is desired
    and there: they may be made one by one.
    """
    missing, rest = set[KernelItem](), set(actual)
    for item in desired:
        if item in rest:
            rest.remove(item)
        else:
            missing.add(item)
    return Changes(tuple(sorted(missing, key=str)), tuple(sorted(rest, key=str)))


def is_ours(route: HostRoute, felix: FelixSettings) -> bool:
    """Whether a route that is not wanted may be removed.

    BIRD's routes and the kernel's (IPv6 link-local, multicast) have their own protocols. A route on a workload's
    interface that another program made counts as ours only while RemoveExternalRoutes is on.
    """
    if route.protocol == PROTO_CALICO:
        return True
    on_workload = bool(route.device) and is_workload_interface(route.device, felix)
    if not on_workload or route.dst.is_link_local or route.dst.is_multicast:
        return False
    return route.protocol == felix.device_route_protocol or felix.remove_external_routes


def plan_routes(desired: Iterable[HostRoute], actual: Iterable[HostRoute], felix: FelixSettings) -> Changes[HostRoute]:
    """The additions are as desired, including flags that are not compared. A workload's route with another metric than
    the wanted one goes once that one is there.
    """
    wanted, there = {_normal(route): route for route in desired}, {_normal(route): route for route in actual}
    add = [route for key, route in wanted.items() if key not in there]
    lacking = {(route.dst, route.device): route.metric for route in add if is_workload_interface(route.device, felix)}
    remove = [
        route
        for key, route in there.items()
        if key not in wanted
        and lacking.get((route.dst, route.device), route.metric) == route.metric
        and is_ours(route, felix)
    ]
    # packets to a part of a network do not go where the rest of it goes meanwhile
    return Changes(tuple(sorted(add, key=_order, reverse=True)), tuple(sorted(remove, key=_order)))


def select_conflicts(
    add: Iterable[HostRoute], desired: Iterable[HostRoute], actual: Iterable[HostRoute], felix: FelixSettings
) -> dict[HostRoute, HostRoute]:
    """Routes to workloads that must not be made, each with the route that it would replace.

    Adding a route replaces the one with the same destination and metric, and one with a lower metric wins. That may
    only be a route to a single address that is ours, or one through a workload's interface that has lost its endpoint;
    any other route stays, whoever made it.
    """
    wanted = {(route.dst, route.device) for route in desired}  # with whatever metric it is there
    holders: dict[Network, list[HostRoute]] = {}
    for route in actual:
        holders.setdefault(route.dst, []).append(route)
    found = {}
    for route in add if holders else ():
        if not is_workload_interface(route.device, felix):
            continue
        for holder in holders.get(route.dst, ()):
            if holder.device == route.device or holder.metric > route.metric:
                continue
            ours = holder.protocol == PROTO_CALICO or is_workload_interface(holder.device, felix)
            if holder.dst.num_addresses > 1 or not ours or (holder.dst, holder.device) in wanted:
                found[route] = holder
    return found


def _normal(route: HostRoute) -> HostRoute:
    """Without the fields that the kernel does not report reliably."""
    return replace(route, onlink=False) if route.onlink else route


def _order(route: HostRoute) -> tuple[int, int, int, str]:
    return (route.dst.version, route.dst.prefixlen, int(route.dst.network_address), route.device)


@dataclass(frozen=True, slots=True)
class DeviceChange:
    """``remake``: something about the device cannot be changed in place."""

    wanted: TunnelDevice
    actual: TunnelDevice | None
    remake: bool = False


def plan_devices(
    desired: Mapping[str, TunnelDevice], actual: Mapping[str, TunnelDevice]
) -> tuple[tuple[DeviceChange, ...], tuple[str, ...]]:
    """(what to create or change, the names to remove)."""
    changes = []
    for name, wanted in sorted(desired.items()):
        there = actual.get(name)
        if there is None:
            changes.append(DeviceChange(wanted, None))
        elif _fixed_parts(wanted) != _fixed_parts(there):
            changes.append(DeviceChange(wanted, there, remake=True))
        elif wanted != there:
            changes.append(DeviceChange(wanted, there))
    return tuple(changes), tuple(sorted(set(actual) - set(desired)))


def _fixed_parts(device: TunnelDevice) -> tuple[object, ...]:
    """The properties that the kernel does not change on an existing device."""
    if device.kind != "vxlan":
        return (device.kind,)
    return (device.kind, device.vni, device.port, device.local, device.parent, device.learning)
