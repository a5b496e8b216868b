"""All collections of a relay, and one log of their changes that every client reads at its own pace.

Rule: a client has a place in the log, not a queue. Messages are rendered once for all clients that are at the same
place with the same interests. Threads that follow the API server write, the server's loop reads; ``wake`` tells the
loop that there is something new.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from cni_calico.datastore.kubernetes.relayed.served import BLOCK_PATHS, SERVED, SERVED_IN
from cni_calico.model.access import API_GROUP
from cni_calico.relay.history import HeldObject, History, ToldChange
from cni_calico.relay.numbers import WatchCacheNumbers
from cni_calico.relay.reduction import affinity_of, reduce_block, reduce_held_block, reduce_own_block, reduction_of
from cni_calico.relay.topics import Interest, Topic

READY, WAITING, EXPIRED = "ready", "waiting", "expired"
LOG_S = 60.0
LOG_BYTES = 64 * 1024 * 1024
MOST_GROUPS = 1000
_ALL, _OWN, _HOLDERS = 0, 1, 2  # the histories of the blocks; other collections have the first


@dataclass(frozen=True, slots=True)
class _LogEntry:
    topic: Topic
    change: ToldChange
    end: int  # bytes of the log up to here


@dataclass(slots=True)
class _Older:
    """The older history that clients ask for, and the version up to which the API server has reported it gone."""

    wanted: int | None = None
    gone_below: int = 0
    fetching: bool = False


@dataclass(slots=True)
class _RenderedOnce:
    """What has been rendered since the cache last changed: it is the same for many clients."""

    at: int = -1
    rendered: dict[Any, bytes] = field(default_factory=dict)
    topics: dict[int, frozenset[Topic]] = field(default_factory=dict)


class WatchCache:
    """``fetch_older(path, since, until)`` is called, in any thread, when a client needs older changes; the caller must
    return at once, and later call ``continue_backwards`` or ``no_older``.
    """

    def __init__(
        self,
        wake: Callable[[], None],
        fetch_older: Callable[[str, int, int], None],
        paths: Iterable[str] = SERVED_IN[API_GROUP],
    ) -> None:
        self.numbers = WatchCacheNumbers()
        self._wake = wake
        self._fetch_older = fetch_older
        self._lock = threading.RLock()
        self._histories: dict[str, tuple[History, ...]] = {path: _histories(path) for path in paths}
        self._older = {path: _Older() for path in self._histories}
        self._log: list[_LogEntry] = []
        self._base = 0
        self._changes = 0  # of any collection
        self._once = _RenderedOnce()
        self._groups: dict[frozenset[Topic], frozenset[Topic]] = {}

    # -- what the API server says -------------------------------------------------------------------------------------

    def begin_list(self, path: str) -> Listed:
        """Begin to receive a whole list of a collection."""
        return Listed(self, path, self._histories[path])

    def replace(self, path: str, listed: Sequence[Mapping[str, HeldObject]], version: int) -> None:
        with self._lock:
            now = time.monotonic()
            self._changes += 1
            for history, into in zip(self._histories[path], listed, strict=True):
                self._log_all(history, history.replace(into, version, now))
        self._wake()

    def apply(self, path: str, kind: str, obj: Mapping[str, Any]) -> None:
        with self._lock:
            now = time.monotonic()
            self._changes += 1
            told = False
            for history in self._histories[path]:
                changes = history.apply(kind, obj, now)
                self._log_all(history, changes)
                told = told or bool(changes)
            if kind != "BOOKMARK":
                self.numbers.updates += 1
                self.numbers.skipped += not told
        if told:
            self._wake()

    def set_missing(self, path: str) -> None:
        """The cluster does not know the type: the collection is empty until it does."""
        with self._lock:
            self._changes += 1
            for history in self._histories[path]:
                history.missing = history.synced = True
        self._wake()

    def continue_backwards(self, path: str, since: int, events: list[tuple[str, Mapping[str, Any]]]) -> None:
        with self._lock:
            self._changes += 1
            for history in self._histories[path]:
                if since < history.start:
                    history.continue_backwards(since, events, time.monotonic())
            self._older[path].fetching = False
        self._wake()

    def no_older(self, path: str, below: int) -> None:
        """The API server has no history for versions up to ``below`` either."""
        with self._lock:
            older = self._older[path]
            older.gone_below, older.fetching = max(older.gone_below, below + 1), False
        self._wake()

    # -- what clients ask ---------------------------------------------------------------------------------------------

    @property
    def paths(self) -> Collection[str]:
        return self._histories.keys()

    @property
    def synced(self) -> bool:
        return all(history.synced for histories in self._histories.values() for history in histories)

    def unsynced(self) -> list[str]:
        return [path for path, histories in self._histories.items() if not histories[0].synced]

    def history(self, topic: Topic) -> History:
        return self._histories[topic.path][_HOLDERS if topic.holders else _OWN if topic.owner else _ALL]

    def present(self, topic: Topic) -> tuple[int, Iterator[bytes]]:
        """A collection's position, and its objects as items of a list."""
        with self._lock:
            history = self.history(topic)
            return history.position, history.items(topic.owner)

    def standing(self, topic: Topic, version: int) -> str:
        """Whether a client that has seen ``version`` (0: nothing) can be sent everything after it."""
        with self._lock:
            history = self.history(topic)
            if not history.synced:
                return WAITING
            if version == 0 or version >= history.start or history.missing:
                return READY
            older = self._older[topic.path]
            if version < older.gone_below:
                return EXPIRED
            older.wanted = version if older.wanted is None else min(version, older.wanted)
            return WAITING

    def ask_older(self) -> None:
        """Fetch the older history that ``standing`` found missing."""
        for path, older in self._older.items():
            with self._lock:
                if older.wanted is None or older.fetching:
                    continue
                since, until = older.wanted, max(history.start for history in self._histories[path])
                older.wanted, older.fetching = None, since < until
            if since < until:
                self._fetch_older(path, since, until)

    def begin(self, places: Mapping[Topic, int], *, several: bool) -> tuple[Interest, int, bytes]:
        """The starting point of a client that has seen these versions (all READY): what it follows, its place in the
        log, and what it has missed.
        """
        with self._lock:
            own = next((topic for topic in places if topic.owner), None)
            floors = tuple((topic, v) for topic, v in places.items() if v > self.history(topic).position)
            group = frozenset(topic for topic in places if topic != own)
            if len(self._groups) > MOST_GROUPS:
                self._groups.clear()
            # one object for equal sets: they are compared for each message and client
            interest = Interest(self._groups.setdefault(group, group), own, several, floors)
            missed = [self._missed(topic, version, several=several) for topic, version in places.items()]
            return interest, self.end, b"".join(missed)

    def _missed(self, topic: Topic, version: int, *, several: bool) -> bytes:
        history = self.history(topic)
        if version and version >= history.position:
            return b""

        def render() -> bytes:
            prefix = _prefix(topic, several=several)
            lacking = history.since(version, topic.owner) if version else history.additions(topic.owner)
            return b"".join(prefix + change.tail for change in lacking)

        return self._rendered_once(("missed", topic, version, several), render)

    def _rendered_once(self, key: Any, render: Callable[[], bytes]) -> bytes:
        once = self._once
        if once.at != self._changes:
            once.at, once.rendered, once.topics = self._changes, {}, {}
        found = once.rendered.get(key)
        if found is None:
            found = once.rendered[key] = render()
        return found

    @property
    def end(self) -> int:
        return self._base + len(self._log)

    def since(self, place: int, interest: Interest) -> bytes | None:
        """The changes that a client at ``place`` does not have; None if they are not known any more."""
        with self._lock:
            if place < self._base or self._has_gap(interest):
                return None
            once = self._once
            topics = once.topics.get(place) if once.at == self._changes else None
            if topics is None:
                topics = frozenset(entry.topic for entry in self._from(place))
            own = interest.own if interest.own in topics else None
            key = (place, interest.shared, own, interest.several, interest.floors)
            found = self._rendered_once(key, lambda: self._render(place, interest))
            once.topics[place] = topics
            return found

    def behind(self, place: int) -> int:
        """How many bytes of the log follow a place."""
        with self._lock:
            if not self._log or place >= self.end:
                return 0
            before = self._log[place - self._base - 1].end if place > self._base else self._log[0].end
            return self._log[-1].end - before

    def _has_gap(self, interest: Interest) -> bool:
        """Whether a client that was ahead of this relay has seen changes from between two lists."""
        if not interest.floors:
            return False
        return any(low < floor < high for topic, floor in interest.floors for low, high in (self.history(topic).gap,))

    def bookmarks(self, interest: Interest, without: Collection[str] = ()) -> tuple[Interest, bytes | None]:
        """The positions of everything that a client follows, except the paths in ``without``, and its interests, minus
        the floors it has passed; None if it cannot continue.
        """
        with self._lock:
            if self._has_gap(interest):
                return interest, None
            floors = tuple((topic, v) for topic, v in interest.floors if v > self.history(topic).position)
            kept = interest if floors == interest.floors else replace(interest, floors=floors)
            ahead = frozenset(topic for topic, _ in floors)
            key = ("bookmarks", kept.shared, ahead, kept.several, *sorted(without))

            def render() -> bytes:
                chosen = sorted(topic for topic in kept.shared - ahead if topic.path not in without)
                return b"".join(self._bookmark(topic, several=kept.several) for topic in chosen)

            found = self._rendered_once(key, render)
            if kept.own is not None and kept.own not in ahead and kept.own.path not in without:
                found += self._bookmark(kept.own, several=kept.several)
            return kept, found

    def _bookmark(self, topic: Topic, *, several: bool) -> bytes:
        history = self.history(topic)
        return _prefix(topic, several=several) + history.bookmark() if history.position else b""

    def trim(self) -> None:
        """Forget what is too old."""
        with self._lock:
            now = time.monotonic()
            for histories in self._histories.values():
                for history in histories:
                    history.trim(now)
            size = self._log[-1].end - self._log[0].end if self._log else 0
            drop = 0
            for entry in self._log:
                left = size - (entry.end - self._log[0].end)
                if now - entry.change.at <= LOG_S and left <= LOG_BYTES:
                    break
                drop += 1
            del self._log[:drop]
            self._base += drop

    def sizes(self) -> dict[str, int]:
        """How many objects each collection has."""
        with self._lock:
            return {path: len(histories[0].objects) for path, histories in self._histories.items()}

    def _log_all(self, history: History, changes: list[ToldChange]) -> None:
        end = self._log[-1].end if self._log else 0
        path = history.served.path
        which = self._histories[path].index(history)
        for change in changes:
            if which == _OWN and not change.owner:
                continue
            end += len(change.tail)
            self._log.append(_LogEntry(Topic(path, change.owner, which == _HOLDERS), change, end))

    def _from(self, place: int) -> Iterable[_LogEntry]:
        return islice(self._log, place - self._base, None)

    def _render(self, place: int, interest: Interest) -> bytes:
        self.numbers.rendered += 1
        topics, floors = interest.topics, dict(interest.floors)
        return b"".join(
            _prefix(entry.topic, several=interest.several) + entry.change.tail
            for entry in self._from(place)
            if entry.topic in topics and entry.change.version > floors.get(entry.topic, 0)
        )


class Listed:
    """A list that is being read: each object is reduced at once, and not kept."""

    def __init__(self, cache: WatchCache, path: str, histories: Sequence[History]) -> None:
        self._cache = cache
        self._path = path
        self._histories = histories
        self._found: list[dict[str, HeldObject]] = [{} for _ in histories]

    def receive(self, obj: Mapping[str, Any]) -> None:
        for history, into in zip(self._histories, self._found, strict=True):
            if (found := history.hold(obj)) is not None:
                into[found[0]] = found[1]

    def finish(self, version: int) -> None:
        self._cache.replace(self._path, self._found, version)


def _prefix(topic: Topic, *, several: bool) -> bytes:
    return f'{{"path":"{topic.name}",'.encode() if several else b"{"


def _histories(path: str) -> tuple[History, ...]:
    served = SERVED[path]
    if path in BLOCK_PATHS:
        return (
            History(served, reduce_block),
            History(served, reduce_own_block, affinity_of),
            History(served, reduce_held_block),
        )
    return (History(served, reduction_of(path)),)
