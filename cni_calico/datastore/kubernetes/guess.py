"""PURE: which record an unreadable object probably is, judging by its name; used for messages, and to leave that record
alone.

Rule: a guess is never written to; if the name does not say enough, the key has the object's own kind and name.
"""

from __future__ import annotations

from ipaddress import ip_network

from cni_calico.model.documents.fields import JSON
from cni_calico.model.keys import AffinityKey, BlockKey, HandleKey, IPAMConfigKey, Key, ResourceKey
from cni_calico.model.kubernetes import pods as crd_pods
from cni_calico.model.resources import Network


def guess_key(obj: JSON, plural: str) -> Key:
    """The key of an object of a collection; ``plural`` is the last part of the collection's path."""
    raw = obj.get("metadata")
    metadata = raw if isinstance(raw, dict) else {}
    name, namespace = str(metadata.get("name") or ""), str(metadata.get("namespace") or "")
    spec = obj.get("spec")
    node = spec.get("nodeName") if isinstance(spec, dict) else None
    if plural == "pods" and isinstance(node, str):
        try:
            return crd_pods.endpoint_key(namespace, name, node)
        except ValueError:
            pass
    if plural == "ipamhandles":
        return HandleKey(name)
    if plural in ("ipamconfigs", "ipamconfigurations"):
        return IPAMConfigKey()
    if plural == "ipamblocks" and (cidr := parse_cidr_name(name)) is not None:
        return BlockKey(cidr)
    if plural == "blockaffinities":
        found = _parse_affinity_name(name)
        if found is not None:
            return found
    return ResourceKey(str(obj.get("kind") or plural), name, namespace)


def parse_cidr_name(name: str) -> Network | None:
    """The network in "10-65-0-0-26" or "fd00-65--40-122"; None if the name is not a network's."""
    address, _, length = name.rpartition("-")
    for separator in (".", ":"):
        try:
            return ip_network(f"{address.replace('-', separator)}/{length}")
        except ValueError:
            continue
    return None


def _parse_affinity_name(name: str) -> AffinityKey | None:
    """The affinity of an IPv4 block: the last five parts are its network. For IPv6 it is unknown where the network
    begins.
    """
    parts = name.rsplit("-", 5)
    cidr = parse_cidr_name("-".join(parts[1:])) if len(parts) == 6 else None
    return AffinityKey(parts[0], cidr) if cidr is not None and cidr.version == 4 else None
