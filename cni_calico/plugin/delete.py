"""DEL: interface and routes first, then the endpoint record, then the addresses; whatever is gone already is success.

Rule: a dead datastore never holds up a container's end: the kernel side is removed, what is owed is recorded durably
(plugin/pending.py) and the answer is success. An address is given back only once its interface and route are gone.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING

from cni_calico.cni.environment import Call
from cni_calico.cni.netconf import NetConf
from cni_calico.cni.result import parse_result
from cni_calico.deadline import Deadline
from cni_calico.errors import (
    CalicoError,
    DatastoreError,
    DeadlineExceeded,
    InvalidConfig,
    NetnsGone,
    NodeNotSetUp,
    TeardownIncomplete,
)
from cni_calico.ipam.nodename import read_nodename
from cni_calico.ipam.services import Services
from cni_calico.model.keys import HandleKey
from cni_calico.plugin import pending
from cni_calico.plugin.attachment import Attachment, plan_attachment
from cni_calico.plugin.endpoints import Recorded, read_recorded, remove_endpoint

if TYPE_CHECKING:
    from cni_calico.ipam.allocator import Allocator

Address = IPv4Address | IPv6Address

DATASTORE_PATIENCE_S = 3.5  # of the 5 s in which DEL answers when the datastore is down


def delete(call: Call, conf: NetConf, services: Services, deadline: Deadline) -> bool:
    """Whether everything is released; False: the rest is recorded.

    Raises TeardownIncomplete when the kernel side could not be removed; repeating DEL finishes it.
    """
    attachment = plan_attachment(call, conf.name, node_or_host_name(conf, services, deadline))
    with ExitStack() as held:
        netns = _open_netns(call, services, held)
        held.enter_context(services.attachment_lock(attachment.label, deadline))
        return Removal(conf, services, attachment, deadline).run(netns, call)


def node_or_host_name(conf: NetConf, services: Services, deadline: Deadline) -> str:
    """The node's name; what can be guessed of it when its file is missing, which must not hold up a DEL."""
    try:
        return read_nodename(conf, services.files, deadline)
    except NodeNotSetUp:
        return conf.hostname or os.uname().nodename.strip().lower()


def _open_netns(call: Call, services: Services, held: ExitStack) -> int | None:
    if not call.netns:
        return None
    try:
        netns = services.open_netns(call.netns)
    except NetnsGone:
        return None
    held.callback(os.close, netns)
    return netns


@dataclass(slots=True)
class Removal:
    """One teardown under its attachment's lock; GC runs it too."""

    conf: NetConf
    services: Services
    attachment: Attachment
    deadline: Deadline

    def run(self, netns: int | None, call: Call) -> bool:
        """Whether everything is released; False: the rest is recorded."""
        store_deadline = self.deadline.sooner(DATASTORE_PATIENCE_S)
        recorded, failure = self._read(store_deadline)
        self._remove_network(netns, call, recorded)
        if not self.conf.ipam.is_calico and self.conf.ipam.type:
            self._release_delegated(call)
        if failure is None:
            failure = self._release(recorded, store_deadline)
        if failure is None:
            self._forget_intent()
        else:
            self._owe(failure)
        return failure is None

    def _read(self, deadline: Deadline) -> tuple[Recorded, CalicoError | None]:
        try:
            return read_recorded(self.services.store(self.conf.datastore), self.attachment, deadline), None
        except (DatastoreError, DeadlineExceeded) as e:
            return Recorded(None, None, ()), e

    # -- kernel -------------------------------------------------------------------------------------------------------

    def _remove_network(self, netns: int | None, call: Call, recorded: Recorded) -> None:
        from cni_calico.plugin.teardown import remove_pod_network

        services = self.services
        for name in self._host_ifnames(recorded):
            if name and services.remove_link is not None:
                services.remove_link(name, self.deadline)
                name = ""  # the host's end is gone; what is left of the pod's end goes below
            remove_pod_network(name, netns, call.ifname, self.deadline, host=services.host)

    def _host_ifnames(self, recorded: Recorded) -> tuple[str, ...]:
        """The recorded name; without a record every name it could have that no other endpoint has.

        When the pod has a new sandbox the name in the record is the new one's: only the old pod side is left to remove.
        """
        attachment = self.attachment
        if recorded.is_ours(attachment) and recorded.own is not None and recorded.own.interface_name:
            return (recorded.own.interface_name,)
        if recorded.own is not None:
            return ("",)
        named = self._prev_host_ifname()
        taken = {other.interface_name for other in recorded.others}
        candidates = (attachment.veth, attachment.veth_when_taken)
        if named in candidates and recorded.stored is None and named not in taken:
            return (named,)
        return tuple(name for name in candidates if name not in taken) or ("",)

    def _prev_host_ifname(self) -> str:
        try:
            previous = parse_result(self.conf.prev_result or {})
        except InvalidConfig:
            return ""
        return previous.interfaces[0].name if previous.interfaces else ""

    def _addresses(self, recorded: Recorded) -> tuple[Address, ...]:
        if recorded.is_ours(self.attachment) and recorded.own is not None:
            return tuple(network.network_address for network in recorded.own.ip_networks)
        return ()

    # -- records ------------------------------------------------------------------------------------------------------

    def _release_delegated(self, call: Call) -> None:
        from cni_calico.plugin.delegate import run_delegate

        run_delegate(call, self.conf, self.services, self.deadline, command="DEL")

    def _release(self, recorded: Recorded, deadline: Deadline) -> CalicoError | None:
        """Endpoint, then addresses; the error that kept it from finishing."""
        store = self.services.store(self.conf.datastore)
        try:
            if recorded.is_ours(self.attachment):
                key = self.attachment.endpoint_key
                remove_endpoint(store, key, self.attachment.container_id, deadline, stored=recorded.stored)
            if self.conf.ipam.is_calico or not self.conf.ipam.type:
                with self.services.ipam_lock(self.conf, deadline):
                    self._release_addresses(self.services.allocator(self.conf.datastore), recorded, deadline)
        except (DatastoreError, DeadlineExceeded) as e:
            return e
        return None

    def _release_addresses(self, allocator: Allocator, recorded: Recorded, deadline: Deadline) -> None:
        others = {n.network_address for e in recorded.same_container(self.attachment) for n in e.ip_networks}
        for handle_id in self._handles(allocator, deadline):
            if others and (held := {item.address for item in allocator.addresses_of(handle_id, deadline)}) & others:
                mine = [address for address in self._addresses(recorded) if address in held]
                if mine:
                    allocator.release_addresses(mine, deadline, handle_id=handle_id)
                continue
            allocator.release_handle(handle_id, deadline)

    def _handles(self, allocator: Allocator, deadline: Deadline) -> tuple[str, ...]:
        """The usual handle, and of the unusual ones those that exist: one read instead of a release each."""
        usual, *unusual = dict.fromkeys(self.attachment.handle_ids)
        found = allocator.store.get_many([HandleKey(handle_id) for handle_id in unusual], deadline)
        return (usual, *(handle_id for handle_id, item in zip(unusual, found, strict=True) if item is not None))

    # -- what cannot be done now --------------------------------------------------------------------------------------

    def _owe(self, failure: CalicoError) -> None:
        recorded = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        intent = pending.plan_intent(self.attachment, self.conf.datastore, recorded=recorded)
        try:
            pending.record_intent(self.services.files, self.services.state_dir, intent)
        except OSError as e:
            raise TeardownIncomplete(
                f"cannot release the addresses of {self.attachment.label}: {failure.message}; "
                f"nor record that they are to be released: {e.strerror or e}",
                details=f"repeat the DEL, or make {pending.directory(self.services.state_dir)} writable",
            ) from failure
        self.services.log.warning(f"addresses will be released when the datastore is back: {failure.message}")

    def _forget_intent(self) -> None:
        attachment = self.attachment
        name = pending.intent_file(attachment.network, attachment.container_id, attachment.ifname)
        try:
            if self.services.files.exists(f"{pending.directory(self.services.state_dir)}/{name}"):
                pending.remove_intent(self.services.files, self.services.state_dir, name)
        except OSError as e:
            self.services.log.warning(f"cannot remove the intent {name}: {e}; it is replayed without effect")
