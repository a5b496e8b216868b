"""PURE: this node's record: what start-up writes into it, and which other nodes have its addresses.

Rule: fields that start-up does not decide stay as they are; a record that needs no change is returned equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Interface, IPv6Interface
from typing import Any

from cni_calico.errors import InvalidConfig
from cni_calico.model.documents.codec import decode_node, encode_node, new_metadata
from cni_calico.model.host import HostInterface
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Node
from cni_calico.nodeagent.context.settings import NodeSettings
from cni_calico.nodeagent.startup.address import Found
from cni_calico.nodeagent.startup.autodetect import is_local_interface


@dataclass(frozen=True, slots=True)
class NodePlan:
    """``addresses`` False (no networking between nodes): addresses, AS and interfaces are left alone."""

    name: str
    v4: IPv4Interface | None = None
    v6: IPv6Interface | None = None
    as_number: int | None = None
    k8s_node_ref: str = ""
    interfaces: tuple[Mapping[str, Any], ...] = ()
    addresses: bool = True


def key_of(name: str) -> ResourceKey:
    return ResourceKey("Node", name)


def plan_node(settings: NodeSettings, name: str, v4: Found, v6: Found, interfaces: Sequence[HostInterface]) -> NodePlan:
    """What start-up wants in the record."""
    if settings.backend == "none":
        return NodePlan(name, k8s_node_ref=settings.k8s_node_ref, addresses=False)
    families = tuple(
        family for family, setting in ((4, settings.ip), (6, settings.ip6)) if setting.mode in ("autodetect", "fixed")
    )
    return NodePlan(
        name,
        v4.address if isinstance(v4.address, IPv4Interface) else None,
        v6.address if isinstance(v6.address, IPv6Interface) else None,
        settings.as_number,
        settings.k8s_node_ref,
        describe_interfaces(interfaces, families),
    )


def describe_interfaces(interfaces: Iterable[HostInterface], families: Sequence[int]) -> tuple[dict[str, Any], ...]:
    """The Node's ``interfaces``: by name, those that other hosts may reach, with all addresses of the families."""
    out = []
    for interface in sorted(interfaces, key=lambda item: item.name):
        addresses = [str(address.ip) for address in interface.addresses if address.version in families]
        if interface.up and addresses and not is_local_interface(interface.name):
            out.append({"name": interface.name, "addresses": addresses})
    return tuple(out)


def desired_document(plan: NodePlan, old: Mapping[str, Any] | None, *, uid: str, now: str) -> dict[str, Any]:
    """The record as the plan wants it. Raises CorruptRecord if the old one has the wrong shape."""
    if old is None:
        node = Node(new_metadata(plan.name, uid=uid, now=now), status={})
    else:
        node = decode_node(key_of(plan.name), old)
    if plan.addresses:
        node = replace(node, ipv4=plan.v4, ipv6=plan.v6, interfaces=plan.interfaces)
        if plan.as_number is not None:
            node = replace(node, as_number=plan.as_number)
    if plan.k8s_node_ref:
        node = replace(node, orch_refs=({"nodeName": plan.k8s_node_ref, "orchestrator": "k8s"},))
    return encode_node(node)


def without_address(name: str, old: Mapping[str, Any], families: Iterable[int]) -> dict[str, Any]:
    """The record with our addresses of those families cleared, so that it does not claim another node's addresses."""
    node = decode_node(key_of(name), old)
    if 4 in families:
        node = replace(node, ipv4=None)
    if 6 in families:
        node = replace(node, ipv6=None)
    return encode_node(node)


@dataclass(frozen=True, slots=True)
class Conflict:
    family: int
    address: str
    node: str


def select_conflicts(plan: NodePlan, others: Iterable[Node]) -> tuple[Conflict, ...]:
    """The nodes that have one of our addresses already."""
    found = []
    for other in others:
        if other.metadata.name == plan.name:
            continue
        if plan.v4 and other.ipv4 and plan.v4.ip == other.ipv4.ip:
            found.append(Conflict(4, str(plan.v4.ip), other.metadata.name))
        if plan.v6 and other.ipv6 and plan.v6.ip == other.ipv6.ip:
            found.append(Conflict(6, str(plan.v6.ip), other.metadata.name))
    return tuple(found)


def conflict_error(name: str, conflicts: Sequence[Conflict]) -> InvalidConfig:
    held = "; ".join(f"node {c.node} already has the IPv{c.family} address {c.address}" for c in conflicts)
    return InvalidConfig(
        f"cannot set up node {name}: {held}",
        details="remove the other Node record if that node is gone (calicoctl delete node NAME), give this node "
        "another address or name, or set DISABLE_NODE_IP_CHECK=true",
    )
