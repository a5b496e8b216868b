"""Leader election: which process does the work that a cluster needs done only once, decided in the datastore.

Rule: the holder of the lease knows until when it certainly holds it, counted from before the request that confirmed it;
after that moment nothing is written, whoever asks. A write fails if the lease is lost, so nothing is ever written
without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cni_calico.datastore.forwarding import ForwardingStore
from cni_calico.datastore.interface import Committed, Datastore, Write
from cni_calico.deadline import Deadline
from cni_calico.errors import LeaseLost

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Terms:
    """How long a lease lasts without renewal, how often it is renewed, how often others check whether it is free.

    Every agent of a cluster checks, so the numbers suit work that can wait for minutes and clusters of a thousand
    nodes. A holder without ``priority`` hands the lease to a candidate that has it.
    """

    lasts_s: float = 60.0
    renew_s: float = 15.0
    look_s: float = 60.0
    priority: bool = False

    @property
    def margin_s(self) -> float:
        """How much earlier the holder treats the lease as expired than others do."""
        return self.lasts_s / 5


class Election(Protocol):
    """One candidate. Not to be shared by threads, except ``remaining_s``."""

    def campaign(self, deadline: Deadline) -> bool:
        """Become the holder, or remain it; returns whether we are. Raises DatastoreError, DeadlineExceeded."""

    def remaining_s(self) -> float:
        """How long the lease is certainly ours from now; 0 if it is not."""

    def resign(self, deadline: Deadline) -> None:
        """Let another candidate have it at once. Raises DatastoreError, DeadlineExceeded."""

    def fenced(self, store: Datastore) -> Datastore:
        """``store`` for the holder only: its commits raise LeaseLost if the lease is not ours."""


class Held:
    """The time until which a lease is ours, on the monotonic clock."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self._until = float("-inf")

    def extend(self, asked_at: float, seconds: float) -> None:
        """``asked_at``: the time before the request that was granted."""
        self._until = asked_at + seconds

    def give_up(self) -> None:
        self._until = float("-inf")

    def remaining_s(self) -> float:
        return max(0.0, self._until - self.clock())


class SoleElection:
    """For a store of one host: there are no other candidates."""

    def campaign(self, deadline: Deadline) -> bool:
        return True

    def remaining_s(self) -> float:
        return float("inf")

    def resign(self, deadline: Deadline) -> None:
        """Do nothing: there is no other candidate."""

    def fenced(self, store: Datastore) -> Datastore:
        return store


class FencedStore(ForwardingStore):
    """A Datastore that neither writes nor waits for a write after the lease is no longer ours."""

    def __init__(self, store: Datastore, election: Election) -> None:
        super().__init__(store)
        self._election = election

    def commit(self, writes: Sequence[Write], deadline: Deadline) -> Committed:
        left_s = self._election.remaining_s()
        if left_s <= 0:
            raise LeaseLost(f"cannot write {writes[0].key}: the lease that allows it is no longer ours")
        return self.store.commit(writes, deadline.sooner(left_s))
