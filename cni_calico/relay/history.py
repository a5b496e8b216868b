"""PURE: one collection as a relay knows it: the reduced objects, and the changes that led to them. Rule: a client that
has the collection's state at any resourceVersion from ``start`` on, and gets every change with a higher one, has the
present state. An event counts as a change only if the reduced object differs; ``position`` advances with every event
nevertheless. A change is serialised once for all clients.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cni_calico.datastore.kubernetes.relayed.served import Served, order_of_version
from cni_calico.relay.reduction import Reduce

KEEP_S = 300.0
KEEP_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ToldChange:
    """``tail``: the event's JSON without its opening brace, and a line break. ``owner`` selects blocks; with ``others``
    the change is for clients that have selected any other owner.
    """

    version: int
    tail: bytes
    at: float
    owner: str = ""
    others: bool = False


@dataclass(frozen=True, slots=True)
class HeldObject:
    """A reduced object; ``body`` is its JSON after the resourceVersion."""

    version: int
    body: bytes
    owner: str = ""


def serialise(reduced: Mapping[str, Any]) -> bytes:
    """An object's JSON after ``"metadata":{"resourceVersion":"N"``."""
    metadata = {name: value for name, value in reduced["metadata"].items() if name != "resourceVersion"}
    rest = {name: value for name, value in reduced.items() if name != "metadata"}
    inner = json.dumps(metadata, separators=(",", ":"), sort_keys=True)[1:]
    outer = json.dumps(rest, separators=(",", ":"), sort_keys=True)[1:]
    return f"{',' if inner != '}' else ''}{inner}{',' if outer != '}' else ''}{outer}".encode()


class History:
    """``owner_of``: the value by which an object can be selected ("": by none)."""

    def __init__(self, served: Served, reduce: Reduce, owner_of: Any = None) -> None:
        self.served = served
        self.objects: dict[str, HeldObject] = {}
        self.changes: list[ToldChange] = []
        self.bytes = 0
        self.position = 0
        self.start = 0
        self.gap = (0, 0)  # between the last two lists
        self.synced = False
        self.missing = False  # the cluster does not know the type
        self._reduce = reduce
        self._owner_of = owner_of
        self._type = f'"kind":"{served.kind}","apiVersion":"{served.api_version}",'.encode()

    # -- reading ------------------------------------------------------------------------------------------------------

    def since(self, version: int, owner: str = "") -> Iterator[ToldChange]:
        """The changes after ``version``, which must not be before ``start``."""
        for change in self.changes[bisect_right(self.changes, version, key=lambda change: change.version) :]:
            if (change.owner == owner) != change.others:
                yield change

    def items(self, owner: str = "") -> Iterator[bytes]:
        """The objects as items of a list."""
        kind = self._type if self.served.is_custom else b""
        # objects are replaced, never changed: the copy keeps the present state
        chosen = [held for held in self.objects.values() if not owner or held.owner == owner]
        return (b'{%s"metadata":{"resourceVersion":"%d"%s' % (kind, held.version, held.body) for held in chosen)

    def additions(self, owner: str = "") -> Iterator[ToldChange]:
        """The objects as events, in the order of their versions."""
        chosen = [held for held in self.objects.values() if not owner or held.owner == owner]
        for held in sorted(chosen, key=lambda held: held.version):
            yield self._change("ADDED", held.version, held.body, 0.0, owner)

    def bookmark(self) -> bytes:
        return self._tail("BOOKMARK", self.position, b"}}")

    # -- changing -----------------------------------------------------------------------------------------------------

    def hold(self, obj: Mapping[str, Any]) -> tuple[str, HeldObject] | None:
        """An object's name and reduced form; None for one that is not relayed."""
        reduced = self._reduce(obj)
        if reduced is None:
            return None
        metadata = obj["metadata"]
        owner = self._owner_of(obj) if self._owner_of is not None else ""
        held = HeldObject(order_of_version(metadata.get("resourceVersion")), serialise(reduced), owner)
        return f"{metadata.get('namespace') or ''}/{metadata.get('name')}", held

    def replace(self, listed: Mapping[str, HeldObject], version: int, now: float) -> list[ToldChange]:
        """Take a list: the history starts again with it. Returns the changes for clients that have been sent
        everything so far. The changes before the list are unknown here: a client that has seen some of them must get
        the rest from the API server.
        """
        changes: list[ToldChange] = []
        self.gap = (self.position, version) if self.synced else (0, 0)
        if self.synced:
            for name, held in self.objects.items():
                if name not in listed:
                    changes += self._removed(held, version, now)
            for name, held in listed.items():
                changes += self._differences(self.objects.get(name), held, now)
            changes.sort(key=lambda change: change.version)
        self.changes, self.bytes, self.start = [], 0, version
        self.objects = dict(listed)
        self.position, self.synced, self.missing = version, True, False
        return changes

    def apply(self, kind: str, obj: Mapping[str, Any], now: float) -> list[ToldChange]:
        """Take an event ADDED, MODIFIED, DELETED or BOOKMARK; returns the changes to send because of it."""
        version = order_of_version((obj.get("metadata") or {}).get("resourceVersion"))
        if version <= self.position and kind != "BOOKMARK":
            return []  # seen before
        self.position = max(self.position, version)
        if kind == "BOOKMARK":
            return []
        metadata = obj["metadata"]
        name = f"{metadata.get('namespace') or ''}/{metadata.get('name')}"
        before = self.objects.get(name)
        found = None if kind == "DELETED" else self.hold(obj)
        if found is None:
            if before is None:
                return []
            del self.objects[name]
            return self._keep(self._removed(before, version, now))
        self.objects[name] = found[1]
        return self._keep(self._differences(before, found[1], now))

    def continue_backwards(self, since: int, events: Iterable[tuple[str, Mapping[str, Any]]], now: float) -> None:
        """Put the events after ``since`` and up to ``start`` before the history. An object's state before its first
        event is not known: it may have had another owner, who then lost it.
        """
        earlier: list[ToldChange] = []
        for kind, obj in events:
            found = self.hold(obj)
            version = order_of_version((obj.get("metadata") or {}).get("resourceVersion"))
            if found is not None and since < version <= self.start:
                told, held = "DELETED" if kind == "DELETED" else "MODIFIED", found[1]
                earlier.append(self._change(told, version, held.body, now, held.owner))
                if self._owner_of is not None:
                    lost = self._change("DELETED", version, held.body, now, held.owner)
                    earlier.append(replace(lost, others=True))
        self.changes[:0] = earlier
        self.bytes += sum(len(change.tail) for change in earlier)
        self.start = since

    def trim(self, now: float) -> None:
        """Forget changes that are older than KEEP_S, and the oldest above KEEP_BYTES."""
        drop = 0
        for change in self.changes:
            if now - change.at <= KEEP_S and self.bytes <= KEEP_BYTES:
                break
            self.bytes -= len(change.tail)
            drop += 1
        if drop:
            self.start = max(self.start, self.changes[drop - 1].version)
            del self.changes[:drop]

    def _keep(self, changes: list[ToldChange]) -> list[ToldChange]:
        self.changes += changes
        self.bytes += sum(len(change.tail) for change in changes)
        return changes

    def _differences(self, before: HeldObject | None, after: HeldObject, now: float) -> list[ToldChange]:
        if before is None:
            return [self._change("ADDED", after.version, after.body, now, after.owner)]
        if before.owner != after.owner:
            gone = self._removed(before, after.version, now)
            return [*gone, self._change("ADDED", after.version, after.body, now, after.owner)]
        if before.body == after.body:
            return []
        return [self._change("MODIFIED", after.version, after.body, now, after.owner)]

    def _removed(self, held: HeldObject, version: int, now: float) -> list[ToldChange]:
        return [self._change("DELETED", version, held.body, now, held.owner)]

    def _change(self, kind: str, version: int, body: bytes, now: float, owner: str) -> ToldChange:
        return ToldChange(version, self._tail(kind, version, body), now, owner)

    def _tail(self, kind: str, version: int, body: bytes) -> bytes:
        head = b'"type":"%s","object":{%s"metadata":{"resourceVersion":"%d"' % (kind.encode(), self._type, version)
        return head + body + b"}\n"
