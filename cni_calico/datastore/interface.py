"""The datastore door: what every backend offers, and the values that pass through it.

Rule: records cross this door as ``Key`` and JSON document (a dict in etcd's form, whatever the backend); a backend
translates its client's errors into cni_calico.errors and never lets them through. Every backend passes
tests/contract/. Backends declare fault points ``<backend>.<operation>``.

Documents are not to be changed in place by anybody: ``copy`` first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, DatastoreError
from cni_calico.model.keys import Key, ListKey

if TYPE_CHECKING:
    Fields = dict[str, Any]
else:
    Fields = dict

Document = Mapping[str, Any]
Revision = int | str  # opaque: etcd's and the embedded store's are numbers, Kubernetes' are texts


class PodDocument(Fields):
    """An endpoint's document that remembers the pod it was read from: who reads both asks the server once."""

    __slots__ = ("pod",)

    def __init__(self, document: Document, pod: Document) -> None:
        super().__init__(document)
        self.pod = pod


def pod_of(found: Versioned | None) -> Document | None:
    """The pod that an endpoint was read from, where the datastore is Kubernetes."""
    return found.value.pod if found is not None and isinstance(found.value, PodDocument) else None


@dataclass(frozen=True, slots=True)
class Versioned:
    """A record as it was stored at ``revision`` (its own modification revision)."""

    key: Key
    value: Document
    revision: Revision
    uid: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """A consistent list; ``revision`` is the store's, from which a watch misses nothing.

    ``unreadable``: (key, why) of the records left out because they are no JSON objects, from backends that can tell.
    """

    items: Sequence[Versioned]
    revision: Revision
    unreadable: Sequence[tuple[Key, str]] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """How a list is read. ``each`` is given every record as soon as it was read, and what it returns is listed in its
    place: whoever needs a part of the records need not hold all of them at once. It may be given records of a list that
    fails later. ``cached``: a copy that the server keeps may answer; it may be older than what this client has seen.
    """

    each: Callable[[Versioned], Versioned] | None = None
    cached: bool = False

    def take(self, versioned: Versioned) -> Versioned:
        return versioned if self.each is None else self.each(versioned)


WHOLE = Reading()


@dataclass(frozen=True, slots=True)
class Write:
    """One member of a commit. ``op`` is "create" (must be absent), "update" (must be at ``revision``), "put" (whatever
    is there), "delete" (must be at ``revision``), "remove" (whatever is there, absent is fine) or "expect" (must be at
    ``revision``; None: must be absent; nothing is written). ``was``: what a "delete" deletes, where it is known.
    """

    op: str
    key: Key
    value: Document | None = None
    revision: Revision | None = None
    uid: str = ""
    was: Document | None = field(default=None, compare=False, repr=False)

    @classmethod
    def create(cls, key: Key, value: Document) -> Write:
        return cls("create", key, value)

    @classmethod
    def update(cls, old: Versioned, value: Document) -> Write:
        return cls("update", old.key, value, old.revision, old.uid)

    @classmethod
    def put(cls, key: Key, value: Document) -> Write:
        return cls("put", key, value)

    @classmethod
    def delete(cls, old: Versioned) -> Write:
        return cls("delete", old.key, None, old.revision, old.uid, old.value)

    @classmethod
    def remove(cls, key: Key) -> Write:
        return cls("remove", key)

    @classmethod
    def expect(cls, old: Versioned) -> Write:
        return cls("expect", old.key, None, old.revision, old.uid)

    @classmethod
    def expect_absent(cls, key: Key) -> Write:
        return cls("expect", key)


@dataclass(frozen=True, slots=True)
class Committed:
    """``stored`` has the new Versioned of every create, update and put, in the order of the writes."""

    revision: Revision
    stored: Sequence[Versioned] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """A member whose comparison did not hold, and what is stored instead (None: nothing)."""

    index: int
    key: Key
    current: Versioned | None


class CommitConflict(DatastoreError):
    """At least one comparison did not hold; nothing was written. ``failed`` names every such member."""

    code = 11

    def __init__(self, failed: Sequence[Failed]) -> None:
        super().__init__("cannot write " + ", ".join(str(f.key) for f in failed) + ": changed by somebody else")
        self.failed = tuple(failed)


@dataclass(frozen=True, slots=True)
class Event:
    """A change: ``value`` is None for a deletion. ``key`` and ``revision`` are always set."""

    key: Key
    value: Document | None
    revision: Revision
    uid: str = ""


class Watch(Protocol):
    """An open watch; a context manager. Thread: one reader; ``cancel`` from any thread wakes it."""

    def next(self, timeout_s: float) -> Sequence[Event]:
        """Changes in order, all members of one commit in one batch; () after ``timeout_s`` without any.

        Raises Compacted (list again), DatastoreUnavailable (open again), Cancelled is an empty answer with
        ``cancelled`` set.
        """

    @property
    def cancelled(self) -> bool: ...

    def cancel(self) -> None: ...

    def __enter__(self) -> Watch: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Datastore(Protocol):
    """A backend. Safe to use from several threads.

    ``kind`` is the ``datastore_type`` that opens it. ``max_commit`` is how many members one commit may have: 1 where
    there are no transactions (Kubernetes). ``identity`` names the store for logs and cache keys, without secrets.
    ``corrupt(key, why)`` is a hook, told of records that lists and watches leave out. ``round_trips`` counts what it
    asked for.
    """

    max_commit: int
    corrupt: Callable[[Key, str], None]

    @property
    def kind(self) -> str: ...

    @property
    def identity(self) -> str: ...

    @property
    def round_trips(self) -> RoundTrips: ...

    def get(self, key: Key, deadline: Deadline) -> Versioned | None:
        """The record, or None. Raises DatastoreUnavailable, DatastoreDenied, CorruptRecord, DeadlineExceeded."""

    def get_many(self, keys: Sequence[Key], deadline: Deadline) -> Sequence[Versioned | None]:
        """The records in the order of the keys, read in one round trip where the backend can."""

    def list(
        self, listing: ListKey, deadline: Deadline, *, revision: Revision | None = None, reading: Reading = WHOLE
    ) -> Listing:
        """All records of a listing in key order; as they were at ``revision`` when given (raises Compacted).
        ``reading`` says how; an exact list of whole records otherwise.

        A record that is no JSON object is left out of ``items`` and raised only by ``get`` (CorruptRecord); it must
        not take the whole listing down. Backends report it in ``corrupt``.
        """

    def commit(self, writes: Sequence[Write], deadline: Deadline) -> Committed:
        """All writes or none. Raises CommitConflict, OutcomeUnknown, DatastoreUnavailable, ValueError for an empty or
        too long commit or a key that occurs twice.
        """

    @property
    def commit_each(self) -> CommitEach | None:
        """Commits each write by itself, several at a time; None where a commit has room for many."""

    def watch(self, listing: ListKey, revision: Revision) -> Watch:
        """Changes after ``revision``."""

    def close(self) -> None: ...


CommitEach = Callable[[Sequence[Write], Deadline], Sequence["Committed | CalicoError"]]


@dataclass(slots=True)
class RoundTrips:
    """Counts what a backend asked of its store; the server exports them, tests compare them with the budget."""

    reads: int = 0
    writes: int = 0
    errors: int = 0
    by_operation: dict[str, int] = field(default_factory=dict)

    def count(self, operation: str, *, write: bool = False) -> None:
        if write:
            self.writes += 1
        else:
            self.reads += 1
        self.by_operation[operation] = self.by_operation.get(operation, 0) + 1
