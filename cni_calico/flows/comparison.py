"""Compares what is followed with what connection tracking has: at the start, after losses, and now and then.

Rule: the list is read in pieces, so that nothing else waits for it; one list proves no end. It is not read for
connections that last a moment: their ends tell all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.flows.live import LiveFlows
from cni_calico.kernel.netlink.ended import TrackedConnection, read_tracked
from cni_calico.kernel.netlink.nfnetlink import Nfnetlink
from cni_calico.log import Log

_LIST_S, _EVERY_S, _OVERRUN_EVERY_S, _PARTS = 60.0, 60.0, 10.0, 64


class Comparison:
    def __init__(self, live: LiveFlows, log: Log, clock: Callable[[], float]) -> None:
        self._live, self._log, self._clock = live, log, clock
        self._lists: Nfnetlink | None = None
        self._listing: Iterator[list[TrackedConnection]] | None = None
        self._expected: set[bytes] = set()
        self._last: float | None = None
        self._overrun = self._missed = 0

    def close(self) -> None:
        self._listing = None
        if self._lists is not None:
            self._lists.close()
            self._lists = None

    def go_on(self, overrun: int, missed: int, micros: Callable[[], int]) -> None:
        """``overrun``: how often ends were lost so far; ``missed``: how many reports of what was let through;
        ``micros``: now, since 1970.
        """
        try:
            if self._listing is None:
                if not self._is_due(overrun, missed):
                    return
                self._lists = self._lists or Nfnetlink()
                self._expected = self._live.begin_comparison()
                self._listing = read_tracked(self._lists, Deadline.after(_LIST_S))
            for _ in range(_PARTS):
                part = next(self._listing, None)
                if part is None:
                    self._listing = None
                    self._live.end_comparison(self._expected)
                    return
                now = micros()
                for connection in part:
                    self._live.compare(self._expected, connection, now)
        except CalicoError as e:
            self.close()
            self._log.warning(f"ends of connections may be recorded late: {e}")

    def _is_due(self, overrun: int, missed: int) -> bool:
        now, first, lost = self._clock(), self._last is None, overrun != self._overrun
        waited = now - (self._last or 0.0)
        lost = lost and waited >= _OVERRUN_EVERY_S
        if not (first or lost or waited >= _EVERY_S):
            return False
        found_again = missed != self._missed
        self._last, self._overrun, self._missed = now, overrun, missed
        return self._live.mark() or first or lost or found_again
