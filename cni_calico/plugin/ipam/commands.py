"""calico-ipam's verbs: an allocator behind the CNI contract.

Rule: ADD and DEL use plugin/ipam/addresses.py, as calico itself does, and add only the CNI result; so both assign the
same addresses. Only one process at a time changes what is held under a handle: in calico the attachment lock ensures
that, here a lock of the handle itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import ip_interface
from typing import Any

from cni_calico.cni.answer import Answer
from cni_calico.cni.environment import Call
from cni_calico.cni.result import Result, ResultIP, render_result
from cni_calico.errors import CheckFailed, InvalidEnvironment, KernelError
from cni_calico.model.names import short_id
from cni_calico.plugin.attachment import Attachment, plan_attachment
from cni_calico.plugin.call import ready
from cni_calico.plugin.call.node_name import os_host_name
from cni_calico.plugin.call.serve import Handler, run_call
from cni_calico.plugin.call.services import Services
from cni_calico.plugin.call.task import Task
from cni_calico.plugin.ipam.addresses import (
    assign,
    handle_ids,
    handle_lock,
    plan_request,
    read_namespace_labels,
    release,
    result_of,
)
from cni_calico.plugin.ipam.alone import find_share


def _add(task: Task) -> Mapping[str, Any]:
    call, conf, services, deadline = task.call, task.conf, task.services, task.deadline
    request = plan_request(conf, call, task.read_nodename(for_ipam=True))
    with handle_lock(request.handle_id, services, deadline):
        ready.require_not_locked(task.datastore, deadline)
        task.datastore.note_added(f"{conf.name}/{call.container_id}/{call.ifname}")
        task.datastore.before_addresses(request.node, deadline)
        request = replace(request, namespace_labels=read_namespace_labels(task), share=find_share(task))
        attachment = _may_keep(task, request.node)
        if attachment is not None:
            from cni_calico.plugin.annotations import PodRequest
            from cni_calico.plugin.lasting.attached import assign_kept

            kept = assign_kept(task, attachment, request, PodRequest(), None)
            if kept is not None:
                ready.note_synced(services)
                ips = tuple(ResultIP(ip_interface((a, a.max_prefixlen))) for a in kept.addresses)
                return render_result(Result(ips=ips, routes=kept.result_routes), conf.cni_version)
        with services.ipam_lock(conf, deadline):
            assigned = assign(task.allocator, request, deadline)
    ready.note_synced(services)
    return render_result(result_of(assigned, explicit=bool(request.addresses)), conf.cni_version)


def _delete(task: Task) -> None:
    conf, services, deadline = task.conf, task.services, task.deadline
    handles = handle_ids(conf, task.call)
    with ExitStack() as held:
        try:
            held.enter_context(handle_lock(handles[0], services, deadline))
        except KernelError as e:
            raise services.nothing_removed(handles[0], e) from e
        ready.require_not_locked(task.datastore, deadline)
        with services.ipam_lock(conf, deadline):
            release(task.allocator, handles, find_share(task), deadline)
            attachment = _may_keep(task, _any_node(task))
            if attachment is not None:
                from cni_calico.plugin.lasting.attached import leave

                leave(task, attachment, deadline)


def _check(task: Task) -> None:
    call, handles = task.call, handle_ids(task.conf, task.call)
    with handle_lock(handles[0], task.services, task.deadline):
        allocator, share = task.allocator, find_share(task)
        found = any(allocator.addresses_of(handle, task.deadline, share) for handle in handles)
    attachment = None if found else _may_keep(task, _any_node(task))
    if attachment is not None:
        from cni_calico.plugin.lasting.attached import has_kept

        found = has_kept(task, attachment)
    if not found:
        raise CheckFailed(
            f"cannot find an allocation for container {short_id(call.container_id)} in network {task.conf.name}",
            details=f"no address of interface {call.ifname} is held under handle {handles[0]}",
        )


def _may_keep(task: Task, node: str) -> Attachment | None:
    """The attachment whose addresses may outlast it. None also where nothing could be called an endpoint's name: this
    program alone writes none, so that is no error here.
    """
    try:
        attachment = plan_attachment(task.call, task.conf, node)
    except InvalidEnvironment:
        return None
    return attachment if attachment.may_keep(task.conf) else None


def _any_node(task: Task) -> str:
    """For what depends on the pod alone: DEL and CHECK work without a node's name, too."""
    return task.conf.hostname or os_host_name()


def _status(task: Task) -> None:
    from cni_calico.plugin.ipam.status import require_available

    conf = replace(task.conf, ipam=replace(task.conf.ipam, type="calico-ipam"))
    require_available(replace(task, conf=conf), for_ipam=True)


def _collect(task: Task) -> None:
    from cni_calico.plugin.ipam.gc import collect_addresses

    collect_addresses(task)


HANDLERS: dict[str, Handler] = {"ADD": _add, "DEL": _delete, "CHECK": _check, "STATUS": _status, "GC": _collect}


def serve(call: Call, services: Services) -> Answer:
    """The answer of the calico-ipam executable to a call."""
    return run_call(call, services, HANDLERS)
