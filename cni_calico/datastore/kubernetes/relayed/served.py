"""PURE: what a relay serves: collections by their paths at the API server, and how a client names them in one watch.

Rule: the paths, the types and the resourceVersions are the API server's own, so a reader of Kubernetes' lists and
watches reads a relay's. A relay serves one of Calico's groups, that of the cluster's records. Two things are added: one
watch may follow several collections (WATCH_PATH), where each event begins with the path it belongs to; and IPAM blocks
can be selected by their affinity, or read with the pods that have their addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from cni_calico.model.access import API_GROUP, CRD_ROOT, NATIVE_GROUP

WATCH_PATH = "/relay/v1/watch"
READY_PATH = "/relay/v1/ready"
CUT_OFF_PATH = (
    "/relay/v1/cut-off"  # the path of an event that says why there may be no events for now; "": that is over
)
BLOCKS = f"{CRD_ROOT}/ipamblocks"
BLOCK_PATHS = frozenset((BLOCKS, f"/apis/{NATIVE_GROUP}/ipamblocks"))
AFFINITY_FIELD = "spec.affinity"
# the query for the blocks with their pods; an older relay ignores it and sends partial blocks
HOLDERS_QUERY = "holders=1"
# a field in the spec of a reduced block, which lacks what only its own node needs
PARTIAL = "partial"


@dataclass(frozen=True, slots=True)
class Served:
    """A collection; ``optional``: a type that clusters may lack."""

    path: str
    api_version: str
    kind: str
    optional: bool = False

    @property
    def is_custom(self) -> bool:
        return self.api_version in (API_GROUP, NATIVE_GROUP)


def _core(plural: str, kind: str) -> Served:
    return Served(f"/api/v1/{plural}", "v1", kind)


def _grouped(group: str, plural: str, kind: str, *, optional: bool = False) -> Served:
    return Served(f"/apis/{group}/{plural}", group, kind, optional)


def _in_group(group: str, configuration: str) -> tuple[Served, ...]:
    """Calico's own; ``configuration``: the kind of IPAM's."""
    kinds = {**_KINDS, f"{configuration.lower()}s": configuration}
    return tuple(_grouped(group, plural, kind) for plural, kind in kinds.items())


_KUBERNETES = (
    _core("nodes", "Node"),
    _core("pods", "Pod"),
    _core("namespaces", "Namespace"),
    _core("serviceaccounts", "ServiceAccount"),
    _core("services", "Service"),
    _grouped("discovery.k8s.io/v1", "endpointslices", "EndpointSlice"),
    _grouped("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy"),
    _grouped("policy.networking.k8s.io/v1alpha2", "clusternetworkpolicies", "ClusterNetworkPolicy", optional=True),
)
_KINDS = {
    "ipamblocks": "IPAMBlock",
    "blockaffinities": "BlockAffinity",
    "ippools": "IPPool",
    "felixconfigurations": "FelixConfiguration",
    "tiers": "Tier",
    "networkpolicies": "NetworkPolicy",
    "globalnetworkpolicies": "GlobalNetworkPolicy",
    "networksets": "NetworkSet",
    "globalnetworksets": "GlobalNetworkSet",
    "hostendpoints": "HostEndpoint",
    "bgpconfigurations": "BGPConfiguration",
    "bgppeers": "BGPPeer",
    "bgpfilters": "BGPFilter",
}
# of a relay for that group: path -> what is there
SERVED_IN = {
    group: {served.path: served for served in (*_KUBERNETES, *_in_group(group, configuration))}
    for group, configuration in ((API_GROUP, "IPAMConfig"), (NATIVE_GROUP, "IPAMConfiguration"))
}
SERVED = {path: served for served_in in SERVED_IN.values() for path, served in served_in.items()}


def affinity_query(affinity: str) -> str:
    """The query that selects the blocks of one owner, such as "host:node-1"."""
    return "fieldSelector=" + quote(f"{AFFINITY_FIELD}={affinity}", safe="")


def order_of_version(version: object) -> int:
    """A resourceVersion as a number; 0 if it is not a number."""
    text = str(version or "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else 0
