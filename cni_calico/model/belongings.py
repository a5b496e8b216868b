"""PURE: which resources belong to one node and are deleted with it.

Rule: these are the resources that name this node only: its BGP peers and host endpoints (``spec.node``), and its own
configuration (``node.<name>``). Resources that select nodes by label stay. Source: upstream's node controller and
client library.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cni_calico.model.keys import ResourceKey, ResourceList
from cni_calico.model.timestamps import parse_rfc3339

NAMING = ("BGPPeer", "HostEndpoint")  # kinds with the node's name in spec.node
LISTINGS = tuple(ResourceList(kind) for kind in NAMING)


def felix_of_node(node: str) -> ResourceKey:
    return ResourceKey("FelixConfiguration", f"node.{node}")


def own_configuration(node: str) -> tuple[ResourceKey, ...]:
    return felix_of_node(node), ResourceKey("BGPConfiguration", f"node.{node}")


def names_node(document: Mapping[str, Any], node: str) -> bool:
    """Whether a BGPPeer or HostEndpoint names this node."""
    spec = document.get("spec")
    return isinstance(spec, Mapping) and spec.get("node") == node


def was_made_before(document: Mapping[str, Any], time_s: float) -> bool:
    """Whether its creationTimestamp (RFC 3339) is before the Unix time; False if that is unknown."""
    metadata = document.get("metadata")
    stamp = metadata.get("creationTimestamp") if isinstance(metadata, Mapping) else None
    made_s = parse_rfc3339(str(stamp))
    return made_s is not None and made_s < time_s
