"""PURE: what the host's side of this node's workloads must look like: routes and interface settings.

Rule: the same as the CNI plugin makes (the settings are plugin/network/plan.py's), so that the agent repairs what
others changed and never changes what the plugin made, but for the metric of routes, which the plugin does not know. An
endpoint whose interface does not exist gets nothing: it is being created or is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from cni_calico.model.host import V6_DEFAULT_METRIC, HostInterface, HostRoute
from cni_calico.model.names import attachment_digest, digest_in, owner_in, owner_text, signed_alias
from cni_calico.model.resources import Address, Network, WorkloadEndpoint
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.view.claims import Holder
from cni_calico.plugin.network.plan import Sysctl, host_sysctls
from cni_calico.policy.endpoints import owner_of

_FIRST_IFNAME = "eth0"


def is_workload_interface(name: str, felix: FelixSettings) -> bool:
    return name.startswith(felix.interface_prefixes)


@dataclass(frozen=True, slots=True)
class Moves:
    """Interfaces of workloads to which a virtual machine is to come (``withheld``: no routes yet), or has just come
    (``elevated``). ``away``: addresses of this node's workloads that another node's pod has, as IPAM says; what has
    just come is believed before it.
    """

    withheld: frozenset[str] = frozenset()
    elevated: frozenset[str] = frozenset()
    away: frozenset[Address] = frozenset()


NOBODY = Moves()


def desired_endpoint_routes(
    present: Mapping[str, WorkloadEndpoint], felix: FelixSettings, moves: Moves = NOBODY
) -> set[HostRoute]:
    """One route per address, on the endpoint's interface; only for IPv4 if there is no IPv6 support.

    A network larger than a single address gets none: a default route into a pod would take the host's traffic.
    """
    routes = set()
    for name, endpoint in present.items():
        if name in moves.withheld:
            continue
        for network in endpoint.ip_networks:
            if network.num_addresses > 1 or (network.version == 6 and not felix.ipv6_support):
                continue
            if network.network_address in moves.away and name not in moves.elevated:
                continue
            routes.add(host_route(network, name, felix, elevated=name in moves.elevated))
    return routes


def host_route(network: Network, device: str, felix: FelixSettings, *, elevated: bool = False) -> HostRoute:
    """The route to an address of the workload behind ``device``."""
    metric = felix.normal_priority if network.version == 4 else felix.normal_priority_v6
    if elevated:
        metric = felix.elevated_priority if network.version == 4 else felix.elevated_priority_v6
    return HostRoute(
        network,
        device,
        scope="link" if network.version == 4 else "global",
        protocol=felix.device_route_protocol,
        source=felix.device_route_source if network.version == 4 else felix.device_route_source_v6,
        metric=0 if network.version == 6 and metric == V6_DEFAULT_METRIC else metric,
    )


def select_unclaimed_routes(
    actual: Iterable[HostRoute], desired: Collection[HostRoute], felix: FelixSettings
) -> set[HostRoute]:
    """Existing routes on workloads' interfaces that no readable endpoint names.

    While an endpoint cannot be read, any of them may be its route.
    """
    interfaces, destinations = {route.device for route in desired}, {route.dst for route in desired}
    return {
        route
        for route in actual
        if is_workload_interface(route.device, felix)
        and route.device not in interfaces
        and route.dst not in destinations
        and not (route.dst.is_link_local or route.dst.is_multicast)
    }


def select_routed_claims(actual: Iterable[HostRoute], unproven: Mapping[str, Collection[Network]]) -> set[HostRoute]:
    """Existing routes for addresses that only a pod's annotation names: they stay, but none is added."""
    return {r for r in actual if r.dst in unproven.get(r.device, ()) and r.dst.num_addresses == 1}


@dataclass(frozen=True, slots=True)
class Unsigned:
    """A workload's interface whose alias does not name it, and the alias that it should have. ``networks``: those of
    its endpoint, if only routes to all of them prove that it is its interface.
    """

    index: int
    device: str
    alias: str
    networks: frozenset[Network] = frozenset()


def select_unsigned(
    present: Mapping[str, WorkloadEndpoint], interfaces: Iterable[HostInterface], handles: Mapping[str, Holder]
) -> tuple[Unsigned, ...]:
    """The interfaces of recorded endpoints whose alias names no workload. An interface that is down may still be in the
    making. ``handles``: IPAM's, of pods of this node: what an older version wrote is the digest of one of them, and
    decides, whoever names the interface.
    """
    found = []
    unnamed = [one for one in interfaces if one.up and one.kind == "veth" and not owner_in(one.alias)]
    digests = _digests(handles) if any(digest_in(one.alias) for one in unnamed) else {}
    for interface in unnamed:
        digest, endpoint = digest_in(interface.alias), present.get(interface.name)
        pod = digests.get(digest)
        if pod is not None:
            found.append(Unsigned(interface.index, interface.name, signed_alias(digest, owner_text("k8s", *pod))))
        elif interface.alias and not digest:
            continue  # somebody else's
        elif endpoint is not None and endpoint.container_id and endpoint.ip_networks:
            digest = digest or attachment_digest("", endpoint.container_id, endpoint.endpoint)
            alias = signed_alias(digest, owner_of(endpoint.metadata.namespace, endpoint))
            found.append(Unsigned(interface.index, interface.name, alias, frozenset(endpoint.ip_networks)))
    return tuple(found)


def _digests(handles: Mapping[str, Holder]) -> dict[str, Holder]:
    """The digests that aliases of pods' interfaces may have. A handle is "<network>.<container ID>", of several
    interfaces of a container with ".<interface>" at its end; all three may have dots.
    """
    found: dict[str, Holder] = {}
    for handle, pod in handles.items():
        parts = handle.split(".")
        for i in range(1, len(parts)):
            network, rest = ".".join(parts[:i]), ".".join(parts[i:])
            container, _, ifname = rest.rpartition(".")
            for one, name in ((rest, _FIRST_IFNAME), (container, ifname)):
                if one and name:
                    found[attachment_digest(network, one, name)] = found[attachment_digest("", one, name)] = pod
    return found


def select_proven(unsigned: Iterable[Unsigned], actual: Iterable[HostRoute]) -> tuple[Unsigned, ...]:
    """Those that need no route as a proof, or to which the host routes every address of their endpoint."""
    routed = {(route.device, route.dst) for route in actual}
    return tuple(item for item in unsigned if all((item.device, network) in routed for network in item.networks))


def desired_endpoint_settings(present: Mapping[str, WorkloadEndpoint]) -> list[Sysctl]:
    wanted: list[Sysctl] = []
    for name, endpoint in sorted(present.items()):
        families = {network.version for network in endpoint.ip_networks}
        wanted += host_sysctls(name, v4=4 in families, v6=6 in families)
    return wanted


def host_settings(felix: FelixSettings) -> list[Sysctl]:
    """The settings that the host as a whole needs."""
    if felix.ip_forwarding != "Enabled":
        return []
    wanted: list[Sysctl] = [(("ipv4", "ip_forward"), "1")]
    if felix.ipv6_support:
        wanted.append((("ipv6", "conf", "all", "forwarding"), "1"))
    return wanted
