"""A file with a line for each record of some listings, which the recorder of flows reads, while that is wanted.

Rule: nothing is followed and no file is there while it is not wanted. Changes are appended; the file is written as a
whole at first, and when more of it is out of date than not.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

from cni_calico.datastore.cache import Cache
from cni_calico.datastore.interface import Datastore, Versioned
from cni_calico.datastore.remembered import Kept, Listeners
from cni_calico.kernel.files import Files
from cni_calico.log import Log
from cni_calico.model.keys import Key, ListKey
from cni_calico.regular import append_whole

_SLACK = 1000  # lines out of date that are no reason to write all again
LineOf = Callable[[Versioned], bytes | None]
"""The line of a record, None if it has none. Raises CorruptRecord: then its last one stands."""


class FollowedLines:
    """``use`` in one thread. ``gone``: the line of a record that is removed. ``what`` flows lack without the file.
    ``tell`` is called with that and what is wrong with it, "" for nothing.
    """

    def __init__(
        self,
        store: Datastore,
        listings: Sequence[ListKey],
        lines: tuple[LineOf, Callable[[Key], bytes]],
        path: str,
        what: str,
        log: Log,
        tell: Callable[[str, str], object] = lambda part, why: None,
    ) -> None:
        self._store, self._listings, self._path, self._what = store, listings, path, what
        self._line_of, self._gone = lines
        self._log, self._tell = log, tell
        self._caches: list[Cache[bytes | None]] = []
        self._trouble = ""
        with suppress(OSError):
            os.unlink(self._path)  # of an agent before this one

    def use(self, *, wanted: bool) -> None:
        if wanted and not self._caches:
            lines = ChangedLines(self._path, self._what, self._gone, self._note)
            listeners = Listeners(lines.write, hand_over=lines.put, gone=lines.drop)
            for listing in self._listings:
                kept = Kept(listing, self._line_of, keep_documents=False)
                self._caches.append(Cache(self._store, kept, listeners, cached=True))
        elif not wanted and self._caches:
            for cache in self._caches:
                cache.stop()
            self._caches = []
            with suppress(FileNotFoundError):
                os.unlink(self._path)
            self._note("")

    def _note(self, trouble: str) -> None:
        if trouble != self._trouble:
            if trouble:
                self._log.warning(trouble)
            self._trouble = trouble
            self._tell(self._what, trouble)


class ChangedLines:
    """A file of which the last line about a key counts; safe with the threads of several caches."""

    def __init__(self, path: str, what: str, gone: Callable[[Key], bytes], note: Callable[[str], object]) -> None:
        self._path, self._what, self._gone, self._note = path, what, gone, note
        self._lock = threading.Lock()
        self._known: dict[Key, bytes] = {}
        self._changed: dict[Key, bytes] = {}
        self._count = -1  # lines in the file; negative: it is not ours yet

    def put(self, key: Key, line: bytes | None) -> None:
        if line is None:
            self.drop(key)
            return
        with self._lock:
            if self._known.get(key) != line:
                self._known[key] = self._changed[key] = line

    def drop(self, key: Key) -> None:
        with self._lock:
            if self._known.pop(key, None) is not None:
                self._changed[key] = self._gone(key)

    def write(self, _: frozenset[Key]) -> None:
        with self._lock:
            self._write()

    def _write(self) -> None:
        if not self._changed:
            return
        whole = not 0 <= self._count + len(self._changed) <= 2 * len(self._known) + _SLACK or self._count < 0
        lines = self._known if whole else self._changed
        try:
            data = b"".join(lines.values())
            if whole:
                Files().write_atomic(self._path, data, 0o600, durable=False)
            else:
                append_whole(self._path, data)
            self._count = len(lines) if whole else self._count + len(lines)
            self._changed = {}
            self._note("")
        except OSError as e:
            self._count = -1
            self._note(f"flows have no {self._what}: cannot write {self._path}: {e.strerror}")
