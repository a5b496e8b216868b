"""The lists that clients get: rendered and compressed once for all of them, in a separate thread. Rule: a list has the
resourceVersion of the moment when it was rendered, and all later changes are in the history. So an older list can be
used as long as that history is kept; a client that asks for a version gets a list that has reached it.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cni_calico.daemon.threads import SideThreads
from cni_calico.datastore.kubernetes.relayed.served import Served
from cni_calico.relay.requests import LAST_CHUNK, AskedList, chunk
from cni_calico.relay.topics import Topic
from cni_calico.relay.watch_cache import WatchCache

FRESH_S = 1.0
KEEP_S = 60.0
PIECE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class RenderedList:
    """``pieces`` are chunks of HTTP, the last one included; ``at`` is when it was rendered (time.monotonic)."""

    version: int
    pieces: tuple[bytes, ...]
    at: float
    raw_bytes: int
    sent_bytes: int


class RenderedLists:
    """``wake`` is called when a list is ready."""

    def __init__(self, cache: WatchCache, wake: Callable[[], None]) -> None:
        self.raw_bytes: dict[str, int] = {}
        self.compressed_bytes: dict[str, int] = {}
        self._cache = cache
        self._wake = wake
        self._threads = SideThreads(1, "relay-lists")
        self._guard = threading.Lock()
        self._made: dict[tuple[Topic, bool], RenderedList] = {}
        self._making: set[tuple[Topic, bool]] = set()

    def find(self, request: AskedList) -> RenderedList | None:
        """A list that answers the request, if there is one; otherwise it will be rendered."""
        key = request.topic, request.gzip
        now = time.monotonic()
        with self._guard:
            found = self._made.get(key)
            if found is not None and self._is_good(found, request, now):
                return found
            if key not in self._making:
                self._making.add(key)
                self._threads.submit(lambda: self._make(key))
        return None

    def _is_good(self, found: RenderedList, request: AskedList, now: float) -> bool:
        history = self._cache.history(request.topic)
        if found.version < request.at_least or found.version < history.start:
            return False
        return found.version == history.position or now - found.at < FRESH_S

    def _make(self, key: tuple[Topic, bool]) -> None:
        topic, compressed = key
        try:
            made = render(self._cache, topic, compressed=compressed)
            name = topic.path
            self.raw_bytes[name] = made.raw_bytes
            if compressed:
                self.compressed_bytes[name] = made.sent_bytes
            with self._guard:
                self._made[key] = made
        finally:
            with self._guard:
                self._making.discard(key)
            self._wake()

    def trim(self) -> None:
        """Drop lists that nobody has asked for lately."""
        now = time.monotonic()
        with self._guard:
            for key in [key for key, made in self._made.items() if now - made.at > KEEP_S]:
                del self._made[key]

    def close(self) -> None:
        self._threads.close()


def render(cache: WatchCache, topic: Topic, *, compressed: bool) -> RenderedList:
    version, items = cache.present(topic)
    packer = zlib.compressobj(level=3, wbits=31) if compressed else None
    pieces: list[bytes] = []
    raw = sent = 0
    for piece in _pieces(cache.history(topic).served, version, items):
        raw += len(piece)
        packed = packer.compress(piece) if packer is not None else piece
        if packed:
            sent += len(packed)
            pieces.append(chunk(packed))
    if packer is not None:
        packed = packer.flush()
        sent += len(packed)
        pieces.append(chunk(packed))
    return RenderedList(version, (*pieces, LAST_CHUNK), time.monotonic(), raw, sent)


def _pieces(served: Served, version: int, items: Iterator[bytes]) -> Iterator[bytes]:
    """The list's JSON in pieces of about PIECE_BYTES."""
    kind = f'"kind":"{served.kind}List","apiVersion":"{served.api_version}"'
    waiting = [f'{{{kind},"metadata":{{"resourceVersion":"{version}"}},"items":['.encode()]
    size, first = 0, True
    for item in items:
        waiting.append(item if first else b"," + item)
        first = False
        size += len(item)
        if size >= PIECE_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    waiting.append(b"]}\n")
    yield b"".join(waiting)
