"""GC: releases what this network holds on this node for attachments that no longer exist.

Rule: an attachment is resolved through its endpoint record, because network names and container IDs may both contain
dots; a bare handle is released only if it is unambiguous (plugin/ipam/gc.py). A doubtful handle is kept. Nothing of
another node or network is ever removed. All failures are reported together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from cni_calico.errors import CalicoError
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.plugin.attachment import KUBERNETES, PLAIN, SAME_VETH, Attachment, veth_prefix_of
from cni_calico.plugin.call.ready import require_ready
from cni_calico.plugin.call.task import Task
from cni_calico.plugin.delete import Removal
from cni_calico.plugin.ipam.addresses import FIRST_IFNAME
from cni_calico.plugin.ipam.gc import (
    Orphan,
    find_orphans,
    pods_of,
    read_endpoints,
    release_orphan,
    require_none,
    require_valid_list,
)


def collect_garbage(task: Task) -> None:
    """Raises TeardownIncomplete naming everything that could not be removed."""
    conf = task.conf
    valid = require_valid_list(conf)
    node = task.read_nodename()
    require_ready(task.datastore, task.deadline)
    collection = _GarbageCollection(task)
    found = read_endpoints(task.fresh_store, node, task.deadline)
    collection.failures += found.unreadable
    for endpoint in found.endpoints:
        if (endpoint.container_id, endpoint.endpoint) not in valid:
            collection.attempt(endpoint.metadata.name, collection.collect_endpoint, endpoint)
    if conf.ipam.is_calico:
        recorded = {(endpoint.container_id, endpoint.endpoint) for endpoint in found.endpoints}
        collection.collect_orphans(node, valid, recorded)
    elif conf.ipam.type:
        collection.attempt(f"IPAM plugin {conf.ipam.type}", collection.forward)
    require_none(collection.failures)


class _GarbageCollection:
    """One GC; ``failures`` collects what could not be removed."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.network = task.conf.name
        self.failures: list[str] = []

    def attempt(self, what: str, act: Callable[..., None], *arguments: object) -> None:
        try:
            act(*arguments)
        except CalicoError as e:
            self.failures.append(f"{what}: {e.message}")

    def forward(self) -> None:
        from cni_calico.plugin.delegate import run_delegate

        run_delegate(self.task, command="GC")

    def collect_endpoint(self, endpoint: WorkloadEndpoint) -> None:
        attachment = Attachment(
            network=self.network,
            node=endpoint.node,
            orchestrator=endpoint.orchestrator,
            namespace=endpoint.metadata.namespace,
            workload=endpoint.pod or endpoint.container_id,
            container_id=endpoint.container_id,
            ifname=endpoint.endpoint,
        )
        if self._belongs(endpoint, attachment):
            self._remove(attachment)

    def _belongs(self, endpoint: WorkloadEndpoint, attachment: Attachment) -> bool:
        """Whether the endpoint belongs to this network: its addresses do, or it is in no other network."""
        if self.task.conf.ipam.is_calico:
            allocator, deadline = self.task.allocator, self.task.deadline
            held = {a.address for h in attachment.handle_ids[:2] for a in allocator.addresses_of(h, deadline)}
            if held & {network.network_address for network in endpoint.ip_networks}:
                return True
        return endpoint.profiles == (self.network,)

    def collect_orphans(
        self, node: str, valid: Collection[tuple[str, str]], recorded: Collection[tuple[str, str]]
    ) -> None:
        """Remove what interrupted ADDs left: addresses, and perhaps an interface, but no endpoint."""
        known = {*valid, *recorded}
        orphans, unreadable = find_orphans(
            self.task.fresh_store, self.network, node, known, self.task.deadline, pods_of(self.task)
        )
        self.failures += unreadable
        containers = {container for container, _ in recorded}
        unrecorded = {container[:SAME_VETH] for container, _ in valid if container not in containers}
        for orphan in orphans:
            if orphan.is_bare and orphan.pod:
                self.attempt(orphan.handle_id, release_orphan, orphan, self.task)
                continue
            if not orphan.pod and orphan.container_id[:SAME_VETH] in unrecorded:
                self.task.log.warning(f"kept {orphan.handle_id}: its interface may be a valid attachment's")
                continue
            attachment = plan_orphan(orphan, self.network, node, veth_prefix_of(self.task.call))
            self.attempt(orphan.handle_id, self._remove, attachment)

    def _remove(self, attachment: Attachment) -> None:
        self.task.log.info(f"collecting {attachment.shown}: no longer a valid attachment")
        call = replace(self.task.call, container_id=attachment.container_id, ifname=attachment.ifname, netns="")
        lock, deadline = self.task.services.attachment_lock, self.task.deadline
        with lock(attachment.label, deadline), lock(attachment.veth_label, deadline):
            Removal(replace(self.task, call=call), attachment).run(None)


def plan_orphan(orphan: Orphan, network: str, node: str, veth_prefix: str) -> Attachment:
    """The attachment that a handle without an endpoint was meant for."""
    return Attachment(
        network=network,
        node=node,
        orchestrator=KUBERNETES if orphan.pod else PLAIN,
        namespace=orphan.namespace if orphan.pod else "default",
        workload=orphan.pod or orphan.container_id,
        container_id=orphan.container_id,
        ifname=orphan.interface or FIRST_IFNAME,
        veth_prefix=veth_prefix,
    )
