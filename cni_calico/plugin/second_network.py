"""A container that joins a further network of Calico's: its existing endpoint gets that network's profile.

Rule: no address is allocated and nothing in the kernel changes; the result is what the container already has.
"""

from __future__ import annotations

import time
from dataclasses import replace
from ipaddress import ip_interface

from cni_calico.cni.netconf import NetConf
from cni_calico.cni.result import Result, ResultInterface, ResultIP, ResultRoute
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.model.timestamps import rfc3339
from cni_calico.plugin.attachment import Attachment, plan_profile
from cni_calico.plugin.call.task import Task
from cni_calico.plugin.endpoints import Recorded, apply_endpoint, ensure_profile


def is_second_network(recorded: Recorded, attachment: Attachment, conf: NetConf) -> bool:
    own = recorded.own
    if conf.datastore.type == "kubernetes":
        return False  # a pod's profiles are derived from its namespace and service account there, so none can be added
    return own is not None and recorded.is_ours(attachment) and attachment.network not in own.profiles


def join_network(task: Task, attachment: Attachment, recorded: Recorded) -> Result:
    """Add this network's profile to the container's endpoint; the result has its existing addresses."""
    own = recorded.own
    assert own is not None
    store, deadline = task.store, task.deadline
    if not task.conf.policy_type:
        now, uid = rfc3339(time.time()), task.services.new_uid()
        profile = plan_profile(attachment, task.conf.profile_ingress, now=now, uid=uid)
        ensure_profile(store, profile, deadline)

    def build(found: WorkloadEndpoint | None) -> WorkloadEndpoint:
        base = found or own
        return (
            base
            if attachment.network in base.profiles
            else replace(base, profiles=(*base.profiles, attachment.network))
        )

    apply_endpoint(store, attachment.endpoint_key, recorded.stored, build, deadline)
    return Result(
        interfaces=(
            ResultInterface(own.interface_name),
            ResultInterface(own.endpoint, mac=own.mac, sandbox=task.call.netns),
        ),
        ips=tuple(ResultIP(ip_interface(str(network)), 1) for network in own.ip_networks),
        routes=tuple(ResultRoute(str(network)) for network in own.ip_networks),
        dns=task.conf.dns,
    )
