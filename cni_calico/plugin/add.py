"""ADD: take addresses, set up the kernel, store the endpoint, return the result; if a step fails, undo all in reverse.

Rule: everything is parsed before anything is allocated; the undo of a step stands beside the step. A repeated ADD ends
in the same state with the same addresses; a second network of the same container joins the container's endpoint.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from cni_calico.cni.result import Result, ResultInterface, render_result
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, InvalidConfig, LinkConflict, OutcomeUnknown
from cni_calico.ipam.allocator import Allocator, Share
from cni_calico.ipam.assign import AssignRequest, Companion
from cni_calico.model.names import sha1_hex
from cni_calico.model.resources import Address, WorkloadEndpoint
from cni_calico.model.timestamps import rfc3339
from cni_calico.plugin import owed
from cni_calico.plugin.attachment import (
    KUBERNETES,
    Attachment,
    plan_attachment,
    plan_endpoint,
    plan_profile,
    select_veth,
)
from cni_calico.plugin.call.node_name import BOOT_WAIT_S
from cni_calico.plugin.call.ready import FIRST_START_S, require_ready
from cni_calico.plugin.call.task import Task
from cni_calico.plugin.endpoints import (
    Recorded,
    apply_endpoint,
    ensure_profile,
    plan_companion,
    read_recorded,
    read_rivals,
    remove_endpoint,
)
from cni_calico.plugin.former_connections import remove_former_connections
from cni_calico.plugin.given import Addresses, plan_delegated, plan_recorded, plan_result
from cni_calico.plugin.identity.labels import CallIdentity, plan_identified, read_call_identity
from cni_calico.plugin.ipam.addresses import UNDO_TIMEOUT_S, assign, plan_request, result_of
from cni_calico.plugin.mtu import read_mtu
from cni_calico.plugin.network.ownership import plan_digests
from cni_calico.plugin.network.plan import PodPlan, random_mac
from cni_calico.plugin.pods import NOTHING, PodFacts, is_another_pod, plan_pod_record, plan_pod_request, read_facts
from cni_calico.plugin.second_network import is_second_network, join_network
from cni_calico.plugin.waits import require_guard, require_policy, status_fields


def add(task: Task) -> Mapping[str, Any]:
    """The result of ADD, rendered for the configuration's version. Raises CalicoError, with everything undone."""
    call, conf, services, deadline = task.call, task.conf, task.services, task.deadline
    if not conf.ipam.type:
        raise InvalidConfig(
            "cannot set up the pod's network: the configuration has no ipam.type",
            details='add "ipam": {"type": "calico-ipam"}',
        )
    require_guard(task)
    node = task.read_nodename(wait_s=BOOT_WAIT_S)
    attachment = plan_attachment(call, conf, node)
    with ExitStack() as held:
        netns = services.open_netns(call.netns)
        held.callback(os.close, netns)
        held.enter_context(services.attachment_lock(attachment.label, deadline, attachment.shown))
        held.enter_context(services.attachment_lock(attachment.veth_label, deadline, attachment.shown))
        require_ready(task.datastore, deadline, wait_s=0.0 if services.was_synced() else FIRST_START_S)
        task.datastore.note_added(attachment.label)
        recorded = read_recorded(task.store, attachment, deadline)
        is_stored = not task.datastore.from_memory
        if not is_stored and is_another_pod(recorded.stored, call):
            recorded, is_stored = read_recorded(task.fresh_store, attachment, deadline), True
        addition = _Addition(task, attachment, recorded, netns, is_stored)
        try:
            result = addition.run()
        except _MustReadFirst:
            addition.recorded, addition.is_stored = read_recorded(task.fresh_store, attachment, deadline), True
            result = addition.run()
    return render_result(result, conf.cni_version)


class _MustReadFirst(Exception):
    """What is remembered contradicts what is found: the datastore must be read before anything is decided."""


@dataclass(slots=True)
class _Addition:
    """One ADD under its attachment's lock; its attributes are what the steps have found out."""

    task: Task
    attachment: Attachment
    recorded: Recorded
    netns: int
    is_stored: bool  # whether ``recorded`` was read from the datastore, not only remembered
    mtu: int = 0
    facts: PodFacts = NOTHING
    endpoint_may_come: bool = False  # whether the endpoint's write has an unknown outcome
    alone: bool = False  # whether the kernel has shown that no living interface belongs to this attachment
    mac: bytes | None = None
    companion: Companion | None = None  # the endpoint that was created together with its addresses
    companion_uids: Sequence[str] = ()
    identity: CallIdentity | None = None  # of a container outside Kubernetes

    def run(self) -> Result:
        """Add the container. Raises _MustReadFirst once everything is undone."""
        task, attachment, recorded = self.task, self.attachment, self.recorded
        if task.conf.dataplane is not None and not self.is_stored:
            # undo must not remove the interface of a running container, and only the record says whether there is one
            raise _MustReadFirst
        self.facts = read_facts(task, attachment, recorded.stored)
        if self.facts.endpoint is None and is_second_network(recorded, attachment, task.conf):
            result = join_network(task, attachment, recorded)
            owed.cancel(task.services.files, task.services.state_dir, attachment)
            return result
        self.mtu = read_mtu(task, attachment.node)
        if attachment.orchestrator != KUBERNETES:
            self.identity = read_call_identity(task.call, attachment.network, task.services.files)
            self.attachment = replace(attachment, name=attachment.name or self.identity.name)
        return self._set_up()

    def _set_up(self) -> Result:
        services = self.task.services
        with ExitStack() as undo:
            given = self._assign_addresses(undo)
            if not (self.recorded.is_ours(self.attachment) or given.shared):
                remove_former_connections(given.addresses, services, self.task.deadline)
            network = self._make_links if self.task.conf.dataplane is None else self._make_external_network
            plan, mac = network(given, undo)
            self._store_endpoint(plan, mac, undo)
            services.require_caller()
            require_policy(self.task, self.attachment, status_fields(plan.host_ifname, mac, given.addresses))
            owed.cancel(services.files, services.state_dir, self.attachment)
            undo.pop_all()
        pod = ResultInterface(plan.pod_ifname, mac=mac, sandbox=self.task.call.netns, mtu=plan.mtu)
        return plan_result(given, plan.host_ifname, pod)

    # -- addresses ----------------------------------------------------------------------------------------------------

    def _assign_addresses(self, undo: ExitStack) -> Addresses:
        if self.facts.request.addresses_no_ipam:
            return Addresses(self.facts.request.addresses_no_ipam, (), self.task.conf.dns)
        if self.task.conf.ipam.is_calico:
            return self._assign_calico_addresses(undo)
        return self._assign_delegated_addresses(undo)

    def _assign_calico_addresses(self, undo: ExitStack) -> Addresses:
        task, allocator = self.task, self.task.allocator
        task.datastore.before_addresses(self.attachment.node, task.deadline)
        request = plan_pod_request(plan_request(task.conf, task.call, self.attachment.node), self.facts)
        may_keep = self.attachment.may_keep(task.conf, self.facts.request.sticky)
        kept = self._assign_kept_addresses(request, undo) if may_keep else None
        if kept is not None:
            return kept
        handle_id = self._handle(allocator)
        request = replace(request, handle_id=handle_id, share=self._share_of(handle_id))
        self._plan_companion()
        try:
            with task.services.ipam_lock(task.conf, task.deadline):
                assigned = assign(allocator, request, task.deadline, self.companion)
        except CalicoError:
            self._remove_companion()
            raise
        if not self.is_stored and not self.recorded.is_ours(self.attachment) and any(item.held for item in assigned):
            self._remove_companion()
            raise _MustReadFirst  # a running container may hold them: then this call must not release them
        if not self.recorded.is_ours(self.attachment):  # otherwise the addresses were held before this call
            undo.callback(self._give_back, handle_id, tuple(item.address for item in assigned))
        undo.callback(self._remove_companion)
        if self.companion is not None:
            self._ensure_profile()  # only now, so that an ADD that gets no addresses leaves nothing behind
        if self.companion is not None and self.companion.stored is not None:
            task.datastore.remember(self.companion.stored)
        result = result_of(assigned, explicit=bool(request.addresses))
        # a pod that names its addresses gets no routes in the result, as upstream does it
        routes = () if self.facts.request.addresses else result.routes
        return Addresses(addresses=tuple(item.address for item in assigned), result_routes=routes, dns=task.conf.dns)

    def _assign_kept_addresses(self, request: AssignRequest, undo: ExitStack) -> Addresses | None:
        """Those of an identity that outlasts its pods; None if the pod has none."""
        from cni_calico.plugin.lasting.attached import assign_kept

        if not self.is_stored:
            raise _MustReadFirst  # undo must not take a running pod's name out of them
        undo_of = None if self.recorded.is_ours(self.attachment) else undo
        return assign_kept(self.task, self.attachment, request, self.facts.request, undo_of)

    def _handle(self, allocator: Allocator) -> str:
        """The container's handle; this interface's own handle if an older version allocated its addresses under that
        one.
        """
        own_handle_id, mine = self.attachment.own_handle_id, self.recorded.addresses(self.attachment)
        if mine and self.recorded.has_other_interfaces(self.attachment):
            if any(item.address in mine for item in allocator.addresses_of(own_handle_id, self.task.deadline)):
                return own_handle_id
        return self.attachment.handle_id

    def _give_back(self, handle_id: str, addresses: tuple[Address, ...]) -> None:
        allocator, deadline = self.task.allocator, Deadline.after(UNDO_TIMEOUT_S)
        try:
            if self.is_stored:
                allocator.release_handle(handle_id, deadline, self._share_of(handle_id))
            else:  # the container's other interfaces may hold more under it
                allocator.release_addresses(addresses, deadline, handle_id=handle_id)
        except CalicoError as e:
            self.task.log.error(f"cannot give back {', '.join(map(str, addresses))}: {e.message}")
            # otherwise paying it could release what a living pod uses; the runtime's DEL releases it
            if self.is_stored or self.alone:
                self._owe()

    def _share_of(self, handle_id: str) -> Share | None:
        return None if handle_id == self.attachment.own_handle_id else self.recorded.share(self.attachment)

    def _owe(self, uids: Sequence[str] = ()) -> None:
        """Record what cannot be undone now; it is released when the datastore is back. ``uids``: the UIDs that the
        endpoint may have.
        """
        services = self.task.services
        release = owed.OwedRelease(self.attachment, self.task.conf.datastore, uids=tuple(uids))
        try:
            owed.record(services.files, services.state_dir, release)
        except OSError as e:
            services.log.error(f"cannot record that {self.attachment.shown} is to be released: {e}")

    def _assign_delegated_addresses(self, undo: ExitStack) -> Addresses:
        from cni_calico.plugin.delegate import assign_delegated, configured_routes, undo_delegated

        own = self.recorded.own
        if not self.is_stored and own is None:
            # reading is cheap compared with starting a program, which may hold the addresses already
            raise _MustReadFirst
        if own is not None and self.recorded.is_ours(self.attachment) and own.ip_networks:
            # the delegate would refuse a second allocation for the same container
            return plan_recorded(own, configured_routes(self.task.conf), self.task.conf.dns)
        undo.callback(undo_delegated, self.task, UNDO_TIMEOUT_S)
        return plan_delegated(assign_delegated(self.task), self.task.conf.dns)

    # -- kernel -------------------------------------------------------------------------------------------------------

    def _plan(self, given: Addresses) -> PodPlan:
        conf, own, attachment = self.task.conf, self.recorded.own, self.attachment
        return PodPlan(
            host_ifname=select_veth(attachment, own, self.recorded.others),
            pod_ifname=self.task.call.ifname,
            mtu=self.mtu,
            addresses=given.addresses,
            mac=self.facts.request.mac or self.mac or self._mac(),
            num_queues=conf.num_queues,
            include_default_routes=conf.include_default_routes,
            extra_routes=given.extra_routes,
            allow_ip_forwarding=conf.allow_ip_forwarding,
            digests=plan_digests(attachment.network, attachment.container_id, attachment.ifname),
            owner=attachment.owner,
            routed=not given.shared,
        )

    def _mac(self) -> bytes | None:
        """The recorded MAC, else a random one; if the datastore does not store MACs, one that a repeated ADD computes
        again. None for a record without a MAC, such as one exported from Kubernetes: the interface then keeps the MAC
        that it has.
        """
        if self.task.conf.datastore.type == "kubernetes":
            return random_mac(bytes.fromhex(sha1_hex(self.attachment.label)[:12]))
        own = self.recorded.own
        if own is None or not self.recorded.is_ours(self.attachment):
            return random_mac(self.task.services.random_bytes(6))
        try:
            mac = bytes.fromhex(own.mac.replace(":", ""))
        except ValueError:
            return None
        return mac if len(mac) == 6 else None

    def _make_links(self, given: Addresses, undo: ExitStack) -> tuple[PodPlan, str]:
        """Create the links. Returns the plan as it was carried out, and the MAC of the pod's side."""
        from cni_calico.plugin.network.host import Borrowed, Site
        from cni_calico.plugin.network.setup import Existing, apply_addresses, create_links

        services, deadline, plan = self.task.services, self.task.deadline, self._plan(given)
        existing = Existing(
            may_replace=self.is_stored,
            may_keep=self.is_stored or self.recorded.is_ours(self.attachment),
            named_after_pod=self.attachment.orchestrator == KUBERNETES,
            rivals=lambda: read_rivals(self.task.fresh_store, self.attachment, deadline),
        )
        with services.making_links(), Borrowed(services.host) as host:
            site = Site(host, self.netns, services.log)
            try:
                links = create_links(plan, site, undo, deadline, existing)
            except LinkConflict as e:
                if self.is_stored:
                    raise
                # something of that name exists: its owner must be known for certain before it is changed
                raise _MustReadFirst from e
            self.alone = links.created
            # without IPAM nothing confirms who has an address: a route to it that is not ours stays
            ours = self.task.conf.ipam.is_calico and not self.facts.request.addresses_no_ipam
            apply_addresses(plan, links, site, deadline, owned=lambda _: ours)
        return plan, links.mac

    def _make_external_network(self, given: Addresses, undo: ExitStack) -> tuple[PodPlan, str]:
        """Have the external data plane make the interface. Returns the plan with its host interface, and the MAC of the
        pod's side.
        """
        from cni_calico.plugin import external

        task = self.task
        plan = replace(self._plan(given), host_ifname=select_veth(self.attachment, None, self.recorded.others))
        record = self._record(self.recorded.own, plan.host_ifname, "", plan.addresses)
        if not self.recorded.is_ours(self.attachment):
            undo.callback(external.give_back, task)
        fields = external.plan_add(task, plan, record, given.gateways, self.facts.annotations)
        host_ifname, mac = external.add_interface(task, fields)
        return replace(plan, host_ifname=host_ifname), mac

    # -- record and result --------------------------------------------------------------------------------------------

    def _record(
        self, own: WorkloadEndpoint | None, veth: str, mac: str, addresses: Sequence[Address]
    ) -> WorkloadEndpoint:
        record = plan_endpoint(
            self.attachment,
            own=own,
            veth=veth,
            mac=mac,
            addresses=addresses,
            now=rfc3339(time.time()),
            uid=self.task.services.new_uid(),
            labels=self.task.conf.mesos.labels,
        )
        return plan_pod_record(record, self.facts) if self.identity is None else plan_identified(record, self.identity)

    def _plan_companion(self) -> None:
        """If memory has no endpoint of the attachment, plan to create it together with the addresses in one
        transaction: its comparison also detects an endpoint that exists already.
        """
        self.companion = self.mac = None
        if self.is_stored or self.recorded.stored is not None or self.task.conf.datastore.type == "kubernetes":
            return
        self.mac = self.facts.request.mac or self._mac()
        if self.mac is None:
            return
        veth, mac = select_veth(self.attachment, None, self.recorded.others), self.mac.hex(":")
        self.companion, self.companion_uids = plan_companion(
            self.attachment.endpoint_key, lambda addresses: self._record(None, veth, mac, addresses)
        )

    def _remove_companion(self) -> None:
        if self.companion is not None and self.companion.stored is not None:
            self._remove_endpoint()
        elif self.companion is not None and self.companion.unknown:
            self._owe(self.companion_uids)  # also if it is not there now: the write may still be under way
            self._remove_endpoint(only=self.companion_uids)

    def _ensure_profile(self) -> None:
        conf = self.task.conf
        if not conf.policy_type and conf.datastore.type != "kubernetes":
            now, uid = rfc3339(time.time()), self.task.services.new_uid()
            profile = plan_profile(self.attachment, conf.profile_ingress, now=now, uid=uid)
            ensure_profile(self.task.store, profile, self.task.deadline)

    def _store_endpoint(self, plan: PodPlan, mac: str, undo: ExitStack) -> None:
        stored = self.recorded.stored if self.companion is None else self.companion.stored
        if stored is not None and self.companion is not None and self.mac is not None and self.mac.hex(":") == mac:
            return
        self._ensure_profile()
        if not self.recorded.is_ours(self.attachment):
            undo.callback(self._remove_endpoint)
        try:
            apply_endpoint(
                self.task.store,
                self.attachment.endpoint_key,
                stored,
                lambda own: self._record(own, plan.host_ifname, mac, plan.addresses),
                self.task.deadline,
            )
        except OutcomeUnknown:
            self.endpoint_may_come = True
            raise

    def _remove_endpoint(self, only: Sequence[str] = ()) -> None:
        """``only``: the UIDs that the record may have."""
        attachment, store, deadline = self.attachment, self.task.store, Deadline.after(UNDO_TIMEOUT_S)
        if self.endpoint_may_come:
            self._owe()
        try:
            remove_endpoint(store, attachment.endpoint_key, attachment.container_id, deadline, only=only)
        except CalicoError as e:
            self.task.log.error(f"cannot remove the endpoint of {attachment.shown}: {e.message}")
            if self.companion is None or self.alone:  # otherwise paying it could release what a living pod uses
                self._owe()
