"""Reads a collection of the API server, page by page.

Rule: of a page only what the reader keeps of its records stays in memory. If pages expire while they are read, they are
dropped, and everything is read again in one answer. A copy from the server's cache (resourceVersion 0) comes in one
answer, whatever limit is requested; such an answer is parsed while it arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cni_calico.datastore.interface import Reading, Versioned
from cni_calico.datastore.kubernetes.answers import missing_type
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.datastore.kubernetes.custom import FINISHED_PER_LIST, CustomRecords, is_marked
from cni_calico.datastore.kubernetes.guess import guess_key
from cni_calico.datastore.kubernetes.layout import Collection
from cni_calico.datastore.kubernetes.revision import render_revision
from cni_calico.deadline import Deadline
from cni_calico.errors import Compacted, CorruptRecord, DatastoreUnsupported
from cni_calico.model.keys import Key, ListKey, ResourceKey, covers

PAGE = 500


class Pages:
    """The records of ``listing`` in one collection; ``items`` and ``unreadable`` are set by ``read``.

    ``corrupt(key, why)`` is called for records left out; ``custom`` finishes the deletion of objects marked as deleted;
    None: they stay.
    """

    def __init__(
        self,
        api: KubernetesAPI,
        custom: CustomRecords | None,
        collection: Collection,
        listing: ListKey,
        reading: Reading,
        corrupt: Callable[[Key, str], None],
    ) -> None:
        self.items: list[Versioned] = []
        self.unreadable: list[tuple[Key, str]] = []
        self._api = api
        self._custom = custom
        self._collection = collection
        self._listing = listing
        self._reading = reading
        self._corrupt = corrupt
        self._finishing = FINISHED_PER_LIST

    def read(self, version: str, deadline: Deadline) -> str:
        """Read all of it as it was at ``version`` ("": now); returns its resourceVersion, "" for a type that is
        missing.

        Raises DatastoreError, DeadlineExceeded.
        """
        at = {"resourceVersion": version, "resourceVersionMatch": "Exact"} if version else {}
        try:
            if self._reading.cached and not version:
                return self._read_whole({"resourceVersion": "0"}, deadline)
            return self._read_pages({"limit": str(PAGE), **at}, deadline)
        except Compacted:
            if version:
                raise
        except DatastoreUnsupported:
            if not self._collection.optional:
                raise
            return ""
        return self._read_whole({}, deadline)

    def read_cached(self, at_least: str, deadline: Deadline) -> str:
        """Read it from a cache that has reached a resourceVersion ("0": any); returns that of the answer.

        Raises DatastoreError, DeadlineExceeded.
        """
        try:
            return self._read_whole({"resourceVersion": at_least}, deadline, packed=True)
        except DatastoreUnsupported:
            if not self._collection.optional:
                raise
            return ""

    def _read_whole(self, parameters: dict[str, str], deadline: Deadline, *, packed: bool = False) -> str:
        """Read it in one answer, item by item."""
        self.items, self.unreadable = [], []
        collection = self._collection
        doing = f"list {collection.path}"
        rest = self._read_items(collection.url(**parameters), deadline, doing, packed=packed)
        return str((rest.get("metadata") or {}).get("resourceVersion") or "")

    def _read_pages(self, parameters: dict[str, str], deadline: Deadline) -> str:
        self.items, self.unreadable = [], []
        collection, version = self._collection, ""
        doing = f"list {collection.path}"
        while True:
            url = collection.url(**parameters)
            metadata = self._read_page(url, deadline, doing).get("metadata") or {}
            version = str(metadata.get("resourceVersion") or version)
            if not metadata.get("continue"):
                return version
            parameters = {"limit": str(PAGE), "continue": str(metadata["continue"])}

    def _read_page(self, url: str, deadline: Deadline, doing: str) -> Mapping[str, Any]:
        """Receive its items; returns the document, perhaps without them."""
        if self._reading.each is not None:
            return self._read_items(url, deadline, doing)
        accept, path = self._collection.accept_list, self._collection.path
        reply = self._api.send(ApiRequest("GET", url, doing, expect=(404,), accept=accept), deadline)
        if reply.status == 404:
            raise missing_type(path, doing)
        for obj in reply.document.get("items") or ():
            self._receive(obj, deadline)
        return reply.document

    def _read_items(self, url: str, deadline: Deadline, doing: str, *, packed: bool = False) -> Mapping[str, Any]:
        """Receive the items while they arrive; returns the rest of the document."""

        def receive(obj: Mapping[str, Any]) -> None:
            self._receive(obj, deadline)

        request = ApiRequest("GET", url, doing, accept=self._collection.accept_list, packed=packed)
        try:
            return self._api.items(request, deadline, receive)
        except DatastoreUnsupported as e:
            raise missing_type(self._collection.path, doing) from e

    def _receive(self, obj: Mapping[str, Any], deadline: Deadline) -> None:
        collection = self._collection
        try:
            found = collection.read(obj)
        except CorruptRecord as e:
            key = guess_key(obj, collection.plural)
            if covers(self._listing, key) or not isinstance(key, ResourceKey):
                self.unreadable.append((key, str(e)))
                self._corrupt(key, str(e))
            return
        if found is None or not covers(self._listing, found[0]):
            return
        if is_marked(obj):
            if self._finishing > 0 and self._custom is not None:
                finished = self._custom.finish(found[0], obj, deadline)
                self._finishing = self._finishing - 1 if finished else 0
            return
        uid = str(obj["metadata"].get("uid") or "")
        read = Versioned(found[0], found[1], render_revision(obj, collection.state(obj)), uid)
        self.items.append(self._reading.receive(read))
