"""PURE: ``usePodCidr`` in the configuration of a delegated IPAM plugin (host-local).

Rule: the delegate never sees the word usePodCidr. For DEL it needs networks but does not use them, so it gets
placeholders. They differ from each other, because the delegate refuses equal or overlapping networks, and then the
address would leak.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_network
from typing import Any

from cni_calico.errors import InvalidConfig

_WORDS = {"usepodcidr": 4, "usepodcidripv6": 6}


def _family(value: object) -> int:
    """The family whose podCIDR a subnet asks for, in upper or lower case; 0 for an ordinary subnet."""
    return _WORDS.get(value.lower(), 0) if isinstance(value, str) else 0


def wants_pod_cidr(ipam: Mapping[str, Any]) -> bool:
    """Whether an ``ipam`` object has a subnet that the node's podCIDR must replace."""
    return any(_family(item.get("subnet")) for item in _subnets(ipam))


def _subnets(ipam: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    yield ipam
    for group in ipam.get("ranges") or ():
        for item in group if isinstance(group, list) else (group,):
            if isinstance(item, Mapping):
                yield item


def read_pod_cidrs(node: Mapping[str, Any]) -> dict[int, str]:
    """Family -> podCIDR of a Kubernetes Node."""
    spec = node.get("spec") or {}
    found: dict[int, str] = {}
    for text in (*(spec.get("podCIDRs") or ()), spec.get("podCIDR")):
        try:
            found.setdefault(ip_network(text).version, text)
        except ValueError:
            continue
    return found


def render_ipam(ipam: Mapping[str, Any], cidrs: Mapping[int, str], node: str) -> dict[str, Any]:
    """``ipam`` with the node's podCIDRs. Raises InvalidConfig for a family that the node has no podCIDR of."""

    def replaced(item: Mapping[str, Any]) -> dict[str, Any]:
        family = _family(item.get("subnet"))
        if not family:
            return dict(item)
        if family not in cidrs:
            raise InvalidConfig(
                f"cannot use {item['subnet']}: node {node} has no IPv{family} podCIDR",
                details="kube-controller-manager assigns them (--allocate-node-cidrs, --cluster-cidr)",
            )
        return {**item, "subnet": cidrs[family]}

    return _with_subnets(ipam, replaced)


def render_ipam_placeholders(ipam: Mapping[str, Any]) -> dict[str, Any]:
    """``ipam`` for DEL: each unknown subnet is replaced by its own documentation network (RFC 5737, RFC 3849)."""
    count = 0

    def replaced(item: Mapping[str, Any]) -> dict[str, Any]:
        nonlocal count
        family = _family(item.get("subnet"))
        if not family:
            return dict(item)
        count += 1
        subnet = f"192.0.2.{count * 4 % 256}/30" if family == 4 else f"2001:db8:{count:x}::/64"
        return {**item, "subnet": subnet}

    return _with_subnets(ipam, replaced)


def _with_subnets(ipam: Mapping[str, Any], replaced: Any) -> dict[str, Any]:
    out: dict[str, Any] = replaced(ipam)
    if isinstance(ipam.get("ranges"), list):
        out["ranges"] = [
            [replaced(item) if isinstance(item, Mapping) else item for item in group]
            if isinstance(group, list)
            else group
            for group in ipam["ranges"]
        ]
    return out
