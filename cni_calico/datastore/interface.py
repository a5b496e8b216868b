"""PURE: the interface of every datastore backend, and the values that pass through it. Rule: records pass through this
interface as ``Key`` and JSON document (a dict in etcd's form, whatever the backend); a backend translates its client's
errors into cni_calico.errors and never lets them through. Every backend passes tests/contract/. Backends declare fault
points ``<backend>.<operation>``.

Never change a document in place: ``copy`` it first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, DatastoreError
from cni_calico.model.keys import Key, ListKey

Document = Mapping[str, Any]
Revision = int | str  # opaque: numbers on etcd and the embedded store, texts on Kubernetes


class PodDocument(dict[str, Any]):
    """An endpoint's document that keeps the pod it was read from, so that a caller needing both asks the
    server once.
    """

    __slots__ = ("pod",)

    def __init__(self, document: Document, pod: Document) -> None:
        super().__init__(document)
        self.pod = pod


def pod_of(found: Versioned | None) -> Document | None:
    """The pod that an endpoint was read from, if the datastore is Kubernetes."""
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
    """A consistent list; a watch from ``revision`` (the store's) misses no change.

    ``unreadable``: (key, why) of the records left out because they are not JSON objects, on backends that report them.
    """

    items: Sequence[Versioned]
    revision: Revision
    unreadable: Sequence[tuple[Key, str]] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """How a list is read.

    ``each`` is called with every record as soon as it is read, and what it returns is listed instead: a caller that
    needs a part of each record need not hold all of them at once. It may get records of a list that fails later.
    ``cached``: the server may answer from its cache, which may be older than what this client has seen. ``ordered``
    False: the order does not matter; to sort a hundred thousand records takes the memory of their keys as texts.
    """

    each: Callable[[Versioned], Versioned] | None = None
    cached: bool = False
    ordered: bool = True

    def receive(self, versioned: Versioned) -> Versioned:
        return versioned if self.each is None else self.each(versioned)


WHOLE = Reading()


@dataclass(frozen=True, slots=True)
class Write:
    """One member of a commit. ``op`` is one of:

    - "create": must be absent;
    - "update": must be at ``revision``;
    - "put": replaces whatever is there;
    - "delete": must be at ``revision``;
    - "remove": whatever is there, absent is fine;
    - "expect": must be at ``revision`` (None: absent); nothing is written.

    ``was``: the document that a "delete" deletes, if known.
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
    """A member whose comparison failed, and what is stored instead (None: nothing)."""

    index: int
    key: Key
    current: Versioned | None


class CommitConflict(DatastoreError):
    """At least one comparison failed; nothing was written. ``failed`` names every such member."""

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
        """Changes in order, all members of one commit in one batch; () after ``timeout_s`` without any, and after
        ``cancel`` (then ``cancelled`` is set). Raises Compacted (list again), DatastoreUnavailable (open again).
        """

    @property
    def cancelled(self) -> bool: ...

    def cancel(self) -> None: ...

    def __enter__(self) -> Watch: ...

    def __exit__(self, *_: object) -> None: ...


class Datastore(Protocol):
    """A backend. Safe to use from several threads.

    ``kind`` is the ``datastore_type`` that opens it. ``max_commit`` is the maximum number of members of a commit: 1 on
    a store without transactions (Kubernetes). ``identity`` names the store for logs and cache keys, without secrets.
    ``corrupt(key, why)`` is a hook that is called for records left out of lists and watches. ``round_trips`` counts its
    requests.
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
        """The records in the order of the keys, read in one round trip if the backend can."""

    def list(
        self, listing: ListKey, deadline: Deadline, *, revision: Revision | None = None, reading: Reading = WHOLE
    ) -> Listing:
        """All records of a listing in key order; as they were at ``revision`` if given (raises Compacted).

        ``reading`` says how to read; by default an exact list of whole records. A record that is not a JSON object is
        left out of ``items``, so that it does not make the whole listing fail; only ``get`` raises CorruptRecord for
        it. Backends report it with ``corrupt``.
        """

    def commit(self, writes: Sequence[Write], deadline: Deadline) -> Committed:
        """All writes or none.

        Raises CommitConflict, OutcomeUnknown, DatastoreUnavailable; ValueError for an empty or too long commit or a key
        that occurs twice.
        """

    @property
    def commit_each(self) -> CommitEach | None:
        """Commits each write separately, several at a time; None on a store whose commits have room for many."""

    def watch(self, listing: ListKey, revision: Revision, *, unread_from: int | None = None) -> Watch:
        """Changes after ``revision``. Documents whose text has ``unread_from`` bytes or more may come as
        UnreadDocument (unread.py); without it there are none.
        """

    def close(self) -> None: ...


def has_transactions(store: Datastore) -> bool:
    """Whether records can be written together: not in Kubernetes."""
    return store.max_commit > 1


CommitEach = Callable[[Sequence[Write], Deadline], Sequence[Committed | CalicoError]]


@dataclass(slots=True)
class RoundTrips:
    """Counts a backend's requests to its store; the server exports them, tests compare them with the budget."""

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
