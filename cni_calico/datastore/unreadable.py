"""The records that caches leave out because they cannot be read.

Rule: while there is one, the caches are incomplete: the resident server's calls read from the store, whose error names
the record, and the agent removes nothing. Such a record is read again from time to time, to learn whether it has been
repaired or removed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from cni_calico.datastore.interface import Datastore
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.model.documents import codec
from cni_calico.model.keys import Key, ListKey, covers

ASK_AGAIN_S = 2.0
ASK_TIMEOUT_S = 2.0
_listening = threading.Lock()


def listen(store: Datastore, note: Callable[[Key, str], None]) -> None:
    """Have ``note`` called for the records that lists and watches of ``store`` begun from now on leave out.

    Earlier listeners are still called: several parts of the agent share a store.
    """
    with _listening:
        before = store.corrupt

        def tell(key: Key, why: str) -> None:
            before(key, why)
            note(key, why)

        store.corrupt = tell


class Unreadable:
    """The caches and the store call ``note`` for each such record; safe with threads."""

    def __init__(
        self,
        store: Datastore,
        report: Callable[[Key, str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._report = report
        self._clock = clock
        self._asked: dict[Key, float] = {}
        self._guard = threading.Lock()

    def note(self, key: Key, why: str) -> None:
        with self._guard:
            new = key not in self._asked
            self._asked[key] = self._clock()
        if new:
            self._report(key, why)

    def is_noted(self, key: Key) -> bool:
        """Whether the record could not be read when it was last tried; makes no request."""
        return key in self._asked

    def any_of(self, listings: Iterable[ListKey]) -> bool:
        """Whether one of these listings contains a record that cannot be read."""
        return any(self._is_still(key) for key in self._noted(listings))

    def all_of(self, listings: Iterable[ListKey]) -> list[Key]:
        """The records of these listings that cannot be read."""
        return [key for key in self._noted(listings) if self._is_still(key)]

    def _noted(self, listings: Iterable[ListKey]) -> list[Key]:
        if not self._asked:
            return []
        listings = tuple(listings)
        return [key for key in list(self._asked) if any(covers(listing, key) for listing in listings)]

    def _is_still(self, key: Key) -> bool:
        with self._guard:
            now = self._clock()
            asked = self._asked.get(key)
            if asked is None:
                return False
            if now - asked < ASK_AGAIN_S:
                return True
            self._asked[key] = now
        try:
            found = self._store.get(key, Deadline.after(ASK_TIMEOUT_S))
            if found is not None:
                codec.decode(key, found.value)
        except CalicoError:
            return True  # CorruptRecord, or no answer from the store
        with self._guard:
            self._asked.pop(key, None)
        return False
