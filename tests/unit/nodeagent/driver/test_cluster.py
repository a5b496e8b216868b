"""What a driver is told of the cluster: upstream's messages, in upstream's order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict

from cni_calico.model.wireguard import with_published_address, with_published_key
from cni_calico.nodeagent.driver.cluster import OTHER, encode_bgp, encode_facts, encode_service
from cni_calico.nodeagent.driver.services import FollowedServices
from cni_calico.nodeagent.driver.stream import DriverStream
from cni_calico.nodeagent.sync.felix_pb2 import ToDataplane
from tests.unit.nodeagent.fabric import NODES, block, pool, snapshot, workload

KEY = "+" * 43 + "="
WEB = workload("web", "calia", "10.65.1.2/32")


def read(data: bytes) -> tuple[str, dict[str, Any]]:
    message = ToDataplane.FromString(data)
    kind = message.WhichOneof("payload")
    assert kind is not None
    return kind, MessageToDict(getattr(message, kind), preserving_proto_field_name=True)


def told(*messages: bytes) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for kind, content in map(read, messages):
        found.setdefault(kind, []).append(content)
    return found


def updates(*pools: Any, **more: Any) -> dict[str, list[dict[str, Any]]]:
    return told(*(update for update, _ in encode_facts(snapshot(*pools, **more)).values()))


def route_to(dst: str, *pools: Any, **more: Any) -> dict[str, Any]:
    (found,) = (one for one in updates(*pools, **more)["route_update"] if one["dst"] == dst)
    return found


@pytest.mark.parametrize(
    ("dst", "expected"),
    [
        ("10.65.0.0/16", {"ip_pool_type": "VXLAN", "nat_outgoing": True}),
        ("10.65.1.0/26", {"dst_node_name": "n1", "dst_node_ip": "10.0.0.1", "types": 4, "same_subnet": True}),
        ("10.65.2.0/26", {"dst_node_name": "n2", "dst_node_ip": "10.0.0.2", "types": 1, "same_subnet": True}),
        ("10.65.3.0/26", {"dst_node_name": "n3", "dst_node_ip": "10.0.9.3", "types": 1}),
        ("10.65.1.2/32", {"dst_node_name": "n1", "types": 4, "local_workload": True}),
        ("10.65.1.5/32", {"dst_node_name": "n3", "dst_node_ip": "10.0.9.3", "types": 1, "borrowed": True}),
        ("10.65.2.0/32", {"dst_node_name": "n2", "types": 16, "tunnel_type": {"vxlan": True}}),
        ("10.65.1.1/32", {"dst_node_name": "n1", "types": 32, "tunnel_type": {"ipip": True}}),
        ("10.0.0.1/32", {"dst_node_name": "n1", "types": 8}),
        ("10.0.9.3/32", {"dst_node_name": "n3", "types": 2, "dst_node_ip": "10.0.9.3"}),
        ("fd00::2/128", {"dst_node_name": "n2", "types": 2, "dst_node_ip": "fd00::2"}),
        ("10.65.9.0/26", {"dst_node_name": "gone", "types": 1}),
    ],
)
def test_routes(dst: str, expected: dict[str, Any]) -> None:
    blocks = (
        *(block(f"10.65.{i}.0/26", f"n{i}") for i in (2, 3)),
        block("10.65.1.0/26", "n1", n3="10.65.1.5"),
        block("10.65.9.0/26", "gone"),
    )
    found = route_to(dst, pool("10.65.0.0/16", vxlan="CrossSubnet", nat_outgoing=True), blocks=blocks, endpoints=[WEB])
    assert found.items() >= expected.items()
    inside = dst.startswith("10.65.")
    assert (found.get("ip_pool_type"), found.get("nat_outgoing")) == (("VXLAN", True) if inside else (None, None))
    assert not found.keys() - expected.keys() - {"dst", "ip_pool_type", "nat_outgoing", "dst_node_ip", "same_subnet"}


def test_one_network_is_one_route_of_all_kinds() -> None:
    nodes = {**NODES, "n2": replace(NODES["n2"], ipv4_vxlan_tunnel=NODES["n2"].ipv4.ip)}
    both = route_to("10.0.0.2/32", nodes=nodes)
    assert both["types"] == 2 | 16 and both["tunnel_type"] == {"vxlan": True}
    lent = block("10.65.2.0/26", "n2", n1="10.65.2.9")
    mine = workload("web", "calia", "10.65.2.9/32")
    held = route_to("10.65.2.9/32", pool("10.65.0.0/16", ipip="Always"), blocks=[lent], endpoints=[mine])
    assert held.items() >= {"types": 4, "local_workload": True, "borrowed": True, "ip_pool_type": "IPIP"}.items()


def test_tunnel_ends_are_of_families_with_vxlan() -> None:
    assert "vtep_update" not in updates(pool("10.65.0.0/16", ipip="Always"))
    one = updates(pool("10.65.0.0/16", vxlan="Always"))["vtep_update"][1]
    assert one.items() >= {"node": "n2", "ipv4_addr": "10.65.2.0", "parent_device_ip": "10.0.0.2"}.items()
    assert one["mac"].startswith("66:") and "ipv6_addr" not in one
    both = updates(pool("10.65.0.0/16", vxlan="Always"), pool("fd65::/64", vxlan="CrossSubnet"))["vtep_update"][1]
    assert (both["ipv6_addr"], both["parent_device_ipv6"]) == ("fd65::2:0", "fd00::2") and both["mac_v6"] != one["mac"]


def test_hosts_have_addresses_and_keys() -> None:
    with_key = with_published_address(with_published_key(NODES["n1"], 4, KEY), 4, NODES["n1"].ipv4.ip)
    found = updates(nodes={"n1": with_published_key(with_key, 6, KEY)})
    assert found["host_metadata_update"] == [{"hostname": "n1", "ipv4_addr": "10.0.0.1"}]
    assert found["host_metadata_v6_update"] == [{"hostname": "n1", "ipv6_addr": "fd00::1"}]
    assert found["host_metadata_v4v6_update"][0]["ipv4_addr"] == "10.0.0.1/24"
    key = {"hostname": "n1", "public_key": KEY, "interface_ipv4_addr": "10.0.0.1"}
    assert found["wireguard_endpoint_update"] == [key]
    assert found["wireguard_endpoint_v6_update"] == [{"hostname": "n1", "public_key_v6": KEY}]


def test_pools_say_for_whom_they_are() -> None:
    (found,) = updates(pool("10.65.0.0/16", allowed_uses=("Workload",), vxlan="CrossSubnet"))["ipam_pool_update"]
    wanted = {"cidr": "10.65.0.0/16", "vxlan_mode": "cross-subnet", "allowed_uses": ["Workload"]}
    assert found == {"id": "10.65.0.0-16", "pool": wanted}


def test_bgps_configuration() -> None:
    spec = {
        "serviceClusterIPs": [{"cidr": "10.96.0.0/12"}, {"cidr": 5}, "x"],
        "serviceExternalIPs": None,
        "serviceLoadBalancerIPs": [{"cidr": "192.0.2.0/24"}],
        "localWorkloadPeeringIPV4": "169.254.1.9",
    }
    assert told(encode_bgp(spec)) == {
        "global_bgp_config_update": [
            {
                "service_cluster_cidrs": ["10.96.0.0/12"],
                "service_loadbalancer_cidrs": ["192.0.2.0/24"],
                "local_workload_peering_ip_v4": "169.254.1.9",
            }
        ]
    }
    assert told(encode_bgp({})) == {"global_bgp_config_update": [{}]}


def test_services() -> None:
    ports = [
        {"port": 80, "protocol": "TCP", "nodePort": 30080},
        {"port": "x"},
        None,
        {"port": 1 << 40, "protocol": "UDP"},
    ]
    spec = {"type": "NodePort", "clusterIP": "10.96.0.1", "externalIPs": ["192.0.2.1", 3], "ports": ports}
    update, removal = encode_service("shop", "web", {"spec": spec})
    assert read(update)[1] == {
        "name": "web",
        "namespace": "shop",
        "type": "NodePort",
        "cluster_ips": ["10.96.0.1"],
        "external_ips": ["192.0.2.1"],
        "ports": [{"Protocol": "TCP", "Port": 80, "NodePort": 30080}, {"Protocol": "TCP"}, {"Protocol": "UDP"}],
    }
    assert read(removal) == ("service_remove", {"name": "web", "namespace": "shop"})
    for hostile in (None, [], "x", {"ports": 5, "clusterIPs": {}, "externalIPs": "10.0.0.1", "type": 7}):
        assert read(encode_service("shop", "web", {"spec": hostile})[0])[1].keys() == {"name", "namespace"}


def test_without_kubernetes_nothing_waits_for_services() -> None:
    services = FollowedServices(None, lambda: None)
    assert services.complete and not services.problem and not services.facts()


def test_the_order() -> None:
    """A tunnel's end is there before the routes over it, and longer; what is as it was is not told again."""
    stream, vxlan = DriverStream(), pool("10.65.0.0/16", vxlan="Always")
    first = encode_facts(snapshot(vxlan))
    kinds = [read(message)[0] for message in stream.become(first)]
    assert kinds[0] == "vtep_update" and kinds[-1] == "encapsulation"
    assert [kind for i, kind in enumerate(kinds) if kind not in kinds[:i]] == [
        *(
            "vtep_update",
            "route_update",
            "host_metadata_update",
            "host_metadata_v6_update",
            "host_metadata_v4v6_update",
        ),
        *("ipam_pool_update", "encapsulation"),
    ]
    assert not list(stream.become(first))
    fewer = {name: node for name, node in NODES.items() if name != "n3"}
    second = list(stream.become(encode_facts(snapshot(vxlan, nodes=fewer)) | {(OTHER, "BGP"): (encode_bgp({}), b"")}))
    kinds = [read(message)[0] for message in second]
    assert kinds.index("vtep_remove") == kinds.count("route_remove") > 0
    assert [content["dst"] for kind, content in map(read, second) if kind == "route_update"] == [
        *("10.65.3.0/26", "fd65::3:0/122")
    ]  # nobody knows its node's address any more
    assert kinds[-3:] == ["host_metadata_remove", "host_metadata_v6_remove", "host_metadata_v4v6_remove"]
