"""CHECK: compares prevResult with reality; reports every difference, repairs none.

Rule: the first difference is the message, all of them are ``details``: a JSON list of objects with where, kind, name,
wanted and found. Source: CNI specification 1.1.0 "CHECK".
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network, ip_interface, ip_network

from cni_calico.cni.netconf import NetConf
from cni_calico.cni.result import Result, parse_result
from cni_calico.errors import CheckFailed, InvalidConfig, NetnsGone
from cni_calico.model import names
from cni_calico.model.resources import Address
from cni_calico.plugin.attachment import Attachment, plan_attachment
from cni_calico.plugin.call.task import Task
from cni_calico.plugin.endpoints import Recorded, read_recorded
from cni_calico.plugin.mtu import read_mtu
from cni_calico.plugin.network.differences import Difference
from cni_calico.plugin.network.plan import PodPlan
from cni_calico.plugin.pods import read_addresses_past_ipam


def check(task: Task) -> None:
    """Raises CheckFailed when anything differs from what ADD left."""
    if task.conf.prev_result is None:
        raise InvalidConfig("cannot check: required prevResult is missing", details="CHECK needs the result of ADD")
    previous = parse_result(task.conf.prev_result)
    attachment = plan_attachment(task.call, task.conf, task.read_nodename())
    with ExitStack() as held:
        held.enter_context(task.services.attachment_lock(attachment.label, task.deadline, attachment.shown))
        recorded = read_recorded(task.fresh_store, attachment, task.deadline)  # not from memory
        plan = _plan(task, attachment, recorded, previous)
        own = _read_held(task, attachment, recorded) if task.conf.ipam.is_calico else frozenset()
        missing = [address for address in plan.addresses if address not in own]
        kept, shared = frozenset[Address](), False
        if missing and task.conf.ipam.is_calico:
            from cni_calico.plugin.lasting.checked import find_kept

            kept, shared = find_kept(task, attachment, missing)
        plan = replace(plan, routed=not shared)
        found = [
            # the protocol of external data planes has no check, so what they made is not checked
            *(_network_differences(plan, task) if task.conf.dataplane is None else ()),
            *_endpoint_differences(task.conf, attachment, recorded, plan, previous),
            *_ipam_differences(task, attachment, recorded, plan, own | kept),
        ]
    if found:
        raise CheckFailed(
            f"cannot confirm {attachment.shown}: {found[0]}" + (f" (and {len(found) - 1} more)" if found[1:] else ""),
            details=json.dumps(
                [
                    {"where": d.where, "kind": d.kind, "name": d.name, "wanted": d.wanted, "found": d.found}
                    for d in found
                ]
            ),
        )


def _plan(task: Task, attachment: Attachment, recorded: Recorded, previous: Result) -> PodPlan:
    """The network that ADD must have left, according to its own result."""
    call, conf = task.call, task.conf
    own = {index for index, item in enumerate(previous.interfaces) if item.name == call.ifname and item.sandbox}
    pod = next((item for item in previous.interfaces if item.name == call.ifname and item.sandbox), None)
    host = _host_ifname(previous) or attachment.veth
    if recorded.own is not None and recorded.is_ours(attachment):
        host = recorded.own.interface_name
    addresses = tuple(ip.address.ip for ip in previous.ips if not own or ip.interface is None or ip.interface in own)
    if not addresses:
        raise InvalidConfig(f"cannot check: prevResult has no address on {call.ifname}")
    return PodPlan(
        host_ifname=host,
        pod_ifname=call.ifname,
        mtu=pod.mtu if pod is not None and pod.mtu else read_mtu(task, attachment.node),
        addresses=addresses,
        mac=_parse_mac(pod.mac) if pod is not None and pod.mac else None,
        num_queues=conf.num_queues,
        include_default_routes=conf.include_default_routes,
        extra_routes=_given_routes(conf, previous),
        allow_ip_forwarding=conf.allow_ip_forwarding,
    )


def _host_ifname(previous: Result) -> str:
    """The host's interface in the result, "" if there is none. Raises InvalidConfig."""
    name = previous.interfaces[0].name if previous.interfaces else ""
    if name and not names.valid_ifname(name):
        raise InvalidConfig(f"cannot check: prevResult.interfaces.name: {name[:80]!r} is not an interface name")
    return name


def _parse_mac(text: str) -> bytes:
    try:
        mac = bytes.fromhex(text.replace(":", ""))
    except ValueError:
        mac = b""
    if len(mac) != 6:
        raise InvalidConfig(f"cannot check: prevResult.interfaces.mac: {text[:80]!r} is not a MAC address")
    return mac


def _given_routes(conf: NetConf, previous: Result) -> tuple[IPv4Network | IPv6Network, ...]:
    """Destinations that a delegated IPAM gave; the other routes of a result are the addresses themselves."""
    if conf.ipam.is_calico:
        return ()
    own = {ip.address.ip for ip in previous.ips}
    given = [route.dst for route in previous.routes if ip_interface(route.dst).ip not in own]
    return tuple(ip_network(dst, strict=False) for dst in given)


def _network_differences(plan: PodPlan, task: Task) -> tuple[Difference, ...]:
    from cni_calico.plugin.network.observe import find_differences

    try:
        netns = task.services.open_netns(task.call.netns)
    except NetnsGone as e:
        return (Difference("pod", "netns", task.call.netns, "present", e.message),)
    try:
        return find_differences(plan, netns, task.deadline)
    finally:
        os.close(netns)


def _endpoint_differences(
    conf: NetConf, attachment: Attachment, recorded: Recorded, plan: PodPlan, previous: Result
) -> Iterator[Difference]:
    key = attachment.endpoint_key
    name = f"{key.namespace}/{key.name}"
    own = recorded.own
    if own is None:
        yield Difference("datastore", "endpoint", name, "present", "")
        return
    wanted = {
        "containerID": attachment.container_id,
        "node": attachment.node,
        "endpoint": attachment.ifname,
        "ipNetworks": ",".join(sorted(f"{a}/{a.max_prefixlen}" for a in plan.addresses)),
    }
    found = {
        "containerID": own.container_id,
        "node": own.node,
        "endpoint": own.endpoint,
        "ipNetworks": ",".join(sorted(map(str, own.ip_networks))),
    }
    # a Kubernetes pod does not store the name: it follows from the pod's name, except for an external data plane's
    # interface
    is_named = conf.dataplane is None or conf.datastore.type != "kubernetes"
    if previous.interfaces and is_named:
        wanted["interfaceName"], found["interfaceName"] = previous.interfaces[0].name, own.interface_name
    if plan.mac is not None and own.mac:  # a Kubernetes pod does not store it, nor does a record exported from there
        wanted["mac"], found["mac"] = plan.mac.hex(":"), own.mac.lower()
    for field, value in wanted.items():
        if found[field] != value:
            yield Difference("datastore", "endpoint", f"{name} {field}", value, found[field])


def _read_held(task: Task, attachment: Attachment, recorded: Recorded) -> frozenset[Address]:
    """The addresses that are held under the attachment's own handles. Raises DatastoreError."""
    allocator, share, held = task.allocator, recorded.share(attachment), set[Address]()
    for handle in attachment.handle_ids:
        only_ours = handle == attachment.own_handle_id
        found = allocator.addresses_of(handle, task.deadline, None if only_ours else share)
        held |= {item.address for item in found}
    return frozenset(held)


def _ipam_differences(
    task: Task, attachment: Attachment, recorded: Recorded, plan: PodPlan, held: frozenset[Address]
) -> Iterator[Difference]:
    """``held``: the addresses that are held for the attachment."""
    if not task.conf.ipam.is_calico:
        from cni_calico.plugin.delegate import run_delegate

        run_delegate(task, command="CHECK")
        return
    if recorded.own is not None and attachment.network in recorded.own.profiles[1:]:
        return  # the addresses belong to the network whose endpoint this one has joined
    missing = [address for address in plan.addresses if address not in held]
    past_ipam = read_addresses_past_ipam(task, attachment, recorded.stored) if missing else ()
    for address in missing:
        if address not in past_ipam:
            yield Difference("datastore", "allocation", str(address), f"handle {attachment.handle_id}", "")
