"""PURE: where a pod's network differs from its plan; what CHECK reports.

Rule: something in the plan that is missing in reality is a difference; something in reality beyond the plan is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cni_calico.model import names
from cni_calico.model.resources import Address
from cni_calico.plugin.network.plan import (
    GATEWAY_V4,
    PodPlan,
    PodRoute,
    Sysctl,
    desired_host_sysctls,
    desired_pod_routes,
    desired_pod_sysctls,
    format_mac,
    host_network,
    optional_sysctl,
)


@dataclass(frozen=True, slots=True)
class LinkState:
    """``peer_here``: the other end is the plan's interface on the other side."""

    up: bool
    mac: str
    mtu: int
    peer_here: bool


@dataclass(frozen=True, slots=True)
class Observed:
    """The present state. ``host_routes`` maps an address to the interface its host route leads to ("" for a route
    without one, no entry for no route); absent sysctls have no entry; MACs and sysctls as text.
    """

    host: LinkState | None
    pod: LinkState | None
    addresses: frozenset[Address]
    pod_routes: frozenset[PodRoute]
    host_routes: Mapping[Address, str]
    neighbours: Mapping[Address, str]
    host_sysctls: Mapping[tuple[str, ...], str]
    pod_sysctls: Mapping[tuple[str, ...], str]


@dataclass(frozen=True, slots=True)
class Difference:
    """``where`` is "host" or "pod"; ``kind`` link, address, route, neighbour or sysctl; "" means absent."""

    where: str
    kind: str
    name: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"{self.where} {self.kind} {self.name}: wanted {self.wanted or 'none'}, found {self.found or 'none'}"


def select_differences(plan: PodPlan, seen: Observed) -> tuple[Difference, ...]:
    """Everything in the plan that is missing in reality, in the order links, addresses, routes, neighbour, sysctls.

    Anything beyond the plan (addresses or routes of a chained plugin) is ignored.
    """
    found = [
        *_link_differences("host", plan.host_ifname, seen.host, plan.mtu, names.HOST_MAC),
        *_link_differences("pod", plan.pod_ifname, seen.pod, plan.mtu, format_mac(plan.mac) if plan.mac else ""),
    ]
    if seen.pod:
        found += _pod_differences(plan, seen)
    for address in plan.routed_addresses:
        holder = seen.host_routes.get(address)
        if holder != plan.host_ifname:
            text = "" if holder is None else f"dev {holder}" if holder else "a route without interface"
            found.append(Difference("host", "route", str(address), f"dev {plan.host_ifname}", text))
    if seen.host:
        found += _sysctl_differences(plan, "host", desired_host_sysctls(plan), seen.host_sysctls)
    return tuple(found)


def _link_differences(where: str, name: str, link: LinkState | None, mtu: int, mac: str) -> list[Difference]:
    if link is None:
        return [Difference(where, "link", name, "present", "")]
    facts = [("up", "up" if link.up else "down"), (f"mtu {mtu}", f"mtu {link.mtu}")]
    facts.append(("joined to the other end", "joined to the other end" if link.peer_here else "joined elsewhere"))
    if mac:
        facts.append((f"mac {mac}", f"mac {link.mac}"))
    return [Difference(where, "link", name, wanted, found) for wanted, found in facts if wanted != found]


def _pod_differences(plan: PodPlan, seen: Observed) -> list[Difference]:
    found = [
        Difference("pod", "address", str(host_network(address)), "present", "")
        for address in plan.addresses
        if address not in seen.addresses
    ]
    by_dst = {route.dst: str(route) for route in seen.pod_routes}
    found += [
        Difference("pod", "route", str(route.dst), str(route), by_dst.get(route.dst, ""))
        for route in desired_pod_routes(plan)
        if route not in seen.pod_routes
    ]
    if plan.has_v4 and seen.neighbours.get(GATEWAY_V4) != names.HOST_MAC:
        mac = seen.neighbours.get(GATEWAY_V4, "")
        found.append(Difference("pod", "neighbour", str(GATEWAY_V4), names.HOST_MAC, mac))
    return found + _sysctl_differences(plan, "pod", desired_pod_sysctls(plan), seen.pod_sysctls)


def _sysctl_differences(
    plan: PodPlan, where: str, wanted: tuple[Sysctl, ...], seen: Mapping[tuple[str, ...], str]
) -> list[Difference]:
    return [
        Difference(where, "sysctl", "net/" + "/".join(name), value, seen.get(name, ""))
        for name, value in wanted
        if seen.get(name) != value and not (name not in seen and optional_sysctl(plan, name))
    ]
