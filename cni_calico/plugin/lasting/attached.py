"""A pod that keeps its identity's addresses: taken by its ADD, left by its DEL.

Rule: what is undone, or left, is only what says that it is this pod's; the addresses themselves stay with the identity.
DEL never fails for want of what KubeVirt says: then the addresses stay, and the janitor asks again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace

from cni_calico.cni.result import ResultRoute
from cni_calico.datastore.kubernetes import kubevirt
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, TryAgain
from cni_calico.ipam.assign import AssignRequest
from cni_calico.ipam.batch import Assigned
from cni_calico.ipam.lasting import Fits, LastingAddresses, MayTake
from cni_calico.model.lasting import AddressOwners, Identity, is_pod
from cni_calico.model.resources import Address
from cni_calico.plugin.annotations import PodRequest
from cni_calico.plugin.attachment import KUBERNETES, Attachment
from cni_calico.plugin.call.task import Task
from cni_calico.plugin.given import Addresses
from cni_calico.plugin.lasting.machines import find_identity, read_machine
from cni_calico.plugin.lasting.sticky import fits_pools, plan_identity, require_free


def assign_kept(
    task: Task, attachment: Attachment, request: AssignRequest, wish: PodRequest, undo: ExitStack | None
) -> Addresses | None:
    """The addresses of a pod's identity; None if it has none. ``undo`` None: the pod had them before this call.

    Raises TryAgain also if a machine is to come whose addresses nobody has taken, or if somebody else of the same
    identity runs, and what ``read_machine``, ``plan_identity`` and ``LastingAddresses.assign`` raise.
    """
    machine = read_machine(task, attachment) if attachment.may_keep(task.conf) else None
    identity = machine.identity if machine is not None else None
    may_take: MayTake = _anyone
    fits: Fits = _anything
    if identity is None and (wish.sticky or attachment.orchestrator != KUBERNETES):
        identity = plan_identity(task, attachment, wish, request)
        if identity is not None:
            may_take = require_free(task, attachment, identity)
            if request.pools4 or request.pools6:
                fits = fits_pools(request, task.allocator.view.pools(task.deadline))
    if identity is None:
        return None
    lasting, deadline = LastingAddresses(task.fresh_store), task.deadline
    handle_id = identity.handle_id(is_kubernetes=task.conf.datastore.type == "kubernetes")
    owner = {**_owner_of(attachment), **identity.attributes}
    with task.services.ipam_lock(task.conf, deadline):
        if machine is not None and machine.is_target:
            return _join(task, attachment, lasting, handle_id, owner, undo)
        fresh: set[Address] = set()
        if undo is not None:
            undo.callback(_give_back, task, lasting, handle_id, owner, fresh.__contains__)
        wanted = replace(request, handle_id=handle_id, attributes=owner)
        unfit: set[Address] = set()

        def is_fit(address: Address) -> bool:
            if not fits(address):
                unfit.add(address)
            return address not in unfit

        assigned = lasting.assign(wanted, deadline, may_take=may_take, fits=is_fit)
        if unfit:
            task.log.warning(
                f"{attachment.namespace}/{attachment.workload} no longer has {_listed(unfit)}, which {identity} kept: "
                f"no pool that it names contains that; now it has {_listed(item.address for item in assigned)}"
            )
        fresh.update(item.address for item in assigned if not item.held)
    return _given(task, assigned)


def _listed(addresses: Iterable[Address]) -> str:
    return ", ".join(sorted(map(str, addresses)))


def _anyone(owners: AddressOwners) -> None:
    """A machine's own pods take turns, as KubeVirt has it."""


def _anything(address: Address) -> bool:
    return True


def _join(
    task: Task,
    attachment: Attachment,
    lasting: LastingAddresses,
    handle_id: str,
    owner: Mapping[str, str],
    undo: ExitStack | None,
) -> Addresses:
    if undo is not None:
        undo.callback(_give_back, task, lasting, handle_id, owner, lambda address: False)
    assigned = lasting.join(handle_id, owner, task.deadline)
    if not assigned:
        raise TryAgain(
            f"migration target pod but no IP allocated to VM handle {handle_id}",
            details=f"pod {attachment.namespace}/{attachment.workload} is to take over a machine's addresses, and the "
            "pod in which it runs has none under that handle: it got its own before machines kept theirs, or from "
            "another network; restart the machine once",
        )
    owners = lasting.owners(handle_id, task.deadline)
    has_come = all(is_pod(each.active, attachment.namespace, attachment.workload) for each in owners.values())
    return _given(task, assigned, shared=not has_come)


def _given(task: Task, assigned: tuple[Assigned, ...], *, shared: bool = False) -> Addresses:
    addresses = tuple(item.address for item in assigned)
    routes = () if shared else tuple(ResultRoute(f"{a}/{a.max_prefixlen}") for a in addresses)
    return Addresses(addresses, routes, task.conf.dns, shared=shared)


def _owner_of(attachment: Attachment) -> dict[str, str]:
    if attachment.orchestrator != KUBERNETES:
        return {"node": attachment.node}
    return {"node": attachment.node, "namespace": attachment.namespace, "pod": attachment.workload}


def _give_back(
    task: Task,
    lasting: LastingAddresses,
    handle_id: str,
    owner: Mapping[str, str],
    is_fresh: Callable[[Address], bool],
) -> None:
    try:
        lasting.undo(handle_id, owner, is_fresh)
    except CalicoError as e:
        task.log.error(f"cannot give back what is held under handle {handle_id}: {e.message}; the janitor will")


def leave(task: Task, attachment: Attachment, deadline: Deadline) -> None:
    """Take the pod's name out of its machine's addresses, and release them if the machine is over. Raises
    DatastoreError.
    """
    identity = find_identity(task.until(deadline), attachment)
    if identity is None:
        return
    lasting = LastingAddresses(task.fresh_store)
    handle_id = identity.handle_id(is_kubernetes=task.conf.datastore.type == "kubernetes")
    over = _is_over(task, identity, deadline)
    lasting.leave(handle_id, attachment.namespace, attachment.workload, deadline, is_over=over)


def _is_over(task: Task, identity: Identity, deadline: Deadline) -> bool:
    try:
        return kubevirt.is_over(task.kubernetes.api, identity.namespace, identity.name, deadline)
    except CalicoError as e:
        task.log.warning(f"the addresses of {identity} are kept: {e.message}")
        return False


def has_kept(task: Task, attachment: Attachment) -> bool:
    """Whether the pod's identity holds an address, and the pod is one of its owners. Raises DatastoreError."""
    identity = find_identity(task, attachment)
    if identity is None:
        return False
    handle_id = identity.handle_id(is_kubernetes=task.conf.datastore.type == "kubernetes")
    owners = LastingAddresses(task.fresh_store).owners(handle_id, task.deadline).values()
    mine = (attachment.namespace, attachment.workload)
    return any(is_pod(owner, *mine) for each in owners for owner in (each.active, each.alternate))
