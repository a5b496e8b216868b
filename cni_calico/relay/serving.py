"""What waiting requests and open watches get: a list, the changes since a place in the log, a bookmark, or a refusal.

Rule: nothing here touches a socket or waits for one. A request is answered when everything for it is there; until then
it waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from cni_calico.relay.admission import TokenReviews
from cni_calico.relay.client import Client
from cni_calico.relay.cut_off import CutOff
from cni_calico.relay.numbers import ServerNumbers
from cni_calico.relay.requests import (
    GZIP_HEAD,
    LIST_HEAD,
    STREAM_HEAD,
    AskedList,
    AskedReady,
    AskedWatch,
    RequestRefused,
    chunk,
    render_cut_off,
    render_text,
)
from cni_calico.relay.snapshots import RenderedLists
from cni_calico.relay.topics import Topic
from cni_calico.relay.watch_cache import EXPIRED, WAITING, WatchCache

BEHIND_LIST_S = 3.0  # how long a list waits for the version that it must have reached
BEHIND, CUT_OFF = "behind", "cut off"  # why a watch ends


@dataclass(frozen=True, slots=True)
class Offered:
    """What clients get, after which reviews, and whether the API server is heard of."""

    cache: WatchCache
    snapshots: RenderedLists
    reviews: TokenReviews
    cut_off: CutOff


class Serving:
    """``longest_s``: how long a watch may last. The caller sends what this returns, to clients that are admitted."""

    def __init__(self, offered: Offered, numbers: ServerNumbers, longest_s: float) -> None:
        self._cache = offered.cache
        self._snapshots = offered.snapshots
        self._cut_off = offered.cut_off
        self._numbers = numbers
        self._longest_s = longest_s

    @property
    def end(self) -> int:
        """The place in the log at which a watch has everything."""
        return self._cache.end

    # -- requests -----------------------------------------------------------------------------------------------------

    def answer(self, client: Client) -> tuple[bytes, ...] | None:
        """What is to be sent for the client's request: an answer, or the beginning of a watch, whose place in the log
        the client has then. None: something is not there yet. Raises RequestRefused.
        """
        if why := self._cut_off.why():
            raise RequestRefused(503, why)
        assert client.request is not None
        wanted = client.request.wanted
        self._require_followed(wanted)
        if isinstance(wanted, AskedList):
            return self._list(wanted, client.since)
        if isinstance(wanted, AskedWatch):
            return self._begin_watch(client, wanted)
        if not self._cache.synced:
            raise RequestRefused(503, f"not read yet: {', '.join(self._cache.unsynced())}")
        self._numbers.request("ready")
        return (render_text("ready\n"),)

    def _require_followed(self, wanted: AskedList | AskedWatch | AskedReady) -> None:
        topics: Iterable[Topic] = ()
        if isinstance(wanted, AskedList):
            topics = (wanted.topic,)
        elif isinstance(wanted, AskedWatch):
            topics = wanted.places
        for topic in topics:
            if topic.path not in self._cache.paths:
                raise RequestRefused(404, f"this relay follows the other API group of Calico's, not {topic.path}")

    def _list(self, wanted: AskedList, since: float) -> tuple[bytes, ...] | None:
        history = self._cache.history(wanted.topic)
        if history.missing:
            raise RequestRefused(404, f"the cluster does not know {wanted.topic.path}")
        if not history.synced:
            return None
        if wanted.at_least > history.position:
            if time.monotonic() - since < BEHIND_LIST_S:
                return None
            raise RequestRefused(504, f"Too large resource version: {wanted.at_least}, current: {history.position}")
        snapshot = self._snapshots.find(wanted)
        if snapshot is None:
            return None
        self._numbers.request("list")
        self._numbers.lists.observe(time.monotonic() - since)
        return (GZIP_HEAD if wanted.gzip else LIST_HEAD, *snapshot.pieces)

    def _begin_watch(self, client: Client, wanted: AskedWatch) -> tuple[bytes, ...] | None:
        standing = {topic: self._cache.standing(topic, version) for topic, version in wanted.places.items()}
        gone = tuple(topic.name for topic, state in standing.items() if state == EXPIRED)
        if gone:
            text = f"too old resource version: older changes are not kept any more of {', '.join(gone)}"
            raise RequestRefused(410, text, gone)
        if not wanted.several and any(self._cache.history(topic).missing for topic in wanted.places):
            raise RequestRefused(404, f"the cluster does not know {next(iter(wanted.places)).path}")
        if WAITING in standing.values():
            self._cache.ask_older()
            return None
        self._numbers.request("watch")
        client.interest, client.place, missed = self._cache.begin(wanted.places, several=wanted.several)
        longest_s = self._longest_s
        # so that not all end at the same moment
        lasts_s = min(wanted.timeout_s, longest_s) if wanted.timeout_s else longest_s * (0.5 + os.urandom(1)[0] / 512)
        client.ends_at, client.wants_bookmarks = time.monotonic() + lasts_s, wanted.bookmarks
        return (STREAM_HEAD, chunk(missed)) if missed else (STREAM_HEAD,)

    def ask_older(self) -> None:
        """Have the API server asked for the older changes that requests wait for."""
        self._cache.ask_older()

    # -- watches ------------------------------------------------------------------------------------------------------

    def changes(self, client: Client) -> bytes | None:
        """What a watch has not been sent yet; the client is at the end of the log then. None: that is not kept any
        more, and the watch has to end.
        """
        assert client.interest is not None
        if client.place >= (end := self._cache.end):
            return b""
        data = self._cache.since(client.place, client.interest)
        if data is not None:
            client.place = end
        return data

    def bookmarks(self, clients: Iterable[Client]) -> Iterator[tuple[Client, bytes, str]]:
        """Bookmarks for the watches that are up to date, which also show that the connection works; or why the watch
        has to end, "" if it does not.
        """
        without, why = self._cut_off.lasting(), self._cut_off.why()
        for client in clients:
            if client.sending or client.interest is None or client.place < self._cache.end:
                continue
            if why and not client.interest.several:  # it could not be sent
                yield client, b"", CUT_OFF
                continue
            client.interest, data = self._cache.bookmarks(client.interest, without)
            if data is None:
                yield client, b"", BEHIND
                continue
            if why or client.told_cut_off:
                data += render_cut_off(why)
                client.told_cut_off = bool(why)
            if data and client.wants_bookmarks:
                yield client, data, ""

    def behind(self, client: Client) -> int:
        """How many bytes it has not been sent, if it does not read what it was sent."""
        return self._cache.behind(client.place) if client.full_since else 0

    def trim(self) -> None:
        """Forget older history, and lists that nobody has asked for."""
        self._cache.trim()
        self._snapshots.trim()
