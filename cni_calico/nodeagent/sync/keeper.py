"""Starts and ends policy sync as the parameter PolicySyncPathPrefix says, and feeds it.

Rule: it serves what has come into force and nothing else; if it fails it begins again, and what a reader has is kept by
the reader meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from cni_calico.backoff import Backoff
from cni_calico.datastore.interface import Datastore
from cni_calico.log import Log
from cni_calico.nodeagent.sync.profiles import FollowedProfiles
from cni_calico.nodeagent.sync.serving import SyncServer
from cni_calico.policy.wanted import Wanted, WantedChanges

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0


class SyncKeeper:
    """``use`` in one thread, ``tell`` and ``tell_lifted`` in the engine's, which ``wake`` makes tell."""

    def __init__(
        self,
        store: Datastore,
        log: Log,
        start_thread: Callable[[Callable[[], None]], object],
        stopping: threading.Event,
        tell: Callable[[str], object],
        wake: Callable[[], None],
    ) -> None:
        """``start_thread`` runs its argument in a thread of its own; ``tell`` is called with what is wrong, "" for
        nothing.
        """
        self._store, self._log = store, log
        self._start_thread, self._stopping = start_thread, stopping
        self._tell_trouble, self._wake = tell, wake
        self._prefix = ""
        self._guard = threading.Lock()
        self._server: SyncServer | None = None
        self._knows_nothing = True
        self._profiles: FollowedProfiles | None = None
        self._ended = threading.Event()  # the thread of the server before
        self._ended.set()

    def use(self, prefix: str) -> None:
        """``prefix``: the parameter; "" ends it."""
        if prefix == self._prefix:
            return
        self._prefix = prefix
        if self._server is not None:
            self._server.stop()
        if self._profiles is not None:
            self._profiles.stop()
            self._profiles = None
        server = SyncServer(prefix, self._log, self._tell_trouble) if prefix else None
        with self._guard:
            self._server, self._knows_nothing = server, True
        if server is not None:
            self._profiles = FollowedProfiles(self._store, server.receive_profiles)
            before, self._ended = self._ended, threading.Event()
            ended = self._ended
            self._start_thread(lambda: self._run(server, before, ended))
            self._wake()

    # -- what is in force ---------------------------------------------------------------------------------------------

    def listens(self) -> bool:
        return self._server is not None

    def tell(self, changes: Sequence[WantedChanges] | None, wanted: Callable[[], Wanted]) -> None:
        with self._guard:
            if self._server is None:
                return
            if changes is None or self._knows_nothing:
                self._knows_nothing = False
                self._server.become(wanted())
                return
            for change in changes:
                self._server.receive(change)

    def tell_lifted(self) -> None:
        """Readers keep what they have: a checker of requests must not open because the packet filter does."""
        with self._guard:
            self._knows_nothing = True

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self, server: SyncServer, before: threading.Event, ended: threading.Event) -> None:
        pauses = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        try:
            before.wait()
            while self._server is server and not self._stopping.is_set():
                try:
                    server.run(self._stopping)
                except Exception as e:  # HTTP is checked by what readers have; packets are filtered all the same
                    self._log.error(f"policy sync failed, and begins again: {type(e).__name__}: {e}")
                    self._tell_trouble(f"there is no policy sync: {e}")
                    self._stopping.wait(pauses.next())
                    with self._guard:
                        self._knows_nothing = True
                    self._wake()
        finally:
            ended.set()
