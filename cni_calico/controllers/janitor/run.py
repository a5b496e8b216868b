"""The janitor: one agent of the cluster releases what deleted nodes and pods have left behind in address management.

Rule: the elected janitor keeps caches and works for as long as it certainly holds the lease; everybody else only checks
from time to time whether there is a holder. What only the elected one does is in janitor/work.py.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from cni_calico.controllers.cluster import Cluster
from cni_calico.controllers.counters import JanitorCounters
from cni_calico.controllers.janitor.options import CALL_S, JanitorOptions
from cni_calico.daemon.said import Said
from cni_calico.datastore.election import Election, SoleElection, Terms
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError

LEASE = "calico-janitor"


def make_election(cluster: Cluster, node: str, terms: Terms) -> Election:
    """With a Lease if the datastore is Kubernetes, with an etcd lease on etcd; a single host needs no election."""
    holder = f"{node}_{os.urandom(4).hex()}"
    if cluster.is_kubernetes_datastore and cluster.kubernetes is not None:
        from cni_calico.datastore.kubernetes.election import KubernetesElection
        from cni_calico.datastore.kubernetes.login import own_namespace

        return KubernetesElection(cluster.kubernetes.api, own_namespace(), LEASE, holder, terms)
    if cluster.store.kind == "etcdv3":
        from cni_calico.datastore.etcd.election import EtcdElection
        from cni_calico.datastore.etcd.store import EtcdStore

        assert isinstance(cluster.store, EtcdStore)
        return EtcdElection(cluster.store, LEASE, holder, terms)
    return SoleElection()


class Janitor:
    """``election`` decides whether this janitor works."""

    def __init__(
        self, cluster: Cluster, election: Election, counters: JanitorCounters, options: JanitorOptions | None = None
    ) -> None:
        self._cluster = cluster
        self._election = election
        self._options = options or JanitorOptions()
        self._log = cluster.log
        self.counters = counters
        self._said = Said(cluster.log)
        self._renew_at = 0.0

    def run(self, stopping: threading.Event) -> None:
        """Run until ``stopping``; then the lease is given up, so that another janitor continues at once."""
        while not stopping.is_set():
            if self._campaign():
                self._lead_safely(stopping)
            # spread out, so that the agents of a cluster do not all ask at the same moment
            stopping.wait(self._options.terms.look_s * (0.75 + os.urandom(1)[0] / 512))
        self._try("give up the lease", lambda: self._election.resign(Deadline.after(2.0)))

    # -- the lease ----------------------------------------------------------------------------------------------------

    def _campaign(self) -> bool:
        self._renew_at = time.monotonic() + self._options.terms.renew_s
        won = self._try("campaign", lambda: self._election.campaign(Deadline.after(CALL_S)))
        return bool(won) or self._election.remaining_s() > 0

    def _keep_lease(self) -> bool:
        """Whether the work may continue; renews the lease if that is due."""
        if time.monotonic() >= self._renew_at and not self._campaign():
            return False
        return self._election.remaining_s() > 0

    def _try(self, doing: str, do: Callable[[], Any]) -> Any:
        """What ``do`` returns; None if it failed."""
        try:
            result = do()
        except CalicoError as e:
            self.counters.failures += 1
            self._said.say(doing, [f"cannot {doing}: {e}" + (f" ({e.details})" if e.details else "")])
            return None
        self._said.say(doing, [])
        return result

    # -- the work -----------------------------------------------------------------------------------------------------

    def _lead_safely(self, stopping: threading.Event) -> None:
        """Lead, and survive unexpected errors: if they ended the agent, the next elected one would meet the same
        record.
        """
        try:
            self._lead(stopping)
        except Exception as e:
            self.counters.failures += 1
            self._log.failure(f"the janitor failed: {e}", e)
            self._try("give up the lease", lambda: self._election.resign(Deadline.after(2.0)))

    def _lead(self, stopping: threading.Event) -> None:
        from cni_calico.controllers.janitor.work import JanitorWork

        work = JanitorWork(self._cluster, self._election, self.counters, self._options, self._keep_lease, self._try)
        work.run(stopping)
