"""PURE: how much is recorded, as the agent says it.

Rule: what is beyond is never silent: it is counted, and told with the flows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

_DENIED_PART = 4


class FlowLimits(NamedTuple):
    """``rate``: packets that are let through, in a second, a connection that both sides here let through once;
    ``live``: connections that are followed to their end.
    """

    rate: int = 20_000
    live: int = 100_000

    @property
    def denied_rate(self) -> int:
        """Denied packets in a second."""
        return max(1, self.rate // _DENIED_PART)


USUAL_LIMITS = FlowLimits()


class AppliedLimits:
    """What the agent says (``said``), handed to ``limit`` whenever it is something else, at first if it is not the
    usual.
    """

    def __init__(self, said: Callable[[], FlowLimits], *limit: Callable[[FlowLimits], object]) -> None:
        self._said, self._limit, self._applied = said, limit, USUAL_LIMITS
        self.look()

    def look(self) -> None:
        limits = self._said()
        if limits != self._applied:
            self._applied = limits
            for limit in self._limit:
                limit(limits)
