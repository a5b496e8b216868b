"""The records of Docker's containers in the datastore: endpoints, and a Profile for each network.

Rule: an endpoint has upstream's key and fields, and its container's ID; it is removed under its own name only, and an
existing Profile is never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_network

from cni_calico.cni.netconf import MEMBERS
from cni_calico.datastore.cas import update
from cni_calico.datastore.interface import Document, Versioned, Write
from cni_calico.deadline import Deadline
from cni_calico.docker.containers import DockerContainer
from cni_calico.docker.context import DockerHost
from cni_calico.docker.documents import host_name
from cni_calico.docker.ports import parse_forward
from cni_calico.docker.state import DockerEndpoint
from cni_calico.kernel.filter.port_table import PortForward
from cni_calico.model.documents.codec import decode_endpoint, encode
from cni_calico.model.identity import LIBNETWORK, IdentityLabels, merge_labels, plan_labels
from cni_calico.model.keys import ResourceKey
from cni_calico.model.names import endpoint_name, sha1_hex
from cni_calico.model.resources import EndpointPort, Metadata, Resource, WorkloadEndpoint
from cni_calico.model.timestamps import rfc3339
from cni_calico.plugin.endpoints import ensure_profile
from cni_calico.plugin.identity.boot import BOOT

_PROFILE_MAX = 63
_HASH = 8
_ENDS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")


def endpoint_key(node: str, endpoint: str) -> ResourceKey:
    """PURE: upstream's."""
    return ResourceKey("WorkloadEndpoint", endpoint_name(node, LIBNETWORK, LIBNETWORK, endpoint), LIBNETWORK)


def profile_name(network: str) -> str:
    """PURE: the network's name, if a Profile may be called so; else a name made of it, which no other network has."""
    if _is_name(network):
        return network
    plain = "".join(c if c in _ENDS or c == "-" else "-" for c in network.lower())
    room = _PROFILE_MAX - len("docker.") - _HASH - 1
    return f"docker.{plain[:room].strip('-') or 'network'}-{sha1_hex(network)[:_HASH]}"


def _is_name(text: str) -> bool:
    parts = text.split(".")
    return len(text) <= _PROFILE_MAX and all(
        part and part[0] in _ENDS and part[-1] in _ENDS and set(part) <= _ENDS | {"-"} for part in parts
    )


def plan_profile(network: str, ingress: str, *, now: str, uid: str) -> Resource:
    """PURE: the network's Profile, which lets everything out, and in what ``ingress`` says."""
    name = profile_name(network)
    source = {"selector": f"has({name})"} if ingress == MEMBERS else {}
    return Resource(
        kind="Profile",
        metadata=Metadata(name=name, uid=uid, creation_timestamp=now),
        spec={
            "ingress": [{"action": "Allow", "source": source, "destination": {}}],
            "egress": [{"action": "Allow", "source": {}, "destination": {}}],
            "labelsToApply": {name: ""},
        },
    )


def plan_labels_of(
    container: DockerContainer, network: str, own: Mapping[str, str], *, all_labels: bool
) -> IdentityLabels:
    """PURE: who the container is, as labels; ``own``: those of ``--driver-opt``, which come before the container's."""
    identity = container.identity
    labels = {**(identity.labels if all_labels else {}), **own}
    return plan_labels(replace(identity, labels=labels), network)


def plan_record(
    node: str, endpoint: DockerEndpoint, labels: IdentityLabels, network: str, container: str, *, now: str, uid: str
) -> WorkloadEndpoint:
    """PURE: the endpoint's record. ``network`` "": its name is not known yet, and it has no profile. Ports may be
    published before anybody knows whose they are.
    """
    base = {"projectcalico.org/namespace": LIBNETWORK, "projectcalico.org/orchestrator": LIBNETWORK}
    return WorkloadEndpoint(
        metadata=Metadata(
            name=endpoint_key(node, endpoint.id).name,
            namespace=LIBNETWORK,
            uid=uid,
            creation_timestamp=now,
            labels={**labels.labels, **base},
            annotations={BOOT: endpoint.boot} if endpoint.boot else {},
        ),
        orchestrator=LIBNETWORK,
        workload=LIBNETWORK,
        node=node,
        endpoint=endpoint.id,
        interface_name=host_name(endpoint.id),
        container_id=container,
        mac=endpoint.mac,
        ip_networks=tuple(ip_network(address) for address in endpoint.addresses),
        profiles=(profile_name(network),) if network else (),
        ports=_published(endpoint),
    )


def _published(endpoint: DockerEndpoint) -> tuple[EndpointPort, ...]:
    try:
        return plan_ports(list(map(parse_forward, endpoint.ports)))
    except ValueError:
        return ()  # its file is wrong, so they are not published, and the log says so


def with_identity(record: WorkloadEndpoint, planned: WorkloadEndpoint) -> WorkloadEndpoint:
    """PURE: a stored record with what is planned; labels and profiles of other origin stay."""
    labels = {**merge_labels(record.metadata.labels, {}), **planned.metadata.labels}
    profiles = record.profiles + tuple(name for name in planned.profiles if name not in record.profiles)
    metadata = replace(
        record.metadata, labels=labels, annotations={**record.metadata.annotations, **planned.metadata.annotations}
    )
    return replace(
        record,
        metadata=metadata,
        profiles=profiles,
        container_id=planned.container_id or record.container_id,
        mac=planned.mac,
        ip_networks=planned.ip_networks,
        interface_name=planned.interface_name,
        ports=planned.ports,
    )


def ensure_record(
    host: DockerHost, endpoint: DockerEndpoint, container: DockerContainer, network: str, deadline: Deadline
) -> tuple[str, ...]:
    """Write the endpoint's record, and its network's Profile before; returns what is left out of its labels, and why.
    Raises CalicoError.
    """
    now, uid = rfc3339(host.now()), host.services.new_uid
    held = host.state.networks.get(endpoint.network)
    if network and host.settings.create_profiles:
        ingress = held.ingress if held is not None else ""
        ensure_profile(host.datastore.store, plan_profile(network, ingress, now=now, uid=uid()), deadline)
    labels = plan_labels_of(container, network, endpoint.labels, all_labels=host.settings.label_endpoints)
    for why in labels.left_out:
        host.log.warning(f"endpoint {endpoint.id[:12]}: {why}")
    planned = plan_record(host.node, endpoint, labels, network, container.id, now=now, uid=uid())
    key = endpoint_key(host.node, endpoint.id)

    def change(current: Versioned | None) -> Document:
        if current is None:
            return encode(planned)
        return encode(with_identity(decode_endpoint(key, current.value), planned))

    update(host.datastore.store, key, change, deadline, is_new=not endpoint.container)
    return labels.left_out


def remove_record(host: DockerHost, endpoint: str, deadline: Deadline) -> None:
    """Remove an endpoint's record, whose name is nobody else's; absent is success. Raises DatastoreError,
    DeadlineExceeded.
    """
    host.datastore.store.commit((Write.remove(endpoint_key(host.node, endpoint)),), deadline)


def write_ports(host: DockerHost, endpoint: str, forwards: Sequence[PortForward], deadline: Deadline) -> None:
    """What the endpoint publishes, in its record if there is one. Raises DatastoreError, DeadlineExceeded."""
    key, ports = endpoint_key(host.node, endpoint), plan_ports(forwards)

    def change(current: Versioned | None) -> Document | None:
        if current is None:
            return None
        record = decode_endpoint(key, current.value)
        return current.value if record.ports == ports else encode(replace(record, ports=ports))

    update(host.datastore.store, key, change, deadline)


def plan_ports(forwards: Sequence[PortForward]) -> tuple[EndpointPort, ...]:
    """PURE: as a record has them; a port of both families is one."""
    found = {
        (each.protocol, each.host_port, str(each.host or "")): EndpointPort(
            f"{each.protocol}-{each.host_port}", each.port, each.protocol.upper(), each.host_port, str(each.host or "")
        )
        for each in forwards
    }
    return tuple(found.values())
