"""PURE: the part of policy that comes from Kubernetes: its policies, profiles of namespaces and accounts, endpoints of
services.

Rule: takes an object, returns a key and a record of the graph; the conversion itself is in the model, and the
controllers that maintain the same records in etcd use it too. Raises CorruptRecord, which names the object.
"""

from __future__ import annotations

from ipaddress import ip_address

from cni_calico.errors import CorruptRecord
from cni_calico.model.documents.fields import (
    JSON,
    Wrong,
    parse_object,
    parse_objects,
    parse_text,
    parse_text_map,
    parse_texts,
)
from cni_calico.model.documents.resources import read_resource
from cni_calico.model.keys import ResourceKey
from cni_calico.model.kubernetes.custom import object_name
from cni_calico.model.kubernetes.pods import read_namespace, read_service_account
from cni_calico.model.kubernetes.policies import (
    CLUSTER_NETWORK_POLICY,
    NETWORK_POLICY,
    STORED_PREFIX,
    ConvertedPolicy,
    read_cluster_network_policy,
    read_network_policy,
    read_stored_network_policy,
)
from cni_calico.model.resources import Metadata, Resource
from cni_calico.policy.nodes import SLICE
from cni_calico.policy.records import ServiceMembers
from cni_calico.policy.rules import PROTOCOLS

__all__ = [
    "CLUSTER_NETWORK_POLICY",
    "DEFAULT_ALLOW",
    "NETWORK_POLICY",
    "STORED_PREFIX",
    "ConvertedPolicy",
    "read_cluster_network_policy",
    "read_namespace",
    "read_network_policy",
    "read_service_account",
    "read_slice",
    "read_stored_network_policy",
    "record_of",
]

MEMBERS_MAX = 100_000  # that one object may give: addresses and ports of a slice are multiplied
SERVICE_LABEL = "kubernetes.io/service-name"
_ALLOW = ({"action": "Allow"},)
# the profile has no record if Kubernetes is the datastore, but host endpoints name it
DEFAULT_ALLOW = Resource("Profile", Metadata("projectcalico-default-allow"), {"ingress": _ALLOW, "egress": _ALLOW})


def record_of(key: ResourceKey, document: JSON) -> Resource:
    """The record of a converted policy or profile."""
    return read_resource(document, key)


def read_slice(obj: JSON) -> tuple[ResourceKey, ServiceMembers | None]:
    """An EndpointSlice's part of its service, ready or not; None if it has no service. Raises CorruptRecord."""
    try:
        metadata = parse_object(obj.get("metadata"), "metadata")
        name = parse_text(metadata.get("name"), "metadata.name")
        namespace = parse_text(metadata.get("namespace"), "metadata.namespace")
        service = parse_text_map(metadata.get("labels") or {}, "metadata.labels").get(SERVICE_LABEL)
        key = ResourceKey(SLICE, name, namespace)
        if not service:
            return key, None
        addresses = [address for item in _objects(obj, "endpoints") for address in _addresses(item)]
        ports = [port for item in _objects(obj, "ports") for port in _port(item)]
    except Wrong as e:
        raise CorruptRecord(f"cannot read {object_name(obj)}: {e}") from e
    if len(addresses) * len(ports) > MEMBERS_MAX:
        raise CorruptRecord(
            f"cannot use {object_name(obj)}: {len(addresses)} addresses with {len(ports)} ports each are more than "
            f"{MEMBERS_MAX} members of a set"
        )
    triples = frozenset((address, *port) for address in addresses for port in ports)
    return key, ServiceMembers(namespace, service, frozenset(addresses), triples)


def _objects(obj: JSON, field: str) -> tuple[JSON, ...]:
    return parse_objects(obj.get(field) or (), field)


def _addresses(endpoint: JSON) -> list[bytes]:
    """The endpoint's IP addresses; a slice may also contain host names."""
    found = []
    for text in parse_texts(endpoint.get("addresses") or (), "endpoints.addresses"):
        try:
            found.append(ip_address(text).packed)
        except ValueError:
            continue
    return found


def _port(port: JSON) -> list[tuple[int, int]]:
    """(protocol, port); none for a port without a number, or with one that no packet can have."""
    number, protocol = port.get("port"), PROTOCOLS.get(str(port.get("protocol") or "TCP").lower())
    if type(number) is not int or not 0 < number < 65536 or protocol is None:
        return []
    return [(protocol, number)]
