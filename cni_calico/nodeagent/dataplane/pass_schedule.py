"""PURE: when the data plane's next pass is due, and how long it rests before; the clocks are given.

Rule: a full resync comes in an interval whatever happens; a pass that failed is tried again soon at first and then less
often, and what one has left for later is looked at after PENDING_S. A change that comes alone does not wait, also not
because a full resync has just gone before it; passes that follow one another leave the processors to the pods that come
and go.
"""

from __future__ import annotations

from cni_calico.backoff import Backoff

RETRY_FIRST_S, RETRY_LAST_S = 1.0, 30.0
PENDING_S = 1.0
_FIRST_S = 0.2  # before the first pass
REST = 9  # passes that go on and on use a tenth of a processor
CREDIT_S = 0.2  # so much of one they may use at once, after a rest: three passes with 250 workloads
GATHER_S = 0.01  # changes that come together are handled in one pass
SHARE = 4  # passes that follow one another on credit use a fifth of a processor
MIN_INTERVAL_S, MAX_INTERVAL_S = 0.1, 1.0  # without credit
_NEVER = float("inf")


class PassSchedule:
    """Times are of one clock that never goes back, in seconds."""

    def __init__(self) -> None:
        self._rest = PassRest()
        self._paid = True  # whether the last pass was one whose interval is its rest
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
        self._paid = full
        if full:
            self._next_full = now + resync_s if resync_s else _NEVER
        if failed:
            self._next_retry = now + self._retry.next()
        else:
            self._retry.reset()
            self._next_retry = now + PENDING_S if pending else _NEVER

    def pause_s(self, now: float, used_s: float) -> float:
        """How long to wait after the pass that has ended, and used the processor for ``used_s``."""
        waits_s = self._next_full - now
        return self._rest.pause_s(now, 0.0 if self._paid and waits_s > REST * used_s else used_s)


class PassRest:
    """What passes have used of the processor, and not rested for yet. ``least_s``: the shortest rest without credit."""

    def __init__(self, least_s: float = MIN_INTERVAL_S) -> None:
        self._least_s = least_s
        self._owed_s, self._as_of = 0.0, 0.0

    def pause_s(self, now: float, used_s: float) -> float:
        """How long to wait after a pass that ended ``now`` and used the processor for ``used_s``."""
        rested = max(0.0, self._owed_s - (now - self._as_of) / (REST + 1))
        self._owed_s, self._as_of = rested + used_s, now
        if self._owed_s <= CREDIT_S:
            return min(self._least_s, max(GATHER_S, SHARE * used_s)) if rested else GATHER_S
        return min(MAX_INTERVAL_S, max(self._least_s, REST * used_s))
