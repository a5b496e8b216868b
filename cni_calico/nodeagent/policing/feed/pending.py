"""Changes that wait for the engine's thread: the newest one of each record.

Rule: a refusal replaces nothing: what it follows is taken together with it. A node that is as it was is no change:
kubelets write theirs every few minutes, in a large cluster several of them each second.
"""

from __future__ import annotations

import threading
import time

from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.policing.feed.changes import FedChange, Refusal, joined
from cni_calico.policy.sets import NODE


class PendingChanges:
    """For any thread. ``absent``: records that a cache treats as absent, because they are not documents at all."""

    def __init__(self) -> None:
        self.absent: set[ResourceKey] = set()
        self._guard = threading.Lock()
        self._changes: dict[ResourceKey, FedChange] = {}
        self._waiting_since = float("inf")
        self._again: set[ResourceKey] = set()  # asked for again, and not reported since
        self._nodes: dict[ResourceKey, FedChange] = {}  # as they were put last, unless something else came since

    def put(self, key: ResourceKey, record: FedChange) -> None:
        with self._guard:
            if key.kind == NODE and self._is_as_it_was(key, record):
                return
            if isinstance(record, Refusal):
                record = joined(self._changes.get(key, record), record)
            else:
                self.absent.discard(key)
            self._note(key, record)

    def _is_as_it_was(self, key: ResourceKey, record: FedChange) -> bool:
        """With the lock held; notes what it is now."""
        before = self._nodes.get(key)
        if record is None:
            self._nodes.pop(key, None)
        else:
            self._nodes[key] = record
        return before is not None and before == record

    def put_unless_known(self, key: ResourceKey, record: FedChange) -> None:
        """A value that counts while nothing is stored; a stored version may have come already."""
        with self._guard:
            self._changes.setdefault(key, record)

    def ask_again(self, key: ResourceKey) -> None:
        """Let ``put_again`` bring this record, unless its listing reports it meanwhile."""
        with self._guard:
            self._again.add(key)

    def put_again(self, key: ResourceKey, record: FedChange) -> bool:
        """Returns whether it counts: what its listing has reported meanwhile is newer."""
        with self._guard:
            is_asked = key in self._again
            if is_asked:
                self._nodes.pop(key, None)
                self._note(key, record)
            return is_asked

    def leave_out(self, key: ResourceKey) -> None:
        """The store has left this record out: it is not gone."""
        with self._guard:
            self._nodes.pop(key, None)
            self.absent.add(key)

    def left_out(self) -> list[ResourceKey]:
        with self._guard:
            return list(self.absent)

    def _note(self, key: ResourceKey, record: FedChange) -> None:
        """With the lock held."""
        if not self._changes or self._waiting_since == float("inf"):  # what exists everywhere is no news
            self._waiting_since = time.monotonic()
        self._changes[key] = record
        self._again.discard(key)

    def take(self) -> tuple[dict[ResourceKey, FedChange], float]:
        """What has changed since the last call, and since when (time.monotonic) the first change has waited; infinite
        before the first one.
        """
        with self._guard:
            taken, self._changes = self._changes, {}
            return taken, self._waiting_since
