"""Tells the recorder of flows which rules are in force, over a socket pair whose other end is its standard input.

Rule: nobody waits. The engine's thread hands over values, the keeper's sends what the socket takes; a recorder that is
stopped or was begun anew is told everything once it can be.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from threading import Lock

from cni_calico.flows.judging.encoding import render_changes, render_nothing, render_whole
from cni_calico.nodeagent.recording.staged import StagedRules
from cni_calico.policy.wanted import Wanted, WantedChanges

_WAITING, _MEMBERS = 1000, 100_000  # changes, and members of sets in them; then everything is told anew
_ROOM = 4 << 20
_SO_SNDBUFFORCE = 32
_AT_ONCE = 1000  # messages


class RulesTeller:
    """``attach``, ``go_on`` and ``detach`` in one thread, ``tell`` and ``tell_lifted`` in the engine's. ``wake`` makes
    the engine tell, and look for what has changed.
    """

    def __init__(self, wake: Callable[[], None], room: int = _ROOM, staged: StagedRules | None = None) -> None:
        """``room``: bytes that the socket takes. ``staged``: what staged policies would make of the rules."""
        self.wake, self._room, self._lock = wake, room, Lock()
        self._ours: socket.socket | None = None
        self._knows_nothing = True
        self._queue: deque[Iterator[bytes]] = deque()
        self._members = 0  # of changes since the queue was empty, which may still be kept by it
        self._sending = memoryview(b"")
        self.staged, self._told_staged = staged, True
        self._staged_queue: deque[Iterator[bytes]] = deque()

    def listens(self) -> bool:
        return self._ours is not None

    def tell(self, changes: Sequence[WantedChanges] | None, wanted: Callable[[], Wanted]) -> None:
        with self._lock:
            if self._ours is None:
                return
            self._members = sum(map(_members_in, changes or ()), self._members if self._queue else 0)
            count = len(self._queue) + len(changes or ())
            if changes is None or self._knows_nothing or count > _WAITING or self._members > _MEMBERS:
                self._knows_nothing, self._members = False, 0
                self._queue.clear()
                self._queue.append(render_whole(wanted()))
            else:
                self._queue.extend(map(render_changes, changes))

    def tell_lifted(self) -> None:
        with self._lock:
            if not self._knows_nothing:
                self._knows_nothing = True
                self._queue.clear()
                self._queue.append(render_nothing())

    def attach(self) -> socket.socket:
        """The other end, for a recorder that is about to be started. Raises OSError."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with suppress(OSError):  # then the socket has less room
            ours.setsockopt(socket.SOL_SOCKET, _SO_SNDBUFFORCE, self._room)
        with self._lock:
            self._ours, self._knows_nothing = ours, True
            self._queue.clear()
            self._staged_queue.clear()
            self._told_staged = False
            self._sending = memoryview(b"")
        self.wake()
        return theirs

    def detach(self) -> None:
        with self._lock:
            ours, self._ours = self._ours, None
            self._queue.clear()
            self._staged_queue.clear()
        if ours is not None:
            ours.close()

    def go_on(self) -> bool:
        """Send what the socket takes; returns whether something is left."""
        ours = self._ours
        if ours is None:
            return False
        if self.staged is not None and not self._staged_queue:
            messages = self.staged.go_on(anew=not self._told_staged)
            if messages is not None:
                self._staged_queue.append(messages)
            self._told_staged = True
        for _ in range(_AT_ONCE):
            if not self._sending:
                message = self._next()
                if message is None:
                    return False
                self._sending = memoryview(message)
            try:
                self._sending = self._sending[ours.send(self._sending) :]
            except BlockingIOError:
                return True
            except OSError:
                self.detach()  # it has ended, and another one will be started
                return False
        return True

    def _next(self) -> bytes | None:
        """What is in force comes first."""
        while True:
            with self._lock:
                queue = self._queue or self._staged_queue
                if not queue:
                    return None
                first = queue[0]
            message = next(first, None)
            if message is not None:
                return message
            with self._lock:
                if queue and queue[0] is first:
                    queue.popleft()


def _members_in(changes: WantedChanges) -> int:
    found = [*changes.sets_made.values()]
    for change in changes.sets_changed.values():
        found += change.added, change.removed
    return sum(len(one.addresses) + len(one.nets) + len(one.ports) for one in found)
