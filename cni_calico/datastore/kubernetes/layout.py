"""Where Calico's records are in the Kubernetes API: paths of objects, collections of listings. No effects.

Rule: custom resources of one of two groups (model/kubernetes/groups.py) hold most records; Nodes, Pods, Namespaces and
ServiceAccounts hold those that Kubernetes already has. Profiles are derived from the last two: EverythingList leaves
them out, because they are not stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cni_calico.datastore.interface import PodDocument
from cni_calico.datastore.kubernetes.revision import no_state, node_state, pod_state
from cni_calico.errors import DatastoreUnsupported
from cni_calico.model.documents.codec import describe
from cni_calico.model.documents.fields import JSON
from cni_calico.model.keys import (
    CLUSTER_KINDS,
    NAMESPACED_KINDS,
    PLURALS,
    AffinityKey,
    AffinityList,
    BlockKey,
    BlockList,
    EverythingList,
    HandleKey,
    HandleList,
    IPAMConfigList,
    Key,
    ListKey,
    ResourceKey,
    ResourceList,
)
from cni_calico.model.kubernetes import custom as crd
from cni_calico.model.kubernetes import nodes as crd_nodes
from cni_calico.model.kubernetes import pods as crd_pods
from cni_calico.model.kubernetes.groups import ApiGroup
from cni_calico.model.names import DEFAULT_PREFIX, parse_endpoint_name

DecodedObject = tuple[Key, dict[str, Any]] | None

CORE_ROOT = "/api/v1"
# the Kubernetes Namespace itself, which no other backend has: its annotations decide what its pods get
NAMESPACE = "Namespace"
# likewise; only listed and watched: BGP announces services' addresses
SERVICE, ENDPOINT_SLICE = "Service", "EndpointSlice"
# likewise: Kubernetes' own policies, of which clusters may lack the second kind
KUBERNETES_POLICY, KUBERNETES_CLUSTER_POLICY = "KubernetesNetworkPolicy", "KubernetesClusterNetworkPolicy"
MIGRATION = "VirtualMachineInstanceMigration"
_SERVICE_PATHS = {
    SERVICE: f"{CORE_ROOT}/services",
    ENDPOINT_SLICE: "/apis/discovery.k8s.io/v1/endpointslices",
    KUBERNETES_POLICY: "/apis/networking.k8s.io/v1/networkpolicies",
    KUBERNETES_CLUSTER_POLICY: "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies",
    MIGRATION: "/apis/kubevirt.io/v1/virtualmachineinstancemigrations",
}
_OPTIONAL = (KUBERNETES_CLUSTER_POLICY, MIGRATION)
KUBERNETES_KINDS = (NAMESPACE, *_SERVICE_PATHS)
# a server uses the first form that it knows
_BRIEF = "application/json;as={};g=meta.k8s.io;v=v1,application/json"
_DERIVED = ("Node", "WorkloadEndpoint", "Profile", *KUBERNETES_KINDS)
AFFINITY_TYPE, HOSTNAME_HASH = "projectcalico.org/affinity-type", "projectcalico.org/hostname-hash"


@dataclass(frozen=True, slots=True)
class Collection:
    """Objects of one type: ``path`` lists them, ``query`` narrows the list, ``read`` turns one into a record; ``state``
    is the part of its revision that covers Calico's part of it. ``brief``: only the objects' metadata is requested,
    from servers that can leave out the rest.
    """

    path: str
    read: Callable[[JSON], DecodedObject]
    state: Callable[[JSON], str] = no_state
    query: str = ""
    optional: bool = False  # a type that old clusters may lack
    brief: bool = False

    @property
    def plural(self) -> str:
        return self.path.rpartition("/")[2]

    @property
    def accept_list(self) -> str:
        """The requested form of a list; "": JSON."""
        return _BRIEF.format("PartialObjectMetadataList") if self.brief else ""

    @property
    def accept_watch(self) -> str:
        return _BRIEF.format("PartialObjectMetadata") if self.brief else ""

    def url(self, **parameters: str) -> str:
        parts = [self.query] if self.query else []
        parts += [f"{name}={quote(value)}" for name, value in parameters.items() if value]
        return self.path + ("?" + "&".join(parts) if parts else "")


def quote(text: str) -> str:
    """Percent-encoding for a path segment or query value; importing urllib.parse would take milliseconds."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-._~") else _percent(c) for c in text)


def _percent(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


# -- objects ----------------------------------------------------------------------------------------------------------


def object_path(group: ApiGroup, key: Key) -> str:
    """The path of a custom resource."""
    return f"{collection_path(group, key)}/{quote(group.place_of(key).name)}"


def collection_path(group: ApiGroup, key: Key) -> str:
    """The path that creates a custom resource."""
    place = group.place_of(key)
    return _custom_path(group, place.plural, place.namespace)


def _custom_path(group: ApiGroup, plural: str, namespace: str) -> str:
    return f"{group.root}/namespaces/{quote(namespace)}/{plural}" if namespace else f"{group.root}/{plural}"


def pod_path(namespace: str, name: str) -> str:
    return f"{CORE_ROOT}/namespaces/{quote(namespace)}/pods/{quote(name)}"


def node_path(name: str) -> str:
    return f"{CORE_ROOT}/nodes/{quote(name)}"


def namespace_path(name: str) -> str:
    return f"{CORE_ROOT}/namespaces/{quote(name)}"


def secret_path(namespace: str, name: str) -> str:
    return f"{CORE_ROOT}/namespaces/{quote(namespace)}/secrets/{quote(name)}"


def object_path_of_kind(key: ResourceKey) -> str:
    """The path of an object of the namespaced KUBERNETES_KINDS."""
    root, _, plural = _SERVICE_PATHS[key.kind].rpartition("/")
    return f"{root}/namespaces/{quote(key.namespace)}/{plural}/{quote(key.name)}"


def service_account_path(namespace: str, name: str) -> str:
    return f"{CORE_ROOT}/namespaces/{quote(namespace)}/serviceaccounts/{quote(name)}"


def is_custom(key: Key) -> bool:
    return not isinstance(key, ResourceKey) or key.kind not in _DERIVED


def marks_deleted(key: Key) -> bool:
    """Whether a record is marked with ``deleted`` before it is deleted."""
    return isinstance(key, BlockKey | AffinityKey | HandleKey)


def pod_of(key: ResourceKey) -> tuple[str, str]:
    """(node, pod) from an endpoint's name. Raises DatastoreUnsupported if the endpoint is not a pod's."""
    try:
        node, orchestrator, pod, ifname = parse_endpoint_name(key.name)
    except ValueError as e:
        raise DatastoreUnsupported(f"cannot use {describe(key)}: {e}") from e
    if orchestrator != "k8s" or ifname != crd_pods.ENDPOINT:
        raise DatastoreUnsupported(
            f"cannot use {describe(key)}: in the Kubernetes datastore an endpoint is a pod's, named after eth0",
            details="a container that is not a pod needs datastore_type etcdv3 or local",
        )
    return node, pod


# -- listings ---------------------------------------------------------------------------------------------------------


def select_collections(group: ApiGroup, listing: ListKey, prefix: str = DEFAULT_PREFIX) -> tuple[Collection, ...]:
    """The collections that hold a listing's records (and perhaps others: filter with ``covers``)."""
    blocks, affinities, handles, configurations = group.address_plurals
    if isinstance(listing, BlockList):
        return (_custom(group, blocks, query=_block_query(listing)),)
    if isinstance(listing, AffinityList):
        return (_custom(group, affinities, query=_affinity_query(listing)),)
    if isinstance(listing, HandleList):
        return (_custom(group, handles),)
    if isinstance(listing, IPAMConfigList):
        return (_custom(group, configurations),)
    if isinstance(listing, EverythingList):
        return _everything(group, prefix)
    return _resources(group, listing, prefix)


def is_of_custom(listing: ListKey) -> bool:
    """Whether custom resources hold a listing's records, or some of them."""
    return not isinstance(listing, ResourceList) or listing.kind not in _DERIVED


def _custom(
    group: ApiGroup, plural: str, namespace: str = "", *, query: str = "", optional: bool = False
) -> Collection:
    return Collection(_custom_path(group, plural, namespace), group.read_object, no_state, query, optional)


def _block_query(listing: BlockList) -> str:
    return "" if listing.cidr is None else "fieldSelector=" + quote(f"metadata.name={crd.cidr_name(listing.cidr)}")


def _affinity_query(listing: AffinityList) -> str:
    """The query for all affinities of one node, by the labels that upstream uses too."""
    if not listing.node:
        return ""
    labels = {
        AFFINITY_TYPE: listing.type,
        HOSTNAME_HASH: crd.hostname_hash(listing.node),
    }
    if listing.family:
        labels["projectcalico.org/ip-version"] = str(listing.family)
    return "labelSelector=" + quote(",".join(f"{name}={value}" for name, value in labels.items()))


def unlabelled_affinities(group: ApiGroup) -> Collection:
    """The affinities without labels, which older versions wrote and no listing of one node finds."""
    return _custom(group, "blockaffinities", query="labelSelector=" + quote(f"!{HOSTNAME_HASH}"))


def _resources(group: ApiGroup, listing: ResourceList, prefix: str) -> tuple[Collection, ...]:
    if listing.kind == "WorkloadEndpoint":
        return (_pods(listing, prefix),)
    if listing.kind == "Node":
        # the beginning of a name is treated as a whole name: following one node must not deliver all
        query = f"fieldSelector={quote(f'metadata.name={listing.name_prefix}')}" if listing.name_prefix else ""
        return (Collection(f"{CORE_ROOT}/nodes", crd_nodes.read_node, node_state, query, brief=listing.brief),)
    if listing.kind == NAMESPACE:
        return (Collection(f"{CORE_ROOT}/namespaces", _read_namespace),)
    if listing.kind in _SERVICE_PATHS:
        kind = listing.kind
        optional = kind in _OPTIONAL
        return (Collection(_SERVICE_PATHS[kind], lambda obj: _read_as(kind, obj), optional=optional),)
    if listing.kind == "Profile":
        both = {
            "kns.": Collection(f"{CORE_ROOT}/namespaces", crd_pods.read_namespace),
            "ksa.": Collection(f"{CORE_ROOT}/serviceaccounts", crd_pods.read_service_account),
        }
        one = both.get(listing.name_prefix[:4])
        return tuple(both.values()) if one is None else (one,)
    return (_custom(group, PLURALS[listing.kind], listing.namespace),)


def _pods(listing: ResourceList, prefix: str) -> Collection:
    """Pods of a namespace and, if the beginning of the name gives it, of a node."""
    path = f"{CORE_ROOT}/namespaces/{quote(listing.namespace)}/pods" if listing.namespace else f"{CORE_ROOT}/pods"
    node = _node_of_prefix(listing.name_prefix)
    query = f"fieldSelector={quote(f'spec.nodeName={node}')}" if node else ""
    return Collection(path, lambda obj: read_pod(obj, prefix), pod_state, query)


def read_pod(obj: JSON, prefix: str) -> DecodedObject:
    """A pod's endpoint. After DEL the pod still shows its container and addresses, but they are no longer in use."""
    found = crd_pods.read_pod(obj, prefix=prefix)
    if found is None:
        return None
    if (obj["metadata"].get("annotations") or {}).get(crd_pods.POD_IP) == "":
        for field in ("containerID", "ipNetworks", "ipNATs"):
            found[1]["spec"].pop(field, None)
    metadata = {name: value for name, value in obj["metadata"].items() if name != "managedFields"}
    return found[0], PodDocument(found[1], {**obj, "metadata": metadata})


def _read_namespace(obj: JSON) -> DecodedObject:
    return ResourceKey(NAMESPACE, str((obj.get("metadata") or {}).get("name"))), dict(obj)


def _read_as(kind: str, obj: JSON) -> DecodedObject:
    metadata = obj.get("metadata") or {}
    return ResourceKey(kind, str(metadata.get("name")), str(metadata.get("namespace") or "")), dict(obj)


def pod_of_prefix(listing: ResourceList) -> ResourceKey | None:
    """The one endpoint that a listing is about: "<node>-k8s-<pod>-" in a namespace; None for any other listing.

    (The names of pods named "<pod>-..." begin like that too, but a caller that ends the prefix with a dash does not
    mean them.)
    """
    if listing.kind != "WorkloadEndpoint" or not listing.namespace or not listing.name_prefix.endswith("-"):
        return None
    name = listing.name_prefix + crd_pods.ENDPOINT
    try:
        _, orchestrator, _, ifname = parse_endpoint_name(name)
    except ValueError:
        return None
    return ResourceKey(listing.kind, name, listing.namespace) if (orchestrator, ifname) == ("k8s", "eth0") else None


def _node_of_prefix(text: str) -> str:
    """The node that endpoint names beginning with ``text`` belong to; "" if ``text`` does not say."""
    node, dash, _ = text.replace("--", "\0").partition("-")
    return node.replace("\0", "-") if dash else ""


def _everything(group: ApiGroup, prefix: str) -> tuple[Collection, ...]:
    """Clusters may lack types that are new, but not all: a group that is not served is no empty datastore."""
    kinds = {**CLUSTER_KINDS, **NAMESPACED_KINDS}
    plurals = [*group.address_plurals, *(plural for kind, plural in kinds.items() if kind not in _DERIVED)]
    return (
        *(_custom(group, plural, optional=plural != PLURALS["ClusterInformation"]) for plural in plurals),
        *_resources(group, ResourceList("Node"), prefix),
        *_resources(group, ResourceList("WorkloadEndpoint"), prefix),
    )
