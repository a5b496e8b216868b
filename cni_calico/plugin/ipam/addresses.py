"""An attachment's addresses: what it asks for, assigned by the allocator, released.

Rule: calico and calico-ipam both assign addresses through this module, so both assign the same ones. A container has
one handle in a network, as in upstream; each of its interfaces has its own addresses under that handle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from ipaddress import ip_interface
from typing import Any

from cni_calico.cni.environment import Call
from cni_calico.cni.netconf import NetConf
from cni_calico.cni.result import Result, ResultIP, ResultRoute
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreForbidden, InvalidConfig
from cni_calico.ipam.allocator import Allocator, Assigned
from cni_calico.ipam.assign import AssignRequest, Companion
from cni_calico.ipam.share import INTERFACE, Share
from cni_calico.model import names
from cni_calico.model.resources import Address
from cni_calico.plugin.call.services import Services
from cni_calico.plugin.call.task import Task

FIRST_IFNAME = "eth0"  # of the container's first interface, which has the addresses that name none
UNDO_TIMEOUT_S = 5.0  # the time that undoing may take after the call's own deadline


def plan_request(conf: NetConf, call: Call, node: str) -> AssignRequest:
    """The request of a call, from the call alone; the caller adds what the pod's annotations ask for. Raises
    InvalidConfig for a network or container after which no object of Kubernetes can be named.
    """
    from cni_calico.ipam.assign import AssignRequest

    handle_id = names.handle_id(conf.name, call.container_id)
    if conf.datastore.type == "kubernetes" and not names.valid_object_name(handle_id.lower()):
        raise InvalidConfig(
            f"cannot take addresses as {handle_id}: no object in Kubernetes can have that name",
            details="it is the configuration's name and the container's ID: of letters, digits, '-' and '.', with a "
            "letter or digit at each end and beside each '.', and at most 253 characters",
        )
    attributes = {"node": node, INTERFACE: call.ifname}
    if call.args.is_kubernetes:
        attributes |= {"namespace": call.args.pod_namespace, "pod": call.args.pod_name}
    explicit = (call.args.ip,) if call.args.ip is not None else ()
    return AssignRequest(
        node=node,
        handle_id=handle_id,
        attributes=attributes,
        num4=int(conf.ipam.assign_ipv4),
        num6=int(conf.ipam.assign_ipv6),
        pools4=conf.ipam.ipv4_pools,
        pools6=conf.ipam.ipv6_pools,
        addresses=explicit,
    )


def read_namespace_labels(task: Task) -> Mapping[str, str] | None:
    """The labels of the pod's namespace, for pools' namespace selectors; None if there is no Kubernetes to ask."""
    args = task.call.args
    if not args.is_kubernetes or not task.conf.datastore.kubernetes.kubeconfig:
        return None
    namespace = read_namespace(task)
    return None if namespace is None else dict((namespace.get("metadata") or {}).get("labels") or {})


def read_namespace(task: Task) -> Mapping[str, Any] | None:
    """The pod's namespace; None if it does not exist.

    A network configuration with a token of its own (``policy.k8s_auth_token``) is of the time before upstream's plugin
    read namespaces (v3.3): the role that came with it does not allow that. Then, and only then, it is done without.
    """
    try:
        return task.kubernetes.namespace(task.call.args.pod_namespace, task.deadline)
    except DatastoreForbidden as e:
        if not task.conf.datastore.kubernetes.token:
            raise
        task.log.warning(
            f"{e.message}: annotations of the namespace do not count, and pools with a namespaceSelector are not used"
        )
        return None


def handle_ids(conf: NetConf, call: Call) -> tuple[str, ...]:
    """The handles that an attachment's addresses may be stored under: ours, then those of very old releases."""
    old = f"{call.args.pod_namespace}.{call.args.pod_name}" if call.args.is_kubernetes else call.container_id
    return (names.handle_id(conf.name, call.container_id), old)


def assign(
    allocator: Allocator, request: AssignRequest, deadline: Deadline, companion: Companion | None = None
) -> tuple[Assigned, ...]:
    """All the addresses of a request, or an error with nothing allocated. Raises IPAMError, DatastoreError.

    ``companion`` may be created together with them.
    """
    if not (request.addresses or request.num4 or request.num6):
        raise InvalidConfig(
            "cannot assign addresses: ipam.assign_ipv4 and ipam.assign_ipv6 are both false",
            details="a pod needs an address of at least one family",
        )
    return allocator.assign(request, deadline, companion)


def release(
    allocator: Allocator, handles: Iterable[str], share: Share, deadline: Deadline, *, own_handle_id: str = ""
) -> tuple[Address, ...]:
    """Release what one interface holds under its container's handles; holding nothing is success.

    ``own_handle_id`` is the interface's own handle: older versions used it for the addresses of a further interface.
    """
    released: list[Address] = []
    for handle_id in dict.fromkeys(handles):
        only_ours = handle_id == own_handle_id
        released.extend(allocator.release_handle(handle_id, deadline, None if only_ours else share))
    return tuple(released)


def plan_share(
    ifname: str, own: Collection[Address], others: Collection[Address], *, first_known: bool = False
) -> Share:
    """An interface's part of what its container's handle holds.

    ``own`` are the addresses that the interface's endpoint records, ``others`` those that the endpoints of the
    container's other interfaces record. An address that names no interface and is in no record belongs to the first
    interface; but with ``first_known`` (the other interfaces' records include all the first one's addresses) it belongs
    to the interface that asks.
    """

    def claim(unnamed: frozenset[Address], named_others: bool) -> frozenset[Address]:
        rest = ifname == FIRST_IFNAME or first_known
        return frozenset(a for a in unnamed if a in own or (rest and a not in others))

    return Share(ifname, claim)


def result_of(assigned: tuple[Assigned, ...], *, explicit: bool) -> Result:
    """calico-ipam's result: each address with its block's prefix, or /32 or /128 if it was asked for by name."""
    prefixed = [
        ip_interface((item.address, item.address.max_prefixlen if explicit else item.block.prefixlen))
        for item in assigned
    ]
    return Result(
        ips=tuple(ResultIP(address) for address in prefixed),
        routes=tuple(ResultRoute(str(address)) for address in prefixed),
    )


def handle_lock(handle_id: str, services: Services, deadline: Deadline) -> AbstractContextManager[None]:
    """A lock separate from the attachment's: the plugin that holds that one may run us. Raises AttachmentBusy."""
    return services.attachment_lock(f"calico-ipam {handle_id}", deadline)
