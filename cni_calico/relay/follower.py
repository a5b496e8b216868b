"""Follows one collection at the API server: lists it once, then watches.

Rule: whatever fails is tried again after a pause; only a watch that cannot be resumed needs another list. The first
list may come from the API server's cache, later ones are exact.
"""

from __future__ import annotations

import os
import random
import select
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cni_calico.backoff import Backoff
from cni_calico.daemon.stopping import Stopping
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.datastore.kubernetes.layout import Collection
from cni_calico.datastore.kubernetes.relayed.served import SERVED, order_of_version
from cni_calico.datastore.kubernetes.watch import Stream
from cni_calico.deadline import ProgressDeadline
from cni_calico.errors import CalicoError, Compacted, DatastoreUnavailable, DatastoreUnsupported
from cni_calico.relay.watch_cache import WatchCache

LIST_S = 60.0
LOOK_S = 1.0
MISSING_S = 30.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 10.0


def _unread(obj: Mapping[str, Any]) -> None:
    """Never called: a relay passes objects on and decodes none of them."""


class CollectionFollower:
    """``run`` is a thread's work. ``tell(path, why)`` is called when it fails, and with "" when it works again."""

    def __init__(self, api: KubernetesAPI, cache: WatchCache, path: str, tell: Callable[[str, str], None]) -> None:
        self.path = path
        self._api = api
        self._cache = cache
        self._tell = tell
        self._collection = Collection(path, _unread)
        self._position = 0
        self._backoff = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        self._pause_s = 0.0

    def run(self, stopping: Stopping) -> None:
        while not stopping.wait(self._pause_s * random.SystemRandom().uniform(0.5, 1.5)):  # not all relays at once
            self._pause_s = self._backoff.next()
            try:
                if not self._position:
                    self._list()
                self._follow(stopping)
            except Compacted as e:
                self._position = 0
                self._tell(self.path, str(e))
            except DatastoreUnsupported as e:
                if SERVED[self.path].optional:
                    self._position, self._pause_s = 0, MISSING_S
                    self._cache.set_missing(self.path)
                    self._tell(self.path, "")
                else:
                    self._tell(self.path, str(e))
            except CalicoError as e:
                self._tell(self.path, str(e))

    def _list(self) -> None:
        first = self.path in self._cache.unsynced()
        patience = ProgressDeadline(LIST_S)
        listed = self._cache.begin_list(self.path)

        def receive(obj: Mapping[str, Any]) -> None:
            patience.renew()
            if not isinstance(obj.get("metadata"), dict):
                raise DatastoreUnavailable(f"cannot list {self.path}: an object has no metadata")
            listed.receive(obj)

        url = self._collection.url(resourceVersion="0" if first else "")
        rest = self._api.items(ApiRequest("GET", url, f"list {self.path}"), patience, receive)
        version = order_of_version((rest.get("metadata") or {}).get("resourceVersion"))
        listed.finish(version)
        self._position = version
        self._tell(self.path, "")

    def _follow(self, stopping: Stopping) -> None:
        """Raises CalicoError."""
        stream = Stream(self._api, self._collection, str(self._position))
        try:
            while not stopping.is_set():
                if stream.connection is None:
                    if stopping.wait(max(0.0, stream.not_before - time.monotonic())):
                        return
                    stream.open()
                    self._tell(self.path, "")
                self._read(stream, stopping)
        finally:
            stream.close()

    def _read(self, stream: Stream, stopping: Stopping) -> None:
        assert stream.connection is not None
        if not stream.connection.buffered():
            poll = select.poll()
            poll.register(stream.connection.fileno(), select.POLLIN)
            if not poll.poll(int(LOOK_S * 1000)):
                return
        for event in stream.read():
            self._backoff.reset()
            self._pause_s = 0.0
            kind, obj = event["type"], event["object"]
            if kind == "ERROR":
                text = f"cannot watch {self.path}: {obj.get('message') or 'the server ended it'}"
                raise Compacted(text) if obj.get("code") == 410 else DatastoreUnavailable(text)
            version = order_of_version((obj.get("metadata") or {}).get("resourceVersion"))
            if version:
                self._position = version
                stream.position = str(version)
                self._cache.apply(self.path, kind, obj)


def order_of_start(paths: Iterable[str]) -> list[str]:
    """Pods, the largest collection, last."""
    return sorted(paths, key=lambda path: (path.endswith("/pods"), os.urandom(2)))
