"""One collection's events, from a relay as long as there is one, else from the API server.

Rule: it changes between the two at the position it has reached, which means the same at both. (In a KubernetesWatch it
takes the place of a Stream.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from cni_calico.datastore.http import Connection
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.layout import Collection
from cni_calico.datastore.kubernetes.relayed.link import Followed, RelayLink
from cni_calico.datastore.kubernetes.watch import Stream
from cni_calico.errors import Compacted

LOOK_S = 1.0  # for a relay that answers again


class RelayedStream:
    """``has_direct``: whether the API server has this collection, too. ``reached(position)`` is called when it ends."""

    def __init__(
        self,
        link: RelayLink,
        direct: KubernetesAPI,
        collection: Collection,
        position: str,
        *,
        has_direct: bool,
        reached: Callable[[str], None],
        unread_from: int | None = None,
    ) -> None:
        self.collection = collection
        self.position = position
        self.not_before = 0.0
        self.connection: Connection | Followed | None = None
        self.bytes_read = 0
        self._link, self._unread_from = link, unread_from
        self._api = direct
        self._topic = collection.url()
        self._reached = reached
        self._has_direct = has_direct
        self._direct: Stream | None = None

    def open(self) -> None:
        """Raises Compacted, DatastoreError, DeadlineExceeded."""
        if not self._link.direct:
            self.connection = self._link.follow(self._topic, self.position, self._unread_from)
            return
        if not self._has_direct:
            self.not_before = time.monotonic() + LOOK_S
            return
        if self._direct is None:
            self._direct = Stream(self._api, self.collection, self.position, self._unread_from)
        self._direct.position = self.position
        try:
            self._direct.open()
        finally:
            self.not_before = self._direct.not_before
        self.connection = self._direct.connection
        if self._direct.connection is not None:
            self._link.note_direct(self._direct.connection)

    def close(self) -> None:
        self._reached(self.position)
        connection, self.connection = self.connection, None
        if self._direct is not None:
            self._direct.close()
            self._direct = None
        if isinstance(connection, Followed):
            connection.close()

    def read(self) -> list[Mapping[str, Any]]:
        """What has arrived; nothing if the stream has ended. Raises Compacted, DatastoreUnavailable."""
        connection = self.connection
        if isinstance(connection, Followed):
            before = connection.bytes
            events = connection.take()
            self.bytes_read += before
            if connection.ended and not events:
                self._end(connection)
            return events
        assert self._direct is not None
        found = self._direct.read()
        self.bytes_read = self._direct.bytes_read
        self.not_before = self._direct.not_before
        self.connection = self._direct.connection
        if not self._link.direct:
            self.close()  # a relay answers again
            self.not_before = 0.0
        return found

    def _end(self, followed: Followed) -> None:
        self.close()
        self.not_before = 0.0
        if followed.ended == "expired":
            raise Compacted(
                f"cannot watch {self.collection.path}: the changes since {self.position} are not kept any more"
            )
