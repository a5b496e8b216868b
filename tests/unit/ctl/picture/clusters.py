"""Clusters of any size to be pictured, as records in an embedded store."""

from __future__ import annotations

import random
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from cni_calico.datastore.interface import Write
from cni_calico.datastore.local.store import LocalStore
from cni_calico.deadline import Deadline
from cni_calico.model.documents.codec import encode
from cni_calico.model.keys import BlockKey, ResourceKey
from cni_calico.model.resources import Attribute, Block, Network

INFORMATION = {"datastoreReady": True, "calicoVersion": "v3.32.1", "clusterType": "k8s,bgp"}
MAIN = {"cidr": "10.244.0.0/16", "blockSize": 26, "vxlanMode": "CrossSubnet", "natOutgoing": True}
EVIL = "<script>alert('x')</script>&\"'"


def resource(kind: str, name: str, spec: dict[str, Any], **labels: str) -> Write:
    metadata = {"name": name, "uid": name, "labels": labels}
    document = {"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": metadata, "spec": spec}
    return Write.put(ResourceKey(kind, name), document)


def block(net: Network, node: str, used: int) -> Write:
    total = net.num_addresses
    holders = tuple(Attribute(f"h{i}", {"node": node}) for i in range(used))
    allocations = (*range(used), *[None] * (total - used))
    return Write.put(BlockKey(net), encode(Block(net, f"host:{node}", allocations, tuple(range(used, total)), holders)))


def name_of(number: int, count: int) -> str:
    return f"worker-{number + 1}.example.org" if count < 50 else f"node-{number + 1:03}"


def fill(path: Path, count: int, *, reflector: bool = False) -> None:
    """``count`` nodes in a mesh, two pools with blocks and an empty one, a router for all nodes and one for the second.

    ``reflector``: no mesh; the first node is a route reflector for the others.
    """
    chance = random.Random(5)
    writes = [
        resource("ClusterInformation", "default", INFORMATION),
        resource("IPPool", "main", MAIN),
        resource("IPPool", "storage", {"cidr": "10.90.0.0/24", "blockSize": 28, "ipipMode": "Always"}),
        resource("IPPool", "six", {"cidr": "fd00:10:244::/48", "blockSize": 122}),
        resource("BGPConfiguration", "default", {"nodeToNodeMeshEnabled": not reflector, "asNumber": 64512}),
        resource("BGPPeer", "rack", {"peerIP": "192.0.2.1", "asNumber": 65001}),
        resource("BGPPeer", "edge", {"peerIP": "192.0.2.254", "asNumber": 65010, "node": name_of(1, count)}),
    ]
    if reflector:
        peer = {"nodeSelector": "all()", "peerSelector": "reflects == 'yes'"}
        writes.append(resource("BGPPeer", "reflected", peer))
    main = ip_network("10.244.0.0/16").subnets(new_prefix=26)
    storage = list(ip_network("10.90.0.0/24").subnets(new_prefix=28))
    for i in range(count):
        name = name_of(i, count)
        bgp = {"ipv4Address": f"172.16.{i // 250}.{i % 250 + 1}/24", "ipv6Address": f"fd00:1::{i + 1:x}/64"}
        if reflector and i == 0:
            bgp["routeReflectorClusterID"] = "10.0.0.1"
        spec = {"bgp": bgp, "ipv4VXLANTunnelAddr": f"10.244.{i % 250}.1"}
        writes.append(resource("Node", name, spec, reflects="yes" if reflector and i == 0 else "no"))
        writes.append(block(next(main), name, chance.randint(1, 64)))
        if i < 15:
            writes.append(block(storage[i], name, 16))
    store = LocalStore(str(path))
    for at in range(0, len(writes), 200):
        store.commit(writes[at : at + 200], Deadline.after(60))
    store.close()
