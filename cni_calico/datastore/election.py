"""One of many: who does the work that a cluster needs done once, decided in the datastore.

Rule: whoever holds the lease knows until when it certainly does, counted from before the request that said so; after
that moment nothing is written, whoever asks. Losing it is an error of the write, never a write too much.
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
    """How long a lease lasts without renewal, how often it is renewed, how often others look whether it is free.

    Every agent of a cluster looks: often enough for work that has minutes, seldom enough for a thousand nodes. A
    candidate with ``priority`` is given the lease by a holder without.
    """

    lasts_s: float = 60.0
    renew_s: float = 15.0
    look_s: float = 60.0
    priority: bool = False

    @property
    def margin_s(self) -> float:
        """How much earlier than others the holder counts it as over."""
        return self.lasts_s / 5


class Election(Protocol):
    """One candidate. Not to be shared by threads, but for ``remaining_s``."""

    def campaign(self, deadline: Deadline) -> bool:
        """Become the holder, or stay it; whether we are. Raises DatastoreError, DeadlineExceeded."""

    def remaining_s(self) -> float:
        """How long the lease is certainly ours from now; 0: it is not."""

    def resign(self, deadline: Deadline) -> None:
        """Let another have it at once. Raises DatastoreError, DeadlineExceeded."""

    def fenced(self, store: Datastore) -> Datastore:
        """``store`` for the holder alone: its commits raise LeaseLost when the lease is not ours."""


class Held:
    """Until when a lease is ours, on the monotonic clock."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self._until = float("-inf")

    def extend(self, asked_at: float, seconds: float) -> None:
        """``asked_at``: before the request that was answered with yes."""
        self._until = asked_at + seconds

    def give_up(self) -> None:
        self._until = float("-inf")

    def remaining_s(self) -> float:
        return max(0.0, self._until - self.clock())


class SoleElection:
    """A store of one host: there is nobody else."""

    def campaign(self, deadline: Deadline) -> bool:
        return True

    def remaining_s(self) -> float:
        return float("inf")

    def resign(self, deadline: Deadline) -> None:
        """Nobody waits for it."""

    def fenced(self, store: Datastore) -> Datastore:
        return store


class FencedStore(ForwardingStore):
    """A Datastore that does not write, nor wait for a write, longer than the lease is ours."""

    def __init__(self, store: Datastore, election: Election) -> None:
        super().__init__(store)
        self._election = election

    def commit(self, writes: Sequence[Write], deadline: Deadline) -> Committed:
        left_s = self._election.remaining_s()
        if left_s <= 0:
            raise LeaseLost(f"cannot write {writes[0].key}: the lease that allows it is not ours any more")
        return self.store.commit(writes, deadline.sooner(left_s))
