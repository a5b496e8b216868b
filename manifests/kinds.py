"""The kinds of Calico's custom resources: names, columns of ``kubectl get``, defaults, and where a status is apart.

Rule: one table for both API groups that have these kinds; what differs between them is said in the row. Names,
columns and defaults are upstream's (v3.32).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from manifests import rules, schemas
from manifests.rules import Rules
from manifests.schemas import ANY_OBJECT, Schema

GROUP, VERSION = "crd.projectcalico.org", "v1"
NATIVE_GROUP, NATIVE_VERSION = "projectcalico.org", "v3"  # of the same kinds as users write them
_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Column:
    """One column of ``kubectl get``; ``path`` is a JSONPath within the object."""

    name: str
    path: str
    type: str = "string"


@dataclass(frozen=True, slots=True)
class Kind:
    """One custom resource definition. ``defaults``: path within ``spec`` -> the value that the API server fills in;
    ``status_in``: the groups in which the status is a subresource; ``native``: the fields that have another value in
    ``projectcalico.org``; ``selectable``: the fields by which its objects can be selected there; ``rules``: CEL of the
    whole object.
    """

    kind: str
    plural: str
    spec: Schema
    short: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=lambda: _NONE)
    status_in: tuple[str, ...] = ()
    namespaced: bool = False
    native: Mapping[str, Any] = field(default_factory=lambda: _NONE)
    selectable: tuple[str, ...] = ()
    rules: Rules = ()


AGE = Column("AGE", ".metadata.creationTimestamp", "date")
_TIER, _ORDER = Column("TIER", ".spec.tier"), Column("ORDER", ".spec.order", "number")
_NODE, _CIDR = Column("NODE", ".spec.node"), Column("CIDR", ".spec.cidr")
_IN_A_TIER = {"tier": "default"}
_STAGED = {"stagedAction": "Set"}
_BY_TIER = (".spec.tier",)

KINDS = (
    Kind(
        "BGPConfiguration",
        "bgpconfigurations",
        schemas.BGP_CONFIGURATION,
        ("bgpconfig", "bgpconfigs"),
        defaults={"logSeverityScreen": "Info", "serviceLoadBalancerAggregation": "Enabled"},
    ),
    Kind("BGPFilter", "bgpfilters", schemas.BGP_FILTER),
    Kind(
        "BGPPeer",
        "bgppeers",
        schemas.BGP_PEER,
        columns=(
            Column("Node Selector", ".spec.nodeSelector"),
            Column("Node", ".spec.node"),
            Column("Local ASN", ".spec.localASNumber"),
            Column("Peer Selector", ".spec.peerSelector"),
            Column("Peer IP", ".spec.peerIP"),
            Column("Peer ASN", ".spec.asNumber"),
        ),
    ),
    Kind(
        "BlockAffinity",
        "blockaffinities",
        schemas.AFFINITY,
        ("affinity", "affinities"),
        (_CIDR, _NODE, Column("TYPE", ".spec.type")),
        native={"spec": schemas.NATIVE_AFFINITY, "defaults": {"deleted": False}},
    ),
    Kind(
        "CalicoNodeStatus",
        "caliconodestatuses",
        schemas.NODE_STATUS,
        columns=(_NODE, Column("CLASSES", ".spec.classes")),
    ),
    Kind(
        "ClusterInformation",
        "clusterinformations",
        schemas.CLUSTER,
        ("clusterinfo", "clusterinfos"),
        (
            Column("VERSION", ".spec.calicoVersion"),
            Column("READY", ".spec.datastoreReady", "boolean"),
            Column("TYPES", ".spec.clusterType"),
        ),
    ),
    Kind(
        "FelixConfiguration",
        "felixconfigurations",
        schemas.FELIX,
        defaults={"nftablesMode": "Auto"},
        rules=rules.FELIX_OBJECT,
    ),
    Kind(
        "GlobalNetworkPolicy",
        "globalnetworkpolicies",
        schemas.GLOBAL_POLICY,
        ("gnp", "cgnp"),
        (_TIER, _ORDER, AGE),
        _IN_A_TIER,
        selectable=_BY_TIER,
    ),
    Kind("GlobalNetworkSet", "globalnetworksets", schemas.NETWORK_SET, ("gns",), (AGE,)),
    Kind(
        "HostEndpoint",
        "hostendpoints",
        schemas.HOST_ENDPOINT,
        ("hep", "heps"),
        (_NODE, Column("INTERFACE", ".spec.interfaceName")),
    ),
    Kind(
        "IPAMBlock",
        "ipamblocks",
        schemas.BLOCK,
        columns=(
            _CIDR,
            Column("AFFINITY", ".spec.affinity"),
            Column("CLAIMTIME", ".spec.affinityClaimTime", "date"),
        ),
        native={"spec": schemas.NATIVE_BLOCK},
    ),
    Kind(
        "IPAMConfig",
        "ipamconfigs",
        schemas.IPAM_CONFIG,
        columns=(
            Column("STRICTAFFINITY", ".spec.strictAffinity", "boolean"),
            Column("MAXBLOCKSPERHOST", ".spec.maxBlocksPerHost", "integer"),
            Column("AUTOALLOCATEBLOCKS", ".spec.autoAllocateBlocks", "boolean"),
        ),
        native={
            "kind": "IPAMConfiguration",
            "plural": "ipamconfigurations",
            "short": ("ipamconfig", "ipamconfigs"),
            "spec": schemas.NATIVE_IPAM_CONFIG,
            "defaults": {"autoAllocateBlocks": True, "strictAffinity": False, "maxBlocksPerHost": 0},
        },
    ),
    Kind("IPAMHandle", "ipamhandles", schemas.HANDLE, columns=(Column("ID", ".spec.handleID"),)),
    Kind(
        "IPPool",
        "ippools",
        schemas.POOL,
        columns=(
            _CIDR,
            Column("VXLAN", ".spec.vxlanMode"),
            Column("IPIP", ".spec.ipipMode"),
            Column("NAT", ".spec.natOutgoing", "boolean"),
            Column("ALLOCATABLE", '.status.conditions[?(@.type=="Allocatable")].status'),
            AGE,
        ),
        defaults={"assignmentMode": "Automatic"},
        status_in=(NATIVE_GROUP,),
    ),
    Kind("IPReservation", "ipreservations", schemas.RESERVATION),
    Kind(
        "KubeControllersConfiguration",
        "kubecontrollersconfigurations",
        schemas.KUBE_CONTROLLERS,
        ("kcc", "kccs"),
        defaults={
            "healthChecks": "Enabled",
            "controllers.loadBalancer.assignIPs": "AllServices",
            "controllers.policyMigration.enabled": "Enabled",
        },
        status_in=(GROUP, NATIVE_GROUP),
    ),
    Kind(
        "NetworkPolicy",
        "networkpolicies",
        schemas.POLICY,
        ("cnp", "caliconetworkpolicy"),
        (_TIER, _ORDER),
        _IN_A_TIER,
        namespaced=True,
        selectable=_BY_TIER,
    ),
    Kind("NetworkSet", "networksets", schemas.NETWORK_SET, namespaced=True),
    Kind(
        "StagedGlobalNetworkPolicy",
        "stagedglobalnetworkpolicies",
        schemas.STAGED_POLICY,
        ("sgnp",),
        (_TIER, _ORDER),
        _STAGED | _IN_A_TIER,
        selectable=_BY_TIER,
    ),
    Kind(
        "StagedKubernetesNetworkPolicy",
        "stagedkubernetesnetworkpolicies",
        schemas.STAGED_KUBERNETES_POLICY,
        ("sknp",),
        defaults=_STAGED,
        namespaced=True,
    ),
    Kind(
        "StagedNetworkPolicy",
        "stagednetworkpolicies",
        schemas.STAGED_POLICY,
        ("scnp", "snp"),
        (_TIER, _ORDER),
        _STAGED | _IN_A_TIER,
        selectable=_BY_TIER,
        namespaced=True,
    ),
    Kind(
        "Tier",
        "tiers",
        schemas.TIER,
        columns=(
            _ORDER,
            Column("DEFAULTACTION", ".spec.defaultAction"),
            Column("STATUS", '.status.conditions[?(@.type=="Ready")].reason'),
        ),
        defaults={"defaultAction": "Deny"},
        status_in=(NATIVE_GROUP,),
        rules=rules.TIER_OBJECT,
    ),
)


def _with_defaults(spec: Schema, defaults: Mapping[str, Any]) -> Schema:
    """The schema with the defaults in it. Raises KeyError for a path that it does not have."""
    filled = copy.deepcopy(spec)
    for path, value in defaults.items():
        place = filled
        for name in path.split("."):
            place = place["properties"][name]
        place["default"] = value
    return filled


def native(kind: Kind) -> Kind:
    """The kind as it is in ``projectcalico.org``."""
    return replace(kind, native=_NONE, **kind.native)


def definition(kind: Kind) -> Schema:
    """The CustomResourceDefinition in ``crd.projectcalico.org``."""
    return _definition(kind, GROUP, VERSION, required=())


def native_definition(kind: Kind) -> Schema:
    """The CustomResourceDefinition in ``projectcalico.org``."""
    made = _definition(native(kind), NATIVE_GROUP, NATIVE_VERSION, required=("metadata", "spec"))
    if kind.selectable:
        made["spec"]["versions"][0]["selectableFields"] = [{"jsonPath": path} for path in kind.selectable]
    return made


def _definition(kind: Kind, group: str, version: str, *, required: tuple[str, ...]) -> Schema:
    schema: Schema = {
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _with_defaults(kind.spec, kind.defaults),
            "status": ANY_OBJECT,
        },
    }
    if required:
        schema["required"] = list(required)
    if kind.rules:
        schema["x-kubernetes-validations"] = schemas.validations(kind.rules)
    served: Schema = {"name": version, "served": True, "storage": True}
    if kind.columns:
        served["additionalPrinterColumns"] = [
            {"name": column.name, "type": column.type, "jsonPath": column.path} for column in kind.columns
        ]
    served["schema"] = {"openAPIV3Schema": schema}
    if group in kind.status_in:
        served["subresources"] = {"status": {}}
    names = {
        "kind": kind.kind,
        "listKind": f"{kind.kind}List",
        "plural": kind.plural,
        "singular": kind.kind.lower(),
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{group}"},
        "spec": {
            "group": group,
            "names": {**names, "shortNames": list(kind.short)} if kind.short else names,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "versions": [served],
        },
    }
