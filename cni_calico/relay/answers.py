"""PURE: what the API server has said about tokens, by their digests.

Rule: only tokens that were accepted take a place that lasts; refusals have a few places of their own, for seconds, so
that strangers crowd out nobody.
"""

from __future__ import annotations

MOST_ALLOWED = 50_000
MOST_REFUSED = 10_000


class Answers:
    """Times are those of one clock, in seconds."""

    def __init__(self, most_allowed: int = MOST_ALLOWED, most_refused: int = MOST_REFUSED) -> None:
        self._most_allowed = most_allowed
        self._most_refused = most_refused
        self._allowed: dict[bytes, float] = {}  # when the API server was asked; the oldest first
        self._refused: dict[bytes, tuple[float, str]] = {}  # until when, and why; the oldest first

    def allowed_at(self, digest: bytes) -> float | None:
        """When the last answer was asked for; None: the token was not accepted."""
        return self._allowed.get(digest)

    def refused(self, digest: bytes, now: float) -> str:
        """Why a token was refused a moment ago, "" if it was not."""
        until, why = self._refused.get(digest, (0.0, ""))
        return why if now < until else ""

    def allow(self, digest: bytes, at: float, kept_s: float) -> None:
        """Also forgets what was asked before ``at`` - ``kept_s``."""
        self._refused.pop(digest, None)
        self._allowed.pop(digest, None)
        self._allowed[digest] = at
        while (oldest := next(iter(self._allowed))) != digest and (
            len(self._allowed) > self._most_allowed or self._allowed[oldest] < at - kept_s
        ):
            del self._allowed[oldest]

    def refuse(self, digest: bytes, until: float, why: str) -> None:
        self._allowed.pop(digest, None)
        self._refused.pop(digest, None)
        self._refused[digest] = until, why
        if len(self._refused) > self._most_refused:
            del self._refused[next(iter(self._refused))]

    @property
    def sizes(self) -> tuple[int, int]:
        """How many tokens are known as accepted, and as refused."""
        return len(self._allowed), len(self._refused)
