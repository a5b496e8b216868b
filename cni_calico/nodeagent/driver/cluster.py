"""What a driver is told of the cluster besides policy, as messages (felix.proto): what is where.

Rule: it is what is stored, with upstream's defaults; nothing of this node's kernel is in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cni_calico.model.resources import IPPool, Node
from cni_calico.model.wireguard import published_address, published_key
from cni_calico.nodeagent.dataplane.encapsulation import encapsulation_of, endpoint_of
from cni_calico.nodeagent.driver.routes import DriverRoute, desired_driver_routes
from cni_calico.nodeagent.sync.messages import encode_envelope, utf8
from cni_calico.nodeagent.view.snapshot import Snapshot
from cni_calico.slim_grpc import slim_messages

with slim_messages():
    from cni_calico.nodeagent.sync import felix_pb2 as pb

ROUTE, VTEP, OTHER = "route", "vtep", ""
_ENCAPSULATIONS = {"Always": "always", "CrossSubnet": "cross-subnet"}
_POOL_TYPES = {"none": pb.NO_ENCAP, "vxlan": pb.VXLAN, "ipip": pb.IPIP}
_SERVICE_FIELDS = ("serviceClusterIPs", "serviceExternalIPs", "serviceLoadBalancerIPs")
_LISTS = ("clusterIPs", "externalIPs")
_PEERING_FIELDS = ("localWorkloadPeeringIPV4", "localWorkloadPeeringIPV6")
FactName = tuple[str, str]  # ROUTE, VTEP or OTHER, and its name
Fact = tuple[bytes, bytes]  # what tells it, and what takes it back (b"": nothing does)


def encode_facts(snapshot: Snapshot) -> dict[FactName, Fact]:
    """Routes, VXLAN's tunnel ends, hosts with their WireGuard, pools, and which encapsulation there is, in the order of
    telling.
    """
    nodes = snapshot.nodes.values()
    found: dict[FactName, Fact] = {(ROUTE, str(dst)): _route(route) for dst, route in _sorted_routes(snapshot)}
    families: set[int] = {pool.cidr.version for pool in snapshot.pools if pool.vxlan_mode != "Never"}
    found |= {(VTEP, node.metadata.name): fact for node in nodes if (fact := _vtep(node, families)) is not None}
    for node in nodes:
        found |= {(OTHER, f"{kind} {node.metadata.name}"): fact for kind, fact in _host(node)}
    found |= {(OTHER, f"pool {pool.cidr}"): _pool(pool) for pool in snapshot.pools}
    encapsulation = pb.Encapsulation(
        ipip_enabled=any(pool.ipip_mode != "Never" for pool in snapshot.pools),
        vxlan_enabled=4 in families,
        vxlan_enabled_v6=6 in families,
    )
    return {**found, (OTHER, "encapsulation"): (encode_envelope(encapsulation=encapsulation), b"")}


def _sorted_routes(snapshot: Snapshot) -> list[tuple[Any, DriverRoute]]:
    routes = desired_driver_routes(snapshot).items()
    return sorted(routes, key=lambda item: (item[0].version, item[0].network_address, item[0].prefixlen))


def _route(route: DriverRoute) -> Fact:
    pool = route.pool
    update = pb.RouteUpdate(
        ip_pool_type=pb.NONE if pool is None else _POOL_TYPES[encapsulation_of(pool)[0]],
        dst=str(route.dst),
        dst_node_name=utf8(route.node),
        dst_node_ip="" if route.address is None else str(route.address),
        same_subnet=route.same_subnet,
        nat_outgoing=pool is not None and pool.nat_outgoing,
        local_workload=route.local_workload,
        borrowed=route.borrowed,
        types=route.types,
        tunnel_type=pb.TunnelType(**dict.fromkeys(route.tunnels, True)) if route.tunnels else None,
    )
    return encode_envelope(route_update=update), encode_envelope(route_remove=pb.RouteRemove(dst=str(route.dst)))


def _vtep(node: Node, families: set[int]) -> Fact | None:
    """``families``: those that have a pool with VXLAN."""
    name = utf8(node.metadata.name)
    found: dict[str, str] = {}
    for family, mac, address, parent in (
        (4, "mac", "ipv4_addr", "parent_device_ip"),
        (6, "mac_v6", "ipv6_addr", "parent_device_ipv6"),
    ):
        end = endpoint_of(node, family) if family in families else None
        if end is not None and end.vtep is not None:
            found |= {mac: end.mac, address: str(end.vtep), parent: str(end.address)}
    if not found:
        return None
    update = pb.VXLANTunnelEndpointUpdate(node=name, **found)
    removal = pb.VXLANTunnelEndpointRemove(node=name)
    return encode_envelope(vtep_update=update), encode_envelope(vtep_remove=removal)


def _host(node: Node) -> Iterator[tuple[str, Fact]]:
    name = utf8(node.metadata.name)
    v4 = "" if node.ipv4 is None else str(node.ipv4.ip)
    v6 = "" if node.ipv6 is None else str(node.ipv6.ip)
    if v4:
        update = pb.HostMetadataUpdate(hostname=name, ipv4_addr=v4)
        removal = pb.HostMetadataRemove(hostname=name)
        yield "v4 of", (encode_envelope(host_metadata_update=update), encode_envelope(host_metadata_remove=removal))
    if v6:
        update_v6, removal_v6 = (
            pb.HostMetadataV6Update(hostname=name, ipv6_addr=v6),
            pb.HostMetadataV6Remove(hostname=name),
        )
        told, gone = (
            encode_envelope(host_metadata_v6_update=update_v6),
            encode_envelope(host_metadata_v6_remove=removal_v6),
        )
        yield "v6 of", (told, gone)
    both = pb.HostMetadataV4V6Update(
        hostname=name,
        ipv4_addr="" if node.ipv4 is None else str(node.ipv4),
        ipv6_addr="" if node.ipv6 is None else str(node.ipv6),
        asnumber="" if node.as_number is None else str(node.as_number),
        labels={utf8(key): utf8(text) for key, text in node.metadata.labels.items()},
    )
    gone = encode_envelope(host_metadata_v4v6_remove=pb.HostMetadataV4V6Remove(hostname=name))
    yield "host", (encode_envelope(host_metadata_v4v6_update=both), gone)
    yield from _wireguard(node, name)


def _wireguard(node: Node, name: str) -> Iterator[tuple[str, Fact]]:
    """Of a node that says a key."""
    keys = {family: utf8(published_key(node, family)) for family in (4, 6)}
    addresses = {family: published_address(node, family) for family in (4, 6)}
    texts = {family: "" if address is None else str(address) for family, address in addresses.items()}
    if keys[4]:
        update = pb.WireguardEndpointUpdate(hostname=name, public_key=keys[4], interface_ipv4_addr=texts[4])
        gone = encode_envelope(wireguard_endpoint_remove=pb.WireguardEndpointRemove(hostname=name))
        yield "WireGuard of", (encode_envelope(wireguard_endpoint_update=update), gone)
    if keys[6]:
        update_v6 = pb.WireguardEndpointV6Update(hostname=name, public_key_v6=keys[6], interface_ipv6_addr=texts[6])
        gone = encode_envelope(wireguard_endpoint_v6_remove=pb.WireguardEndpointV6Remove(hostname=name))
        yield "WireGuard of v6", (encode_envelope(wireguard_endpoint_v6_update=update_v6), gone)


def _pool(pool: IPPool) -> Fact:
    name = str(pool.cidr).replace("/", "-")
    message = pb.IPAMPool(
        cidr=str(pool.cidr),
        masquerade=pool.nat_outgoing,
        ipip_mode=_ENCAPSULATIONS.get(pool.ipip_mode, ""),
        vxlan_mode=_ENCAPSULATIONS.get(pool.vxlan_mode, ""),
        allowed_uses=map(utf8, pool.allowed_uses),
    )
    update = pb.IPAMPoolUpdate(id=name, pool=message)
    return encode_envelope(ipam_pool_update=update), encode_envelope(ipam_pool_remove=pb.IPAMPoolRemove(id=name))


def encode_bgp(spec: Mapping[str, Any]) -> bytes:
    """Of the BGPConfiguration ``default``; {} for none. What is no text there is left out: the part of the agent that
    announces names it.
    """
    networks = [[text for entry in _listed(spec.get(field)) if (text := _text_of(entry))] for field in _SERVICE_FIELDS]
    v4, v6 = (_text(spec, field) for field in _PEERING_FIELDS)
    update = pb.GlobalBGPConfigUpdate(
        service_cluster_cidrs=networks[0],
        service_external_cidrs=networks[1],
        service_loadbalancer_cidrs=networks[2],
        local_workload_peering_ip_v4=v4,
        local_workload_peering_ip_v6=v6,
    )
    return encode_envelope(global_bgp_config_update=update)


def _listed(raw: Any) -> list[Any]:
    return raw if isinstance(raw, list) else []


def _text_of(entry: Any) -> str:
    text = entry.get("cidr") if isinstance(entry, Mapping) else None
    return utf8(text) if isinstance(text, str) else ""


def encode_service(namespace: str, name: str, service: Mapping[str, Any]) -> Fact:
    """A Service of Kubernetes: its ``spec`` and ``status``, as they are stored; parts of another form are left out."""
    spec = service.get("spec")
    spec = spec if isinstance(spec, Mapping) else {}
    texts = {field: [utf8(one) for one in _listed(spec.get(field)) if isinstance(one, str)] for field in _LISTS}
    cluster = texts["clusterIPs"] or [utf8(one) for one in (spec.get("clusterIP"),) if isinstance(one, str) and one]
    update = pb.ServiceUpdate(
        name=utf8(name),
        namespace=utf8(namespace),
        type=_text(spec, "type"),
        cluster_ips=cluster,
        loadbalancer_ip=_text(spec, "loadBalancerIP"),
        external_ips=texts["externalIPs"],
        ports=[_port(port) for port in _listed(spec.get("ports")) if isinstance(port, Mapping)],
    )
    removal = pb.ServiceRemove(name=utf8(name), namespace=utf8(namespace))
    return encode_envelope(service_update=update), encode_envelope(service_remove=removal)


def _text(fields: Mapping[str, Any], name: str) -> str:
    text = fields.get(name)
    return utf8(text) if isinstance(text, str) else ""


def _port(port: Mapping[str, Any]) -> Any:
    numbers = {field: port.get(field) for field in ("port", "nodePort")}
    known = {
        field: number if isinstance(number, int) and 0 <= number < 1 << 16 else 0 for field, number in numbers.items()
    }
    return pb.ServicePort(Protocol=_text(port, "protocol") or "TCP", Port=known["port"], NodePort=known["nodePort"])
