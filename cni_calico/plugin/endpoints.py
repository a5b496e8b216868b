"""The records of an attachment: its WorkloadEndpoint, the endpoints that compete for its interface name, its Profile.

Rule: an endpoint is written and removed by compare-and-swap, and removed only if its containerID is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cni_calico.datastore.interface import CommitConflict, Datastore, Versioned, Write, pod_of
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, CorruptRecord, OutcomeUnknown, TryAgain
from cni_calico.ipam.assign import Companion
from cni_calico.ipam.share import Share
from cni_calico.model import names
from cni_calico.model.documents.codec import decode_endpoint, encode
from cni_calico.model.keys import ResourceKey, endpoints_of_node
from cni_calico.model.resources import Address, Resource, WorkloadEndpoint
from cni_calico.plugin.attachment import Attachment
from cni_calico.plugin.ipam.addresses import FIRST_IFNAME, plan_share

_ATTEMPTS = 5


@dataclass(frozen=True, slots=True)
class Recorded:
    """``own`` is the endpoint stored under the attachment's key, whoever it belongs to; ``others`` are those
    whose host interface could have the same name.
    """

    stored: Versioned | None
    own: WorkloadEndpoint | None
    others: tuple[WorkloadEndpoint, ...]

    def is_ours(self, attachment: Attachment) -> bool:
        return self.own is not None and self.own.container_id == attachment.container_id

    def addresses(self, attachment: Attachment) -> frozenset[Address]:
        """The addresses of the endpoint, if it belongs to the attachment."""
        own = self.own.ip_networks if self.own is not None and self.is_ours(attachment) else ()
        return frozenset(network.network_address for network in own)

    def share(
        self, attachment: Attachment, known: Collection[Address] = frozenset(), *, leaving: bool = False
    ) -> Share:
        """The attachment's share of its container's addresses. ``known``: addresses that other sources than its record
        give to it. ``leaving``: if the first interface's record has addresses, addresses in no record count too.
        """
        same = self._same_container(attachment)
        others = {n.network_address for other in same for n in other.ip_networks}
        first_known = leaving and any(other.endpoint == FIRST_IFNAME and other.ip_networks for other in same)
        own = self.addresses(attachment).union(known) - others
        return plan_share(attachment.ifname, own, others, first_known=first_known)

    def has_other_interfaces(self, attachment: Attachment) -> bool:
        """Whether endpoints of the container's other interfaces are known."""
        return bool(self._same_container(attachment))

    def _same_container(self, attachment: Attachment) -> list[WorkloadEndpoint]:
        return [other for other in self.others if other.container_id == attachment.container_id]


def read_recorded(store: Datastore, attachment: Attachment, deadline: Deadline) -> Recorded:
    """One list request. Raises DatastoreError; CorruptRecord only for the attachment's own endpoint."""
    stored, own, others = None, None, []
    listing = store.list(attachment.siblings, deadline)
    for key, why in listing.unreadable:
        if key == attachment.endpoint_key:
            raise CorruptRecord(why)
    for item in listing.items:
        if not isinstance(item.key, ResourceKey):
            continue
        if item.key == attachment.endpoint_key:
            stored, own = item, decode_endpoint(item.key, item.value)
            if pod_of(item) is not None:  # a pod does not store the interface's name, which follows from the pod's name
                own = replace(own, interface_name=attachment.veth)
            if not own.container_id and not own.ip_networks:
                own = None  # a pod in the Kubernetes datastore whose endpoint is not recorded yet, or no longer
            continue
        try:
            others.append(decode_endpoint(item.key, item.value))
        except CorruptRecord:
            continue  # it belongs to another attachment; 'calicoctl ipam check' reports it
    return Recorded(stored, own, tuple(others))


def read_rivals(store: Datastore, attachment: Attachment, deadline: Deadline) -> tuple[str, ...]:
    """The other workloads of the node, "namespace/name", whose records have the name of the attachment's host
    interface. Raises DatastoreError.
    """
    own, found = (attachment.namespace, attachment.workload), set()
    for item in store.list(endpoints_of_node(attachment.node), deadline).items:
        if not isinstance(item.key, ResourceKey):
            continue
        try:
            record = decode_endpoint(item.key, item.value)
        except CorruptRecord:
            continue  # 'calicoctl ipam check' reports it
        namespace, workload, name = item.key.namespace, record.pod or record.container_id, record.interface_name
        if pod_of(item) is not None:
            name = names.kubernetes_veth(namespace, workload, attachment.veth_prefix)
        is_here = record.node == attachment.node and name == attachment.veth
        if is_here and (namespace, workload) != own and record.ip_networks:
            found.add(f"{namespace}/{workload}")
    return tuple(found)


def ensure_profile(store: Datastore, profile: Resource, deadline: Deadline) -> None:
    """Create a network's Profile if it is missing; an existing one is the user's and stays."""
    key = ResourceKey("Profile", profile.metadata.name)
    if store.get(key, deadline) is not None:
        return
    try:
        store.commit([Write.create(key, encode(profile))], deadline)
    except CommitConflict:
        return
    except OutcomeUnknown as e:
        if _read_again(store, key, deadline, e) is None:
            raise


def plan_companion(
    key: ResourceKey, build: Callable[[Sequence[Address]], WorkloadEndpoint]
) -> tuple[Companion, Sequence[str]]:
    """The endpoint as a record to be created together with its addresses, and the list of the UIDs used in attempts."""
    from cni_calico.ipam.assign import Companion

    uids: list[str] = []

    def create(addresses: Sequence[Address]) -> Write:
        record = build(addresses)
        uids.append(record.metadata.uid)
        return Write.create(key, encode(record))

    return Companion(create), uids


def apply_endpoint(
    store: Datastore,
    key: ResourceKey,
    old: Versioned | None,
    build: Callable[[WorkloadEndpoint | None], WorkloadEndpoint],
    deadline: Deadline,
) -> None:
    """Store ``build(what is there)`` over ``old``.

    Raises TryAgain if the record keeps being changed by others. Once the outcome of an attempt is unknown, every later
    failure is OutcomeUnknown: that attempt may still be carried out later.
    """
    written: dict[str, Any] | None = None
    unknown: OutcomeUnknown | None = None
    try:
        for _ in range(_ATTEMPTS):
            document = encode(build(None if old is None else decode_endpoint(key, old.value)))
            try:
                store.commit([Write.create(key, document) if old is None else Write.update(old, document)], deadline)
                return
            except CommitConflict as e:
                old = e.failed[0].current
            except OutcomeUnknown as e:
                written, unknown = document, e
                old = _read_again(store, key, deadline, e)
            if old is not None and old.value == written:
                return
    except CalicoError as e:
        if unknown is None or unknown is e:
            raise
        raise unknown from e
    raise unknown or TryAgain(f"cannot write WorkloadEndpoint {key.namespace}/{key.name}: it keeps changing")


def _read_again(store: Datastore, key: ResourceKey, deadline: Deadline, error: OutcomeUnknown) -> Versioned | None:
    from cni_calico.datastore.cas import read_again  # few calls need it

    return read_again(store, key, deadline, error)


def remove_endpoint(
    store: Datastore,
    key: ResourceKey,
    container_id: str,
    deadline: Deadline,
    *,
    stored: Versioned | None = None,
    only: Collection[str] = (),
) -> None:
    """Remove an endpoint if it is this container's and, if ``only`` has any UIDs, has one of them. If it is absent or
    another container's, that is success.
    """
    if stored is None:
        stored = store.get(key, deadline)
    unknown: OutcomeUnknown | None = None
    for _ in range(_ATTEMPTS):
        if stored is None:
            return
        endpoint = decode_endpoint(key, stored.value)
        if endpoint.container_id != container_id or (only and endpoint.metadata.uid not in only):
            return
        try:
            store.commit([Write.delete(stored)], deadline)
            return
        except CommitConflict as e:
            stored, unknown = e.failed[0].current, None
        except OutcomeUnknown as e:
            stored, unknown = _read_again(store, key, deadline, e), e
    if unknown is not None:
        raise unknown  # nobody else changes it: it will not become writable
    raise TryAgain(f"cannot remove WorkloadEndpoint {key.namespace}/{key.name}: it keeps changing")
