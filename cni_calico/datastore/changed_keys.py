"""The records that have changed since they were last taken.

Rule: a key noted several times before it is taken counts once; the caller that takes the keys reads the records in the
caches.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Set

from cni_calico.model.keys import Key


class ChangedKeys:
    """Any thread may call ``note``. ``any`` is set while something waits to be taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._noted: set[Key] = set()
        self.any = threading.Event()

    def note(self, keys: Iterable[Key]) -> None:
        with self._lock:
            self._noted.update(keys)
            self.any.set()

    def take(self) -> Set[Key]:
        """The keys noted since the last call, in a set that belongs to the caller."""
        with self._lock:
            noted, self._noted = self._noted, set()
            self.any.clear()
        return noted
