"""PURE: the kinds with a class of their own: one table per spec, JSON field to attribute.

Rule: what differs between kinds is in the tables; the few functions here are for fields that depend on one another.
"""

from __future__ import annotations

from typing import Any

from cni_calico.model.documents.fields import (
    JSON,
    Field,
    Table,
    Wrong,
    as_number_of,
    attributes_of,
    decode_fields,
    encode_fields,
    flag,
    parse_address,
    parse_bool,
    parse_int,
    parse_interface,
    parse_list,
    parse_network,
    parse_networks,
    parse_number_or_text,
    parse_object,
    parse_objects,
    parse_text,
    parse_texts,
    render_list,
    render_text_list,
    source_of,
    text,
)
from cni_calico.model.documents.resources import SpecUnknown, build_document, document_of, read_head, unknown_top
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import (
    IPNAT,
    ClusterInformation,
    EndpointPort,
    IPPool,
    IPReservation,
    Node,
    WorkloadEndpoint,
)

BLOCK_SIZE = {4: 26, 6: 122}


def _text_or(default: str) -> Any:
    return lambda raw, at: parse_text(raw, at) or default


def _version(parse: Any, version: int) -> Any:
    """``parse`` for one family; an empty text means no address."""

    def parse_version(raw: Any, at: str) -> Any:
        if raw == "":
            return None
        value = parse(raw, at)
        if value.version != version:
            raise Wrong(at, f"an IPv{version} address", raw)
        return value

    return parse_version


def parse_as_number(raw: Any, at: str) -> int:
    """A number, a text with a number, or the dotted form "high.low"."""
    if type(raw) is int and 0 <= raw < 1 << 32:
        return raw
    number = as_number_of(raw) if isinstance(raw, str) else None
    if number is None:
        raise Wrong(at, "an AS number", raw)
    return number


def _parse_uses(raw: Any, at: str) -> tuple[str, ...]:
    return parse_texts(raw, at) or ("Workload", "Tunnel")


POOL: Table = (
    Field("cidr", "cidr", parse_network, None, str, always=True),
    Field("vxlanMode", "vxlan_mode", _text_or("Never"), "Never", always=True),
    Field("ipipMode", "ipip_mode", _text_or("Never"), "Never", always=True),
    flag("natOutgoing", "nat_outgoing"),
    flag("disabled", "disabled"),
    flag("disableBGPExport", "disable_bgp_export"),
    Field("blockSize", "block_size", parse_int, 0, always=True),
    Field("nodeSelector", "node_selector", _text_or("all()"), "all()", always=True),
    text("namespaceSelector", "namespace_selector"),
    Field("allowedUses", "allowed_uses", _parse_uses, ("Workload", "Tunnel"), render_list, always=True),
    Field("assignmentMode", "assignment_mode", _text_or("Automatic"), "Automatic", always=True),
)
RESERVATION: Table = (Field("reservedCIDRs", "reserved_cidrs", parse_networks, (), render_text_list, always=True),)
CLUSTER: Table = (
    text("clusterGUID", "cluster_guid"),
    text("clusterType", "cluster_type"),
    text("calicoVersion", "calico_version"),
    Field("datastoreReady", "datastore_ready", parse_bool, None),
)
NODE: Table = (
    Field("ipv4VXLANTunnelAddr", "ipv4_vxlan_tunnel", _version(parse_address, 4), None, str),
    Field("ipv6VXLANTunnelAddr", "ipv6_vxlan_tunnel", _version(parse_address, 6), None, str),
    text("vxlanTunnelMACAddr", "vxlan_tunnel_mac"),
    text("vxlanTunnelMACAddrV6", "vxlan_tunnel_mac_v6"),
    Field("orchRefs", "orch_refs", parse_objects, (), render_list),
    Field("addresses", "addresses", parse_objects, (), render_list),
    Field("interfaces", "interfaces", parse_objects, (), render_list),
)
NODE_BGP: Table = (
    Field("asNumber", "as_number", parse_as_number, None),
    Field("ipv4Address", "ipv4", _version(parse_interface, 4), None, str),
    Field("ipv6Address", "ipv6", _version(parse_interface, 6), None, str),
    Field("ipv4IPIPTunnelAddr", "ipv4_ipip_tunnel", _version(parse_address, 4), None, str),
    text("routeReflectorClusterID", "route_reflector_cluster_id"),
)
NAT: Table = (
    Field("internalIP", "internal_ip", parse_address, None, str),
    Field("externalIP", "external_ip", parse_address, None, str),
)
PORT: Table = (
    text("name", "name", always=True),
    Field("protocol", "protocol", parse_number_or_text, "TCP", always=True),
    Field("port", "port", parse_int, 0, always=True),
    Field("hostPort", "host_port", parse_int, 0),
    text("hostIP", "host_ip"),
)


def _parse_nats(raw: Any, at: str) -> tuple[IPNAT, ...]:
    nats = []
    for i, item in enumerate(parse_list(raw, at)):
        values, extra = decode_fields(parse_object(item, f"{at}[{i}]"), NAT, f"{at}[{i}]")
        for field in NAT:
            if values[field.attr] is None:
                raise Wrong(f"{at}[{i}].{field.name}", "an IP address", None)
        nats.append(IPNAT(**values, extra=extra))
    return tuple(nats)


def _render_nats(nats: Any) -> list[dict[str, Any]]:
    return [encode_fields(attributes_of(nat, NAT), NAT, nat.extra) for nat in nats]


def _parse_ports(raw: Any, at: str) -> tuple[EndpointPort, ...]:
    ports = []
    for i, item in enumerate(parse_list(raw, at)):
        values, extra = decode_fields(parse_object(item, f"{at}[{i}]"), PORT, f"{at}[{i}]")
        ports.append(EndpointPort(**values, extra=extra))
    return tuple(ports)


def _render_ports(ports: Any) -> list[dict[str, Any]]:
    return [encode_fields(attributes_of(port, PORT), PORT, port.extra) for port in ports]


ENDPOINT: Table = (
    text("orchestrator", "orchestrator", always=True),
    text("workload", "workload"),
    text("node", "node", always=True),
    text("containerID", "container_id"),
    text("pod", "pod"),
    text("serviceAccountName", "service_account"),
    text("endpoint", "endpoint", always=True),
    Field("ipNetworks", "ip_networks", parse_networks, (), render_text_list),
    Field("ipNATs", "ip_nats", _parse_nats, (), _render_nats),
    Field("profiles", "profiles", parse_texts, (), render_list),
    text("interfaceName", "interface_name", always=True),
    text("mac", "mac"),
    Field("ports", "ports", _parse_ports, (), _render_ports),
    Field("allowSpoofedSourcePrefixes", "allow_spoofed_source_prefixes", parse_networks, (), render_text_list),
    Field("qosControls", "qos_controls", parse_object, None),
)


def _encode(kind: str, record: Any, spec: JSON, status: JSON | None = None) -> dict[str, Any]:
    document = document_of(record.extra)
    top = {} if document is None else unknown_top(document)
    return build_document(kind, record.metadata, spec, status, top, document)


# -- pools ------------------------------------------------------------------------------------------------------------


def _allocatable(status: JSON | None) -> bool:
    conditions = None if status is None else status.get("conditions")
    if conditions is None:
        return True
    return not any(
        condition.get("type") == "Allocatable" and condition.get("status") == "False"
        for condition in parse_objects(conditions, "status.conditions")
    )


def read_pool(raw: JSON, key: ResourceKey) -> IPPool:
    metadata, spec, status = read_head(raw, key)
    values, unknown = decode_fields(spec, POOL, "spec")
    cidr = values["cidr"]
    if cidr is None:
        raise Wrong("spec.cidr", "a network in CIDR notation", None)
    values["block_size"] = values["block_size"] or BLOCK_SIZE[cidr.version]
    if not 0 < values["block_size"] <= cidr.max_prefixlen:
        raise Wrong("spec.blockSize", f"a prefix length up to {cidr.max_prefixlen}", values["block_size"])
    extra = SpecUnknown(unknown, raw)
    return IPPool(metadata, **values, allocatable=_allocatable(status), extra=extra, status=status)


def encode_pool(pool: IPPool) -> dict[str, Any]:
    values = attributes_of(pool, POOL)
    source = source_of(pool.extra)
    if source is not None and not source.get("blockSize") and pool.block_size == BLOCK_SIZE[pool.cidr.version]:
        values["block_size"] = 0
    return _encode("IPPool", pool, encode_fields(values, POOL, pool.extra), pool.status)


# -- nodes ------------------------------------------------------------------------------------------------------------


def read_node(raw: JSON, key: ResourceKey) -> Node:
    metadata, spec, status = read_head(raw, key)
    bgp = spec.get("bgp")
    bgp_values, bgp_extra = decode_fields({} if bgp is None else parse_object(bgp, "spec.bgp"), NODE_BGP, "spec.bgp")
    values, unknown = decode_fields(spec, NODE, "spec")
    unknown.pop("bgp", None)
    return Node(
        metadata,
        **values,
        **bgp_values,
        bgp_extra=bgp_extra,
        extra=SpecUnknown(unknown, raw),
        status=status,
        bgp_present=bgp is not None,
    )


def encode_node(node: Node) -> dict[str, Any]:
    spec = encode_fields(attributes_of(node, NODE), NODE, node.extra)
    bgp = encode_fields(attributes_of(node, NODE_BGP), NODE_BGP, node.bgp_extra)
    if bgp or node.bgp_present:
        spec["bgp"] = bgp
    elif "bgp" in (source_of(node.extra) or {}):
        spec["bgp"] = None
    return _encode("Node", node, spec, node.status)


# -- the others -------------------------------------------------------------------------------------------------------


def _pass_status(record: Any) -> JSON | None:
    """Keep the status, as it was read, of a kind whose class has none."""
    document = document_of(record.extra)
    return None if document is None else document.get("status")


def read_reservation(raw: JSON, key: ResourceKey) -> IPReservation:
    metadata, spec, _ = read_head(raw, key)
    values, unknown = decode_fields(spec, RESERVATION, "spec")
    return IPReservation(metadata, **values, extra=SpecUnknown(unknown, raw))


def encode_reservation(record: IPReservation) -> dict[str, Any]:
    spec = encode_fields(attributes_of(record, RESERVATION), RESERVATION, record.extra)
    return _encode("IPReservation", record, spec, _pass_status(record))


def read_cluster_information(raw: JSON, key: ResourceKey) -> ClusterInformation:
    metadata, spec, _ = read_head(raw, key)
    values, unknown = decode_fields(spec, CLUSTER, "spec")
    return ClusterInformation(metadata, **values, extra=SpecUnknown(unknown, raw))


def encode_cluster_information(record: ClusterInformation) -> dict[str, Any]:
    spec = encode_fields(attributes_of(record, CLUSTER), CLUSTER, record.extra)
    return _encode("ClusterInformation", record, spec, _pass_status(record))


def read_endpoint(raw: JSON, key: ResourceKey) -> WorkloadEndpoint:
    metadata, spec, _ = read_head(raw, key)
    values, unknown = decode_fields(spec, ENDPOINT, "spec")
    return WorkloadEndpoint(metadata, **values, extra=SpecUnknown(unknown, raw))


def encode_endpoint(record: WorkloadEndpoint) -> dict[str, Any]:
    spec = encode_fields(attributes_of(record, ENDPOINT), ENDPOINT, record.extra)
    return _encode("WorkloadEndpoint", record, spec, _pass_status(record))
