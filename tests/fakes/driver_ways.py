"""What the naive driver has been told of the cluster besides policy, and the way to an address that follows from it."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Any

from google.protobuf.json_format import MessageToDict

KINDS = (
    *("route", "vtep", "host_metadata_v4v6", "host_metadata", "host_metadata_v6", "ipam_pool", "service"),
    *("wireguard_endpoint", "wireguard_endpoint_v6"),
)
NAMES = ("dst", "node", "hostname", "id")
PLAIN, IPIP = 1, 3
REMOTE_WORKLOAD = 1


class ToldCluster:
    """``wrong``: what was taken back without having come."""

    def __init__(self) -> None:
        self.of: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}
        self.bgp: Any = None
        self.wrong: list[str] = []

    def receive(self, kind: str, one: Any) -> None:
        what, _, change = kind.rpartition("_")
        if kind == "global_bgp_config_update":
            self.bgp = one
        if what not in self.of:
            return
        name = next((getattr(one, field) for field in NAMES if hasattr(one, field)), None)
        name = f"{one.namespace}/{one.name}" if name is None else name
        if change == "update":
            self.of[what][name] = one
        elif self.of[what].pop(name, None) is None:
            self.wrong.append(f"{kind} of {name}, which is not there")

    def as_json(self) -> dict[str, Any]:
        told = {kind: {name: MessageToDict(one) for name, one in of.items()} for kind, of in self.of.items() if of}
        return told if self.bgp is None else {**told, "bgp": MessageToDict(self.bgp)}

    def way(self, address: str) -> list[str] | None:
        """[device, next hop] to another node's workload; [] to this node's own; None if there is none."""
        its = ip_address(address)
        fitting = [route for dst, route in self.of["route"].items() if its in ip_network(dst)]
        route = max(fitting, key=lambda one: ip_network(one.dst).prefixlen, default=None)
        if route is None or not route.types:
            return None
        if not route.types & REMOTE_WORKLOAD:
            return []
        if not route.dst_node_ip:
            return None
        if route.ip_pool_type == PLAIN or route.same_subnet:
            return ["eth0", route.dst_node_ip]
        if route.ip_pool_type == IPIP:
            return ["tunl0", route.dst_node_ip]
        end = self.of["vtep"].get(route.dst_node_name)
        device, hop = ("vxlan.calico", "ipv4_addr") if its.version == 4 else ("vxlan-v6.calico", "ipv6_addr")
        return [device, getattr(end, hop)] if end is not None and getattr(end, hop) else None
