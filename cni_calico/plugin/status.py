"""STATUS: could an ADD succeed now?

Rule: 0 unless the cause is local or initial (no nodename file, never synced since boot, datastoreReady false, no usable
pool): code 50. A datastore that is merely unreachable after a first sync is logged and answered with success, or every
node would turn NotReady at once. Code 51 when existing containers may suffer too. A delegate's STATUS is asked as well.
"""

from __future__ import annotations

from cni_calico.cni.environment import Call
from cni_calico.cni.netconf import NetConf
from cni_calico.deadline import Deadline
from cni_calico.errors import (
    NOT_AVAILABLE,
    CalicoError,
    CorruptRecord,
    DatastoreDenied,
    DatastoreError,
    DatastoreUnavailable,
    DeadlineExceeded,
    NoPool,
    NotReady,
)
from cni_calico.ipam.commands import require_ready
from cni_calico.ipam.nodename import read_nodename
from cni_calico.ipam.pools import select_pools
from cni_calico.ipam.services import Services

DATASTORE_PATIENCE_S = 3.0


def status(call: Call, conf: NetConf, services: Services, deadline: Deadline) -> None:
    """Raises CalicoError with code 50 or 51, or the delegate's own error."""
    try:
        node = read_nodename(conf, services.files, deadline)
        _require_datastore(conf, services, node, deadline.sooner(DATASTORE_PATIENCE_S))
    except CalicoError as e:
        e.code = NOT_AVAILABLE if e.code not in (51,) else e.code
        raise
    if conf.ipam.type and not conf.ipam.is_calico:
        from cni_calico.plugin.delegate import run_delegate

        run_delegate(call, conf, services, deadline, command="STATUS")


def _require_datastore(conf: NetConf, services: Services, node: str, deadline: Deadline) -> None:
    try:
        require_ready(services, conf, deadline)
        if conf.ipam.is_calico:
            _require_pool(conf, services, node, deadline)
    except (DatastoreUnavailable, DatastoreDenied, DeadlineExceeded) as e:
        if not services.was_synced():
            raise NotReady(f"cannot reach the datastore since this node started: {e.message}", details=e.details) from e
        services.log.warning(f"the datastore does not answer, running pods are not affected: {e.message}")
        return
    services.mark_synced()


def _require_pool(conf: NetConf, services: Services, node: str, deadline: Deadline) -> None:
    """At least one family that the configuration asks for must have a pool that this node may use."""
    view = services.allocator(conf.datastore).view
    wanted = [4] * conf.ipam.assign_ipv4 + [6] * conf.ipam.assign_ipv6
    problem: CalicoError | None = None
    for family in wanted:
        explicit = conf.ipam.ipv4_pools if family == 4 else conf.ipam.ipv6_pools
        try:
            select_pools(view.pools(deadline), family=family, node=view.node(node, deadline), explicit=explicit)
        except (NoPool, CorruptRecord) as e:
            problem = e
        except DatastoreError:
            raise
    if problem is not None:
        raise problem
