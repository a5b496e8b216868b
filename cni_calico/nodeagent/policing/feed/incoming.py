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
    feed = RecordFeed(context.followed, node, wake, kubernetes, memory.judge, context.decided)
    return Incoming(feed, memory)
