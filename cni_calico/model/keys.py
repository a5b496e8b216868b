"""PURE: the identity of every stored thing, and its etcd key (which the embedded store uses too).

Rule: a key is a value; two keys are equal exactly when they name the same record. Kubernetes names are made from the
same identities in model/kubernetes/custom.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_network
from typing import NamedTuple

from cni_calico.model.names import escape
from cni_calico.model.resources import Network

RESOURCES = "/calico/resources/v3/projectcalico.org/"
IPAM = "/calico/ipam/v2/"

CLUSTER_KINDS = {
    "Node": "nodes",
    "IPPool": "ippools",
    "IPReservation": "ipreservations",
    "BGPConfiguration": "bgpconfigurations",
    "BGPPeer": "bgppeers",
    "BGPFilter": "bgpfilters",
    "FelixConfiguration": "felixconfigurations",
    "ClusterInformation": "clusterinformations",
    "GlobalNetworkPolicy": "globalnetworkpolicies",
    "GlobalNetworkSet": "globalnetworksets",
    "StagedGlobalNetworkPolicy": "stagedglobalnetworkpolicies",
    "HostEndpoint": "hostendpoints",
    "Profile": "profiles",
    "Tier": "tiers",
    "KubeControllersConfiguration": "kubecontrollersconfigurations",
    "CalicoNodeStatus": "caliconodestatuses",
}
NAMESPACED_KINDS = {
    "WorkloadEndpoint": "workloadendpoints",
    "NetworkPolicy": "networkpolicies",
    "NetworkSet": "networksets",
    "StagedNetworkPolicy": "stagednetworkpolicies",
    "StagedKubernetesNetworkPolicy": "stagedkubernetesnetworkpolicies",
}
PLURALS = {**CLUSTER_KINDS, **NAMESPACED_KINDS}
KINDS = {plural: kind for kind, plural in PLURALS.items()}


class ResourceKey(NamedTuple):
    """An API resource; ``namespace`` is "" for cluster-scoped kinds. A named tuple: where a thousand records are judged
    their keys are hashed a hundred thousand times, which takes a dataclass five times as long.
    """

    kind: str
    name: str
    namespace: str = ""


CLUSTER = ResourceKey("ClusterInformation", "default")  # the only one
FELIX_DEFAULT = ResourceKey("FelixConfiguration", "default")  # for all nodes, as BGP_DEFAULT
BGP_DEFAULT = ResourceKey("BGPConfiguration", "default")
CONTROLLERS_DEFAULT = ResourceKey("KubeControllersConfiguration", "default")  # the only one that is read


@dataclass(frozen=True, slots=True)
class BlockKey:
    cidr: Network


@dataclass(frozen=True, slots=True)
class AffinityKey:
    """``type`` is "host" (a node's) or "virtual" (load-balancer IPAM)."""

    node: str
    cidr: Network
    type: str = "host"


@dataclass(frozen=True, slots=True)
class HandleKey:
    handle_id: str


@dataclass(frozen=True, slots=True)
class IPAMConfigKey:
    pass


@dataclass(frozen=True, slots=True)
class ResourceList:
    """All resources of a kind; if given, only those of one namespace, and of these only names with one prefix.

    ``brief``: Nodes may come without the parts that only Kubernetes knows (its addresses and pod CIDRs), which makes a
    Node a quarter of its size if the datastore is Kubernetes.
    """

    kind: str
    namespace: str = ""
    name_prefix: str = ""
    brief: bool = False


@dataclass(frozen=True, slots=True)
class BlockList:
    """All blocks, those of one family (4 or 6), or the one of a network.

    ``owner`` (only with a relay): the blocks with this affinity; without a relay there are none. ``holders``: at least
    the part that says which pods have the addresses; without a relay the blocks are whole.
    """

    family: int = 0
    owner: str = ""
    cidr: Network | None = None
    holders: bool = False


@dataclass(frozen=True, slots=True)
class AffinityList:
    """Affinities of all nodes, of one node, or of one node and family."""

    node: str = ""
    family: int = 0
    type: str = "host"


@dataclass(frozen=True, slots=True)
class HandleList:
    pass


@dataclass(frozen=True, slots=True)
class IPAMConfigList:
    """The IPAM configuration as a listing, so that it can be watched."""


@dataclass(frozen=True, slots=True)
class EverythingList:
    """All of Calico's records (export, ipam check)."""


def endpoints_of_node(node: str) -> ResourceList:
    """The WorkloadEndpoints of a node, and possibly of others whose names continue after a "-"."""
    return ResourceList("WorkloadEndpoint", "", escape(node) + "-")


Key = ResourceKey | BlockKey | AffinityKey | HandleKey | IPAMConfigKey
ListKey = ResourceList | BlockList | AffinityList | HandleList | IPAMConfigList | EverythingList


def _cidr_name(cidr: Network) -> str:
    return f"{cidr.network_address}-{cidr.prefixlen}"


def etcd_path(key: Key) -> str:
    """The etcd key of a record."""
    if isinstance(key, ResourceKey):
        middle = f"{key.namespace}/" if key.namespace else ""
        return f"{RESOURCES}{PLURALS[key.kind]}/{middle}{key.name}"
    if isinstance(key, BlockKey):
        return f"{IPAM}assignment/ipv{key.cidr.version}/block/{_cidr_name(key.cidr)}"
    if isinstance(key, AffinityKey):
        return f"{IPAM}{key.type}/{key.node}/ipv{key.cidr.version}/block/{_cidr_name(key.cidr)}"
    if isinstance(key, HandleKey):
        return f"{IPAM}handle/{key.handle_id}"
    return f"{IPAM}config"


def etcd_prefix(listing: ListKey) -> str:
    """The etcd key prefix of a listing's records (others may share it: filter with ``parse_path``)."""
    if isinstance(listing, ResourceList):
        namespace = f"{listing.namespace}/" if listing.namespace else ""
        if not namespace and listing.kind in NAMESPACED_KINDS:
            return f"{RESOURCES}{PLURALS[listing.kind]}/"  # the names follow namespaces, which are unknown
        return f"{RESOURCES}{PLURALS[listing.kind]}/{namespace}{listing.name_prefix}"
    if isinstance(listing, BlockList):
        if listing.cidr is not None:
            return etcd_path(BlockKey(listing.cidr))
        return f"{IPAM}assignment/" + (f"ipv{listing.family}/block/" if listing.family else "")
    if isinstance(listing, AffinityList):
        if not listing.node:
            return f"{IPAM}{listing.type}/"
        return f"{IPAM}{listing.type}/{listing.node}/" + (f"ipv{listing.family}/block/" if listing.family else "")
    if isinstance(listing, HandleList):
        return f"{IPAM}handle/"
    if isinstance(listing, IPAMConfigList):
        return f"{IPAM}config"
    return "/calico/"


def covers(listing: ListKey, key: Key) -> bool:
    """Whether a record belongs to a listing."""
    if isinstance(listing, ResourceList):
        return (
            isinstance(key, ResourceKey)
            and listing.kind == key.kind
            and listing.namespace in ("", key.namespace)
            and key.name.startswith(listing.name_prefix)
        )
    if isinstance(listing, BlockList):
        return (
            isinstance(key, BlockKey) and listing.family in (0, key.cidr.version) and listing.cidr in (None, key.cidr)
        )
    if isinstance(listing, AffinityList):
        return (
            isinstance(key, AffinityKey)
            and listing.type == key.type
            and listing.node in ("", key.node)
            and listing.family in (0, key.cidr.version)
        )
    if isinstance(listing, HandleList):
        return isinstance(key, HandleKey)
    if isinstance(listing, IPAMConfigList):
        return isinstance(key, IPAMConfigKey)
    return True


def _parse_cidr_name(text: str) -> Network:
    address, _, length = text.rpartition("-")
    if "%" in address:
        raise ValueError("a network has no zone")
    return ip_network(f"{address}/{length}")


def parse_path(path: str) -> Key | None:
    """The identity in an etcd key, or None for a key that is not one of ours to read."""
    if path.startswith(RESOURCES):
        plural, _, rest = path[len(RESOURCES) :].partition("/")
        kind = KINDS.get(plural)
        if kind is None or not rest:
            return None
        namespace, slash, name = rest.partition("/")
        if not slash:
            return ResourceKey(kind, rest) if kind in CLUSTER_KINDS else None
        return ResourceKey(kind, name, namespace) if kind in NAMESPACED_KINDS and name else None
    if not path.startswith(IPAM):
        return None
    parts = path[len(IPAM) :].split("/")
    try:
        if parts == ["config"]:
            return IPAMConfigKey()
        if parts[0] == "handle" and len(parts) > 1:
            return HandleKey("/".join(parts[1:]))
        if parts[0] == "assignment" and len(parts) == 4:
            return BlockKey(_parse_cidr_name(parts[3]))
        if parts[0] in ("host", "virtual") and len(parts) == 5:
            return AffinityKey(parts[1], _parse_cidr_name(parts[4]), parts[0])
    except ValueError:
        return None
    return None
