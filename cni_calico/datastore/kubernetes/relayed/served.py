"""PURE: what a relay serves: collections by their paths at the API server, and how a client names them in one watch.

Rule: the paths, the types and the resourceVersions are the API server's own, so a reader of Kubernetes' lists and
watches reads a relay's. Two things are added: one watch may follow several collections (WATCH_PATH), where each event
begins with the path it belongs to; and IPAM blocks can be selected by their affinity, or read with the pods that have
their addresses.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from cni_calico.model.access import API_GROUP, CRD_ROOT

WATCH_PATH = "/relay/v1/watch"
READY_PATH = "/relay/v1/ready"
CUT_OFF_PATH = (
    "/relay/v1/cut-off"  # the path of an event that says why there may be no events for now; "": that is over
)
BLOCKS = f"{CRD_ROOT}/ipamblocks"
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
        return self.path.startswith(CRD_ROOT)


def _core(plural: str, kind: str) -> Served:
    return Served(f"/api/v1/{plural}", "v1", kind)


def _grouped(group: str, plural: str, kind: str, *, optional: bool = False) -> Served:
    return Served(f"/apis/{group}/{plural}", group, kind, optional)


def _custom(plural: str, kind: str) -> Served:
    return Served(f"{CRD_ROOT}/{plural}", API_GROUP, kind)


_ALL = (
    _core("nodes", "Node"),
    _core("pods", "Pod"),
    _core("namespaces", "Namespace"),
    _core("serviceaccounts", "ServiceAccount"),
    _core("services", "Service"),
    _grouped("discovery.k8s.io/v1", "endpointslices", "EndpointSlice"),
    _grouped("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy"),
    _grouped("policy.networking.k8s.io/v1alpha2", "clusternetworkpolicies", "ClusterNetworkPolicy", optional=True),
    _custom("ipamblocks", "IPAMBlock"),
    _custom("blockaffinities", "BlockAffinity"),
    _custom("ipamconfigs", "IPAMConfig"),
    _custom("ippools", "IPPool"),
    _custom("felixconfigurations", "FelixConfiguration"),
    _custom("tiers", "Tier"),
    _custom("networkpolicies", "NetworkPolicy"),
    _custom("globalnetworkpolicies", "GlobalNetworkPolicy"),
    _custom("networksets", "NetworkSet"),
    _custom("globalnetworksets", "GlobalNetworkSet"),
    _custom("hostendpoints", "HostEndpoint"),
    _custom("bgpconfigurations", "BGPConfiguration"),
    _custom("bgppeers", "BGPPeer"),
    _custom("bgpfilters", "BGPFilter"),
)
SERVED = {served.path: served for served in _ALL}


def affinity_query(affinity: str) -> str:
    """The query that selects the blocks of one owner, such as "host:node-1"."""
    return "fieldSelector=" + quote(f"{AFFINITY_FIELD}={affinity}", safe="")


def order_of_version(version: object) -> int:
    """A resourceVersion as a number; 0 if it is not a number."""
    text = str(version or "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 20 else 0
