"""PURE: when the next round is due; the clock is given.

Rule: a round that failed is tried again soon at first and then less often; everything is compared with the kernel once
in an interval, and not before a failed round has been tried again. What a round does is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

from cni_calico.backoff import Backoff

RETRY_FIRST_S, RETRY_LAST_S = 0.2, 30.0
_NEVER = float("inf")


class Schedule:
    """Times are of ``now``, a clock that never goes back, in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._retry = Backoff(RETRY_FIRST_S, RETRY_LAST_S)
        self._next_retry, self._next_full = _NEVER, 0.0
        self._changed_since = _NEVER  # when the oldest change arrived that is not in force

    def changed(self, at: float | None = None) -> None:
        """A change arrived, None: now."""
        self._changed_since = min(self._changed_since, self._now() if at is None else at)

    def waited_s(self) -> float | None:
        """Everything is in force: how long the oldest change has waited for it; None: there was none."""
        since, self._changed_since = self._changed_since, _NEVER
        return None if since == _NEVER else self._now() - since

    def succeeded(self) -> None:
        self._retry.reset()
        self._next_retry = _NEVER

    def failed(self) -> None:
        self._next_retry = self._now() + self._retry.next()
        self._next_full = max(self._next_full, self._next_retry)

    def compares_all(self, interval_s: float, *, at_once: bool) -> bool:
        """Whether a full comparison is due, which is then taken for done. ``interval_s``: at least this often."""
        now = self._now()
        self._next_full = min(self._next_full, now + interval_s)
        is_due = at_once or now >= self._next_full
        if is_due:
            self._next_full = now + interval_s
        return is_due

    def compare_no_more(self) -> None:
        """Nothing is in force that could be compared."""
        self._next_full = _NEVER

    def waits_to_retry(self) -> bool:
        """Whether the last round failed and it is not yet time for the next."""
        return self._now() < self._next_retry < _NEVER

    def patience_s(self, next_look: float, pause_s: float | None) -> float:
        """How long to wait if nothing happens. ``next_look``: when the standing rules are due; ``pause_s``: what has
        been begun goes on after that long, None: nothing has.
        """
        now = self._now()
        if pause_s is not None:
            return min(pause_s, max(0.0, self._next_retry - now))
        return max(0.0, min(self._next_retry, self._next_full, next_look) - now)
