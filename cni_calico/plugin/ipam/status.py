"""STATUS: could an ADD succeed now?

Rule: 0 unless the cause is local or initial (no nodename file, never synced since boot, datastoreReady false, no usable
pool): code 50. A datastore that is merely unreachable after a first sync is logged and answered with success, or every
node would turn NotReady at once. Code 51, existing containers may suffer too, is only passed on.
"""

from __future__ import annotations

from cni_calico.cni.netconf import NetConf
from cni_calico.deadline import Deadline
from cni_calico.errors import (
    NOT_AVAILABLE,
    NOT_AVAILABLE_LIMITED,
    CalicoError,
    DatastoreDenied,
    DatastoreUnavailable,
    DeadlineExceeded,
    NotReady,
)
from cni_calico.ipam.pools import select_pools
from cni_calico.plugin.call.node_name import read_nodename
from cni_calico.plugin.call.ready import note_synced, require_ready
from cni_calico.plugin.call.services import Services

DATASTORE_PATIENCE_S = 3.0


def require_available(conf: NetConf, services: Services, deadline: Deadline) -> None:
    """Raises CalicoError with code 50 (or 51) and what is missing."""
    try:
        node = read_nodename(conf, services.files, deadline)
        _require_datastore(conf, services, node, deadline.sooner(DATASTORE_PATIENCE_S))
    except CalicoError as e:
        e.code = NOT_AVAILABLE_LIMITED if e.code == NOT_AVAILABLE_LIMITED else NOT_AVAILABLE
        raise


def _require_datastore(conf: NetConf, services: Services, node: str, deadline: Deadline) -> None:
    try:
        require_ready(services, conf.datastore, deadline)
        if conf.ipam.is_calico:
            _require_pools(conf, services, node, deadline)
    except (DatastoreUnavailable, DatastoreDenied, DeadlineExceeded) as e:
        if not services.was_synced():
            raise NotReady(f"cannot reach the datastore since this node started: {e.message}", details=e.details) from e
        services.log.warning(f"the datastore does not answer, running pods are not affected: {e.message}")
        return
    note_synced(services)


def _require_pools(conf: NetConf, services: Services, node: str, deadline: Deadline) -> None:
    """Every family that the configuration asks for must have a pool that this node may use. Raises NoPool."""
    view = services.allocator(conf.datastore).view
    for family in [4] * conf.ipam.assign_ipv4 + [6] * conf.ipam.assign_ipv6:
        explicit = conf.ipam.ipv4_pools if family == 4 else conf.ipam.ipv6_pools
        select_pools(view.pools(deadline), family=family, node=view.node(node, deadline), explicit=explicit)
