"""A relay put together: followers of the API server, the cache, and the server.

Rule: clients are served from the first moment, each collection as soon as it has been read. A follower that fails tries
again, and after a while the clients are told (cut_off.py). If the server's loop fails, the process must end: followers
alone are of no use.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Callable

from cni_calico.daemon.server_tls import server_context as verifying_context
from cni_calico.daemon.stopping import Stopping
from cni_calico.daemon.threads import SideThreads
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.relayed.served import SERVED_IN
from cni_calico.errors import CalicoError, Compacted
from cni_calico.log import Log
from cni_calico.model.access import API_GROUP
from cni_calico.relay.admission import TokenReviews
from cni_calico.relay.connections import Listening
from cni_calico.relay.cut_off import CutOff
from cni_calico.relay.follower import CollectionFollower, order_of_start
from cni_calico.relay.replay import read_changes
from cni_calico.relay.server import RelayServer
from cni_calico.relay.serving import Offered
from cni_calico.relay.snapshots import RenderedLists
from cni_calico.relay.tokens import Accepted
from cni_calico.relay.watch_cache import WatchCache

END_S = 3.0


class Relay:
    """``accepted``: which tokens are; ``group``: where the records are. ``run`` serves until ``stopping`` is set."""

    def __init__(
        self,
        api: KubernetesAPI,
        listening: Listening,
        log: Log,
        *,
        accepted: Accepted | None = None,
        group: str = API_GROUP,
    ) -> None:
        self.cut_off = CutOff(listening.limits.cut_off_s)
        self._was_cut_off = False
        self.older = {"read": 0, "gone": 0, "failed": 0}  # older changes asked of the API server, by outcome
        self._api = api
        self._log = log
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._older_threads = SideThreads(len(SERVED_IN[group]), "relay-older")  # each waits for a bookmark for seconds
        self.cache = WatchCache(self._wake, self._fetch_older, SERVED_IN[group])
        self.snapshots = RenderedLists(self.cache, self._wake)
        self.reviews = TokenReviews(api, accepted or Accepted(), self._wake)
        offered = Offered(self.cache, self.snapshots, self.reviews, self.cut_off)
        self.server = RelayServer(offered, listening, self._wake_fd, log)
        self._ending = Stopping()
        self._threads: list[threading.Thread] = []

    def run(
        self,
        stopping: Stopping,
        *,
        turn: Callable[[], object] = lambda: None,
        before_end: Callable[[], object] = lambda: None,
    ) -> None:
        """``turn`` is called in every turn of the server's loop, ``before_end`` when ``stopping`` is set, while clients
        are still connected.
        """
        for path in order_of_start(self.cache.paths):
            follower = CollectionFollower(self._api, self.cache, path, self._tell)
            thread = threading.Thread(target=follower.run, args=(self._ending,), name=f"follow-{path}", daemon=True)
            self._threads.append(thread)
            thread.start()
        try:
            while not stopping.is_set():
                self.server.step()
                self._look()
                turn()
            before_end()
        finally:
            self._ending.set()
            self.server.connections.close()
            self._older_threads.close()
            self.snapshots.close()
            self.reviews.close()
            for thread in self._threads:
                thread.join(END_S / len(self._threads))

    def _wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def _tell(self, path: str, why: str) -> None:
        before = self.cut_off.troubles.get(path, "")
        self.cut_off.tell(path, why)
        if why and why != before:
            self._log.warning(why)
        elif before and not why:
            self._log.info(f"following {path} again")

    def _look(self) -> None:
        """Log once that this relay is cut off from the API server, and once that it no longer is."""
        why = self.cut_off.why()
        if why and not self._was_cut_off:
            self._log.warning(f"{why}; clients are told, and nobody else is served")
        elif self._was_cut_off and not why:
            self._log.info("all collections are followed again; clients are served")
        self._was_cut_off = bool(why)

    def _fetch_older(self, path: str, since: int, until: int) -> None:
        self._older_threads.submit(lambda: self._read_older(path, since, until))

    def _read_older(self, path: str, since: int, until: int) -> None:
        try:
            events = read_changes(self._api, path, since, until)
        except Compacted as e:
            self.older["gone"] += 1
            self._log.info(f"{path}: clients that have seen it as of {since} must list again: {e}")
            self.cache.no_older(path, since)
        except CalicoError as e:
            self.older["failed"] += 1
            self._log.warning(f"cannot say what happened since {since}: {e}")
            self.cache.no_older(path, 0)  # clients that still wait will ask again
        else:
            self.older["read"] += 1
            self.cache.continue_backwards(path, since, events)

    def __del__(self) -> None:
        os.close(self._wake_fd)


def server_context(
    certificate_file: str, key_file: str, ca_file: str = "", *, wants_certificates: bool = False
) -> ssl.SSLContext:
    """TLS for the relay's side. Raises OSError, ssl.SSLError."""
    # clients without a certificate may have a token
    clients = ssl.CERT_OPTIONAL if ca_file and wants_certificates else ssl.CERT_NONE
    return verifying_context(certificate_file, key_file, ca_file, clients)
