"""DEL: remove interface and routes, the endpoint record, then the addresses; anything already gone is success.

Rule: a dead datastore never holds up the end of a container: the kernel side is removed, the rest is recorded durably
as an owed release (plugin/owed.py) and the call succeeds. A record that cannot be read is an error that names
it, once everything else is done. An address is released only after its interface and route are gone; the endpoint's
record may be removed during the 18 ms that the kernel takes to delete the interface.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, replace

from cni_calico.cni.result import parse_result
from cni_calico.deadline import Deadline
from cni_calico.errors import (
    AttachmentBusy,
    CalicoError,
    CorruptRecord,
    DatastoreError,
    DeadlineExceeded,
    InvalidConfig,
    KernelError,
    NetnsGone,
    NodeNotSetUp,
    TeardownIncomplete,
    TryAgain,
)
from cni_calico.ipam.allocator import Allocator, Release
from cni_calico.kernel.netlink.links import Link
from cni_calico.model.keys import HandleKey
from cni_calico.model.names import valid_ifname
from cni_calico.model.resources import Address, WorkloadEndpoint
from cni_calico.plugin import owed
from cni_calico.plugin.attachment import Attachment, plan_attachment
from cni_calico.plugin.call.node_name import os_host_name
from cni_calico.plugin.call.ready import require_not_locked, require_ready
from cni_calico.plugin.call.task import Task
from cni_calico.plugin.endpoints import Recorded, apply_endpoint, read_recorded, remove_endpoint
from cni_calico.plugin.ipam.addresses import FIRST_IFNAME, release
from cni_calico.plugin.network.ownership import Claim

DATASTORE_PATIENCE_S = 3.5  # out of the 5 s within which DEL answers if the datastore is down


def delete(task: Task) -> bool:
    """Returns whether everything is released; if not, the rest is recorded. Raises TeardownIncomplete if the kernel
    side could not be removed (DataplaneFailed if the interface is that of an external data plane), CorruptRecord,
    DelegateFailed, NotReady; repeating DEL finishes it.
    """
    services = task.services
    attachment = plan_attachment(task.call, task.conf, _node_or_host_name(task))
    with ExitStack() as held:
        netns = _open_netns(task, held)
        removal = Removal(task, attachment)
        try:
            held.enter_context(services.attachment_lock(attachment.label, task.deadline, attachment.shown))
            held.enter_context(services.attachment_lock(attachment.veth_label, task.deadline, attachment.shown))
        except AttachmentBusy as e:
            if services.server_is_stuck:  # the lock may never become free: the release must be recorded
                removal.owe(e)
            raise
        except KernelError as e:
            raise services.nothing_removed(attachment.shown, e) from e
        return removal.run(netns)


def _node_or_host_name(task: Task) -> str:
    """The node's name; if its file is missing, a guess, because a DEL must not wait for the file."""
    try:
        return task.read_nodename()
    except NodeNotSetUp:
        return task.conf.hostname or os_host_name()


def _open_netns(task: Task, held: ExitStack) -> int | None:
    if not task.call.netns:
        return None
    try:
        netns = task.services.open_netns(task.call.netns)
    except NetnsGone:
        return None
    held.callback(os.close, netns)
    return netns


@dataclass(slots=True)
class Removal:
    """One teardown under its attachment's lock; GC uses it too."""

    task: Task
    attachment: Attachment
    paying: bool = False  # whether this carries out a release that an earlier DEL recorded; then errors are raised
    ready: bool = False  # whether the cluster is known to accept requests
    recorded_release: owed.OwedRelease | None = None  # what an earlier DEL has recorded
    is_nameless: bool = False  # whether the record is ours but names no container

    def run(self, netns: int | None) -> bool:
        """Whether everything is released; if False, the rest is recorded."""
        services, datastore = self.task.services, self.task.datastore
        store_deadline = self.task.deadline.sooner(DATASTORE_PATIENCE_S)
        self.recorded_release = owed.read_own(services.files, services.state_dir, self.attachment)
        recorded, failure = self._read(store_deadline)
        if self.paying and self._is_anothers(recorded):
            self._forget_owed()
            return True
        if failure is None and self._has_joined(recorded):
            self._leave(recorded)
            self._forget_owed()
            return True
        failure = self._remove(netns, recorded, failure, store_deadline)
        delegate_failure = self._release_delegated()
        is_known = self.paying or recorded.is_ours(self.attachment)
        if is_known or not datastore.was_deleted(self.attachment.label):
            failure = self._release(recorded, failure, store_deadline)
        if isinstance(failure, CorruptRecord) or (failure is not None and self.paying):
            raise failure
        if failure is not None:
            self.owe(failure, recorded.addresses(self.attachment))
        if delegate_failure is not None:
            raise delegate_failure
        if failure is None:
            self._forget_owed()
            datastore.note_deleted(self.attachment.label)
        return failure is None

    def _is_anothers(self, recorded: Recorded) -> bool:
        """Whether the record is another one than the owed release is about."""
        uids = self.recorded_release.uids if self.recorded_release is not None else ()
        return bool(uids) and recorded.own is not None and recorded.own.metadata.uid not in uids

    def _read(self, deadline: Deadline) -> tuple[Recorded, CalicoError | None]:
        """What is recorded, and the error that prevented reading it. Raises NotReady."""
        if self.paying:
            require_not_locked(self.task.datastore, deadline)
            self.ready = True
            recorded = read_recorded(self.task.fresh_store, self.attachment, deadline)
            return self._name_container(recorded, deadline), None
        try:
            require_ready(self.task.datastore, deadline)
            self.ready = True
            recorded = read_recorded(self.task.store, self.attachment, deadline)
            if self._may_be_old(recorded):
                recorded = read_recorded(self.task.fresh_store, self.attachment, deadline)
            return self._name_container(recorded, deadline), None
        except (DatastoreError, DeadlineExceeded) as e:
            return Recorded(None, None, ()), e

    def _may_be_old(self, recorded: Recorded) -> bool:
        """Whether the remembered record could be that of another sandbox of the same pod: endpoint and host interface
        belong to the pod, not to the sandbox. (Pods stored in Kubernetes are kept current by a watch.)
        """
        is_memory = self.task.datastore.from_memory and self.task.conf.datastore.type != "kubernetes"
        return is_memory and recorded.own is not None and bool(recorded.own.pod)

    def _name_container(self, recorded: Recorded, deadline: Deadline) -> Recorded:
        """Old versions recorded a pod in Kubernetes without its container's ID: the record is ours if our handle holds
        one of its addresses. Raises DatastoreError, DeadlineExceeded.
        """
        own, attachment, ipam = recorded.own, self.attachment, self.task.conf.ipam
        if own is None or own.container_id or (ipam.type and not ipam.is_calico):
            return recorded
        allocator, named = self.task.allocator, {network.network_address for network in own.ip_networks}
        held = {item.address for handle in attachment.handle_ids for item in allocator.addresses_of(handle, deadline)}
        if not held & named:
            return recorded
        self.is_nameless = True
        return replace(recorded, own=replace(own, container_id=attachment.container_id))

    # -- a network that joined another network's endpoint -------------------------------------------------------------

    def _has_joined(self, recorded: Recorded) -> bool:
        """Whether the interface belongs to another network and this one has only added its profile to it."""
        own = recorded.own
        return own is not None and recorded.is_ours(self.attachment) and self.attachment.network in own.profiles[1:]

    def _leave(self, recorded: Recorded) -> None:
        def build(found: WorkloadEndpoint | None) -> WorkloadEndpoint:
            own = found or recorded.own
            assert own is not None
            return replace(own, profiles=tuple(name for name in own.profiles if name != self.attachment.network))

        apply_endpoint(self.task.store, self.attachment.endpoint_key, recorded.stored, build, self.task.deadline)

    # -- kernel -------------------------------------------------------------------------------------------------------

    def _remove(
        self, netns: int | None, recorded: Recorded, failure: CalicoError | None, deadline: Deadline
    ) -> CalicoError | None:
        """Remove interface and record; returns the error that kept the record from being removed."""
        from cni_calico.plugin.network.ownership import RECORDED, UNKNOWN, UNREADABLE, belongs_to_another, is_proven

        if failure is not None or not recorded.is_ours(self.attachment):
            self._remove_network(netns, recorded, self._claim(UNREADABLE if failure is not None else UNKNOWN))
            return failure
        name = self._host_ifnames(recorded)[0]
        claim, end = self._claim(RECORDED, name), self._read_host_end(name)
        try:
            if end is not None and belongs_to_another(end, *claim.digests):
                claim = self._claim(RECORDED, name, self._former_networks(recorded, deadline))
            elif end is not None and not is_proven(end, claim.digests) and self._carries_anothers(end, deadline):
                claim = self._claim(UNKNOWN)
        except (DatastoreError, DeadlineExceeded) as e:
            claim, failure = self._claim(UNREADABLE), e  # its owner will be known when the owed release is carried out
        # after a crash the record must still exist, to say who owns the interface
        if end is None or not is_proven(end, claim.digests):
            self._remove_network(netns, recorded, claim)
            return failure or self._remove_endpoint(recorded, deadline)
        with self.task.services.meanwhile(lambda: self._remove_endpoint(recorded, deadline)) as removed:
            self._remove_network(netns, recorded, claim)
        return removed()

    def _claim(self, record: str, interface_name: str = "", former_networks: Iterable[str] = ()) -> Claim:
        from cni_calico.plugin.network.ownership import plan_claim

        own = self.attachment
        names = (own.network, own.container_id, own.ifname)
        return plan_claim(*names, record, interface_name=interface_name, former_networks=former_networks)

    def _read_host_end(self, name: str) -> Link | None:
        """The interface that the record names; None if it does not exist or cannot be read."""
        from cni_calico.plugin.network.host import Borrowed, read_link

        try:
            with Borrowed(self.task.services.host) as host:
                return read_link(host.rtnl, name, self.task.deadline)
        except KernelError:
            return None

    def _carries_anothers(self, end: Link, deadline: Deadline) -> bool:
        """Whether IPAM holds addresses behind it for another container; the record may be what a pod's author wrote."""
        from cni_calico.plugin.network.host import Borrowed, read_addresses_behind

        with Borrowed(self.task.services.host) as host:
            behind = read_addresses_behind(host.rtnl, end, self.task.deadline)
        held = self.task.allocator.handles_of(behind, deadline).values()
        return any(handle not in self.attachment.handle_ids and not self._is_own(handle) for handle in held)

    def _is_own(self, handle: str) -> bool:
        """Whether a handle is this container's, whatever its network was called."""
        end = f".{self.attachment.container_id}"
        return handle.endswith((end, f"{end}.{self.attachment.ifname}"))

    def _former_networks(self, recorded: Recorded, deadline: Deadline) -> set[str]:
        """Other names that the network may have had when the container was added: those in its profiles, and those in
        the handles that hold its addresses. Raises DatastoreError.
        """
        assert recorded.own is not None
        end = f".{self.attachment.container_id}"
        held = self._held_elsewhere(recorded.addresses(self.attachment), deadline)
        return {*recorded.own.profiles, *(str(item.handle_id).rpartition(end)[0] for item in held)}

    def _held_elsewhere(self, addresses: Collection[Address], deadline: Deadline) -> list[Release]:
        """Of those that a handle of the container holds, in any network. Raises DatastoreError."""
        from cni_calico.ipam.block import Release

        found = self.task.allocator.handles_of(addresses, deadline)
        return [Release(address, handle) for address, handle in found.items() if self._is_own(handle)]

    def _remove_network(self, netns: int | None, recorded: Recorded, claim: Claim) -> None:
        if self.task.conf.dataplane is not None:
            from cni_calico.plugin.external import remove_interface

            remove_interface(self.task)
            return
        from cni_calico.plugin.network.host import Borrowed
        from cni_calico.plugin.network.teardown import LinkRemoval, PodEnds, remove_pod_network

        services, deadline = self.task.services, self.task.deadline
        for name in self._host_ifnames(recorded):
            if name and services.remove_link is not None:
                services.remove_link(LinkRemoval(name, claim), deadline)
                name = ""  # the host's end is gone; whatever is left of the pod's end is removed below
            with Borrowed(services.host) as host:
                remove_pod_network(host, PodEnds(name, self.task.call.ifname, netns), deadline, claim)

    def _host_ifnames(self, recorded: Recorded) -> tuple[str, ...]:
        """The names of the host interfaces to remove: the recorded name; without a record every possible name that no
        other endpoint has. If the pod has a new sandbox, the recorded name is the new sandbox's: then only the old pod
        side is left to remove.
        """
        attachment = self.attachment
        if recorded.is_ours(attachment) and recorded.own is not None and recorded.own.interface_name:
            return (recorded.own.interface_name,)
        if recorded.own is not None:
            return ("",)
        taken = {other.interface_name for other in recorded.others}
        candidates = dict.fromkeys((attachment.veth, attachment.veth_when_taken, self._prev_host_ifname()))
        return tuple(name for name in candidates if name and name not in taken) or ("",)

    def _prev_host_ifname(self) -> str:
        try:
            previous = parse_result(self.task.conf.prev_result or {})
        except InvalidConfig:
            return ""
        name = previous.interfaces[0].name if previous.interfaces else ""
        return name if valid_ifname(name) else ""

    # -- records ------------------------------------------------------------------------------------------------------

    def _remove_endpoint(self, recorded: Recorded, deadline: Deadline) -> CalicoError | None:
        """The error that prevented the removal."""
        if not recorded.is_ours(self.attachment):
            return None
        key, container_id = self.attachment.endpoint_key, "" if self.is_nameless else self.attachment.container_id
        try:
            remove_endpoint(self.task.store, key, container_id, deadline, stored=recorded.stored)
        except (DatastoreError, TryAgain) as e:
            return e
        return None

    def _release_delegated(self) -> CalicoError | None:
        """Have the other IPAM plugin release. Returns its error, which must not prevent the other steps."""
        ipam = self.task.conf.ipam
        if ipam.is_calico or not ipam.type:
            return None
        from cni_calico.plugin.delegate import run_delegate

        try:
            run_delegate(self.task, command="DEL")
        except CalicoError as e:
            return e
        return None

    def _release(self, recorded: Recorded, failure: CalicoError | None, deadline: Deadline) -> CalicoError | None:
        """Release the addresses, unless the datastore has failed already; returns the error that prevented it."""
        may = self.ready and (failure is None or isinstance(failure, CorruptRecord))
        conf = self.task.conf
        if not may or (conf.ipam.type and not conf.ipam.is_calico):
            return failure
        try:
            with self.task.services.ipam_lock(conf, deadline):
                self._release_addresses(self.task.allocator, recorded, deadline)
                if self.attachment.may_keep(conf):
                    from cni_calico.plugin.lasting.attached import leave

                    leave(self.task, self.attachment, deadline)
        except (DatastoreError, TryAgain) as e:
            return failure or e
        return failure

    def _release_addresses(self, allocator: Allocator, recorded: Recorded, deadline: Deadline) -> None:
        attachment, mine = self.attachment, recorded.addresses(self.attachment)
        share = recorded.share(attachment, self._told_addresses(), leaving=True)
        released = set(allocator.release_handle(attachment.handle_id, deadline, share)) if mine else set[Address]()
        is_usual = attachment.ifname == FIRST_IFNAME and not recorded.has_other_interfaces(attachment)
        if is_usual and mine and mine <= released:
            return  # in older versions only further interfaces had a handle of their own
        own_handle_id = attachment.own_handle_id
        handles = self._handles(allocator, deadline)
        released.update(release(allocator, handles, share, deadline, own_handle_id=own_handle_id))
        if mine - released:  # the network had another name then
            allocator.release_addresses(self._held_elsewhere(mine - released, deadline), deadline)

    def _told_addresses(self) -> set[Address]:
        """The addresses that an earlier DEL has recorded, and those in the ADD's result, which the runtime passes to
        DEL.
        """
        told = set(self.recorded_release.addresses) if self.recorded_release is not None else set[Address]()
        try:
            return told.union(ip.address.ip for ip in parse_result(self.task.conf.prev_result or {}).ips)
        except InvalidConfig:
            return told

    def _handles(self, allocator: Allocator, deadline: Deadline) -> tuple[str, ...]:
        """Those of this container's handles that exist; one read saves a release for each of the others."""
        names = tuple(dict.fromkeys(self.attachment.handle_ids))
        found = allocator.store.get_many([HandleKey(name) for name in names], deadline)
        return tuple(name for name, item in zip(names, found, strict=True) if item is not None)

    # -- what cannot be done now --------------------------------------------------------------------------------------

    def owe(self, failure: CalicoError, addresses: frozenset[Address] = frozenset()) -> None:
        """Record what is to be released. Raises TeardownIncomplete if that fails too."""
        from cni_calico.model.timestamps import rfc3339

        services = self.task.services
        release = owed.OwedRelease(self.attachment, self.task.conf.datastore, rfc3339(time.time()), addresses)
        try:
            owed.record(services.files, services.state_dir, release)
        except OSError as e:
            raise TeardownIncomplete(
                f"cannot release the addresses of {self.attachment.shown}: {failure.message}; "
                f"nor record that they are to be released: {e.strerror or e}",
                details=f"repeat the DEL, or make {owed.directory(services.state_dir)} writable",
            ) from failure
        services.log.warning(f"addresses will be released when the datastore is back: {failure.message}")

    def _forget_owed(self) -> None:
        services = self.task.services
        name = owed.file_name(self.attachment)
        try:
            owed.remove(services.files, services.state_dir, name)
        except OSError as e:
            services.log.warning(f"cannot remove the owed release {name}: {e}; carrying it out will have no effect")
