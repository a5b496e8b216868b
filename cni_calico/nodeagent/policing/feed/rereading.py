"""Reads single records again, one after another, in threads that live while there are any.

Rule: it only reads; whether what it read still counts is decided by whoever gets it. What cannot be read now
is asked for again by whoever needs it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from cni_calico.datastore.interface import Datastore, Versioned
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.model.keys import ResourceKey
from cni_calico.survived import tell_survived

READ_S = 5.0
ASK_AGAIN_S = 5.0


class Rereading:
    """``bring`` gets each record that was found, in the thread; what it raises as CalicoError is the record's fault."""

    def __init__(self, store: Datastore, bring: Callable[[ResourceKey, Versioned], None]) -> None:
        self._store = store
        self._bring = bring
        self._guard = threading.Lock()
        self._keys: dict[ResourceKey, None] = {}
        self._thread: threading.Thread | None = None
        self._stopped = False

    def ask(self, key: ResourceKey) -> None:
        with self._guard:
            self._keys[key] = None
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="policy-rereading", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while (key := self._next()) is not None:
            try:
                found = self._store.get(key, Deadline.after(READ_S))
                if found is not None:  # otherwise its listing reports that it is gone
                    self._bring(key, found)
            except CalicoError:
                continue
            except Exception as e:  # a thread that dies would leave all others unread
                tell_survived(e)

    def _next(self) -> ResourceKey | None:
        with self._guard:
            if not self._keys or self._stopped:
                self._thread = None
                return None
            key = next(iter(self._keys))
            del self._keys[key]
            return key

    def stop(self) -> None:
        with self._guard:
            self._stopped = True


class AskingAgain:
    """Reads those that ``keys`` returns every ASK_AGAIN_S, and ``receive`` gets each, None if it is gone, in the
    thread; what it raises as CalicoError is the record's fault.
    """

    def __init__(
        self,
        store: Datastore,
        keys: Callable[[], list[ResourceKey]],
        receive: Callable[[ResourceKey, Versioned | None], None],
    ) -> None:
        self._store, self._keys, self._receive = store, keys, receive
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    def begin(self) -> None:
        """Call it when there is another one."""
        with self._guard:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="policy-unreadable", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._stopped.wait(ASK_AGAIN_S):
            with self._guard:
                keys = self._keys()
                if not keys:
                    self._thread = None
                    return
            for key in keys:
                try:
                    self._receive(key, self._store.get(key, Deadline.after(READ_S)))
                except CalicoError:
                    continue  # still unreadable, or the store does not answer
                except Exception as e:  # a thread that dies would leave all others unread
                    tell_survived(e)

    def stop(self) -> None:
        self._stopped.set()
