"""GC: what this network holds on this node for attachments that no longer exist.

Rule: an attachment is resolved through its endpoint record, since network names and container IDs may both contain
dots; a bare handle is released only when it can mean nothing else. When in doubt, keep. Never another node's, never
another network's. All failures are reported together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cni_calico.cni.environment import Call
from cni_calico.cni.netconf import NetConf
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, CorruptRecord, InvalidConfig, TeardownIncomplete
from cni_calico.ipam.nodename import read_nodename
from cni_calico.ipam.services import Services
from cni_calico.model.codec import decode_block, decode_endpoint
from cni_calico.model.keys import BlockKey, BlockList, ResourceKey, ResourceList
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.plugin.attachment import Attachment
from cni_calico.plugin.delete import Removal


def collect_garbage(call: Call, conf: NetConf, services: Services, deadline: Deadline) -> None:
    """Raises TeardownIncomplete naming everything that could not be removed."""
    if conf.valid_attachments is None:
        raise InvalidConfig(
            "cannot collect garbage: cni.dev/valid-attachments is missing",
            details="without the list of valid attachments everything would have to go; nothing was removed",
        )
    node = read_nodename(conf, services.files, deadline)
    endpoints = tuple(_endpoints_of(node, conf, services, deadline))
    valid = {(item.container_id, item.ifname) for item in conf.valid_attachments}
    failures = []
    for endpoint in endpoints:
        if (endpoint.container_id, endpoint.endpoint) in valid:
            continue
        try:
            _collect_endpoint(endpoint, call, conf, services, deadline)
        except CalicoError as e:
            failures.append(f"{endpoint.metadata.name}: {e.message}")
    if conf.ipam.is_calico:
        containers = {container for container, _ in valid} | {e.container_id for e in endpoints}
        failures += _collect_handles(node, containers, conf, services, deadline)
    elif conf.ipam.type:
        from cni_calico.plugin.delegate import run_delegate

        run_delegate(call, conf, services, deadline, command="GC")
    if failures:
        raise TeardownIncomplete("cannot collect all garbage: " + "; ".join(failures))


def _endpoints_of(node: str, conf: NetConf, services: Services, deadline: Deadline) -> Iterator[WorkloadEndpoint]:
    for item in services.store(conf.datastore).list(ResourceList("WorkloadEndpoint"), deadline).items:
        if not isinstance(item.key, ResourceKey):
            continue
        try:
            endpoint = decode_endpoint(item.key, item.value)
        except CorruptRecord as e:
            services.log.error(f"kept: {e.message}")
            continue
        if endpoint.node == node and endpoint.container_id:
            yield endpoint


def _collect_endpoint(
    endpoint: WorkloadEndpoint, call: Call, conf: NetConf, services: Services, deadline: Deadline
) -> None:
    attachment = Attachment(
        network=conf.name,
        node=endpoint.node,
        orchestrator=endpoint.orchestrator,
        namespace=endpoint.metadata.namespace,
        workload=endpoint.pod or endpoint.container_id,
        container_id=endpoint.container_id,
        ifname=endpoint.endpoint,
    )
    if not _belongs(endpoint, attachment, conf, services, deadline):
        return
    services.log.info(f"collecting {attachment.label}: no longer a valid attachment")
    its_call = replace(call, container_id=endpoint.container_id, ifname=endpoint.endpoint, netns="")
    with services.attachment_lock(attachment.label, deadline):
        Removal(conf, services, attachment, deadline).run(None, its_call)


def _belongs(
    endpoint: WorkloadEndpoint, attachment: Attachment, conf: NetConf, services: Services, deadline: Deadline
) -> bool:
    """Whether the endpoint is this network's: its addresses are, or it is in no other network."""
    if conf.ipam.is_calico:
        allocator = services.allocator(conf.datastore)
        held = {a.address for h in attachment.handle_ids[:2] for a in allocator.addresses_of(h, deadline)}
        if held & {network.network_address for network in endpoint.ip_networks}:
            return True
    return endpoint.profiles == (conf.name,)


def _collect_handles(
    node: str, containers: set[str], conf: NetConf, services: Services, deadline: Deadline
) -> list[str]:
    """Release addresses of this network and node whose container nobody knows (an ADD that died half way)."""
    prefix = f"{conf.name}."
    orphans: set[str] = set()
    for item in services.store(conf.datastore).list(BlockList(), deadline).items:
        if not isinstance(item.key, BlockKey):
            continue
        try:
            block = decode_block(item.key, item.value)
        except CorruptRecord as e:
            services.log.error(f"kept: {e.message}")
            continue
        for attribute in block.attributes:
            handle_id = attribute.handle_id or ""
            container = handle_id.removeprefix(prefix)
            if attribute.secondary.get("node") != node or not handle_id.startswith(prefix):
                continue
            if container not in containers and "." not in container:
                orphans.add(handle_id)
    failures = []
    for handle_id in sorted(orphans):
        try:
            _release_orphan(handle_id, conf, services, deadline)
        except CalicoError as e:
            failures.append(f"{handle_id}: {e.message}")
    return failures


def _release_orphan(handle_id: str, conf: NetConf, services: Services, deadline: Deadline) -> None:
    with services.ipam_lock(conf, deadline):
        released = services.allocator(conf.datastore).release_handle(handle_id, deadline)
    services.log.info(f"collected {', '.join(map(str, released))}, held under {handle_id} by no valid attachment")
