"""PURE: which fields each kind's spec has, so that a misspelt one is refused instead of stored without effect.

Rule: a table of names. ``name{...}`` is an object (or a list of objects) with these fields; what is below a name
without braces is not checked. Source: upstream's API types, v3.32.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cni_calico.model.validation.felix_fields import KNOWN as FELIX

FieldTree = dict[str, Any]  # a name and the fields below it, None if those are not checked

_ENTITY = (
    "nets notNets selector notSelector namespaceSelector ports notPorts services{name namespace} "
    "serviceAccounts{names selector}"
)
_RULE = (
    "action ipVersion protocol notProtocol icmp{type code} notICMP{type code} metadata{annotations} "
    f"http{{methods paths{{exact prefix}}}} source{{{_ENTITY}}} destination{{{_ENTITY}}}"
)
_RULES = f"ingress{{{_RULE}}} egress{{{_RULE}}}"
_POLICY = f"{_RULES} tier order selector types serviceAccountSelector performanceHints"
_GLOBAL = f"{_POLICY} doNotTrack preDNAT applyOnForward namespaceSelector"
_PERIOD = "reconcilerPeriod"
_TEMPLATES = "templates{generateName interfaceCIDRs interfacePattern labels nodeSelector}"
_FILTER = (
    "action cidr matchOperator prefixLength{min max} source interface peerType priority communities asPathPrefix "
    "operations"
)
_PASSWORD = "secretKeyRef{key name optional}"
_METADATA = (
    "name generateName namespace selfLink uid resourceVersion generation creationTimestamp deletionTimestamp "
    "deletionGracePeriodSeconds labels annotations ownerReferences finalizers managedFields clusterName"
)
_SPECS = {
    "BGPConfiguration": "asNumber bindMode communities{name value} ignoredInterfaces ipv4NormalRoutePriority "
    "ipv6NormalRoutePriority listenPort "
    "localWorkloadPeeringIPV4 localWorkloadPeeringIPV6 logSeverityScreen nodeMeshMaxRestartTime "
    f"nodeMeshPassword{{{_PASSWORD}}} "
    "nodeToNodeMeshEnabled prefixAdvertisements{cidr communities} programClusterRoutes serviceClusterIPs{cidr} "
    "serviceExternalIPs{cidr} serviceLoadBalancerAggregation serviceLoadBalancerIPs{cidr}",
    "BGPFilter": " ".join(f"{way}V{version}{{{_FILTER}}}" for way in ("export", "import") for version in (4, 6)),
    "BGPPeer": "asNumber filters keepOriginalNextHop keepaliveTime localASNumber localWorkloadSelector maxRestartTime "
    f"nextHopMode node nodeSelector numAllowedLocalASNumbers password{{{_PASSWORD}}} peerIP peerSelector reachableBy "
    "reversePeering sourceAddress ttlSecurity",
    "CalicoNodeStatus": "node classes updatePeriodSeconds",
    "ClusterInformation": "clusterGUID clusterType calicoVersion datastoreReady variant",
    "FelixConfiguration": " ".join(sorted(FELIX)),
    "GlobalNetworkPolicy": _GLOBAL,
    "GlobalNetworkSet": "nets allowedEgressDomains",
    "HostEndpoint": "node interfaceName expectedIPs profiles ports{name protocol port}",
    "IPPool": "cidr vxlanMode ipipMode natOutgoing ipip nat-outgoing disabled disableBGPExport blockSize nodeSelector "
    "namespaceSelector allowedUses assignmentMode",
    "IPReservation": "reservedCIDRs",
    "KubeControllersConfiguration": "debugProfilePort etcdV3CompactionPeriod healthChecks logSeverityScreen "
    f"prometheusMetricsPort controllers{{loadBalancer{{assignIPs}} namespace{{{_PERIOD}}} policy{{{_PERIOD}}} "
    f"policyMigration{{enabled}} serviceAccount{{{_PERIOD}}} workloadEndpoint{{{_PERIOD}}} node{{{_PERIOD} "
    f"leakGracePeriod syncLabels hostEndpoint{{autoCreate createDefaultHostEndpoint {_TEMPLATES}}}}}}}",
    "NetworkPolicy": _POLICY,
    "NetworkSet": "nets allowedEgressDomains",
    "Node": "bgp{asNumber ipv4Address ipv4IPIPTunnelAddr ipv6Address routeReflectorClusterID} ipv4VXLANTunnelAddr "
    "vxlanTunnelMACAddr ipv6VXLANTunnelAddr vxlanTunnelMACAddrV6 orchRefs{nodeName orchestrator} "
    "wireguard{interfaceIPv4Address interfaceIPv6Address} addresses{address type} interfaces",
    "Profile": f"{_RULES} labelsToApply",
    "StagedGlobalNetworkPolicy": f"{_GLOBAL} stagedAction",
    "StagedKubernetesNetworkPolicy": "stagedAction podSelector ingress egress policyTypes",
    "StagedNetworkPolicy": f"{_POLICY} stagedAction",
    "Tier": "order defaultAction",
    "WorkloadEndpoint": "orchestrator workload node containerID pod endpoint serviceAccountName ipNetworks "
    "ipNATs{internalIP externalIP} ipv4Gateway ipv6Gateway profiles interfaceName mac "
    "ports{name protocol port hostPort hostIP} allowSpoofedSourcePrefixes qosControls",
}
_TOKEN = re.compile(r"[^\s{}]+|[{}]")


def _parse(tokens: Iterator[str]) -> FieldTree:
    fields: FieldTree = {}
    name = ""
    for token in tokens:
        if token == "{":
            fields[name] = _parse(tokens)
        elif token == "}":
            return fields
        else:
            name = token
            fields[name] = None
    return fields


def known_fields(kind: str) -> FieldTree:
    """The fields of a kind's document."""
    body = f"apiVersion kind metadata{{{_METADATA}}} spec{{{_SPECS[kind]}}} status"
    return _parse(iter(_TOKEN.findall(body)))


def unknown_fields(document: Mapping[str, Any], old: Mapping[str, Any] | None = None) -> Iterator[tuple[str, Any, str]]:
    """(path, value, nearest known name or "") of fields that neither the kind nor ``old`` has.

    Fields that are stored already are allowed: a newer version may know them.
    """
    kind = str(document.get("kind"))
    if kind in _SPECS:
        yield from _walk(document, known_fields(kind), old, "")


def _walk(value: Any, known: FieldTree, old: Any, at: str) -> Iterator[tuple[str, Any, str]]:
    if isinstance(value, (list, tuple)):
        items = old if isinstance(old, (list, tuple)) else ()
        for i, item in enumerate(value):
            yield from _walk(item, known, items[i] if i < len(items) else None, f"{at}[{i}]")
        return
    if not isinstance(value, Mapping):
        return
    before = old if isinstance(old, Mapping) else {}
    for name, inner in value.items():
        path = f"{at}.{name}" if at else str(name)
        if name not in known:
            if name not in before:
                yield path, inner, _nearest(name, known)
        elif known[name] is not None:
            yield from _walk(inner, known[name], before.get(name), path)


def _nearest(name: str, known: FieldTree) -> str:
    from difflib import get_close_matches

    same = [other for other in known if other.lower() == name.lower()]
    return (same or get_close_matches(name, known, 1) or [""])[0]
