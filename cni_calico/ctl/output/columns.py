"""PURE: the columns of each kind's table, and their content.

Rule: a column is a heading and the path of a field, or a function if a field is not enough. Source: upstream's tables.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cni_calico.errors import InvalidConfig
from cni_calico.model.documents.fields import JSON
from cni_calico.model.identity import shown_name
from cni_calico.model.keys import NAMESPACED_KINDS

Column = str | Callable[[JSON], Any]


def _field(document: JSON, path: str) -> Any:
    value: Any = document
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _text(value: Any) -> str:
    """A value as Go's templates print it: upstream's tables are made with these."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(_text(item) for item in value)
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_text(item)}" for name, item in value.items())
    return str(value)


def _peer_node(document: JSON) -> str:
    spec = document.get("spec") or {}
    return spec.get("node") or spec.get("nodeSelector") or "(global)"


def _default(path: str, value: Any) -> Column:
    return lambda document: value if _field(document, path) in (None, "") else _field(document, path)


def _pointer(path: str) -> Column:
    """A value that may be absent; it is then shown as "<nil>"."""
    return lambda document: "<nil>" if _field(document, path) is None else _field(document, path)


def _number(path: str) -> Column:
    """A number, 0 if it is absent."""
    return lambda document: _field(document, path) or 0


def _workload(document: JSON) -> str:
    """The pod, or what people call the container; its ID if nobody has said."""
    spec, labels = document.get("spec") or {}, _field(document, "metadata.labels") or {}
    name = spec.get("pod") or shown_name(labels if isinstance(labels, Mapping) else {})
    return name or spec.get("workload") or spec.get("containerID") or ""


def _nats(document: JSON) -> list[str]:
    nats = _field(document, "spec.ipNATs") or []
    return [f"{nat.get('externalIP')}->{nat.get('internalIP')}" for nat in nats if isinstance(nat, Mapping)]


def _communities(document: JSON) -> list[str]:
    items = _field(document, "spec.prefixAdvertisements") or []
    return [f"{item.get('cidr')}:{_text(item.get('communities'))}" for item in items if isinstance(item, Mapping)]


_NAME: Mapping[str, Column] = {"NAME": "metadata.name"}
_POLICY: Mapping[str, Column] = {
    "NAME": "metadata.name",
    "TIER": "spec.tier",
    "ORDER": _pointer("spec.order"),
    "SELECTOR": "spec.selector",
}
COLUMNS: Mapping[str, Mapping[str, Column]] = {
    "Node": {
        "NAME": "metadata.name",
        "ASN": _default("spec.bgp.asNumber", "(64512)"),
        "IPV4": "spec.bgp.ipv4Address",
        "IPV6": "spec.bgp.ipv6Address",
    },
    "IPPool": {
        "NAME": "metadata.name",
        "CIDR": "spec.cidr",
        "NAT": _default("spec.natOutgoing", False),
        "IPIPMODE": _default("spec.ipipMode", "Never"),
        "VXLANMODE": _default("spec.vxlanMode", "Never"),
        "DISABLED": _default("spec.disabled", False),
        "DISABLEBGPEXPORT": _default("spec.disableBGPExport", False),
        "SELECTOR": _default("spec.nodeSelector", "all()"),
        "ASSIGNMENTMODE": _default("spec.assignmentMode", "Automatic"),
        "BLOCKSIZE": "spec.blockSize",
        "ALLOWEDUSES": "spec.allowedUses",
    },
    "IPReservation": {"NAME": "metadata.name", "CIDRS": _default("spec.reservedCIDRs", "")},
    "BGPPeer": {"NAME": "metadata.name", "PEERIP": "spec.peerIP", "NODE": _peer_node, "ASN": _number("spec.asNumber")},
    "BGPConfiguration": {
        "NAME": "metadata.name",
        "LOGSEVERITY": "spec.logSeverityScreen",
        "MESHENABLED": _pointer("spec.nodeToNodeMeshEnabled"),
        "ASNUMBER": _pointer("spec.asNumber"),
        "PREFIXES": _communities,
    },
    "BGPFilter": _NAME,
    "FelixConfiguration": {"NAME": "metadata.name", "LOGSEVERITY": "spec.logSeverityScreen"},
    "ClusterInformation": {
        "NAME": "metadata.name",
        "CLUSTERGUID": "spec.clusterGUID",
        "CLUSTERTYPE": "spec.clusterType",
        "CALICOVERSION": "spec.calicoVersion",
        "DATASTOREREADY": _pointer("spec.datastoreReady"),
    },
    "GlobalNetworkPolicy": _POLICY,
    "GlobalNetworkSet": {"NAME": "metadata.name", "NETS": "spec.nets"},
    "HostEndpoint": {
        "NAME": "metadata.name",
        "NODE": "spec.node",
        "INTERFACE": "spec.interfaceName",
        "IPS": "spec.expectedIPs",
        "PROFILES": "spec.profiles",
    },
    "Profile": {"NAME": "metadata.name", "LABELS": "spec.labelsToApply"},
    "Tier": {"NAME": "metadata.name", "ORDER": _pointer("spec.order"), "DEFAULTACTION": "spec.defaultAction"},
    "KubeControllersConfiguration": _NAME,
    "CalicoNodeStatus": {"NAME": "metadata.name", "NODE": "spec.node", "CLASSES": "spec.classes"},
    "WorkloadEndpoint": {
        "NAME": "metadata.name",
        "WORKLOAD": _workload,
        "NODE": "spec.node",
        "NETWORKS": "spec.ipNetworks",
        "INTERFACE": "spec.interfaceName",
        "PROFILES": "spec.profiles",
        "NATS": _nats,
    },
    "NetworkPolicy": _POLICY,
    "StagedGlobalNetworkPolicy": _POLICY,
    "StagedKubernetesNetworkPolicy": {"NAME": "metadata.name", "PODSELECTOR": "spec.podSelector"},
    "StagedNetworkPolicy": _POLICY,
    "NetworkSet": {"NAME": "metadata.name", "NETS": "spec.nets"},
}
# the columns of the short table, where it does not have all columns
_SHORT: Mapping[str, Sequence[str]] = {
    "Node": ("NAME",),
    "IPPool": ("NAME", "CIDR", "SELECTOR"),
    "BGPConfiguration": ("NAME", "LOGSEVERITY", "MESHENABLED", "ASNUMBER"),
    "FelixConfiguration": ("NAME",),
    "GlobalNetworkPolicy": ("NAME", "TIER"),
    "GlobalNetworkSet": ("NAME",),
    "HostEndpoint": ("NAME", "NODE"),
    "Profile": ("NAME",),
    "Tier": ("NAME", "ORDER"),
    "WorkloadEndpoint": ("WORKLOAD", "NODE", "NETWORKS", "INTERFACE"),
    "NetworkPolicy": ("NAME", "TIER"),
    "NetworkSet": ("NAME",),
    "IPReservation": ("NAME",),
    "StagedGlobalNetworkPolicy": ("NAME", "TIER"),
    "StagedKubernetesNetworkPolicy": ("NAME",),
    "StagedNetworkPolicy": ("NAME", "TIER"),
}
_WIDE: Mapping[str, Sequence[str]] = {
    "IPPool": tuple(COLUMNS["IPPool"])[:9],
    "BGPConfiguration": ("NAME", "LOGSEVERITY", "MESHENABLED", "ASNUMBER"),
}


@dataclass(frozen=True, slots=True)
class Columns:
    """A table's headings, and what makes its rows."""

    headings: Sequence[str]
    fields: Sequence[Column]

    def row(self, document: JSON) -> list[str]:
        return [_text(each(document) if callable(each) else _field(document, each)) for each in self.fields]


def columns_of(kind: str, *, wide: bool, namespaced: bool) -> Columns:
    """The columns of a kind's table; ``namespaced`` puts NAMESPACE first."""
    chosen = _WIDE.get(kind, tuple(COLUMNS[kind])) if wide else _SHORT.get(kind, tuple(COLUMNS[kind]))
    return _chosen(kind, (["NAMESPACE"] if namespaced and kind in NAMESPACED_KINDS else []) + list(chosen))


def _chosen(kind: str, headings: Sequence[str]) -> Columns:
    known = {"NAMESPACE": "metadata.namespace", **COLUMNS[kind]}
    return Columns(headings, [known[heading] for heading in headings])


def parse_columns(kind: str, text: str) -> Columns:
    """The columns that ``NAME,CIDR`` names, or with paths ``NAME:.metadata.name,CIDR:.spec.cidr`` as kubectl has them.

    Raises InvalidConfig for a column that the kind does not have.
    """
    if ":" in text:
        return _parse_paths(text)
    headings = [part.strip().upper() for part in text.split(",") if part.strip()]
    known = [*COLUMNS[kind], *(["NAMESPACE"] if kind in NAMESPACED_KINDS else [])]
    for heading in headings:
        if heading not in known:
            raise InvalidConfig(
                f"cannot print column {heading}: {kind} has no such column",
                details=f"it has {', '.join(known)}; any field by {heading}:.spec.FIELD",
            )
    if not headings:
        raise InvalidConfig("cannot print custom columns: none is named", details="it has " + ", ".join(known))
    return _chosen(kind, headings)


def _selected(path: str) -> Column:
    from cni_calico.ctl.output.jsonpath import select_values

    select_values(path, {})  # raises if it is not a path
    return lambda document: select_values(path, document) or "<none>"


def _parse_paths(text: str) -> Columns:
    headings: list[str] = []
    fields: list[Column] = []
    for part in re.findall(r"(?:\[[^\]]*\]|[^,])+", text):
        heading, colon, path = part.strip().partition(":")
        if not (heading and colon and path):
            raise InvalidConfig(f"cannot print column {part!r}: expected HEADING:PATH, as NAME:.metadata.name")
        headings.append(heading)
        fields.append(_selected(path.strip().removeprefix("{").removesuffix("}")))
    return Columns(headings, fields)
