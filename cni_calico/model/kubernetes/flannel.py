"""PURE: what flannel has written into a Kubernetes Node, so that the others find it.

Rule: only its VXLAN with Kubernetes as its datastore, and only IPv4. What is incomplete, or is not as flannel writes
it, says nothing: a Node of another network has no end of tunnels here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Any

PREFIX = "flannel.alpha.coreos.com/"
DATA, TYPE, MANAGER, PUBLIC = (
    f"{PREFIX}{name}" for name in ("backend-data", "backend-type", "kube-subnet-manager", "public-ip")
)
ANNOTATIONS = (DATA, TYPE, MANAGER, PUBLIC)
FLANNEL = "flannel"  # in a Node document's status
_MAC = re.compile(r"(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}")


@dataclass(frozen=True, slots=True)
class FlannelEnd:
    """A node's end of flannel's tunnels. ``address``: the node's; ``vtep``: the device's, the first of its pod CIDR."""

    address: IPv4Address
    vtep: IPv4Address
    mac: str
    vni: int


def read_end(annotations: Mapping[str, str], pod_cidr: object) -> FlannelEnd | None:
    """``pod_cidr``: the Node's IPv4 one."""
    if annotations.get(TYPE) != "vxlan" or annotations.get(MANAGER) != "true":
        return None
    try:
        data = json.loads(annotations.get(DATA) or "")
        network, address = IPv4Network(pod_cidr), IPv4Address(annotations.get(PUBLIC) or "")
        mac, vni = data["VtepMAC"], data.get("VNI", 1)
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError):
        return None
    if not isinstance(mac, str) or not _MAC.fullmatch(mac) or not isinstance(vni, int) or isinstance(vni, bool):
        return None
    return FlannelEnd(address, network.network_address, mac.lower(), vni)


def render_end(end: FlannelEnd) -> dict[str, Any]:
    """For a Node document's status."""
    return {"address": str(end.address), "vtep": str(end.vtep), "mac": end.mac, "vni": end.vni}


def parse_end(status: Mapping[str, Any] | None) -> FlannelEnd | None:
    """What ``render_end`` has put into a Node's status."""
    found = (status or {}).get(FLANNEL)
    if not isinstance(found, Mapping):
        return None
    return FlannelEnd(IPv4Address(found["address"]), IPv4Address(found["vtep"]), found["mac"], found["vni"])
