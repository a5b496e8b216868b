"""The records that policies need, from the agent's start on, with what decides how much of them memory has room for.

Rule: reading begins before anything else is known, the parameters and the packet filter included, so that nothing
waits for what can be read meanwhile. A loop that takes the records over needs all of them, so each has its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.policing.feed.limits import MemoryLimits
from cni_calico.nodeagent.policing.feed.memory import MemoryGuard
from cni_calico.nodeagent.policing.feed.records import RecordFeed


@dataclass(frozen=True, slots=True)
class Incoming:
    """For one PolicyLoop, which ends it."""

    feed: RecordFeed
    memory: MemoryGuard


def begin_reading(context: Context, node: str, wake: Callable[[], None], limit_mib: int) -> Incoming:
    """``wake`` is called from other threads; ``limit_mib``: of memory, as far as that is known yet."""
    memory = MemoryGuard(MemoryLimits(limit_mib))
    kubernetes = context.followed_kubernetes
    feed = RecordFeed(context.followed, node, wake, kubernetes, memory.judge, memory.keeps_text, context.decided)
    return Incoming(feed, memory)


class RecordReading:
    """Who has what is read: it waits for a loop, or a loop has taken it over. For the engine's thread, but for
    ``count_policies``.
    """

    def __init__(self, begin: Callable[[], Incoming]) -> None:
        self._begin = begin
        self._waiting: Incoming | None = None
        self._feed: RecordFeed | None = None
        self._counted = 0

    def incoming(self) -> Incoming:
        """What waits; reading begins if nothing does."""
        if self._waiting is None:
            self._waiting = self._begin()
            self._feed = self._waiting.feed
        return self._waiting

    def hand_over(self) -> None:
        """What waited has a loop, which stops it."""
        self._waiting = None

    def count_policies(self) -> int:
        """How many there are, without those that are Kubernetes' own."""
        feed = self._feed
        return 0 if feed is None else feed.count_policies()

    def counts_anew(self) -> bool:
        """Whether there are more or fewer policies than at the last call."""
        before, self._counted = self._counted, self.count_policies()
        return before != self._counted

    def stop(self) -> None:
        """What waits for a loop."""
        if self._waiting is not None:
            self._waiting.feed.stop()
