"""GC's part of address management: releases addresses of containers that no longer exist.

Rule: a handle is released only if it can mean nothing but a container of this network on this node, because network
names and container IDs may both contain dots; a doubtful one is kept. The oldest releases wrote handles without
attributes: such a one counts as this node's if its block is, and no endpoint of any node is the container's; one that
names a pod also needs Kubernetes to say that there is no such pod, one that does not also that no other node can have
borrowed the address. A record that cannot be read is kept and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from cni_calico.cni.netconf import NetConf
from cni_calico.datastore.interface import Datastore
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, CorruptRecord, DatastoreDenied, InvalidConfig, TeardownIncomplete
from cni_calico.ipam.lost.bare import is_bare, is_container, parse_bare_handle, suffixes
from cni_calico.ipam.share import INTERFACE, Share
from cni_calico.model import names
from cni_calico.model.documents.codec import decode_block, decode_endpoint
from cni_calico.model.keys import BlockKey, BlockList, Key, ResourceKey, ResourceList, endpoints_of_node
from cni_calico.model.resources import Attribute, WorkloadEndpoint
from cni_calico.plugin.call.ready import require_not_locked
from cni_calico.plugin.call.task import Task
from cni_calico.plugin.ipam.remembered import containers_of_other_networks

HasPod = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Orphan:
    """Addresses under one handle whose attachment is unknown.

    ``interface`` is "" for addresses that name none, ``namespace`` and ``pod`` are "" outside Kubernetes. ``is_bare``:
    the addresses have no attributes; if the handle names a pod, the container is unknown ("").
    """

    handle_id: str
    container_id: str
    interface: str = ""
    namespace: str = ""
    pod: str = ""
    is_bare: bool = False


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The node's endpoints, and the error of each that cannot be read."""

    endpoints: tuple[WorkloadEndpoint, ...]
    unreadable: tuple[str, ...]


def require_valid_list(conf: NetConf) -> frozenset[tuple[str, str]]:
    """(container ID, interface) of every valid attachment. Raises InvalidConfig without a list."""
    if conf.valid_attachments is None:
        raise InvalidConfig(
            "cannot collect garbage: cni.dev/valid-attachments is missing",
            details="without the list of valid attachments everything would be removed, so nothing was",
        )
    return frozenset((item.container_id, item.ifname) for item in conf.valid_attachments)


def read_endpoints(store: Datastore, node: str, deadline: Deadline) -> Endpoints:
    """The endpoints of one node. Raises DatastoreError."""
    listing = store.list(endpoints_of_node(node), deadline)
    found, unreadable = [], [why for key, why in listing.unreadable if _may_be_of(key, node)]
    for item in listing.items:
        if not isinstance(item.key, ResourceKey):
            continue
        try:
            endpoint = decode_endpoint(item.key, item.value)
        except CorruptRecord as e:
            if _may_be_of(item.key, node):
                unreadable.append(e.message)
            continue
        if endpoint.node == node and endpoint.container_id:
            found.append(endpoint)
    return Endpoints(tuple(found), tuple(unreadable))


def _may_be_of(key: Key, node: str) -> bool:
    """Whether an endpoint that cannot be read may be this node's, judging by its name."""
    try:
        return isinstance(key, ResourceKey) and names.parse_endpoint_name(key.name)[0] == node
    except ValueError:
        return True


def find_orphans(
    store: Datastore,
    network: str,
    node: str,
    known: Collection[tuple[str, str]],
    deadline: Deadline,
    has_pod: HasPod | None = None,
) -> tuple[tuple[Orphan, ...], tuple[str, ...]]:
    """What is allocated in this network on this node to attachments that are not ``known``, as (container, interface),
    and the errors of blocks that cannot be read. An address that names no interface may belong to any of its
    container's. ``has_pod``: whether Kubernetes has a pod, None without Kubernetes.
    """
    orphans: dict[tuple[str, str], Orphan] = {}
    containers = {container for container, _ in known}
    listing = store.list(BlockList(), deadline)
    unreadable = [why for _, why in listing.unreadable]
    for item in listing.items:
        if not isinstance(item.key, BlockKey):
            continue
        try:
            block = decode_block(item.key, item.value)
        except CorruptRecord as e:
            unreadable.append(e.message)
            continue
        for attribute in block.attributes:
            orphan = _parse_orphan(attribute, block.node, network, node) or (
                None if has_pod is None else _parse_pods(attribute, block.node, node)
            )
            if orphan is None or (orphan.container_id, orphan.interface) in known:
                continue
            if orphan.interface or orphan.container_id not in containers:
                orphans[orphan.handle_id, orphan.interface] = orphan
    if any(orphan.is_bare for orphan in orphans.values()):
        used = _used_anywhere(store, network, containers, deadline)
        orphans = {key: orphan for key, orphan in orphans.items() if not (orphan.is_bare and used(orphan))}
    if any(o.is_bare and not o.pod for o in orphans.values()) and _may_be_borrowed(store, node, deadline):
        orphans = {key: orphan for key, orphan in orphans.items() if orphan.pod or not orphan.is_bare}
    found = (orphans[key] for key in sorted(orphans))
    return tuple(o for o in found if not (o.is_bare and o.pod and has_pod and has_pod(o.namespace, o.pod))), tuple(
        unreadable
    )


def _parse_orphan(attribute: Attribute, block_node: str | None, network: str, node: str) -> Orphan | None:
    """Without attributes and network name only what is certainly a container's ID is one."""
    handle_id, said = attribute.handle_id or "", attribute.secondary
    bare = is_bare(said) and not any(attribute.extra.values())
    container = handle_id.removeprefix(f"{network}.")
    is_alone = bare and is_container(handle_id)
    if (container == handle_id and not is_alone) or not container or "." in container:
        return None
    if (block_node if bare else said.get("node")) != node:
        return None
    return Orphan(
        handle_id, container, said.get(INTERFACE, ""), said.get("namespace", ""), said.get("pod", ""), is_bare=bare
    )


def _parse_pods(attribute: Attribute, block_node: str | None, node: str) -> Orphan | None:
    """Addresses without attributes whose handle names a pod, or may: the first part may also be a network's name."""
    handle_id = attribute.handle_id or ""
    if block_node != node or not is_bare(attribute.secondary) or any(attribute.extra.values()):
        return None
    named = parse_bare_handle(handle_id)
    if named is None or not named.pod:
        return None
    return Orphan(handle_id, "", namespace=named.namespace, pod=named.pod, is_bare=True)


def _used_anywhere(
    store: Datastore, network: str, valid: Collection[str], deadline: Deadline
) -> Callable[[Orphan], bool]:
    """Whether an endpoint of any node, a ``valid`` container or one of another network may be whom a handle names; all
    are if that cannot be known.
    """
    containers = {container.casefold() for container in {*valid, *containers_of_other_networks(network)}}
    try:
        listing = store.list(ResourceList("WorkloadEndpoint"), deadline)
        items = [(item.key, item.value) for item in listing.items if isinstance(item.key, ResourceKey)]
        endpoints = [decode_endpoint(*item) for item in items]
    except (CorruptRecord, DatastoreDenied):
        return lambda orphan: True
    if listing.unreadable:
        return lambda orphan: True
    containers |= {endpoint.container_id.casefold() for endpoint in endpoints if endpoint.container_id}
    pods = {(endpoint.metadata.namespace, endpoint.pod) for endpoint in endpoints if endpoint.pod}

    def is_used(orphan: Orphan) -> bool:
        return not containers.isdisjoint(suffixes(orphan.handle_id)) or (orphan.namespace, orphan.pod) in pods

    return is_used


def _may_be_borrowed(store: Datastore, node: str, deadline: Deadline) -> bool:
    """So it is if that cannot be known."""
    from cni_calico.ipam.lost.borrowed import may_be_borrowed

    try:
        return may_be_borrowed(store, node, deadline)
    except (CorruptRecord, DatastoreDenied):
        return True


def pods_of(task: Task) -> HasPod | None:
    """Whether Kubernetes has a pod; None if this network has nothing to do with Kubernetes. If it does not answer, it
    has them all.
    """
    if not (task.conf.policy_type == "k8s" or task.datastore.config.type == "kubernetes"):
        return None

    def has_pod(namespace: str, name: str) -> bool:
        from cni_calico.ipam.lost.pods import has_let_go

        try:
            pod = task.kubernetes.pod(namespace, name, "", task.deadline)
        except CalicoError as e:
            task.log.warning(f"kept what is held under {namespace}.{name}: {e.message}")
            return True
        return pod is not None and not has_let_go(pod)

    return has_pod


def collect_addresses(task: Task) -> None:
    """GC of the calico-ipam executable when another vendor's plugin delegates to it.

    Addresses of attachments that have an endpoint are left to calico's own GC, which removes the interface first.
    Raises TeardownIncomplete naming everything that could not be released.
    """
    conf, store, deadline = task.conf, task.store, task.deadline
    valid = require_valid_list(conf)
    node = task.read_nodename(for_ipam=True)
    require_not_locked(task.datastore, deadline)
    endpoints = read_endpoints(store, node, deadline)
    known = valid | {(endpoint.container_id, endpoint.endpoint) for endpoint in endpoints.endpoints}
    orphans, unreadable = find_orphans(store, conf.name, node, known, deadline, pods_of(task))
    failures = [*endpoints.unreadable, *unreadable]
    for orphan in orphans:
        try:
            release_orphan(orphan, task)
        except CalicoError as e:
            failures.append(f"{orphan.handle_id}: {e.message}")
    require_none(failures)


def share_of(orphan: Orphan) -> Share:
    """The orphan's share of its handle: its interface's addresses, or those that name no interface."""
    return Share(orphan.interface, lambda unnamed, _: () if orphan.interface else unnamed)


def release_orphan(orphan: Orphan, task: Task) -> None:
    from cni_calico.plugin.ipam.addresses import handle_lock

    services, deadline = task.services, task.deadline
    with handle_lock(orphan.handle_id, services, deadline), services.ipam_lock(task.conf, deadline):
        released = task.allocator.release_handle(orphan.handle_id, deadline, share_of(orphan))
    shown = ", ".join(map(str, released)) or "nothing"
    services.log.info(f"collected {shown}, held under {orphan.handle_id} by no valid attachment")


def require_none(failures: Collection[str]) -> None:
    """Raises TeardownIncomplete if there are any."""
    if failures:
        raise TeardownIncomplete(
            "cannot collect all garbage: " + "; ".join(failures),
            details="what can be removed has been; a record that cannot be read has been left as it is",
        )
