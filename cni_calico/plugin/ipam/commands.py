"""calico-ipam's verbs: an allocator behind the CNI contract.

Rule: ADD and DEL are plugin/ipam/addresses.py, which calico runs in its own process, with the CNI result around it, so
both give identical results. What is held under one handle is changed by one execution at a time: calico's attachment
lock sees to that, here a lock of the handle's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cni_calico.cni.answer import Answer
from cni_calico.cni.environment import Call
from cni_calico.cni.netconf import NetConf
from cni_calico.cni.result import render_result
from cni_calico.deadline import Deadline
from cni_calico.errors import TRY_AGAIN, CheckFailed, NotReady
from cni_calico.plugin.call import ready
from cni_calico.plugin.call.node_name import read_nodename
from cni_calico.plugin.call.serve import Handler, run_call
from cni_calico.plugin.call.services import Services
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


def _add(call: Call, conf: NetConf, services: Services, deadline: Deadline) -> Mapping[str, Any]:
    node = read_nodename(conf, services.files, deadline, for_ipam=True)
    request = plan_request(conf, call, node)
    with handle_lock(request.handle_id, services, deadline):
        ready.require_not_locked(services, conf.datastore, deadline)
        services.note_added(conf.datastore, f"{conf.name}/{call.container_id}/{call.ifname}")
        labels = read_namespace_labels(call, conf, services, deadline)
        share = find_share(call, conf, services, deadline)
        request = replace(request, namespace_labels=labels, share=share)
        with services.ipam_lock(conf, deadline):
            assigned = assign(services.allocator(conf.datastore), request, deadline)
    ready.note_synced(services)
    return render_result(result_of(assigned, explicit=bool(request.addresses)), conf.cni_version)


def _delete(call: Call, conf: NetConf, services: Services, deadline: Deadline) -> None:
    handles = handle_ids(conf, call)
    with handle_lock(handles[0], services, deadline):
        try:
            ready.require_not_locked(services, conf.datastore, deadline)
        except NotReady as e:
            e.code = TRY_AGAIN  # 50 is for STATUS and ADD: a DEL is repeated
            raise
        with services.ipam_lock(conf, deadline):
            share = find_share(call, conf, services, deadline)
            release(services.allocator(conf.datastore), handles, share, deadline)


def _check(call: Call, conf: NetConf, services: Services, deadline: Deadline) -> None:
    handles = handle_ids(conf, call)
    with handle_lock(handles[0], services, deadline):
        allocator = services.allocator(conf.datastore)
        share = find_share(call, conf, services, deadline)
        found = any(allocator.addresses_of(handle, deadline, share) for handle in handles)
    if not found:
        raise CheckFailed(
            f"cannot find an allocation for container {call.container_id} in network {conf.name}",
            details=f"no address of interface {call.ifname} is held under handle {handles[0]}",
        )


def _status(call: Call, conf: NetConf, services: Services, deadline: Deadline) -> None:
    from cni_calico.plugin.ipam.status import require_available

    conf = replace(conf, ipam=replace(conf.ipam, type="calico-ipam"))
    require_available(conf, services, deadline, for_ipam=True)


def _collect(call: Call, conf: NetConf, services: Services, deadline: Deadline) -> None:
    from cni_calico.plugin.ipam.gc import collect_addresses

    collect_addresses(call, conf, services, deadline)


HANDLERS: dict[str, Handler] = {"ADD": _add, "DEL": _delete, "CHECK": _check, "STATUS": _status, "GC": _collect}


def serve(call: Call, services: Services) -> Answer:
    """The answer of the calico-ipam executable to a call."""
    return run_call(call, services, HANDLERS)
