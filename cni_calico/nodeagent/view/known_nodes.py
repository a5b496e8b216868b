"""PURE: the addresses of nodes whose records cannot be read as a whole.

Rule: each address is read by itself, whatever is wrong with the rest; what cannot be read is no address. Nothing here
raises, and nothing ever stands for more than the addresses that a record names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cni_calico.model.documents.fields import Wrong, parse_interface
from cni_calico.model.resources import Address

_FIELDS = (("ipv4Address", 4), ("ipv6Address", 6))


def parse_node_addresses(document: Mapping[str, Any]) -> frozenset[Address]:
    """A Node's own addresses in a document that need not be a Node."""
    spec = document.get("spec")
    bgp = spec.get("bgp") if isinstance(spec, Mapping) else None
    found: set[Address] = set()
    if not isinstance(bgp, Mapping):
        return frozenset()
    for field, version in _FIELDS:
        try:
            address = parse_interface(bgp.get(field), field).ip
        except Wrong:
            continue
        if address.version == version:
            found.add(address)
    return frozenset(found)


def describe_cut_off(nodes: Iterable[str]) -> tuple[str, ...]:
    """Sentences for the status, one for each node of which no address is known."""
    return tuple(
        f"Node {name} cannot be read and none of its addresses is known: this node drops its VXLAN and IPIP packets "
        f"until the record is repaired"
        for name in nodes
    )
