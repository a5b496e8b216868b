"""PURE: reads the endpoints of other nodes' pods in one go, where their documents have the shape that nearly all have.

Rule: anything else is left to the codec (``None``), which says what is wrong; what is read here is what it would read,
checked as it checks. An agent's start reads all endpoints of the cluster, and needs labels and addresses of them.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import Any

from cni_calico.model.documents.fields import JSON, parse_text
from cni_calico.model.documents.kinds import ENDPOINT
from cni_calico.model.documents.resources import API_VERSION, METADATA
from cni_calico.model.keys import ResourceKey
from cni_calico.policy.records import Labelled, own_labels

_METADATA_TEXTS = frozenset(field.name for field in METADATA if field.parse is parse_text)
_SPEC_TEXTS = frozenset(field.name for field in ENDPOINT if field.parse is parse_text)
_READ_BELOW = frozenset(("ipNetworks", "profiles"))
_OTHERS = frozenset(field.name for field in ENDPOINT) - _SPEC_TEXTS - _READ_BELOW
_NO_LABELS: dict[str, str] = {}
_TEXT = frozenset((str,))


def plain_workload(key: ResourceKey, raw: JSON, here: str) -> Labelled | None:
    """What of an endpoint can be selected, and where it is. None: it has to be read in the usual way, as those of the
    node ``here`` have.
    """
    metadata: Any = raw.get("metadata")
    spec: Any = raw.get("spec")
    if raw.get("kind") != key.kind or raw.get("apiVersion") != API_VERSION or not _are_objects(metadata, spec, raw):
        return None
    for name, value in metadata.items():
        if type(value) is not str and name in _METADATA_TEXTS:
            return None
    if metadata.get("name") != key.name or metadata.get("namespace") != key.namespace:
        return None
    labels = metadata.get("labels", _NO_LABELS)
    if not (_are_texts(labels) and _are_texts(metadata.get("annotations", _NO_LABELS))):
        return None
    for name, value in spec.items():
        if name in _OTHERS or (type(value) is not str and name in _SPEC_TEXTS):
            return None
    networks, profiles = spec.get("ipNetworks"), spec.get("profiles", [])
    if spec.get("node") in (None, "", here) or not spec.get("interfaceName") or not networks:
        return None
    if type(networks) is not list or type(profiles) is not list or not _TEXT.issuperset(map(type, profiles)):
        return None
    addresses = [_packed(network) for network in networks]
    if None in addresses:
        return None
    account = spec.get("serviceAccountName", "")
    own = own_labels(labels, key.namespace, spec.get("orchestrator", ""), account)
    found = tuple(dict.fromkeys(address for address in addresses if address is not None))
    return Labelled(frozenset(own.items()), tuple(profiles), found)


def _are_objects(metadata: Any, spec: Any, raw: JSON) -> bool:
    return type(metadata) is dict and type(spec) is dict and ("status" not in raw or type(raw["status"]) is dict)


def _are_texts(raw: Any) -> bool:
    """Whether it is an object that has texts alone."""
    return type(raw) is dict and _TEXT.issuperset(map(type, raw.values()))


def _packed(network: Any) -> bytes | None:
    """Of a single address; None for anything else."""
    if type(network) is not str:
        return None
    address, _, length = network.partition("/")
    try:
        if length == "32":
            return IPv4Address(address).packed
        return IPv6Address(address).packed if length == "128" and "%" not in address else None
    except ValueError:
        return None
