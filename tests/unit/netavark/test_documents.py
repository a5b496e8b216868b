"""podman's documents: what a network may ask for, and what a container's membership becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cni_calico.cni.fields import JsonFields
from cni_calico.errors import InvalidConfig
from cni_calico.netavark.documents import parse_document, parse_membership, plan_network, render_status

NETWORK: dict[str, Any] = {
    "name": "pods",
    "id": "2f25",
    "driver": "calico",
    "subnets": None,
    "ipv6_enabled": False,
    "internal": False,
    "dns_enabled": True,
    "ipam_options": {"driver": "host-local"},
    "options": {
        "etcd_endpoints": "https://10.0.0.1:2379",
        "datastore_type": "etcdv3",
        "ipv4_pools": "a, b",
        "mtu": "1400",
    },
}
CONTAINER: dict[str, Any] = {
    "container_id": "c1",
    "container_name": "web",
    "port_mappings": [
        {"container_port": 80, "host_ip": "127.0.0.1", "host_port": 8080, "protocol": "tcp,udp", "range": 2},
    ],
    "network": NETWORK,
    "network_options": {"aliases": ["c1"], "interface_name": "eth0", "static_ips": ["10.1.0.7"], "static_mac": None},
}


def test_a_network_keeps_its_name_id_and_driver_and_gets_no_addresses_from_podman() -> None:
    planned = plan_network(JsonFields(NETWORK))
    assert planned == {**NETWORK, "dns_enabled": False, "ipam_options": {"driver": "none"}, "subnets": []}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"subnets": [{"subnet": "10.0.0.0/16"}]}, "--subnet"),
        ({"internal": True}, "--internal"),
        ({"network_interface": "br0"}, "--interface-name"),
        ({"options": {"datastore": "etcd"}}, "'datastore'"),
        ({"options": {"datastore_type": "redis"}}, "redis"),
        ({"options": {"mtu": "many"}}, "mtu"),
        ({"options": {"ipv4_pools": "fd00::/64"}}, "IPv4 pools"),
        ({"options": "x"}, "options"),
        ({"name": "a b"}, "network name"),
        ({"name": None}, "network name"),
    ],
)
def test_what_cannot_be_given_is_refused_when_the_network_is_made(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfig, match="^.*" + said):
        plan_network(JsonFields({**NETWORK, **changed}))


def test_a_connection_is_a_cni_call() -> None:
    membership = parse_membership(JsonFields(CONTAINER))
    assert (membership.container, membership.interface, membership.address) == ("c1", "eth0", "10.1.0.7")
    assert membership.configuration == {
        "cniVersion": "1.0.0",
        "name": "pods",
        "type": "calico",
        "datastore_type": "etcdv3",
        "etcd_endpoints": "https://10.0.0.1:2379",
        "mtu": "1400",
        "nodename_file_optional": True,
        "ipam": {"type": "calico-ipam", "ipv4_pools": ["a", "b"]},
    }
    result = {"cniVersion": "1.0.0", "ips": []}
    document = membership.portmap(result)
    assert document["prevResult"] == result and document["name"] == "pods"
    assert document["runtimeConfig"]["portMappings"] == [
        {"hostPort": host, "containerPort": port, "protocol": protocol, "hostIP": "127.0.0.1"}
        for protocol in ("tcp", "udp")
        for host, port in ((8080, 80), (8081, 81))
    ]


def test_from_whom_the_networks_profile_lets_in_is_an_option() -> None:
    chosen = {**CONTAINER, "network": {**NETWORK, "options": {"profile_ingress": "anyone"}}}
    assert parse_membership(JsonFields(chosen)).configuration["profile_ingress"] == "anyone"
    with pytest.raises(InvalidConfig, match="profile_ingress"):
        plan_network(JsonFields({**NETWORK, "options": {"profile_ingress": "all"}}))


def test_the_embedded_datastore_is_what_a_network_without_options_has() -> None:
    plain = {**CONTAINER, "network": {**NETWORK, "options": None, "ipv6_enabled": True}, "port_mappings": None}
    membership = parse_membership(JsonFields(plain))
    assert membership.configuration["datastore_type"] == "local" and membership.ports == ()
    assert membership.configuration["ipam"] == {"type": "calico-ipam", "assign_ipv6": "true"}


@pytest.mark.parametrize(
    "changed",
    [
        {"container_id": ""},
        {"network_options": {}},
        {"network_options": {"interface_name": "eth0", "static_mac": "aa:bb:cc:dd:ee:ff"}},
        {"network_options": {"interface_name": "eth0", "static_ips": ["10.0.0.1", "10.0.0.2"]}},
        {"network_options": {"interface_name": "eth0", "static_ips": ["ten"]}},
        {"port_mappings": [{"container_port": 80, "host_port": 65535, "range": 2}]},
        {"port_mappings": [{"container_port": 1, "host_port": 1, "range": 65535}] * 4},
        {"port_mappings": [{"container_port": 0, "host_port": 80}]},
        {"port_mappings": ["80"]},
    ],
)
def test_a_connection_that_cannot_be_made_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        parse_membership(JsonFields({**CONTAINER, **changed}))


@pytest.mark.parametrize("stdin", [b"", b"[]", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_document_is_refused(stdin: bytes) -> None:
    with pytest.raises(InvalidConfig):
        parse_document(stdin)


def test_podman_is_told_the_containers_own_end() -> None:
    result = {
        "interfaces": [
            {"name": "cali1", "mac": "ee:ee:ee:ee:ee:ee"},
            {"name": "eth0", "mac": "aa:aa:aa:aa:aa:aa", "sandbox": "/n"},
        ],
        "ips": [{"address": "10.1.0.7/32", "interface": 1}, {"address": "fd00::7/128"}],
    }
    assert json.loads(json.dumps(render_status(result, "eth0"))) == {
        "dns_search_domains": [],
        "dns_server_ips": [],
        "interfaces": {
            "eth0": {
                "mac_address": "aa:aa:aa:aa:aa:aa",
                "subnets": [{"ipnet": "10.1.0.7/32"}, {"ipnet": "fd00::7/128"}],
            }
        },
    }
