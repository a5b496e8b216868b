"""PURE: BGPConfiguration: ``default`` for the cluster, ``node.<name>`` for a node's own settings.

Rule: a field that is not set has upstream's default; a wrong field is reported and has the default too. A node's own
resource overrides the listen port, the log severity and the prefix advertisements, nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from cni_calico.model.documents.fields import JSON, Wrong, parse_bool, parse_network, parse_object, parse_text
from cni_calico.model.resources import Address, Network, Resource
from cni_calico.model.validation.report import SWITCH
from cni_calico.nodeagent.bgp.config.findings import WARNING, BgpProblem, SpecReader
from cni_calico.nodeagent.bgp.config.values import (
    U16,
    Community,
    SecretRef,
    looks_like_community,
    parse_as,
    parse_choice,
    parse_cidr_of,
    parse_community,
    parse_gateway,
    parse_in,
    parse_interface_pattern,
    parse_restart_time,
    parse_secret_ref,
)

AS_NUMBER = 64512
NORMAL_PRIORITY = 1024
PRIORITY_MAX = 2147483646
NODE_PREFIX = "node."
_SEVERITIES = {"debug": "debug", "info": "info"}  # upstream maps every other one to "none"


@dataclass(frozen=True, slots=True)
class PrefixAdvertisement:
    """Routes inside ``cidr`` are announced with ``communities``."""

    cidr: Network
    communities: tuple[Community, ...]


@dataclass(frozen=True, slots=True)
class BgpConfiguration:
    """``log_severity`` is "debug", "info" or "none"; ``listen_port`` and priorities 0 mean: not set.
    ``makes_routes``: BIRD makes the routes to other nodes' blocks, unless the agent does.
    """

    as_number: int = AS_NUMBER
    mesh: bool = True
    listen_port: int = 0
    bind_node_ip: bool = False
    mesh_password: SecretRef | None = None
    mesh_restart_time_s: int | None = None
    log_severity: str = "info"
    prefix_advertisements: tuple[PrefixAdvertisement, ...] = ()
    service_cluster_cidrs: tuple[Network, ...] = ()
    service_external_cidrs: tuple[Network, ...] = ()
    service_load_balancer_cidrs: tuple[Network, ...] = ()
    aggregates_load_balancers: bool = True
    ignored_interfaces: tuple[str, ...] = ()
    makes_routes: bool = True
    normal_priority_v4: int = NORMAL_PRIORITY
    normal_priority_v6: int = NORMAL_PRIORITY
    workload_peering_v4: Address | None = None
    workload_peering_v6: Address | None = None

    def normal_priority(self, version: int) -> int:
        return self.normal_priority_v4 if version == 4 else self.normal_priority_v6

    @property
    def workload_peering(self) -> dict[int, Address]:
        """By family, the address at which workloads find the host for BGP."""
        found = {4: self.workload_peering_v4, 6: self.workload_peering_v6}
        return {version: address for version, address in found.items() if address is not None}


def _parse_named(raw: Any, at: str) -> tuple[str, Community]:
    item = parse_object(raw, at)
    return parse_text(item.get("name"), f"{at}.name"), parse_community(item.get("value"), f"{at}.value")


def _parse_peering_address(version: int) -> Callable[[Any, str], Address | None]:
    def parse(raw: Any, at: str) -> Address | None:
        if raw == "":
            return None
        address = parse_gateway(raw, at)
        if address.version != version or address.is_multicast or address.is_unspecified or address.is_loopback:
            raise Wrong(at, f"an IPv{version} address for the host's end", raw)
        return address

    return parse


def _read_advertisements(reader: SpecReader) -> tuple[PrefixAdvertisement, ...]:
    named = dict(reader.read_each("communities", _parse_named))

    def parse_either(raw: Any, at: str) -> Community:
        text = parse_text(raw, at)
        if text not in named and not looks_like_community(text):
            raise Wrong(at, "a community, or the name of one that communities defines", raw)
        return named[text] if text in named else parse_community(text, at)

    out = []
    for i, item in enumerate(reader.read_each("prefixAdvertisements", parse_object)):
        inner = reader.inner(item, f"prefixAdvertisements[{i}]")
        cidr = inner.read("cidr", parse_network, None)
        communities = inner.read_each("communities", parse_either)
        if cidr is not None and communities:
            out.append(PrefixAdvertisement(cidr, tuple(dict.fromkeys(communities))))
    return tuple(out)


def parse_configuration(resource: Resource) -> tuple[BgpConfiguration, tuple[BgpProblem, ...]]:
    """The values of one BGPConfiguration, and the problems found in it."""
    reader = SpecReader(f"BGPConfiguration {resource.metadata.name}", resource.spec)
    priority = parse_in(1, PRIORITY_MAX)
    severity = reader.read("logSeverityScreen", parse_text, "") or "info"
    configuration = BgpConfiguration(
        as_number=reader.read("asNumber", parse_as, 0) or AS_NUMBER,
        mesh=reader.read("nodeToNodeMeshEnabled", parse_bool, True),
        listen_port=reader.read("listenPort", parse_in(0, U16), 0),
        bind_node_ip=reader.read("bindMode", parse_choice("None", "NodeIP"), "") == "NodeIP",
        mesh_password=reader.read("nodeMeshPassword", parse_secret_ref, None),
        mesh_restart_time_s=reader.read("nodeMeshMaxRestartTime", parse_restart_time, None),
        log_severity=_SEVERITIES.get(severity.lower(), "none"),
        prefix_advertisements=_read_advertisements(reader),
        service_cluster_cidrs=reader.read_each("serviceClusterIPs", parse_cidr_of),
        service_external_cidrs=reader.read_each("serviceExternalIPs", parse_cidr_of),
        service_load_balancer_cidrs=reader.read_each("serviceLoadBalancerIPs", parse_cidr_of),
        aggregates_load_balancers=reader.read("serviceLoadBalancerAggregation", parse_choice(*SWITCH), "")
        != "Disabled",
        ignored_interfaces=reader.read_each("ignoredInterfaces", parse_interface_pattern),
        makes_routes=reader.read("programClusterRoutes", parse_choice(*SWITCH), "") != "Disabled",
        normal_priority_v4=reader.read("ipv4NormalRoutePriority", priority, NORMAL_PRIORITY),
        normal_priority_v6=reader.read("ipv6NormalRoutePriority", priority, NORMAL_PRIORITY),
        workload_peering_v4=reader.read("localWorkloadPeeringIPV4", _parse_peering_address(4), None),
        workload_peering_v6=reader.read("localWorkloadPeeringIPV6", _parse_peering_address(6), None),
    )
    reader.done()
    return configuration, tuple(reader.problems)


def merge_configuration(default: BgpConfiguration, own: BgpConfiguration, own_spec: JSON) -> BgpConfiguration:
    """The configuration of a node that has its own resource; ``own_spec`` says what is set there."""
    return replace(
        default,
        listen_port=own.listen_port or default.listen_port,
        log_severity=own.log_severity if own_spec.get("logSeverityScreen") else default.log_severity,
        prefix_advertisements=(
            default.prefix_advertisements if own_spec.get("prefixAdvertisements") is None else own.prefix_advertisements
        ),
    )


def find_unequal_priorities(
    configuration: BgpConfiguration, priorities: tuple[int, int] | None
) -> tuple[BgpProblem, ...]:
    """What is wrong where the agent's routes to workloads have other metrics (IPv4, IPv6; None: not known) than BGP
    takes for ordinary ones.
    """
    found = []
    for version, metric in zip((4, 6), priorities or (), strict=False):
        name, normal = f"ipv{version}NormalRoutePriority", configuration.normal_priority(version)
        if metric == normal:
            continue
        effect = "each workload is announced by itself" if metric < normal else "they count for less than other routes"
        text = f"{name} is {normal}, and FelixConfiguration's is {metric}: {effect}; give both the same value"
        found.append(BgpProblem("BGPConfiguration default", text, WARNING))
    return tuple(found)
