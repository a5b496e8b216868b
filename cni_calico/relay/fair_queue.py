"""PURE: a queue with a turn for each peer, and the choice of whose sockets are attended to.

Rule: what one peer asks for delays another peer's by one entry a turn at most, and never takes its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

Queued = TypeVar("Queued")


class FairQueue(Generic[Queued]):
    """At most ``each`` entries of a peer, and ``most`` of all."""

    def __init__(self, each: int, most: int) -> None:
        self._each = each
        self._most = most
        self._waiting: dict[str, deque[Queued]] = {}  # in the order of their turns
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, peer: str, entry: Queued) -> Queued | None:
        """Returns the entry for which there is no room: this one, or the newest of the peer with the most."""
        mine = len(self._waiting.get(peer, ()))
        if mine >= self._each:
            return entry
        crowded_out = None
        if self._count >= self._most:
            heaviest = max(self._waiting, key=lambda each: len(self._waiting[each]))
            if len(self._waiting[heaviest]) <= mine + 1:
                return entry
            crowded_out = self._waiting[heaviest].pop()
            self._count -= 1
        self._waiting.setdefault(peer, deque()).append(entry)
        self._count += 1
        return crowded_out

    def pop(self, may_have: Callable[[str], bool]) -> tuple[str, Queued] | None:
        """The next entry of the next peer that ``may_have`` a turn; None: there is none."""
        for peer in self._waiting:
            if may_have(peer):
                break
        else:
            return None
        entries = self._waiting.pop(peer)
        entry = entries.popleft()
        if entries:
            self._waiting[peer] = entries
        self._count -= 1
        return peer, entry


def select_fairly(entries: Iterable[Queued], peer_of: Callable[[Queued], str], most: int) -> list[Queued]:
    """At most ``most`` of the entries, one of each peer before a second of any."""
    waiting: dict[str, deque[Queued]] = {}
    for entry in entries:
        waiting.setdefault(peer_of(entry), deque()).append(entry)
    chosen: list[Queued] = []
    while waiting and len(chosen) < most:
        for peer in list(waiting)[: most - len(chosen)]:
            chosen.append(waiting[peer].popleft())
            if not waiting[peer]:
                del waiting[peer]
    return chosen
