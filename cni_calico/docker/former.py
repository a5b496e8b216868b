"""What upstream's libnetwork plugin has left on this host: endpoints that are in no file of ours, and addresses without
a handle.

Rule: what runs keeps its record and its interface. An endpoint goes when Docker deletes it, or, asked, does not have
it; an address goes with it, or when Docker releases it and no endpoint has it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from ipaddress import ip_address

from cni_calico.deadline import Deadline
from cni_calico.docker.context import DockerHost
from cni_calico.docker.state import DockerEndpoint, HeldAddress
from cni_calico.errors import CorruptRecord
from cni_calico.model.documents.codec import decode_endpoint
from cni_calico.model.identity import LIBNETWORK
from cni_calico.model.keys import ResourceKey, ResourceList, endpoints_of_node
from cni_calico.model.resources import Address, WorkloadEndpoint


def owe_endpoint(host: DockerHost, endpoint: str, addresses: Collection[str] = ()) -> None:
    """One that we have no file of is to be removed, with its addresses. Raises KernelError."""
    for address in addresses:
        if host.state.holding(address) is None:
            owe_address(host, address)
    entry = DockerEndpoint(endpoint, "", host.boot, host.now(), list(addresses), former=True, known=True, owed=True)
    host.state.endpoints.put(entry, durable=True)


def owe_address(host: DockerHost, address: str) -> HeldAddress:
    """One that we have no handle of is to be released. Raises KernelError."""
    held = HeldAddress(os.urandom(16).hex(), host.boot, address=address, made_s=host.now(), owed=True, former=True)
    host.state.addresses.put(held, durable=True)
    return held


def former_endpoints(host: DockerHost, deadline: Deadline) -> Iterator[WorkloadEndpoint]:
    """Docker's on this host, of which we have no file. Raises DatastoreError, DeadlineExceeded."""
    prefix = endpoints_of_node(host.node).name_prefix
    listed = host.datastore.store.list(ResourceList("WorkloadEndpoint", LIBNETWORK, prefix), deadline)
    for item in listed.items:
        if not isinstance(item.key, ResourceKey):
            continue
        try:
            record = decode_endpoint(item.key, item.value)
        except CorruptRecord as e:
            host.log.warning(f"left alone: {e}")
            continue
        is_docker_s = record.node == host.node and record.orchestrator == LIBNETWORK
        if is_docker_s and record.endpoint.isalnum() and host.state.endpoints.get(record.endpoint) is None:
            yield record


def addresses_of(record: WorkloadEndpoint) -> list[str]:
    """PURE."""
    return [str(network.network_address) for network in record.ip_networks]


def find_former(host: DockerHost, address: str, deadline: Deadline) -> WorkloadEndpoint | None:
    """Docker's endpoint here that has the address, and that we have no file of. Raises DatastoreError."""
    found = former_endpoints(host, deadline)
    return next((record for record in found if address in addresses_of(record)), None)


def release_former(host: DockerHost, text: str, deadline: Deadline) -> None:
    """Release an address that has no handle, unless an endpoint has it. Raises CalicoError."""
    address = ip_address(text)
    listed = host.datastore.store.list(ResourceList("WorkloadEndpoint"), deadline)
    if any(_may_have(item.value, address) for item in listed.items):
        host.log.warning(f"{text} is not released: an endpoint has it")
        return
    if address not in host.datastore.allocator.handles_of([address], deadline):
        host.datastore.allocator.release_addresses([address], deadline)


def _may_have(document: object, address: Address) -> bool:
    """Also a record that cannot be read."""
    text = json.dumps(document)
    return f'"{address}/' in text or f'"{address}"' in text
