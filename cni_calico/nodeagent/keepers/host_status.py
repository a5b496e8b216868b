"""The host's status in etcd, for OpenStack and scripts that watch it: written every ReportingIntervalSecs; 0 switches
it off.

Rule: on etcd only; watchers there learn from the lease whether the agent is alive, so nothing is removed at the end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from cni_calico.daemon.keeper import Keeper
from cni_calico.datastore.etcd.host_status import HostStatusKeys
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.felix import FelixSettings

OFF_S = 60.0  # until it is checked again; a changed parameter takes effect sooner


class HostStatus:
    """``follow`` gives it the parameters; nothing is written before that. ``keeper`` runs in its own thread."""

    def __init__(self, context: Context, keys: HostStatusKeys, clock: Callable[[], float] = time.monotonic) -> None:
        self._context = context
        self._keys = keys
        self._clock = clock
        self._started = clock()
        self._first = True
        self._interval_s, self._lasts_s = 0.0, 0.0
        self.keeper = Keeper("the host's status in etcd", self.write, OFF_S, context.log, context.troubles)

    def use(self, felix: FelixSettings) -> None:
        """Take the newest parameters; may be called from any thread."""
        wanted = (felix.reporting_interval_s, felix.reporting_ttl_s)
        if wanted != (self._interval_s, self._lasts_s):
            self._interval_s, self._lasts_s = wanted
            self.keeper.interval_s = self._interval_s or OFF_S
            self.keeper.wake()

    def write(self) -> None:
        """Write once, unless it is switched off. Raises DatastoreError, DeadlineExceeded."""
        if not self._interval_s:
            return
        status = {
            "time": self._context.fresh.timestamp(),
            "uptime": round(self._clock() - self._started, 3),
            "first_update": self._first,
        }
        lasts_s = max(1, round(max(self._lasts_s, 2 * self._interval_s)))
        self._keys.write(json.dumps(status).encode(), lasts_s, self._context.deadline())
        self._first = False


def make_host_status(context: Context, node: str) -> HostStatus | None:
    """None if the datastore is not etcd."""
    if context.store.kind != "etcdv3":
        return None
    from cni_calico.datastore.etcd.host_status import HostStatusKeys
    from cni_calico.datastore.etcd.store import EtcdStore

    return HostStatus(context, HostStatusKeys(context.store, node)) if isinstance(context.store, EtcdStore) else None
