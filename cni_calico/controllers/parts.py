"""The threads of the controllers: each can be started and ended by itself, and all end in time.

Rule: those that are to end are all told before any is waited for, so that ending many takes as long as ending one. The
leader is told last: the others may still need its lease to finish what they began. A thread that does not end in time
is left behind, and ends with the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from cni_calico.daemon.guarded import guarded_thread
from cni_calico.daemon.stopping import Stopping
from cni_calico.deadline import Deadline
from cni_calico.log import Log

LEADER = "leader"
PARTS_S, LEADER_S = 2.0, 2.5  # the leader gives up the lease within 2 s


@dataclass(slots=True)
class _ControllerThread:
    thread: threading.Thread
    stopping: Stopping = field(default_factory=Stopping)


class ControllerParts:
    """``fail`` is called in the thread of a part that failed unexpectedly."""

    def __init__(self, log: Log, fail: Callable[[], None]) -> None:
        self._log, self._fail = log, fail
        self._parts: dict[str, _ControllerThread] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def names(self) -> list[str]:
        return list(self._parts)

    def start(self, name: str, work: Callable[[Stopping], object]) -> None:
        own = Stopping()
        thread = guarded_thread(name, lambda: work(own), self._log, self._fail)
        self._parts[name] = _ControllerThread(thread, own)
        thread.start()

    def end(self, names: Collection[str]) -> None:
        """Wait at most PARTS_S for all of them together, and LEADER_S for the leader."""
        self._end([name for name in names if name != LEADER], PARTS_S)
        self._end([name for name in names if name == LEADER], LEADER_S)

    def _end(self, names: Collection[str], seconds: float) -> None:
        parts = [self._parts.pop(name) for name in names]
        for part in parts:
            part.stopping.set()
        deadline = Deadline.after(seconds)
        for part in parts:
            part.thread.join(deadline.remaining_s())
