"""A container that joins a further network of Calico's: the endpoint it has gets that network's profile.

Rule: no address is taken and nothing in the kernel changes; the answer is what the container has.
"""

from __future__ import annotations

import time
from dataclasses import replace
from ipaddress import ip_interface

from cni_calico.cni.environment import Call
from cni_calico.cni.netconf import NetConf
from cni_calico.cni.result import Result, ResultInterface, ResultIP, ResultRoute
from cni_calico.deadline import Deadline
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.plugin.attachment import Attachment, plan_profile
from cni_calico.plugin.call.services import Services
from cni_calico.plugin.endpoints import Recorded, apply_endpoint, ensure_profile, rfc3339


def is_second_network(recorded: Recorded, attachment: Attachment, conf: NetConf) -> bool:
    own = recorded.own
    if conf.datastore.type == "kubernetes":
        return False  # a pod's profiles are derived there, no network can be added to them
    return own is not None and recorded.is_ours(attachment) and attachment.network not in own.profiles


def join_network(
    call: Call, conf: NetConf, services: Services, attachment: Attachment, recorded: Recorded, deadline: Deadline
) -> Result:
    """Add this network's profile to the endpoint the container has; its addresses are the answer."""
    own = recorded.own
    assert own is not None
    store = services.store(conf.datastore)
    if not conf.policy_type:
        ensure_profile(store, plan_profile(attachment, now=rfc3339(time.time()), uid=services.new_uid()), deadline)

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
            ResultInterface(own.endpoint, mac=own.mac, sandbox=call.netns),
        ),
        ips=tuple(ResultIP(ip_interface(str(network)), 1) for network in own.ip_networks),
        routes=tuple(ResultRoute(str(network)) for network in own.ip_networks),
        dns=conf.dns,
    )
