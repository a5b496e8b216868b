"""PURE: this node's parameters and the services' networks as what the rules depend on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.policy.settings import FilterSettings, LogRate, pass_mark_of

Networks = tuple[IPv4Network | IPv6Network, ...]
_PER_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_SERVICE_FIELDS = ("serviceClusterIPs", "serviceExternalIPs", "serviceLoadBalancerIPs")


def filter_settings(felix: FelixSettings, service_networks: Networks) -> FilterSettings:
    count, _, unit = felix.log_rate.partition("/")
    return FilterSettings(
        prefixes=felix.interface_prefixes,
        to_host=felix.endpoint_to_host,
        reject=felix.filter_deny_action == "Reject",
        drop_invalid=not felix.disable_invalid_check,
        allow_vxlan=felix.allow_vxlan_from_workloads,
        allow_ipip=felix.allow_ipip_from_workloads,
        vxlan_port=felix.vxlan_port,
        ipv6=felix.ipv6_support,
        spoofing=felix.workload_source_spoofing == "Any",
        log_prefix=felix.log_prefix,
        log_rate=LogRate(int(count), _PER_S[unit], felix.log_burst) if unit else None,
        pass_mark=pass_mark_of(felix.mark_mask),
        service_networks=service_networks,
        service_action=felix.service_loop_prevention,
    )


def parse_service_networks(spec: Mapping[str, Any] | None) -> Networks:
    """The networks of services in a BGPConfiguration's spec; what is none is left out: another part complains of it."""
    return tuple(sorted(set(_networks(spec or {})), key=str))


def _networks(spec: Mapping[str, Any]) -> Iterator[IPv4Network | IPv6Network]:
    for field in _SERVICE_FIELDS:
        listed = spec.get(field)
        for entry in listed if isinstance(listed, list) else ():
            try:
                yield ip_network(str(entry["cidr"]), strict=False)
            except (ValueError, TypeError, KeyError):
                continue
