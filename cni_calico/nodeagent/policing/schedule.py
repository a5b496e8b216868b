"""PURE: when the next round is due, and why; the clock is given.

Rule: a round that failed is tried again soon at first and then less often; everything is compared with the kernel once
in an interval, and not before a failed round has been tried again. A listing that rules have needed only since then
holds up policies in force for a while and no longer. What a round does is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from cni_calico.backoff import Backoff

RETRY_FIRST_S, RETRY_LAST_S = 0.2, 30.0
LOOK_S = 1.0  # how often an idle thread checks whether it should end
UNREAD_LAST_S = 10.0  # with policies in force: how long changes wait for a listing that is needed from now on
UNREAD_S = 0.1  # a listing that cannot be read wakes nobody
AUDIT_S = 0.02  # a slice of an audit, and the pause after it: half a processor
_NEVER = float("inf")


class RoundReason(Enum):
    """What a round is done for, or what the thread waits for, as a word."""

    NEWS = "news"  # from the datastore, the kernel or this process
    LISTING = "listing"  # it has not been read
    SLICE = "slice"  # of a large change
    REMOVAL = "removal"  # of sets that nothing names any more
    AUDIT = "audit"
    RETRY = "retry"
    COMPARISON = "comparison"  # of everything
    STANDING = "standing"  # rules, which failed or are to be compared
    LOOK = "look"  # nothing is due


@dataclass(frozen=True, slots=True)
class Pause:
    """How long the thread may wait if nothing happens, and what is due then."""

    seconds: float
    until: RoundReason


class Schedule:
    """Times are of ``now``, a clock that never goes back, in seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._retry = Backoff(RETRY_FIRST_S, RETRY_LAST_S)
        self._next_retry, self._next_full = _NEVER, 0.0
        self._changed_since = _NEVER  # when the oldest change arrived that is not in force
        self._unread_since = _NEVER

    def changed(self, at: float | None = None) -> None:
        """A change arrived, None: now."""
        self._changed_since = min(self._changed_since, self._now() if at is None else at)

    def know_now(self) -> None:
        """What the changes mean is known only now: not everything had been read that decides it."""
        if self._changed_since != _NEVER:
            self._changed_since = self._now()

    def nothing_waits(self) -> None:
        """No policy is to be in force, so no change waits for it."""
        self._changed_since = _NEVER

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

    def may_begin(self, *, synced: bool, in_force: bool) -> bool:
        """Whether a round may be done. ``synced``: every listing has been read; ``in_force``: policies are, and what is
        unread has been needed only since then.
        """
        now = self._now()
        self._unread_since = _NEVER if synced else min(self._unread_since, now)
        return synced or (in_force and now - self._unread_since >= UNREAD_LAST_S)

    def pause_unread(self, *, failing: bool) -> Pause:
        """Until a listing is looked at again. ``failing``: it cannot be read now."""
        is_long = failing or self._now() - self._unread_since >= LOOK_S
        return Pause(LOOK_S if is_long else UNREAD_S, RoundReason.LISTING)

    def pause(
        self,
        *,
        next_look: float,
        slices: bool = False,
        removes: bool = False,
        audits: bool = False,
        longest_s: float = _NEVER,
    ) -> Pause:
        """``next_look``: when the standing rules are due. ``slices``, ``removes``, ``audits``: a large change, the
        removal of sets or an audit has been begun and goes on, each as soon as it may.
        """
        if slices:
            return Pause(0.0, RoundReason.SLICE)
        now = self._now()
        dues = [(self._next_retry, RoundReason.RETRY), (now + longest_s, RoundReason.LOOK)]
        if removes:
            dues.append((now, RoundReason.REMOVAL))
        elif audits:
            dues.append((now + AUDIT_S, RoundReason.AUDIT))
        else:
            dues += [(self._next_full, RoundReason.COMPARISON), (next_look, RoundReason.STANDING)]
        due, reason = min(dues, key=lambda each: each[0])
        return Pause(max(0.0, due - now), reason)
