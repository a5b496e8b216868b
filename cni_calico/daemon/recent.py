"""Remembers names for a short time, and only a limited number of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Recently:
    """Names noted in the last ``keep_s`` seconds, at most ``limit`` of them. Safe with threads."""

    def __init__(self, keep_s: float, limit: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._keep_s = keep_s
        self._limit = limit
        self._clock = clock
        self._noted: dict[str, float] = {}  # the oldest first
        self._guard = threading.Lock()

    def note(self, name: str) -> None:
        with self._guard:
            now = self._clock()
            self._noted.pop(name, None)
            self._noted[name] = now
            for old, at in list(self._noted.items()):
                if len(self._noted) <= self._limit and now - at < self._keep_s:
                    break
                del self._noted[old]

    def forget(self, name: str) -> None:
        with self._guard:
            self._noted.pop(name, None)

    def clear(self) -> None:
        with self._guard:
            self._noted.clear()

    def __contains__(self, name: str) -> bool:
        with self._guard:
            at = self._noted.get(name)
        return at is not None and self._clock() - at < self._keep_s
