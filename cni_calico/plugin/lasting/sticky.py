"""Identities that users give to pods and containers, so that their addresses outlast them.

Rule: a pod of a StatefulSet is known by the set and its ordinal, any other pod by the name that its annotation gives, a
container outside Kubernetes by its own. An address is taken over only from whoever certainly does not run any more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from cni_calico.datastore.kubernetes.kubevirt import owner_named
from cni_calico.datastore.kubernetes.objects import KubernetesObjects
from cni_calico.errors import InvalidAnnotation, TryAgain
from cni_calico.ipam.assign import AssignRequest
from cni_calico.ipam.lost.pods import has_let_go
from cni_calico.ipam.share import INTERFACE
from cni_calico.model import names
from cni_calico.model.keys import ResourceKey
from cni_calico.model.lasting import CONTAINER, IDENTITY, STICKY, AddressOwners, Identity, LastingKind
from cni_calico.model.names import IDENTITY as ANNOTATION
from cni_calico.model.names import STICKY as WISH
from cni_calico.model.resources import Address, IPPool
from cni_calico.plugin.annotations import PodRequest
from cni_calico.plugin.attachment import KUBERNETES, PLAIN, Attachment
from cni_calico.plugin.call.task import Task

_ORDINAL = re.compile(r"-(0|[1-9][0-9]{0,9})")


def plan_identity(task: Task, attachment: Attachment, wish: PodRequest, request: AssignRequest) -> Identity | None:
    """The identity of a pod or container that asks for one; None if it has none after all. Raises InvalidAnnotation,
    DatastoreError.
    """
    kubernetes = attachment.orchestrator == KUBERNETES
    if not kubernetes and request.addresses:
        return None  # it names its address itself
    if wish.addresses or wish.addresses_no_ipam:
        raise InvalidAnnotation(
            f"cannot use annotation {WISH} or {ANNOTATION} of pod {attachment.namespace}/{attachment.workload} "
            "together with one that names its addresses",
            details="a pod that names its address has it whenever it runs; remove one of the two annotations",
        )
    kept = {STICKY: "keep"} if wish.sticky == "keep" else {}
    network, namespace = attachment.network, attachment.namespace
    if not kubernetes:
        own = {IDENTITY: attachment.name, CONTAINER: attachment.container_id, INTERFACE: attachment.ifname}
        return Identity(LastingKind.NAMED, network, namespace, attachment.name, own)
    if wish.identity:
        return Identity(LastingKind.NAMED, network, namespace, wish.identity, {IDENTITY: wish.identity, **kept})
    name = _read_stateful(task, attachment)
    return Identity(LastingKind.STATEFUL, network, namespace, name, {IDENTITY: name, **kept}) if name else None


def _read_stateful(task: Task, attachment: Attachment) -> str:
    """The StatefulSet and the ordinal, as "<name>.<ordinal>"; "" if the pod is of none. Raises DatastoreError."""
    objects, args = KubernetesObjects(task.kubernetes.api), task.call.args
    pod = objects.pod(attachment.namespace, attachment.workload, args.pod_uid, task.deadline)
    reference = None if pod is None else owner_named(pod, "StatefulSet", group="apps/v1")
    name = "" if reference is None else str(reference.get("name") or "")
    ordinal = _ORDINAL.fullmatch(attachment.workload.removeprefix(name))
    if reference is None or reference.get("controller") is not True or not name or ordinal is None:
        task.log.debug(f"{WISH} says nothing for pod {attachment.workload}: it is of no StatefulSet")
        return ""
    return f"{name}.{ordinal[1]}"


def require_free(task: Task, attachment: Attachment, identity: Identity) -> Callable[[AddressOwners], None]:
    """What raises TryAgain if a pod or container that is named as an owner may still run."""

    def check(owners: AddressOwners) -> None:
        owner = owners.active
        if attachment.orchestrator != KUBERNETES:
            other = owner.get(CONTAINER, "")
            if other and other != attachment.container_id and _is_recorded(task, attachment, owners):
                raise TryAgain(
                    f"cannot take the address of {identity}: container {names.short_id(other)} has it",
                    details=f"it has the same name, on node {owner.get('node')}; stop it, or name this one differently",
                )
            return
        other = owner.get("pod", "")
        if not other or other == attachment.workload:
            return
        pod = KubernetesObjects(task.kubernetes.api).pod(attachment.namespace, other, "", task.deadline)
        if pod is not None and not has_let_go(pod):
            raise TryAgain(
                f"cannot take the address of {identity}: pod {attachment.namespace}/{other} has it",
                details=f"both have the same annotation {ANNOTATION}; an identity is one pod's at a time",
            )

    return check


def _is_recorded(task: Task, attachment: Attachment, owners: AddressOwners) -> bool:
    """Whether the endpoint of the container that has the address is still there."""
    owner = owners.active
    parts = (owner.get("node", ""), PLAIN, owner.get(CONTAINER, ""), owner.get(INTERFACE, ""))
    try:
        key = ResourceKey("WorkloadEndpoint", names.endpoint_name(*parts), attachment.namespace)
    except ValueError:
        return False  # nobody has such a name
    return task.fresh_store.get(key, task.deadline) is not None


def fits_pools(request: AssignRequest, pools: Sequence[IPPool]) -> Callable[[Address], bool]:
    """Whether a kept address is one of those that a request could get now, as far as it names pools."""

    def fits(address: Address) -> bool:
        named = request.pools4 if address.version == 4 else request.pools6
        chosen = [pool for pool in pools if pool.metadata.name in named or str(pool.cidr) in named]
        return not named or any(address.version == pool.cidr.version and address in pool.cidr for pool in chosen)

    return fits
