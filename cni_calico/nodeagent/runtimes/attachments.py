"""Releases what this node's containers have left whose end no DEL has told: after a reboot, or a runtime that forgot.

Rule: an attachment lives as long as its host interface does. Without it, one of an earlier boot is certainly over,
since nothing in the kernel outlives a reboot: it goes after a minute, or after the grace period while a runtime still
has the container and may start it again. One of this boot goes after the grace period in which this host has shown no
trace of the container or its addresses. It is judged again under the attachment's locks, which an ADD holds, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

from cni_calico.cni.environment import Call
from cni_calico.cni.netconf import IpamSection, LogSection, NetConf
from cni_calico.cni.versions import CURRENT
from cni_calico.controllers.janitor.asked import is_ready, read_grace_s
from cni_calico.daemon.keeper import Keeper
from cni_calico.deadline import Deadline
from cni_calico.errors import AttachmentBusy, CalicoError, CorruptRecord, KernelError
from cni_calico.kernel.container_traces import find_place, find_trace, what_is_hidden
from cni_calico.kernel.interfaces import read_interfaces
from cni_calico.model.documents.codec import decode_endpoint
from cni_calico.model.identity import NETWORK, container_name
from cni_calico.model.keys import ResourceKey, endpoints_of_node
from cni_calico.model.names import short_id
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.nodeagent.context.agent import Context
from cni_calico.plugin.attachment import PLAIN, Attachment
from cni_calico.plugin.call.services import Services
from cni_calico.plugin.call.task import Task
from cni_calico.plugin.delete import Removal
from cni_calico.plugin.identity.boot import BOOT, read_boot_id

LOOK_S, SOONEST_S = 60.0, 2.0
FORGOTTEN_S = 60.0  # after a reboot, of a container that no runtime has
_READ_S, _TRACE_S, _LOCK_S = 30.0, 10.0, 0.05


@dataclass(frozen=True, slots=True)
class Departed:
    """An attachment that is over. ``forgotten``: no runtime can start its container again."""

    record: WorkloadEndpoint
    why: str
    forgotten: bool = False

    def __str__(self) -> str:
        name = container_name(self.record)
        addresses = ", ".join(str(net.network_address) for net in self.record.ip_networks) or "no address"
        container = f"container {short_id(self.record.container_id)}"
        return f"{addresses} of {f'{name} ({container})' if name else container}"


@dataclass(frozen=True, slots=True)
class HostTraces:
    """What this host shows. ``place``: where a runtime has a container, "" for nowhere; ``trace``: that, or where
    container and addresses are used.
    """

    boot: str
    interfaces: Callable[[], Collection[str]]
    place: Callable[[str], str]
    trace: Callable[[WorkloadEndpoint], str]


def read_traces() -> HostTraces:
    return HostTraces(read_boot_id(), _interface_names, _place, _trace)


def _interface_names() -> Collection[str]:
    return {interface.name for interface in read_interfaces(Deadline.after(_TRACE_S))}


def _place(container_id: str) -> str:
    return what_is_hidden() or find_place(container_id)


def _trace(record: WorkloadEndpoint) -> str:
    deadline = Deadline.after(_TRACE_S)
    addresses = [net.network_address for net in record.ip_networks]
    found = (find_trace(record.container_id, address, deadline) for address in addresses)
    return next(filter(None, found), "") if addresses else _place(record.container_id)


def find_departed(records: Iterable[WorkloadEndpoint], node: str, traces: HostTraces) -> Iterator[Departed]:
    """Those of a node's attachments that are over, as far as this host shows. Raises KernelError."""
    plain = [
        record for record in records if (record.node, record.orchestrator) == (node, PLAIN) and record.container_id
    ]
    present = traces.interfaces() if plain else ()
    for record in plain:
        if record.interface_name in present:
            continue
        boot = record.metadata.annotations.get(BOOT, "")
        if boot and traces.boot and boot != traces.boot:
            place = traces.place(record.container_id)
            rest = f"{place} still names its container" if place.startswith("/") else place
            rest = rest or "no runtime has its container"
            yield Departed(record, f"it was made before this host's last boot, and {rest}", forgotten=not place)
        elif not traces.trace(record):
            yield Departed(record, "its interface is gone, and this host shows no trace of container or address")


@dataclass(slots=True)
class Attachments:
    """``look`` releases what has been over for long enough."""

    context: Context
    node: str
    now: Callable[[], float] = time.monotonic
    traces: HostTraces = field(default_factory=read_traces)
    _since: dict[tuple[str, str], float] = field(default_factory=dict)

    def look(self) -> float:
        """Returns in how many seconds to look again. Raises CalicoError; then every wait begins anew."""
        try:
            return self._look()
        except CalicoError:
            self._since.clear()
            raise

    def _look(self) -> float:
        departed = list(find_departed(self._records(), self.node, self.traces))
        waiting = {_identity(each.record): each for each in departed}
        self._since = {key: since for key, since in self._since.items() if key in waiting}
        grace_s = read_grace_s(self.context.store) if waiting else None
        if grace_s is None:
            self._since.clear()
            return LOOK_S
        now, next_s, failures = self.now(), LOOK_S, list[str]()
        for key, each in waiting.items():
            left_s = self._since.setdefault(key, now) + (min(grace_s, FORGOTTEN_S) if each.forgotten else grace_s) - now
            if left_s > 0:
                next_s = min(next_s, left_s)
                continue
            try:
                self._release(each)
            except AttachmentBusy:
                continue  # a call is working on it
            except CalicoError as e:
                failures.append(f"cannot release {each}: {e.message}")
        if failures:
            raise KernelError("; ".join(failures[:3]), errno=0)
        return max(SOONEST_S, next_s)

    def _records(self) -> list[WorkloadEndpoint]:
        found = []
        for item in self.context.store.list(endpoints_of_node(self.node), Deadline.after(_READ_S)).items:
            try:
                if isinstance(item.key, ResourceKey):
                    found.append(decode_endpoint(item.key, item.value))
            except CorruptRecord:
                continue  # status and calicoctl name it
        return found

    def _release(self, departed: Departed) -> None:
        context, record, deadline = self.context, departed.record, Deadline.after(_READ_S)
        config = context.config
        if config is None or not is_ready(self.context.store):
            return
        network = record.metadata.labels.get(NETWORK) or next(iter(record.profiles), "")
        attachment = Attachment(
            network=network or "unknown",
            node=record.node,
            orchestrator=PLAIN,
            namespace=record.metadata.namespace,
            workload=record.container_id,
            container_id=record.container_id,
            ifname=record.endpoint,
        )
        services = Services(files=context.files, open_store=lambda _: context.store)
        services.run_dir, services.state_dir = context.settings.run_dir, context.settings.state_dir
        services.log = context.log
        patience = deadline.sooner(_LOCK_S)
        with (
            services.attachment_lock(attachment.label, patience),
            services.attachment_lock(attachment.veth_label, patience),
        ):
            stored = context.store.get(attachment.endpoint_key, deadline)
            now = None if stored is None else decode_endpoint(attachment.endpoint_key, stored.value)
            if now is None or not any(find_departed([now], self.node, self.traces)):
                return
            ipam = IpamSection(type="calico-ipam")
            conf = NetConf(attachment.network, CURRENT, "calico", config, ipam, LogSection(), {})
            call = Call("DEL", attachment.container_id, ifname=attachment.ifname)
            task = Task(call, conf, services, services.datastore(config), deadline)
            Removal(task, attachment, paying=True).run(None)
        self._since.pop(_identity(record), None)
        context.log.info(f"released {departed}: {departed.why}")


def _identity(record: WorkloadEndpoint) -> tuple[str, str]:
    """Of one attachment in one boot: a container that is started again gets a new one."""
    return record.metadata.name, record.metadata.uid + record.metadata.annotations.get(BOOT, "")


def attachments_keeper(context: Context, node: str) -> Keeper:
    """Looks once a minute; where every interface is there, that is a listing of the node's endpoints and its links."""
    attachments = Attachments(context, node)

    def look() -> None:
        keeper.interval_s = attachments.look()

    keeper = Keeper("attachments of containers that are gone", look, LOOK_S, context.log, context.troubles)
    return keeper
