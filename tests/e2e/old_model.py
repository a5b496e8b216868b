"""Calico 3.15: what it stored, and what of a record it would read and write back. From its public model.

Rule: nothing of the code under test is used here. ``written_back`` is what decoding into the old types and encoding
them again leaves of a value: unknown fields go, a value of another type is an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha1
from typing import Any

from tests.netns.namespaces import Namespace

Dict = dict[str, Any]
NETWORK, VERSION = "k8s-pod-network", "v3.15.5"
MAC = "ee:ee:ee:ee:ee:ee"
POOL = {"cidr": "10.65.0.0/16", "ipipMode": "CrossSubnet", "natOutgoing": True}  # no blockSize, no nodeSelector, ...
TUNNEL = "10.65.7.64"


@dataclass(frozen=True)
class OldPod:
    name: str
    container: str
    address: str
    run: str

    @property
    def handle(self) -> str:
        return f"{NETWORK}.{self.container}"

    @property
    def veth(self) -> str:
        return "cali" + sha1(f"space.{self.name}".encode()).hexdigest()[:11]


WEB = OldPod("web-0", "a1" * 32, "10.65.7.65", "web")
CLIENT = OldPod("client-0", "b2" * 32, "10.65.7.66", "client")
FIRST = OldPod("first-0", "c3" * 32, "10.65.8.0", "first")
PODS = (WEB, CLIENT, FIRST)


def block(cidr: str, holders: list[tuple[str, Dict]], **more: Any) -> Dict:
    """A block whose first addresses are held by (handle, attributes)."""
    count = len(holders)
    return {
        "cidr": cidr,
        "strictAffinity": False,
        "allocations": [*range(count), *[None] * (64 - count)],
        "unallocated": list(range(count, 64)),
        "attributes": [{"handle_id": handle, "secondary": secondary} for handle, secondary in holders],
        "deleted": False,
        **more,
    }


def holder(pod: OldPod) -> tuple[str, Dict]:
    return pod.handle, {"namespace": "space", "node": "node1", "pod": pod.name}


OF_TUNNEL = ("ipip-tunnel-addr-node1", {"node": "node1", "type": "ipipTunnelAddress"})
NEWER = block("10.65.7.64/26", [OF_TUNNEL, holder(WEB), holder(CLIENT)], affinity="host:node1")
OLDER = block("10.65.8.0/26", [holder(FIRST)], hostAffinity="node1", strictAffinity=True)
OTHERS = block("10.65.9.0/26", [("ipip-tunnel-addr-node2", {**OF_TUNNEL[1], "node": "node2"})], affinity="host:node2")
BLOCKS = {"node1": (NEWER, OLDER), "node2": (OTHERS,)}
HANDLES = {
    OF_TUNNEL[0]: "10.65.7.64/26",
    "ipip-tunnel-addr-node2": "10.65.9.0/26",
    **{pod.handle: "10.65.8.0/26" if pod is FIRST else "10.65.7.64/26" for pod in PODS},
}
POLICY = {
    "order": 100,
    "selector": "run == 'web'",
    "types": ["Ingress"],
    "ingress": [{"action": "Allow", "protocol": "TCP", "source": {}, "destination": {"ports": [80]}}],
}
IN_NAMESPACE = {"selector": "run == 'first'", "types": ["Ingress"], "ingress": [{"action": "Deny"}]}
FELIX = {"bpfLogLevel": "", "ipipEnabled": True, "logSeverityScreen": "Info", "reportingInterval": "0s"}
CLUSTER = {
    "calicoVersion": VERSION,
    "clusterGUID": "1f" * 16,
    "clusterType": "k8s,bgp",  # no kdd
    "datastoreReady": True,
}


def wire(host: Namespace, inside: Namespace, pod: OldPod) -> None:
    """A pod's interface as the plugin of 3.15 made it: no alias, the route without a protocol of its own."""
    host.do("link", "add", pod.veth, "address", MAC, "type", "veth", "peer", "name", "eth0", "netns", inside.name)
    host.do("link", "set", pod.veth, "up")
    inside.do("link", "set", "lo", "up")
    inside.do("link", "set", "eth0", "up")
    inside.do("addr", "add", f"{pod.address}/32", "dev", "eth0")
    inside.do("route", "add", "169.254.1.1", "dev", "eth0", "scope", "link")
    inside.do("route", "add", "default", "via", "169.254.1.1", "dev", "eth0")
    for name in ("proxy_arp", "forwarding", "route_localnet"):
        host.set_sysctl(f"ipv4/conf/{pod.veth}/{name}", "1")
    host.do("route", "add", pod.address, "dev", pod.veth, "scope", "link")


# -- etcd -------------------------------------------------------------------------------------------------------------

RESOURCES, IPAM = "/calico/resources/v3/projectcalico.org", "/calico/ipam/v2"


def resource(kind: str, name: str, spec: Dict, **metadata: Any) -> Dict:
    metadata = {"name": name, "uid": f"uid-{name}", "creationTimestamp": "2020-07-01T10:00:00Z", **metadata}
    return {"kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec}


def endpoint(pod: OldPod) -> tuple[str, Dict]:
    name = f"node1-k8s-{pod.name.replace('-', '--')}-eth0"
    labels = {
        "run": pod.run,
        "projectcalico.org/namespace": "space",
        "projectcalico.org/orchestrator": "k8s",
        "projectcalico.org/serviceaccount": "default",
    }
    spec = {
        "orchestrator": "k8s",
        "workload": "",
        "node": "node1",
        "containerID": pod.container,
        "pod": pod.name,
        "endpoint": "eth0",
        "ipNetworks": [f"{pod.address}/32"],
        "profiles": ["kns.space", "ksa.space.default"],
        "interfaceName": pod.veth,
    }
    return f"{RESOURCES}/workloadendpoints/space/{name}", resource(
        "WorkloadEndpoint", name, spec, namespace="space", labels=labels
    )


def etcd_documents() -> dict[str, Dict | None]:
    """Everything by its key; None: a key with an empty value."""
    allow = {"egress": [{"action": "Allow"}], "ingress": [{"action": "Allow"}], "labelsToApply": {"pcns.name": "space"}}
    out: dict[str, Dict | None] = {
        f"{RESOURCES}/clusterinformations/default": resource("ClusterInformation", "default", CLUSTER),
        f"{RESOURCES}/felixconfigurations/default": resource("FelixConfiguration", "default", FELIX),
        f"{RESOURCES}/felixconfigurations/node.node1": resource(
            "FelixConfiguration", "node.node1", {"bpfLogLevel": "", "defaultEndpointToHostAction": "Return"}
        ),
        f"{RESOURCES}/ippools/default-ipv4-ippool": resource("IPPool", "default-ipv4-ippool", POOL),
        f"{RESOURCES}/profiles/kns.space": resource("Profile", "kns.space", allow),
        f"{RESOURCES}/profiles/ksa.space.default": resource("Profile", "ksa.space.default", {}),
        f"{RESOURCES}/globalnetworkpolicies/default.web-http": resource(
            "GlobalNetworkPolicy", "default.web-http", POLICY
        ),
        f"{RESOURCES}/networkpolicies/space/default.first-none": resource(
            "NetworkPolicy", "default.first-none", IN_NAMESPACE, namespace="space"
        ),
        f"{IPAM}/config": {"strict_affinity": False, "auto_allocate_blocks": True},
    }
    for number, node in ((5, "node1"), (6, "node2")):
        tunnel = TUNNEL if node == "node1" else "10.65.9.0"
        bgp = {"ipv4Address": f"10.0.0.{number}/24", "ipv4IPIPTunnelAddr": tunnel}
        orchestrator = {"nodeName": node, "orchestrator": "k8s"}
        out[f"{RESOURCES}/nodes/{node}"] = resource("Node", node, {"bgp": bgp, "orchRefs": [orchestrator]})
        for stored in BLOCKS[node]:
            name = stored["cidr"].replace("/", "-")
            out[f"{IPAM}/assignment/ipv4/block/{name}"] = stored
            out[f"{IPAM}/host/{node}/ipv4/block/{name}"] = None if stored is OLDER else {"state": "confirmed"}
    for handle, cidr in HANDLES.items():
        out[f"{IPAM}/handle/{handle}"] = {"block": {cidr: 1}}
    out.update(map(endpoint, PODS))
    return out


# -- Kubernetes -------------------------------------------------------------------------------------------------------

GROUP = "crd.projectcalico.org"
PLURALS = {
    "BGPConfiguration": "bgpconfigurations",
    "BGPPeer": "bgppeers",
    "BlockAffinity": "blockaffinities",
    "ClusterInformation": "clusterinformations",
    "FelixConfiguration": "felixconfigurations",
    "GlobalNetworkPolicy": "globalnetworkpolicies",
    "GlobalNetworkSet": "globalnetworksets",
    "HostEndpoint": "hostendpoints",
    "IPAMBlock": "ipamblocks",
    "IPAMConfig": "ipamconfigs",
    "IPAMHandle": "ipamhandles",
    "IPPool": "ippools",
    "KubeControllersConfiguration": "kubecontrollersconfigurations",
    "NetworkPolicy": "networkpolicies",
    "NetworkSet": "networksets",
}
NOTE = '{"uid":"1e0f0a7c-0000-4000-8000-000000000001","creationTimestamp":"2020-07-01T10:00:00Z"}'


def definitions() -> list[Dict]:
    """The custom resource definitions of 3.15: no schema (its v1beta1 has no other spelling in today's API)."""
    anything = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": anything}
    return [
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{GROUP}"},
            "spec": {
                "group": GROUP,
                "scope": "Namespaced" if kind in ("NetworkPolicy", "NetworkSet") else "Cluster",
                "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
                "versions": [version],
            },
        }
        for kind, plural in PLURALS.items()
    ]


def custom(kind: str, name: str, spec: Dict, namespace: str = "") -> Dict:
    ipam = kind in ("IPAMBlock", "IPAMHandle", "BlockAffinity", "IPAMConfig")
    annotations = {"projectcalico.org/metadata": '{"creationTimestamp":null}' if ipam else NOTE}
    metadata = {"name": name, "annotations": annotations, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": f"{GROUP}/v1", "kind": kind, "metadata": metadata, "spec": spec}


def short(cidr: str) -> str:
    return cidr.translate(str.maketrans("./", "--"))


def kubernetes_objects() -> list[Dict]:
    """The custom resources. Blocks in Kubernetes never had ``hostAffinity``."""
    out = [
        custom("ClusterInformation", "default", CLUSTER),
        custom("FelixConfiguration", "default", FELIX),
        custom("IPPool", "default-ipv4-ippool", POOL),
        custom("GlobalNetworkPolicy", "default.web-http", POLICY),
        custom("NetworkPolicy", "default.first-none", IN_NAMESPACE, "space"),
        custom("IPAMConfig", "default", {"strictAffinity": False, "autoAllocateBlocks": True}),
    ]
    for node, blocks in BLOCKS.items():
        for stored in blocks:
            spec = {name: value for name, value in stored.items() if name != "hostAffinity"}
            out.append(custom("IPAMBlock", short(stored["cidr"]), {**spec, "affinity": f"host:{node}"}))
            affinity = {"cidr": stored["cidr"], "node": node, "state": "confirmed"}
            out.append(custom("BlockAffinity", f"{node}-{short(stored['cidr'])}", affinity))
    for handle, cidr in HANDLES.items():
        out.append(custom("IPAMHandle", handle, {"handleID": handle, "block": {cidr: 1}}))
    return out


# -- the way back -----------------------------------------------------------------------------------------------------


def _typed(value: Any, kind: Any, at: str) -> Any:
    """As Go decodes JSON; ``kind`` is a type, [kind], {name: kind}, ("", kind) for a map, ("?", kind) for a pointer."""
    if isinstance(kind, tuple) and kind[0] == "?":
        return None if value is None else _typed(value, kind[1], at)
    if isinstance(kind, tuple):
        assert isinstance(value, dict), (at, value)
        return {name: _typed(inner, kind[1], f"{at}.{name}") for name, inner in value.items()}
    if isinstance(kind, dict):
        assert isinstance(value, dict), (at, value)
        return {name: _typed(value[name], inner, f"{at}.{name}") for name, inner in kind.items() if name in value}
    if isinstance(kind, list):
        assert isinstance(value, list), (at, value)
        return [_typed(inner, kind[0], f"{at}[]") for inner in value]
    assert isinstance(value, kind) and not (kind is int and isinstance(value, bool)), (at, value)
    return value


BLOCK = {
    "cidr": str,
    "affinity": ("?", str),
    "strictAffinity": bool,
    "allocations": [("?", int)],
    "unallocated": [int],
    "attributes": [{"handle_id": ("?", str), "secondary": ("?", ("", str))}],
    "deleted": bool,
    "hostAffinity": ("?", str),
}
AFFINITY = {"state": str, "deleted": bool}  # no state is one that is confirmed
AFFINITY_OBJECT = {"state": str, "node": str, "cidr": str, "deleted": str}
HANDLE = {"handleID": str, "block": ("", int), "deleted": bool}
CONFIG = {"strict_affinity": bool, "auto_allocate_blocks": bool, "strictAffinity": bool, "autoAllocateBlocks": bool}
CIDRS = [{"cidr": str}]
RESOURCE_SPECS = {
    "FelixConfiguration": {
        "bpfLogLevel": str,
        "defaultEndpointToHostAction": str,
        "ipipEnabled": bool,
        "logSeverityScreen": str,
        "reportingInterval": str,
    },
    "BGPConfiguration": {
        "logSeverityScreen": str,
        "nodeToNodeMeshEnabled": bool,
        "asNumber": int,
        "serviceExternalIPs": CIDRS,
        "serviceClusterIPs": CIDRS,
    },
    "IPPool": {
        "cidr": str,
        "vxlanMode": str,
        "ipipMode": str,
        "natOutgoing": bool,
        "disabled": bool,
        "blockSize": int,
        "nodeSelector": str,
    },
    "ClusterInformation": {"clusterGUID": str, "clusterType": str, "calicoVersion": str, "datastoreReady": bool},
    "Node": {
        "bgp": {
            "asNumber": int,
            "ipv4Address": str,
            "ipv6Address": str,
            "ipv4IPIPTunnelAddr": str,
            "routeReflectorClusterID": str,
        },
        "ipv4VXLANTunnelAddr": str,
        "vxlanTunnelMACAddr": str,
        "orchRefs": [{"nodeName": str, "orchestrator": str}],
    },
    "WorkloadEndpoint": {
        "orchestrator": str,
        "workload": str,
        "node": str,
        "containerID": str,
        "pod": str,
        "endpoint": str,
        "ipNetworks": [str],
        "ipNATs": [{"internalIP": str, "externalIP": str}],
        "ipv4Gateway": str,
        "ipv6Gateway": str,
        "profiles": [str],
        "interfaceName": str,
        "mac": str,
        "ports": [{"name": str, "protocol": object, "port": int}],
    },
}


def required(kind: Any) -> set[str]:
    """What the old code cannot do without: it would take zero values for facts."""
    if kind is BLOCK:
        return {"cidr", "allocations", "unallocated", "attributes"}
    return {"block"} if kind is HANDLE else {"state", "node", "cidr"} if kind is AFFINITY_OBJECT else set()


def written_back(kind: Any, value: Dict, at: str) -> Dict:
    """The value after the old version has read and written it. Fails where it could not."""
    assert required(kind) <= value.keys(), (at, value)
    out: Dict = _typed(value, kind, at)
    if kind is BLOCK:
        assert len(out["allocations"]) == 64 and not [
            i for i in out["allocations"] if i is not None and not 0 <= i < len(out["attributes"])
        ], (at, value)
        out.setdefault("strictAffinity", False)
        out.setdefault("deleted", False)
    return out


def kind_of_path(path: str) -> Any:
    """The old type behind an etcd key; None: it does not look there."""
    if path.startswith(IPAM):
        rest = path.removeprefix(IPAM + "/")
        found = {"assignment": BLOCK, "host": AFFINITY, "handle": HANDLE, "config": CONFIG}
        return found.get(rest.partition("/")[0])
    return None
