"""PURE: the automatic host endpoints of nodes, and those from templates.

Rule: a host endpoint is ours if it has our label, whatever its name; its profile allows everything, so it changes
nothing until somebody writes a policy. Source: upstream's kube-controllers.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

from cni_calico.datastore.interface import Document
from cni_calico.errors import InvalidConfig
from cni_calico.model.documents.resources import API_VERSION
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Address, Network
from cni_calico.model.selectors import parse_selector

KIND = "HostEndpoint"
CREATED_BY, OURS = "projectcalico.org/created-by", "calico-kube-controllers"
PROFILE = "projectcalico-default-allow"
NAME_MAX = 253
_SUFFIX = "-auto-hep"


@dataclass(frozen=True, slots=True)
class HostEndpointTemplate:
    """``cidrs``: use only addresses in these; ``pattern``: one endpoint for each interface whose name matches it."""

    name: str
    cidrs: tuple[Network, ...] = ()
    pattern: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    selector: str = "all()"


@dataclass(frozen=True, slots=True)
class HostEndpointWish:
    """``auto``: whether there are any at all; ``default``: whether each node gets one for all its interfaces."""

    auto: bool = False
    default: bool = True
    templates: tuple[HostEndpointTemplate, ...] = ()


def parse_template(value: Any) -> HostEndpointTemplate:
    """Raises ValueError with what is wrong."""
    if not isinstance(value, Mapping):
        raise ValueError("expected an object")
    name, labels = value.get("generateName"), value.get("labels") or {}
    if not isinstance(name, str) or not name:
        raise ValueError("generateName is missing")
    if not isinstance(labels, Mapping) or not all(isinstance(text, str) for text in labels.values()):
        raise ValueError("labels must be strings")
    pattern, selector = value.get("interfacePattern") or "", value.get("nodeSelector") or "all()"
    try:
        re.compile(pattern)
        parse_selector(selector)
        cidrs = tuple(ip_network(text, strict=False) for text in value.get("interfaceCIDRs") or ())
    except (re.error, TypeError, ValueError, InvalidConfig) as e:
        raise ValueError(f"template {name}: {e}") from e
    if not cidrs and not pattern:
        raise ValueError(f"template {name}: interfaceCIDRs or interfacePattern is needed")
    return HostEndpointTemplate(name, cidrs, pattern, dict(labels), selector)


def render_template(template: HostEndpointTemplate) -> dict[str, Any]:
    """The template as a document; what is empty is left out."""
    document = {
        "generateName": template.name,
        "interfaceCIDRs": [str(cidr) for cidr in template.cidrs],
        "interfacePattern": template.pattern,
        "labels": dict(template.labels),
        "nodeSelector": template.selector,
    }
    return {name: value for name, value in document.items() if value}


def endpoint_name(node: str, *parts: str) -> str:
    """A name that is too long is replaced by its digest."""
    name = "-".join((node, *parts)) + _SUFFIX
    if len(name) <= NAME_MAX:
        return name
    digest = base64.urlsafe_b64encode(hashlib.sha256(name.encode()).digest()).decode()
    return "".join(c for c in digest if c not in "-_.=").lower()


def is_ours(document: Document) -> bool:
    labels = (document.get("metadata") or {}).get("labels") or {}
    return isinstance(labels, Mapping) and labels.get(CREATED_BY) == OURS


def desired_host_endpoints(wish: HostEndpointWish, nodes: Iterable[Document]) -> dict[ResourceKey, dict[str, Any]]:
    """The host endpoints that the given nodes should have."""
    found: dict[ResourceKey, dict[str, Any]] = {}
    for node in nodes if wish.auto else ():
        metadata = node["metadata"]
        labels = metadata.get("labels") or {}
        if wish.default:
            addresses = _addresses(node)
            document = _render(endpoint_name(metadata["name"]), metadata["name"], "*", addresses, labels)
            found[ResourceKey(KIND, document["metadata"]["name"])] = document
        for template in wish.templates:
            if parse_selector(template.selector).matches(labels):
                for document in _of_template(template, node, labels):
                    found[ResourceKey(KIND, document["metadata"]["name"])] = document
    return found


def _of_template(template: HostEndpointTemplate, node: Document, labels: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    name = node["metadata"]["name"]
    labels = {**labels, **template.labels}
    if not template.pattern:
        addresses = _within(_addresses(node), template.cidrs)
        if addresses:
            yield _render(endpoint_name(name, template.name), name, "", addresses, labels)
        return
    for interface, addresses in _interfaces(node):
        if re.search(template.pattern, interface):
            inside = _within(addresses, template.cidrs) if template.cidrs else addresses
            if inside or not template.cidrs:
                yield _render(endpoint_name(name, template.name, interface), name, interface, inside, labels)


def _render(
    name: str, node: str, interface: str, addresses: Iterable[Address], labels: Mapping[str, str]
) -> dict[str, Any]:
    spec: dict[str, Any] = {"node": node}
    if interface:
        spec["interfaceName"] = interface
    texts = [str(address) for address in addresses]
    if texts:
        spec["expectedIPs"] = texts
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "labels": {**labels, CREATED_BY: OURS}},
        "spec": {**spec, "profiles": [PROFILE]},
    }


def _within(addresses: Iterable[Address], cidrs: Iterable[Network]) -> list[Address]:
    cidrs = tuple(cidrs)
    return [a for a in addresses if any(a.version == cidr.version and a in cidr for cidr in cidrs)]


def _addresses(node: Document) -> list[Address]:
    """All known addresses of a node, in upstream's order, each once."""
    spec = node.get("spec") or {}
    bgp, wireguard = spec.get("bgp") or {}, spec.get("wireguard") or {}
    texts = [
        bgp.get("ipv4Address"),
        bgp.get("ipv6Address"),
        bgp.get("ipv4IPIPTunnelAddr"),
        spec.get("ipv4VXLANTunnelAddr"),
        spec.get("ipv6VXLANTunnelAddr"),
        wireguard.get("interfaceIPv4Address"),
        wireguard.get("interfaceIPv6Address"),
        *(entry.get("address") for entry in spec.get("addresses") or () if entry.get("type") == "InternalIP"),
    ]
    found = [address for text in texts if (address := _parse(text)) is not None]
    found += [address for _, addresses in _interfaces(node) for address in addresses]
    return list(dict.fromkeys(found))


def _interfaces(node: Document) -> list[tuple[str, list[Address]]]:
    found = []
    for entry in (node.get("spec") or {}).get("interfaces") or ():
        if isinstance(entry, Mapping) and isinstance(entry.get("name"), str):
            addresses = [_parse(text) for text in entry.get("addresses") or ()]
            found.append((entry["name"], [address for address in addresses if address is not None]))
    return found


def _parse(text: Any) -> Address | None:
    try:
        return None if not text else ip_interface(text).ip if "/" in text else ip_address(text)
    except (TypeError, ValueError):
        return None


# -- the difference ---------------------------------------------------------------------------------------------------


def is_current(wanted: Document, found: Document) -> bool:
    return bool(
        wanted["spec"] == {name: value for name, value in (found.get("spec") or {}).items() if value not in ("", [])}
        and wanted["metadata"]["labels"] == ((found.get("metadata") or {}).get("labels") or {})
    )


def merged(wanted: Document, found: Document) -> dict[str, Any]:
    """The document to store over ``found``: its identity (UID and the like) stays."""
    metadata = {**(found.get("metadata") or {}), "labels": wanted["metadata"]["labels"]}
    return {**found, "metadata": metadata, "spec": wanted["spec"]}
