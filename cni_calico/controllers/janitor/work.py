"""What only the elected janitor does; the others of a cluster do not import it.

Rule: the lease is renewed between any two steps of the work, and the work ends if that fails. Nothing here decides what
is lost: ipam/lost/suspects.py and ipam/lost/reclaim.py do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from cni_calico.controllers.cluster import Cluster
from cni_calico.controllers.counters import JanitorCounters
from cni_calico.controllers.ipam_metrics import IpamNumbers, place_of
from cni_calico.controllers.janitor.asked import is_ready
from cni_calico.controllers.janitor.caches import JanitorCaches, open_objects
from cni_calico.controllers.janitor.options import CALL_S, JanitorOptions, parse_grace
from cni_calico.daemon.said import Said
from cni_calico.datastore.election import Election
from cni_calico.datastore.kubernetes.unlabelled import label_affinities
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, DatastoreDenied
from cni_calico.ipam.lost.leaks import DepartedNode, Holding, LostEndpoint, Subject, SurplusBlock
from cni_calico.ipam.lost.reclaim import Reclaimer, ReclaimOutcome
from cni_calico.ipam.lost.suspects import Suspects
from cni_calico.model.keys import CONTROLLERS_DEFAULT
from cni_calico.model.resources import IPPool

LABELS_S = 30.0


def _needs_grace(subject: Subject) -> bool:
    """Whether a subject can only be released after a grace period; without one, nothing of existing nodes is
    released.
    """
    return isinstance(subject, SurplusBlock) or (isinstance(subject, Holding | LostEndpoint) and bool(subject.pod))


class JanitorWork:
    """One term of an elected janitor. ``keep_lease()`` says whether the work may continue; ``attempt(doing, do)``
    returns what ``do`` returns, or None after a failure, which it reports.
    """

    def __init__(
        self,
        cluster: Cluster,
        election: Election,
        counters: JanitorCounters,
        options: JanitorOptions,
        keep_lease: Callable[[], bool],
        attempt: Callable[[str, Callable[[], Any]], Any],
    ) -> None:
        self._cluster = cluster
        self._election = election
        self._options = options
        self._log = cluster.log
        self.counters = counters
        self._keep_lease = keep_lease
        self._attempt = attempt
        self._said = Said(cluster.log)
        self._grace_s: float | None = options.grace_s
        self._settings_at = self._labels_at = 0.0

    def run(self, stopping: threading.Event) -> None:
        """Work until ``stopping``, or until the lease is lost."""
        self._log.info("this agent is the janitor now: it releases addresses of deleted nodes and pods")
        self.counters.is_leader = True
        caches = JanitorCaches(self._cluster)
        try:
            suspects = Suspects(caches.state)
            self.counters.ipam = lambda: self._ipam_numbers(caches, suspects)
            reclaimer = self._reclaimer(stopping)
            while not stopping.is_set() and self._keep_lease():
                self._said.say(
                    "caches", [f"the janitor waits for the datastore: {caches.error}"] if caches.error else []
                )
                if caches.healthy and self._round(caches, suspects, reclaimer):
                    continue  # there is more
                self._pause(caches, stopping)
        finally:
            caches.stop()
            self.counters.is_leader, self.counters.candidates, self.counters.ipam = False, {}, lambda: None
            self._log.info("this agent is no longer the janitor, another one may be")

    def _reclaimer(self, stopping: threading.Event) -> Reclaimer:
        def pace() -> bool:
            return not stopping.wait(1 / self._options.per_second) and self._keep_lease()

        return Reclaimer(
            self._election.fenced(self._cluster.store),
            open_objects(self._cluster.kubernetes),
            is_kubernetes=self._cluster.is_kubernetes_datastore,
            pace=pace,
            grace_s=lambda: self._options.grace_s if self._grace_s is None else self._grace_s,
        )

    def _pause(self, caches: JanitorCaches, stopping: threading.Event) -> None:
        """Wait until something changes; a burst of changes is handled in one round."""
        until = time.monotonic() + self._options.look_s
        while not caches.changes.any.is_set() and not stopping.is_set() and time.monotonic() < until:
            caches.changes.any.wait(min(0.5, self._options.look_s))
        stopping.wait(min(1.0, self._options.look_s / 5))

    def _round(self, caches: JanitorCaches, suspects: Suspects, reclaimer: Reclaimer) -> bool:
        """Whether there is more to do at once."""
        if not self._read_settings():
            return False
        self.label_old_affinities()
        now = time.monotonic()
        # at the first time these are all keys of a large cluster, and a set of them needs five times the memory
        suspects.refresh(tuple(caches.changes.take()), now)
        self.counters.candidates = suspects.counts()
        grace_s = self._options.grace_s if self._grace_s is None else self._grace_s
        due = suspects.due(now, grace_s, self._options.calls_s)
        if self._grace_s is None:
            due = [subject for subject in due if not _needs_grace(subject)]
        batch = due[: self._options.batch]
        if not batch or not self._attempt("see whether the datastore is locked", self._may_write):
            return False
        outcome = self._reclaim(reclaimer, batch)
        self.counters.count(outcome)
        self._count_addresses(outcome, caches.pools())
        for subject, reason in outcome.confirmed:
            if subject in outcome.released:
                self._log.info(f"released {subject}: {reason}")
        self._look_after_departed(suspects, outcome)
        again = time.monotonic() + self._options.again_s
        # the watch will report what has been removed
        for subject in (*(subject for subject, _ in outcome.kept), *outcome.released):
            suspects.put_off(subject, again)
        if outcome.at is not None:  # the last attempt failed: other work must not wait for this
            suspects.put_off(outcome.at, time.monotonic() + self._options.look_s)
            return False
        return len(due) > len(batch)

    def _count_addresses(self, outcome: ReclaimOutcome, pools: tuple[IPPool, ...]) -> None:
        released = (subject for subject in outcome.released if isinstance(subject, Holding))
        self.counters.reclaimed.update(place_of(holding, pools) for holding in released)

    def _ipam_numbers(self, caches: JanitorCaches, suspects: Suspects) -> IpamNumbers | None:
        if self._election.remaining_s() <= 0:
            return None
        return IpamNumbers(suspects.blocks(), list(suspects.all), caches.pools(), dict(self.counters.reclaimed))

    def label_old_affinities(self) -> None:
        """Label block affinities that an older version writes while a cluster is upgraded, on all nodes."""
        if time.monotonic() < self._labels_at or not self._cluster.is_kubernetes_datastore:
            return
        self._labels_at = time.monotonic() + self._options.labels_s
        self._attempt("label block affinities of older versions", self._label_affinities)

    def _label_affinities(self) -> None:
        assert self._cluster.kubernetes is not None
        if not self._may_write():
            return
        fenced = self._election.fenced(self._cluster.store)
        labelled = label_affinities(self._cluster.kubernetes, Deadline.after(LABELS_S), store=fenced)
        if labelled:
            self._log.info(f"{len(labelled)} block affinities of an older version have got their labels")

    def _look_after_departed(self, suspects: Suspects, outcome: ReclaimOutcome) -> None:
        """Note that departed nodes have been dealt with: this is done once each time a node leaves, whatever the
        outcome.
        """
        for subject in outcome.released:
            if isinstance(subject, DepartedNode):
                suspects.looked_after(subject)
        for subject, why in outcome.kept:
            if isinstance(subject, DepartedNode):
                suspects.looked_after(subject)
                if any(subject == confirmed for confirmed, _ in outcome.confirmed):
                    self._log.warning(f"kept the {subject}: {why}")

    def _may_write(self) -> bool:
        return is_ready(self._cluster.store)

    def _reclaim(self, reclaimer: Reclaimer, batch: list[Any]) -> ReclaimOutcome:
        outcome = ReclaimOutcome()
        deadline = Deadline.after(max(30.0, 3 * len(batch) / self._options.per_second))
        self._attempt("release what is lost", lambda: reclaimer.reclaim(batch, deadline, outcome))
        return outcome

    def _read_settings(self) -> bool:
        """The grace period that the cluster sets for upstream's controllers; 0 there means that pods' addresses are
        left alone.

        Returns False as long as it is unknown: it may be 0. If reading it is not permitted, it counts as not set.
        """
        if time.monotonic() < self._settings_at:
            return True
        try:
            found = self._cluster.store.get(CONTROLLERS_DEFAULT, Deadline.after(CALL_S))
        except DatastoreDenied as e:
            self._said.say("grace", [str(e)])
            found = None
        except CalicoError as e:
            self._said.say("grace", [str(e)])
            return self._settings_at > 0
        self._settings_at = time.monotonic() + self._options.settings_s
        self._grace_s = self._options.grace_s if found is None else parse_grace(found.value, self._options.grace_s)
        return True
