"""The one connection to a relay over which this process follows all collections, and the decision when to use the API
server instead.

Rule: whatever happens, a follower resumes at the resourceVersion that it has seen, at the same relay, another one, or
the API server; it lists again only if neither of them has the changes since then. Without any relay for DIRECT_AFTER_S
the link waits a random time, longer in a larger cluster; then its followers use the API server until a relay answers
again. A relay that reports that it is cut off from the API server is left only for a relay that is ready or, after the
same time, for the API server if that answers: if the API server is down for everybody, the agents stay at their relays.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from cni_calico.backoff import Backoff
from cni_calico.datastore.http import Connection, Lost
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.heads import UNREAD, LineParts, read_head
from cni_calico.datastore.kubernetes.layout import quote
from cni_calico.datastore.kubernetes.relayed.served import CUT_OFF_PATH, READY_PATH, WATCH_PATH
from cni_calico.datastore.kubernetes.relayed.targets import RelayTargets
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, Compacted, DatastoreUnavailable

DIRECT_AFTER_S = 10.0
NODES_A_SECOND = 50.0
SILENCE_S = 35.0  # a relay sends bookmarks every 10 s
OPEN_S = 25.0  # a relay that has just started may have to ask the API server what happened before
PROBE_S = 30.0
LOOK_S = 3.0  # between searches for something better than a relay that is cut off
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
SETTLE_S = 0.2  # several followers begin together
BACKLOG_BYTES = 16 * 1024 * 1024
UPSTREAM = "if this is upstream's Typha: it speaks another protocol; set FELIX_TYPHAK8SSERVICENAME to none"


class Followed:
    """The events for one follower, which reads them as from a connection."""

    def __init__(self, link: RelayLink, name: str, position: str, unread_from: int | None = None) -> None:
        self.name = name
        self.unread_from = unread_from
        self.position = position
        self.ended = ""  # "expired", "direct", "closed"; "": it goes on
        self.bytes = 0
        self.queue: deque[tuple[Mapping[str, Any], int]] = deque()
        self._link = link
        self._guard = threading.Lock()  # nobody may write to a descriptor that has been closed
        self._ready = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._ready

    def buffered(self) -> bool:
        return bool(self.queue or self.ended)

    def put(self, event: Mapping[str, Any], size: int) -> None:
        version = str(event["object"].get("metadata", {}).get("resourceVersion") or "")
        if version:
            self.position = version
        self.queue.append((event, size))
        self.bytes += size
        self._wake()

    def take(self) -> list[Mapping[str, Any]]:
        """Everything that has arrived since the last call."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._ready)
        found = []
        while self.queue:
            event, size = self.queue.popleft()
            self.bytes -= size
            found.append(event)
        self._link.taken()
        return found

    def end(self, why: str) -> None:
        self.ended = why
        self._wake()

    def _wake(self) -> None:
        with self._guard:
            if self._ready >= 0:
                os.eventfd_write(self._ready, 1)

    def close(self) -> None:
        self._link.forget(self)
        with self._guard:
            ready, self._ready = self._ready, -1
            if ready >= 0:
                os.close(ready)


class RelayLink:
    """``tell(why)`` is called with what is wrong now, "" if nothing is. ``nodes()`` returns how many nodes the cluster
    has, as far as known.
    """

    def __init__(
        self,
        targets: RelayTargets,
        tell: Callable[[str], None],
        nodes: Callable[[], int],
        *,
        direct_after_s: float = DIRECT_AFTER_S,
        probe_s: float = PROBE_S,
    ) -> None:
        self.direct = False
        self.connections = 0  # watches opened so far
        self.used = ""  # the relay's address while it is connected
        self._targets = targets
        self._tell = tell
        self._nodes = nodes
        self._direct_after_s = direct_after_s
        self._probe_s = probe_s
        self._guard = threading.Condition(threading.RLock())
        self._followed: dict[str, Followed] = {}
        self._used_directly: WeakSet[Connection] = WeakSet()
        self._stale = False  # a collection is followed that the connection does not include
        self._connection: Connection | None = None
        self._stopped = threading.Event()
        self._good_at = time.monotonic()
        self._wait_s: float | None = None
        self._cut_off: str | None = None  # what the relay last reported about itself
        self._better_since = 0.0  # since when the API server has answered while the relay is cut off; 0: it has not
        self._thread = threading.Thread(target=self._run, name="relay-link", daemon=True)
        self._thread.start()

    # -- for followers ------------------------------------------------------------------------------------------------

    def follow(self, name: str, position: str, unread_from: int | None = None) -> Followed:
        """The events of a topic after ``position``, from whichever relay there is. ``unread_from``: as for Stream."""
        found = Followed(self, name, position, unread_from)
        with self._guard:
            self._followed[name] = found
            self._stale = True
            if self.direct or self._stopped.is_set():
                found.end("direct")
            self._guard.notify_all()
        self._interrupt()
        return found

    def forget(self, followed: Followed) -> None:
        with self._guard:
            if self._followed.get(followed.name) is followed:
                del self._followed[followed.name]

    def taken(self) -> None:
        with self._guard:
            self._guard.notify_all()

    def note_direct(self, connection: Connection) -> None:
        """A follower uses the API server itself; it is interrupted when a relay answers again."""
        with self._guard:
            self._used_directly.add(connection)
            if not self.direct:
                connection.interrupt()

    def list_target(self, deadline: Deadline) -> tuple[str, KubernetesAPI] | None:
        """The relay to list from now; None: the API server. Raises DatastoreError, DeadlineExceeded."""
        return None if self.direct or self._stopped.is_set() else self._targets.next(deadline)

    def failed(self, shown: str, error: CalicoError) -> None:
        """Note that a list from this relay has failed."""
        if shown:
            self._targets.failed(shown)
        self._note_failure(error)

    def worked(self) -> None:
        self._note_success()

    def stop(self) -> None:
        self._stopped.set()
        with self._guard:
            self._guard.notify_all()
            for followed in self._followed.values():
                followed.end("closed")
        self._interrupt()
        self._thread.join(5.0)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        backoff, pause_s = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S), 0.0
        while not self._stopped.wait(pause_s * random.SystemRandom().uniform(0.5, 1.5)):  # not all nodes at once
            with self._guard:
                wanted = self._guard.wait_for(lambda: self._stopped.is_set() or self._followed or self.direct, 1.0)
            if self._stopped.is_set() or not wanted:
                continue
            if self.direct:
                backoff.reset()
                pause_s = 0.0 if self._probe() else self._probe_s
                continue
            shown = ""
            try:
                shown, api = self._targets.next(Deadline.after(OPEN_S))
                try:
                    began = time.monotonic()
                    self._follow(shown, api)
                    backoff.reset()
                    pause_s = 0.0 if time.monotonic() - began > 1 or self._stale else backoff.next()
                finally:
                    api.close()
            except CalicoError as e:
                if shown:
                    self._targets.failed(shown)
                pause_s = backoff.next()
                self._note_failure(e)

    def _note_success(self) -> None:
        self._good_at, self._wait_s, self._better_since = time.monotonic(), None, 0.0
        self._tell("")

    def _note_failure(self, error: CalicoError) -> None:
        """Decide whether it is time to do without relays."""
        with self._guard:
            lasts_s = time.monotonic() - self._good_at
            text = f"no relay: {error}"
            if lasts_s < self._direct_after_s:
                if lasts_s > 1:
                    self._tell(f"{text} ({UPSTREAM})")
                return
            if lasts_s < self._patience_s():
                self._tell(f"{text}; the view of the cluster is as it was {lasts_s:.0f} s ago")
                return
            self._go_direct(f"{text}; following the API server itself ({UPSTREAM})")

    def _patience_s(self) -> float:
        """How long to wait for a relay: a random time, chosen once, so that the nodes of a cluster do not turn to the
        API server all at once.
        """
        if self._wait_s is None:
            self._wait_s = random.SystemRandom().uniform(0, self._nodes() / NODES_A_SECOND)
        return self._direct_after_s + self._wait_s

    def _go_direct(self, why: str) -> None:
        with self._guard:
            self._tell(why)
            self._wait_s = None
            self.direct = True
            for followed in self._followed.values():
                followed.end("direct")

    def _leaves(self, shown: str, why: str) -> bool:
        """Whether to leave a relay that is cut off from the API server, because there is something better."""
        if not why:
            self._note_success()
            return False
        text = f"relay {shown} is {why}"
        self._targets.failed(shown)
        if self._is_relay_ready(but=shown):
            return True
        if not self._targets.is_direct_ready(Deadline.after(LOOK_S)):
            self._better_since = 0.0
            self._tell(f"{text}; neither another relay nor the API server is ready: the view stays as it is")
            return False
        self._better_since = self._better_since or time.monotonic()
        if time.monotonic() - self._better_since < self._patience_s():
            self._tell(f"{text}; the API server itself will be followed if it goes on answering")
            return False
        self._go_direct(f"{text}; following the API server itself")
        return True

    def _is_relay_ready(self, *, but: str = "") -> bool:
        """Whether the relay that would be used next answers, and is not ``but``."""
        shown = ""
        try:
            shown, api = self._targets.next(Deadline.after(OPEN_S))
            try:
                if shown != but:
                    api.text(READY_PATH, Deadline.after(OPEN_S), f"ask relay {shown}")
            finally:
                api.close()
        except CalicoError:
            if shown:
                self._targets.failed(shown)
            return False
        return shown != but

    def _probe(self) -> bool:
        """Whether a relay answers again."""
        if not self._is_relay_ready():
            return False
        self._note_success()
        with self._guard:
            self.direct = False
            for connection in self._used_directly:
                connection.interrupt()
        return True

    def _follow(self, shown: str, api: KubernetesAPI) -> None:
        """Follow everything over one connection until it ends. Raises DatastoreError, DeadlineExceeded."""
        with self._guard:
            self._guard.wait_for(self._stopped.is_set, SETTLE_S)
            wanted = {name: followed for name, followed in self._followed.items() if not followed.ended}
            self._stale = False
        if not wanted:
            return
        places = "&".join(f"from={quote(f'{name}@{each.position}')}" for name, each in wanted.items())
        doing = f"watch through relay {shown}"
        try:
            connection = api.stream(f"{WATCH_PATH}?{places}", Deadline.after(OPEN_S), doing)
        except CalicoError as e:
            if not self._end_expired(e, wanted):
                raise
            return
        self.connections += 1
        with self._guard:
            self._connection, self.used = connection, shown
            interrupted = self._stale
        self._note_success()
        try:
            if not interrupted:
                self._read(connection, wanted, shown)
        except Lost as e:
            if not self._stale and not self._stopped.is_set():
                self._targets.failed(shown)
                raise DatastoreUnavailable(f"cannot {doing}: {e}") from e
        finally:
            with self._guard:
                self._connection, self.used = None, ""
            connection.close()

    def _end_expired(self, error: CalicoError, wanted: Mapping[str, Followed]) -> bool:
        """Tell the followers whose position is too old that they must list again; returns whether there are any."""
        if not isinstance(error, Compacted):
            return False
        gone = (error.details or "").split("\n")
        for each in [wanted[name] for name in gone if name in wanted] or wanted.values():
            each.end("expired")
        return True

    def _read(self, connection: Connection, wanted: Mapping[str, Followed], shown: str) -> None:
        """Read events until another source is to be used. Raises Lost."""
        rest = LineParts()
        for piece in connection.chunks(lambda: Deadline.after(SILENCE_S), None):
            self._good_at = time.monotonic()
            for line in filter(None, rest.split(piece)):
                self._put(line, wanted, f"watch through relay {shown}")
            why, self._cut_off = self._cut_off, None
            if why is not None and self._leaves(shown, why):
                return
            self._wait_for_followers(wanted)
            if self._stale or self._stopped.is_set():
                return

    def _put(self, line: bytes, wanted: Mapping[str, Followed], doing: str) -> None:
        try:
            event = _read_event(line, wanted)
            if event["path"] == CUT_OFF_PATH:
                self._cut_off = str(event["object"]["message"])
                return
            followed = wanted.get(event["path"])
            if followed is not None and not followed.ended and isinstance(event["object"], dict):
                followed.put(event, len(line))
        except (ValueError, KeyError, TypeError, RecursionError) as e:
            raise Lost(f"cannot {doing}: an event cannot be read") from e

    def _wait_for_followers(self, wanted: Mapping[str, Followed]) -> None:
        """Wait until the followers have taken their events: those that are not read yet stay at the relay, not here."""
        with self._guard:
            self._guard.wait_for(
                lambda: self._stopped.is_set() or sum(each.bytes for each in wanted.values()) < BACKLOG_BYTES
            )

    def _interrupt(self) -> None:
        """Have the connection opened again, for everything that is followed now."""
        with self._guard:
            connection = self._connection
        if connection is not None:
            connection.interrupt()


def _read_event(line: bytes, wanted: Mapping[str, Followed]) -> Mapping[str, Any]:
    """No more than its head, if that is enough for who follows it. Raises ValueError, RecursionError."""
    limits = [each.unread_from for each in wanted.values() if each.unread_from is not None]
    if limits and len(line) >= min(limits) and (head := read_head(line)) is not None:
        followed = wanted.get(str(head.get("path")))
        if followed is not None and followed.unread_from is not None and len(line) >= followed.unread_from:
            return {**head, UNREAD: line}
    event: Mapping[str, Any] = json.loads(line)
    return event
