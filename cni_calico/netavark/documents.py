"""PURE: translates netavark's documents into CNI's and back. Rule: a network keeps its name, id and driver; a request
that cannot be fulfilled is refused when the network is created, or before anything is done. Source: netavark's plugin
API, version 1.0.0 (create, setup, teardown, info).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface
from typing import Any

from cni_calico.cni.environment import MAX_ID
from cni_calico.cni.fields import JsonFields
from cni_calico.cni.netconf import parse_netconf
from cni_calico.errors import InvalidConfig
from cni_calico.model.documents.fields import brief
from cni_calico.model.names import valid_identifier

CNI_VERSION = "1.0.0"
# podman's "-o NAME=VALUE": a key of the network configuration (docs/configuration.md), as text
TOP = (
    "datastore_type", "datastore_path", "etcd_endpoints", "etcd_ca_cert_file", "etcd_cert_file", "etcd_key_file",
    "etcd_discovery_srv", "nodename", "mtu", "log_level", "log_file_path", "profile_ingress",
    "policy_setup_timeout_seconds", "sticky_addresses",
)  # fmt: skip
POOLS = ("ipv4_pools", "ipv6_pools")  # separated by commas
KUBECONFIG = "kubeconfig"
PORTS_MAX = 3 * 65535  # that a container may publish: every one of them with each protocol


@dataclass(frozen=True, slots=True)
class PublishedPort:
    """A published port, or the first one of a range."""

    container_port: int
    host_port: int
    protocol: str
    host_ip: str
    count: int

    def render(self) -> Iterator[Mapping[str, Any]]:
        """The mappings for the plugin ``portmap``, one for each port."""
        for offset in range(self.count):
            rendered = {
                "hostPort": self.host_port + offset,
                "containerPort": self.container_port + offset,
                "protocol": self.protocol,
            }
            yield rendered | ({"hostIP": self.host_ip} if self.host_ip else {})


@dataclass(frozen=True, slots=True)
class Membership:
    """A container's connection to a network: the input of ``setup`` and ``teardown``."""

    container: str
    name: str  # the container's, "" if it is not one that CNI can pass on
    interface: str
    address: str  # asked for, or ""
    ports: tuple[PublishedPort, ...]
    configuration: Mapping[str, Any]  # of the plugin ``calico``

    def portmap(self, result: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """The configuration of ``portmap`` for the published ports."""
        mappings = [one for port in self.ports for one in port.render()]
        document: dict[str, Any] = {
            "cniVersion": CNI_VERSION,
            "name": self.configuration["name"],
            "type": "portmap",
            "runtimeConfig": {"portMappings": mappings},
        }
        return document | ({"prevResult": result} if result is not None else {})


def parse_document(stdin: bytes) -> JsonFields:
    """The JSON object on stdin. Raises InvalidConfig."""
    try:
        document = json.loads(stdin)
    except (ValueError, RecursionError) as e:
        reason = e if isinstance(e, ValueError) else "nested too deeply"
        raise InvalidConfig(f"cannot read the document on stdin: {reason}") from e
    return JsonFields(document)


def plan_network(document: JsonFields) -> Mapping[str, Any]:
    """The network that podman is to store: unchanged, except that podman assigns no addresses.

    Raises InvalidConfig for what this network cannot do, or for an unknown option.
    """
    _configuration(document)
    if document.values.get("subnets"):
        raise InvalidConfig(
            "cannot make the network with --subnet: its addresses come from IP pools",
            details="make a pool with 'calicoctl apply', and name it with '-o ipv4_pools=NAME'",
        )
    if document.flag("internal"):
        raise InvalidConfig(
            "cannot make the network with --internal: it is routed",
            details="keep connections out with a network policy (docs/policy.md)",
        )
    if document.text("network_interface"):
        raise InvalidConfig("cannot make the network with --interface-name: there is no bridge to name")
    return {**document.values, "dns_enabled": False, "ipam_options": {"driver": "none"}, "subnets": []}


def parse_membership(document: JsonFields) -> Membership:
    """Raises InvalidConfig."""
    options = document.section("network_options")
    container, interface = document.text("container_id"), options.text("interface_name")
    if not container or not interface:
        raise InvalidConfig(
            "cannot read the document on stdin: container_id and network_options.interface_name are needed"
        )
    if options.text("static_mac"):
        raise InvalidConfig("cannot give the container a MAC address of its choice (--mac-address)")
    addresses = options.texts("static_ips")
    if len(addresses) > 1:
        raise InvalidConfig(
            f"cannot give the container the addresses {brief(', '.join(addresses))}: one may be chosen (--ip)"
        )
    for address in addresses:
        try:
            ip_address(address)
        except ValueError as e:
            raise InvalidConfig(
                f"cannot give the container the address {brief(repr(address))}: it is not an IP address"
            ) from e
    name = document.text("container_name")
    mappings = [JsonFields(one, "port_mappings.") for one in document.objects("port_mappings")]
    ports = tuple(port for fields in mappings for port in _ports(fields))
    if sum(port.count for port in ports) > PORTS_MAX:
        raise InvalidConfig(f"cannot publish more than {PORTS_MAX} ports of one container: its ranges overlap")
    return Membership(
        container=container,
        name=name if len(name) <= MAX_ID and valid_identifier(name) else "",
        interface=interface,
        address=next(iter(addresses), ""),
        ports=ports,
        configuration=_configuration(document.section("network")),
    )


def _ports(fields: JsonFields) -> Iterator[PublishedPort]:
    host, container = fields.number("host_port", high=65535), fields.number("container_port", high=65535)
    count = fields.number("range", 1, low=1, high=65535)
    if not container or not host or max(host, container) + count - 1 > 65535:
        raise InvalidConfig(f"cannot publish port {host} as {container} and {count - 1} more: ports are 1 to 65535")
    for protocol in fields.text("protocol", "tcp").split(","):
        yield PublishedPort(container, host, protocol.strip().lower(), fields.text("host_ip"), count)


def _configuration(network: JsonFields) -> Mapping[str, Any]:
    """The plugin's network configuration of a network's options."""
    options = network.section("options")
    unknown = sorted(set(options.values) - {*TOP, *POOLS, KUBECONFIG})
    if unknown:
        raise InvalidConfig(
            f"cannot use the option {brief(repr(unknown[0]))}",
            details=f"options are {', '.join((*TOP, *POOLS, KUBECONFIG))}",
        )
    ipam: dict[str, Any] = {"type": "calico-ipam"}
    if network.flag("ipv6_enabled"):
        ipam["assign_ipv6"] = "true"
    for name in POOLS:
        if options.text(name):
            ipam[name] = [pool.strip() for pool in options.text(name).split(",") if pool.strip()]
    configuration: dict[str, Any] = {
        "cniVersion": CNI_VERSION,
        "name": network.text("name"),
        "type": "calico",
        "datastore_type": "local",
        "nodename_file_optional": True,
        "ipam": ipam,
    }
    configuration |= {name: options.text(name) for name in TOP if options.text(name)}
    if options.text(KUBECONFIG):
        configuration["kubernetes"] = {"kubeconfig": options.text(KUBECONFIG)}
    parse_netconf(configuration, {})
    return configuration


def render_status(result: Mapping[str, Any], interface: str) -> Mapping[str, Any]:
    """The status that podman shows: the interface in the container, its MAC and its addresses."""
    fields = JsonFields(result, "result.")
    links = (JsonFields(one, "result.interfaces.") for one in fields.objects("interfaces"))
    mac = next((one.text("mac") for one in links if one.text("sandbox") and one.text("name") == interface), "")
    addresses = (JsonFields(one, "result.ips.").text("address") for one in fields.objects("ips"))
    subnets = [{"ipnet": str(ip_interface(address))} for address in addresses]
    return {
        "dns_search_domains": [],
        "dns_server_ips": [],
        "interfaces": {interface: {"mac_address": mac, "subnets": subnets}},
    }
