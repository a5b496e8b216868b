"""One lease for everything that a cluster needs done only once: the janitor and the controllers beside it.

Rule: one thread campaigns and renews; the others only ask how long the lease is certainly ours, and write through a
FencedStore, which checks that again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from cni_calico.daemon.said import Said
from cni_calico.datastore.election import Election, FencedStore, Held, Terms
from cni_calico.datastore.interface import Datastore
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, DatastoreDenied
from cni_calico.log import Log

CALL_S = 10.0


class Leader:
    """``elected`` is called with whether we lead, when that changes."""

    def __init__(
        self, election: Election, terms: Terms, log: Log, elected: Callable[[bool], None] = lambda leads: None
    ) -> None:
        self._election, self._terms, self._log, self._elected = election, terms, log, elected
        self._said = Said(log)
        self._led = False

    def leads(self) -> bool:
        return self._election.remaining_s() > 0

    def remaining_s(self) -> float:
        return self._election.remaining_s()

    def fenced(self, store: Datastore) -> Datastore:
        return self._election.fenced(store)

    def run(self, stopping: threading.Event) -> None:
        """Run until ``stopping``; then the lease is given up, so that another instance continues at once."""
        while not stopping.is_set():
            self._campaign()
            stopping.wait(self._terms.renew_s if self.leads() else self._terms.look_s)
        try:
            self._election.resign(Deadline.after(2.0))
        except CalicoError as e:
            self._log.warning(f"cannot give up the lease: {e}")

    def _campaign(self) -> None:
        try:
            self._election.campaign(Deadline.after(CALL_S))
        except CalicoError as e:
            self._said.say("", [f"cannot campaign: {e}"], more=f" ({e.details})" if e.details else "")
        else:
            self._said.say("", ())
        if self.leads() != self._led:
            self._led = not self._led
            self._log.info("these controllers lead" if self._led else "these controllers no longer lead")
            self._elected(self._led)


class UpstreamsElection:
    """``election``, except that an instance without the right to use leases, which upstream's manifest does not grant,
    counts as elected. Upstream's controllers have no election: their Deployment runs one instance at a time, and every
    write, theirs and ours, is compared with the record on which it was decided. An instance that has once been allowed
    to use the lease keeps needing it.
    """

    def __init__(
        self, election: Election, terms: Terms, log: Log, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._election, self._terms = election, terms
        self._said = Said(log)
        self._alone = Held(clock)
        self._answered = False

    def campaign(self, deadline: Deadline) -> bool:
        asked_at = self._alone.clock()
        try:
            won = self._election.campaign(deadline)
        except DatastoreDenied as e:
            if self._answered:
                raise
            self._said.once(f"working without a lease, as upstream does: run one instance only ({e})")
            self._alone.extend(asked_at, self._terms.lasts_s - self._terms.margin_s)
            return True
        self._answered = True
        self._alone.give_up()
        return won

    def remaining_s(self) -> float:
        return max(self._alone.remaining_s(), self._election.remaining_s())

    def resign(self, deadline: Deadline) -> None:
        alone = self._alone.remaining_s() > 0
        self._alone.give_up()
        if not alone:
            self._election.resign(deadline)

    def fenced(self, store: Datastore) -> Datastore:
        return FencedStore(store, self)


class SharedElection:
    """The leader's lease, for code that expects to be elected itself: its user leads exactly if the leader does."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    def campaign(self, deadline: Deadline) -> bool:
        return self._leader.leads()

    def remaining_s(self) -> float:
        return self._leader.remaining_s()

    def resign(self, deadline: Deadline) -> None:
        """Does nothing: the leader gives up the lease."""

    def fenced(self, store: Datastore) -> Datastore:
        return self._leader.fenced(store)
