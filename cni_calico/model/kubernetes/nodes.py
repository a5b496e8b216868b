"""PURE: the Kubernetes Node from and to Calico's Node document.

Rule: Calico's fields live in annotations; labels of the Kubernetes node are inherited and never written back. An
annotation that cannot be read is left out, as in upstream: a typing error must not make a node's record disappear.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from ipaddress import ip_interface, ip_network
from typing import Any

from cni_calico.errors import CorruptRecord
from cni_calico.model.documents.fields import (
    JSON,
    Wrong,
    parse_list,
    parse_object,
    parse_objects,
    parse_text,
    parse_text_map,
)
from cni_calico.model.documents.resources import API_VERSION
from cni_calico.model.keys import ResourceKey
from cni_calico.model.kubernetes.custom import object_name
from cni_calico.model.kubernetes.flannel import FLANNEL, read_end, render_end

_PREFIX = "projectcalico.org/"
LABELS, ANNOTATIONS = _PREFIX + "labels", _PREFIX + "annotations"
KUBE_LABELS = _PREFIX + "kube-labels"
INTERFACES = _PREFIX + "Interfaces"
_WITH_PREFIX = ("IPv4Address", "IPv6Address")
NODE_ADDRESSES = ("InternalIP", "ExternalIP")


def _interface(version: int) -> Callable[[str], bool]:
    def valid(text: str) -> bool:
        return "/" in text and ip_interface(text).version == version

    return valid


def _address(version: int) -> Callable[[str], bool]:
    def valid(text: str) -> bool:
        return ip_interface(text).version == version

    return valid


def _mac(text: str) -> bool:
    parts = text.split(":")
    return len(parts) == 6 and all(len(part) == 2 and int(part, 16) >= 0 for part in parts)


def _as_number(text: str) -> bool:
    high, dot, low = text.partition(".")
    return 0 <= int(high) < 1 << 32 and (not dot or 0 <= int(low) < 1 << 16)


# annotation, its place (path in the document), and a check whether a text is a valid value
_FIELDS: tuple[tuple[str, tuple[str, ...], Callable[[str], bool]], ...] = (
    ("IPv4Address", ("spec", "bgp", "ipv4Address"), _interface(4)),
    ("IPv6Address", ("spec", "bgp", "ipv6Address"), _interface(6)),
    ("IPv4IPIPTunnelAddr", ("spec", "bgp", "ipv4IPIPTunnelAddr"), _address(4)),
    ("ASNumber", ("spec", "bgp", "asNumber"), _as_number),
    ("RouteReflectorClusterID", ("spec", "bgp", "routeReflectorClusterID"), _address(4)),
    ("IPv4VXLANTunnelAddr", ("spec", "ipv4VXLANTunnelAddr"), _address(4)),
    ("IPv6VXLANTunnelAddr", ("spec", "ipv6VXLANTunnelAddr"), _address(6)),
    ("VXLANTunnelMACAddr", ("spec", "vxlanTunnelMACAddr"), _mac),
    ("VXLANTunnelMACAddrV6", ("spec", "vxlanTunnelMACAddrV6"), _mac),
    ("IPv4WireguardInterfaceAddr", ("spec", "wireguard", "interfaceIPv4Address"), _address(4)),
    ("IPv6WireguardInterfaceAddr", ("spec", "wireguard", "interfaceIPv6Address"), _address(6)),
    ("WireguardPublicKey", ("status", "wireguardPublicKey"), bool),
    ("WireguardPublicKeyV6", ("status", "wireguardPublicKeyV6"), bool),
)
# the places in a document of the fields that a Node's annotations hold, except labels and annotations
STORED = (*(path for _, path, _ in _FIELDS), ("spec", "interfaces"))


def _valid(check: Callable[[str], bool], text: str) -> bool:
    try:
        return check(text)
    except ValueError:
        return False


# -- reading ----------------------------------------------------------------------------------------------------------


def read_node(obj: JSON, *, use_pod_cidr: bool = False) -> tuple[ResourceKey, dict[str, Any]]:
    """Key and document of a Kubernetes Node. Raises CorruptRecord.

    ``use_pod_cidr``: host-local IPAM assigns addresses from podCIDR, and the IPIP tunnel's is the first of them. What
    flannel says of the node is in the status (flannel.py); it is never written.
    """
    try:
        return _read_node(obj, use_pod_cidr)
    except Wrong as e:
        raise CorruptRecord(f"cannot read {object_name(obj)}: {e}") from e


def _read_node(obj: JSON, use_pod_cidr: bool) -> tuple[ResourceKey, dict[str, Any]]:
    metadata = parse_object(obj.get("metadata"), "metadata")
    name = parse_text(metadata.get("name"), "metadata.name")
    annotations = parse_text_map(metadata.get("annotations") or {}, "metadata.annotations")
    document: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": "Node",
        "metadata": _read_metadata(name, metadata, annotations),
        "spec": {},
        "status": {},
    }
    for annotation, path, check in _FIELDS:
        text = annotations.get(_PREFIX + annotation)
        if text and _valid(check, text):
            _put(document, path, int(text) if annotation == "ASNumber" and text.isdecimal() else text)
    spec, kube_spec = document["spec"], parse_object(obj.get("spec") or {}, "spec")
    if use_pod_cidr and kube_spec.get("podCIDR"):
        _read_static_tunnel(document, parse_text(kube_spec["podCIDR"], "spec.podCIDR"))
    spec["orchRefs"] = [{"nodeName": name, "orchestrator": "k8s"}]
    addresses = _read_addresses(spec.get("bgp", {}), parse_object(obj.get("status") or {}, "status"))
    if addresses:
        spec["addresses"] = addresses
    interfaces = _read_interfaces(annotations)
    if interfaces:
        spec["interfaces"] = interfaces
    if flannel := read_end(annotations, kube_spec.get("podCIDR")):
        document["status"][FLANNEL] = render_end(flannel)
    if kube_spec.get("podCIDRs"):
        document["status"]["podCIDRs"] = list(parse_list(kube_spec["podCIDRs"], "spec.podCIDRs"))
    return ResourceKey("Node", name), document


def _put(document: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for step in path[:-1]:
        document = document.setdefault(step, {})
    document[path[-1]] = value


def _json_map(annotations: JSON, name: str) -> dict[str, str]:
    try:
        return dict(parse_text_map(json.loads(annotations.get(name) or "{}"), name))
    except (ValueError, RecursionError):
        return {}


def _read_metadata(name: str, metadata: JSON, annotations: JSON) -> dict[str, Any]:
    out: dict[str, Any] = {"name": name}
    for field in ("uid", "creationTimestamp", "deletionTimestamp"):
        if metadata.get(field):
            out[field] = metadata[field]
    inherited = dict(parse_text_map(metadata.get("labels") or {}, "metadata.labels"))
    labels = {**_json_map(annotations, LABELS), **inherited}
    if labels:
        out["labels"] = labels
    out["annotations"] = {**_json_map(annotations, ANNOTATIONS), KUBE_LABELS: _compact(inherited)}
    return out


def _read_static_tunnel(document: dict[str, Any], pod_cidr: str) -> None:
    try:
        network = ip_network(pod_cidr, strict=False)
    except ValueError as e:
        raise Wrong("spec.podCIDR", "a network in CIDR notation", pod_cidr) from e
    if network.version == 4:
        _put(document, ("spec", "bgp", "ipv4IPIPTunnelAddr"), str(network.network_address + 1))


def _read_addresses(bgp: JSON, status: JSON) -> list[dict[str, str]]:
    own = [bgp[field] for field in ("ipv4Address", "ipv6Address") if bgp.get(field)]
    found = [{"address": address, "type": "CalicoNodeIP"} for address in own]
    for entry in parse_objects(status.get("addresses") or [], "status.addresses"):
        if entry.get("type") in NODE_ADDRESSES:
            found.append({"address": entry.get("address", ""), "type": entry["type"]})
    return found


def _read_interfaces(annotations: JSON) -> list[JSON]:
    try:
        return list(parse_objects(json.loads(annotations.get(INTERFACES) or "[]"), INTERFACES))
    except (ValueError, RecursionError):
        return []


def inherited_labels(document: JSON) -> dict[str, str]:
    """The labels in a Node's document that belong to the Kubernetes node itself."""
    return _json_map((document.get("metadata") or {}).get("annotations") or {}, KUBE_LABELS)


# -- writing ----------------------------------------------------------------------------------------------------------


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, sort_keys=isinstance(value, dict))


def node_annotations(document: JSON, old: JSON) -> dict[str, str]:
    """All annotations of the Kubernetes Node after ``document`` has been written; ``old`` are its present ones."""
    metadata = document.get("metadata") or {}
    out = dict(old)
    own = dict(metadata.get("annotations") or {})
    inherited = _json_map(own, KUBE_LABELS)
    own.pop(KUBE_LABELS, None)
    labels = {name: value for name, value in (metadata.get("labels") or {}).items() if name not in inherited}
    interfaces = (document.get("spec") or {}).get("interfaces") or []
    _set(out, LABELS, _compact(labels) if labels else "")
    _set(out, ANNOTATIONS, _compact(own) if own else "")
    _set(out, INTERFACES, _compact(list(interfaces)) if interfaces else "")
    for annotation, path, _ in _FIELDS:
        value: Any = document
        for step in path:
            value = value.get(step) or {}
        text = str(value) if value != {} else ""
        _set(out, _PREFIX + annotation, _with_prefix(text) if annotation in _WITH_PREFIX else text)
    return out


def _with_prefix(text: str) -> str:
    """A node's own address as the annotations hold it; without a prefix length it means the address alone."""
    if not text or "/" in text:
        return text
    try:
        return str(ip_interface(text))
    except ValueError:
        return text


def _set(annotations: dict[str, str], name: str, value: str) -> None:
    if value:
        annotations[name] = value
    else:
        annotations.pop(name, None)
