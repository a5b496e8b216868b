"""STATUS: could an ADD succeed now?

Rule: success, unless the cause is local or initial (no nodename file, nothing can be written here, never synced since
boot, datastoreReady false, no usable pool): then code 50. A datastore that is merely unreachable after a first sync is
logged and answered with success, or else every node would turn NotReady at once. Code 51 (existing containers may
suffer too) is only passed on from a delegate.
"""

from __future__ import annotations

import os
from _thread import get_ident
from collections.abc import Callable

from cni_calico.deadline import Deadline
from cni_calico.errors import (
    NOT_AVAILABLE,
    NOT_AVAILABLE_LIMITED,
    CalicoError,
    DatastoreDenied,
    DatastoreUnavailable,
    DeadlineExceeded,
    KernelError,
    NotReady,
)
from cni_calico.ipam.pools import select_pools
from cni_calico.plugin.call.ready import note_synced, require_not_locked, require_ready
from cni_calico.plugin.call.services import CallDatastore
from cni_calico.plugin.call.task import Task

DATASTORE_PATIENCE_S = 3.0
STORE_ROOM = 128 * 1024  # bytes; a commit writes some pages of 4 KiB, first to the log


def require_available(task: Task, *, for_ipam: bool = False) -> None:
    """Check whether an ADD could succeed; ``for_ipam``: an ADD of calico-ipam by itself.

    Raises CalicoError with code 50 (or 51) and what is missing.
    """
    require_cluster = require_not_locked if for_ipam else require_ready
    try:
        node = task.read_nodename(for_ipam=for_ipam)
        _require_room(task)
        _require_datastore(task.until(task.deadline.sooner(DATASTORE_PATIENCE_S)), node, require_cluster)
    except CalicoError as e:
        e.code = NOT_AVAILABLE_LIMITED if e.code == NOT_AVAILABLE_LIMITED else NOT_AVAILABLE
        raise


def _require_room(task: Task) -> None:
    """Check that what an ADD writes on this host can be written. Raises NotReady."""
    services, deadline = task.services, task.deadline.sooner(DATASTORE_PATIENCE_S)
    try:
        with services.attachment_lock(f"status/{os.getpid()}/{get_ident()}", deadline):
            pass
    except KernelError as e:
        raise NotReady(f"cannot add a container: {e.message}", details=f"make {services.run_dir} writable") from e
    if task.conf.datastore.type == "local":
        path = task.conf.datastore.path
        directory = os.path.dirname(path)
        while directory != "/" and not os.path.isdir(directory):
            directory = os.path.dirname(directory)  # the first ADD makes what is missing
        for each in (directory, path):
            if os.path.exists(each) and not os.access(each, os.W_OK):
                raise NotReady(f"cannot add a container: {each} cannot be written")
        found = os.statvfs(directory)
        if found.f_bavail * found.f_frsize < STORE_ROOM:
            raise NotReady(f"cannot add a container: the file system of {path} is full", details="make room on it")


def _require_datastore(task: Task, node: str, require_cluster: Callable[[CallDatastore, Deadline], object]) -> None:
    services = task.services
    try:
        require_cluster(task.datastore, task.deadline)
        if task.conf.ipam.is_calico:
            _require_pools(task, node)
    except (DatastoreUnavailable, DatastoreDenied, DeadlineExceeded) as e:
        if not services.was_synced():
            raise NotReady(f"cannot reach the datastore since this node started: {e.message}", details=e.details) from e
        services.log.warning(f"the datastore does not answer, running pods are not affected: {e.message}")
        return
    note_synced(services)


def _require_pools(task: Task, node: str) -> None:
    """Every family that the configuration asks for must have a pool that this node may use. Raises NoPool."""
    conf, view, deadline = task.conf, task.allocator.view, task.deadline
    for family in [4] * conf.ipam.assign_ipv4 + [6] * conf.ipam.assign_ipv6:
        explicit = conf.ipam.ipv4_pools if family == 4 else conf.ipam.ipv6_pools
        select_pools(view.pools(deadline), family=family, node=view.node(node, deadline), explicit=explicit)
