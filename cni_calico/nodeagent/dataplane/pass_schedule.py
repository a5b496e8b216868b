"""PURE: when the data plane's next pass is due; the clock is given.

Rule: a full resync comes in an interval whatever happens; a pass that failed is tried again soon at first and then less
often, and what one has left for later is looked at after PENDING_S.
"""

from __future__ import annotations

from cni_calico.backoff import Backoff

RETRY_FIRST_S, RETRY_LAST_S = 1.0, 30.0
PENDING_S = 1.0
_FIRST_S = 0.2  # before the first pass
_NEVER = float("inf")


class PassSchedule:
    """Times are of one clock that never goes back, in seconds."""

    def __init__(self) -> None:
        self.has_begun = False  # whether there has been a pass
        self._retry = Backoff(RETRY_FIRST_S, RETRY_LAST_S)
        self._next_full, self._next_retry = 0.0, _NEVER

    def patience_s(self, now: float, longest_s: float) -> float:
        """How long to wait if nothing happens."""
        if not self.has_begun:
            return _FIRST_S
        return max(0.0, min(longest_s, min(self._next_full, self._next_retry) - now))

    def is_due(self, now: float) -> bool:
        return not self.has_begun or now >= min(self._next_full, self._next_retry)

    def is_full(self, now: float) -> bool:
        """Whether a pass that begins now compares everything."""
        return now >= self._next_full

    def ended(self, now: float, *, full: bool, resync_s: float, failed: bool, pending: bool) -> None:
        """A pass has ended. ``resync_s``: the interval, 0 for no full resync any more."""
        self.has_begun = True
        if full:
            self._next_full = now + resync_s if resync_s else _NEVER
        if failed:
            self._next_retry = now + self._retry.next()
        else:
            self._retry.reset()
            self._next_retry = now + PENDING_S if pending else _NEVER
