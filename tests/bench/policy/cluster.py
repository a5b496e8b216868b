"""The cluster of the policy benchmarks, as records: repeatable exactly, at three sizes and any other.

Endpoint e has labels app=a{e mod A} and role=r{(e div A) mod 10} and profile kns.default; policy p (global, tier
default, order 100+p, ingress) selects app a{(p div K) mod A}, K = policies/A, and has ten rules that allow TCP: rule r
from ``app == 'a{(a+r+p) mod A}' && role == 'r{r}'`` to port 8000+r and a range of six. A is 5, 10, 50.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_network

from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Resource, WorkloadEndpoint

LOCAL_NODE = "n1"
FIRST_ADDRESS = int(IPv4Address("10.64.0.1"))
ALLOW = ({"action": "Allow"},)


@dataclass(frozen=True, slots=True)
class ClusterSize:
    policies: int
    local: int
    remote: int
    apps: int


SMALL = ClusterSize(10, 5, 20, 5)
MIDDLE = ClusterSize(100, 25, 1000, 10)
LARGE = ClusterSize(1000, 250, 10000, 50)


def records(size: ClusterSize) -> Iterator[tuple[ResourceKey, Resource | WorkloadEndpoint]]:
    yield (
        ResourceKey("Tier", "default"),
        Resource("Tier", Metadata("default"), {"order": 1000000, "defaultAction": "Deny"}),
    )
    profile = {"ingress": ALLOW, "egress": ALLOW, "labelsToApply": {"pcns.projectcalico.org/name": "default"}}
    yield ResourceKey("Profile", "kns.default"), Resource("Profile", Metadata("kns.default"), profile)
    for p in range(size.policies):
        yield policy(size, p)
    for e in range(size.local + size.remote):
        yield endpoint(size, e)


def policy(size: ClusterSize, p: int) -> tuple[ResourceKey, Resource]:
    app = (p // max(1, size.policies // size.apps)) % size.apps
    rules = [
        {
            "action": "Allow",
            "protocol": "TCP",
            "source": {"selector": f"app == 'a{(app + r + p) % size.apps}' && role == 'r{r}'"},
            "destination": {"ports": [8000 + r, f"{9000 + 10 * r}:{9005 + 10 * r}"]},
        }
        for r in range(10)
    ]
    spec = {
        "tier": "default",
        "order": 100 + p,
        "selector": f"app == 'a{app}'",
        "types": ["Ingress"],
        "ingress": rules,
    }
    name = f"p{p}"
    return ResourceKey("GlobalNetworkPolicy", name), Resource("GlobalNetworkPolicy", Metadata(name), spec)


def endpoint(size: ClusterSize, e: int) -> tuple[ResourceKey, WorkloadEndpoint]:
    node = LOCAL_NODE if e < size.local else f"n{2 + (e - size.local) % 100}"
    pod = f"pod{e}"
    labels = {"app": f"a{e % size.apps}", "role": f"r{(e // size.apps) % 10}"}
    metadata = Metadata(f"{node}-k8s-{pod}-eth0", "default", labels=labels)
    return ResourceKey("WorkloadEndpoint", metadata.name, "default"), WorkloadEndpoint(
        metadata,
        "k8s",
        node,
        "eth0",
        f"cali{e}",
        pod=pod,
        ip_networks=(ip_network(FIRST_ADDRESS + e),),
        profiles=("kns.default",),
    )
