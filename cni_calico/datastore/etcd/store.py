"""The etcd v3 datastore: what upstream stores under /calico/, read linearizably and written in transactions.

Rule: a commit is one transaction that compares modification revisions; if it fails, its other branch returns what is
stored instead. A "put", which writes over any revision, costs a read, because a corrupt record must not be overwritten
unseen. A list is read in pages, all of them as of one revision; a record that cannot be read is left out of a list and
told to ``corrupt``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cni_calico import faults
from cni_calico.datastore.encoding import (
    WRITING,
    plan_commit,
    prefix_end,
    read_document,
    record_path,
)
from cni_calico.datastore.etcd.cluster import EtcdCluster
from cni_calico.datastore.etcd.config import EtcdConfig
from cni_calico.datastore.etcd.credentials import as_it_is
from cni_calico.datastore.etcd.messages import pb
from cni_calico.datastore.etcd.watch import EtcdWatch
from cni_calico.datastore.interface import (
    WHOLE,
    CommitConflict,
    Committed,
    Failed,
    Listing,
    Reading,
    Revision,
    RoundTrips,
    Versioned,
    Write,
)
from cni_calico.deadline import Deadline
from cni_calico.errors import Compacted, CorruptRecord, DatastoreForbidden, DatastoreUnavailable, LeaseLost
from cni_calico.model.keys import Key, ListKey, covers, etcd_prefix, parse_path

Indexes = list[int]
Guard = Callable[[], tuple[bytes, int]]

READ = faults.declare("etcd.read")
COMMIT = faults.declare("etcd.commit")

PAGE = 500  # records of a list in one answer
PAGE_S = 10.0  # for one member's answer to a page of a list
RELISTS = 3  # if a list was overtaken by compaction
MANY = 100  # reads in one transaction; etcd allows 128


def _ignore_corrupt(key: Key, why: str) -> None:
    pass


def _versioned(key: Key, stored: Any) -> Versioned:
    """Raises CorruptRecord."""
    return Versioned(key, read_document(key, stored.value), stored.mod_revision)


@contextmanager
def _reading(doing: str) -> Iterator[None]:
    try:
        faults.before(READ)
        yield
        faults.after(READ)
    except OSError as e:
        raise DatastoreUnavailable(f"cannot {doing}: {e}") from e


def _named(paths: Sequence[str]) -> str:
    return paths[0] + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


def _range(path: str) -> Any:
    return pb.RequestOp(request_range=pb.RangeRequest(key=path.encode()))


class EtcdStore:
    """A Datastore (see interface.py) on an etcd cluster. Connects at the first use. Revisions are integers.

    ``corrupt(key, why)`` is called for records left out of lists. Safe with threads; not to be used in a forked child,
    where it raises DatastoreUnavailable.
    """

    kind = "etcdv3"
    max_commit = 60
    commit_each = None

    def __init__(
        self,
        config: EtcdConfig,
        *,
        corrupt: Callable[[Key, str], None] = _ignore_corrupt,
        reach: Callable[[str], str] = as_it_is,
    ) -> None:
        self.corrupt = corrupt
        self._cluster = EtcdCluster(config, reach)
        self.identity = f"etcdv3:{self._cluster.name}"
        self._guard: Guard | None = None

    def guarded(self, guard: Guard) -> EtcdStore:
        """The same store on the same connections, with guarded commits.

        A commit fails with LeaseLost unless the key that ``guard()`` names was created at the revision it names.
        Closing is left to the original.
        """
        other = EtcdStore.__new__(EtcdStore)
        other._cluster, other.identity, other.corrupt = self._cluster, self.identity, self.corrupt
        other._guard = guard
        return other

    @property
    def cluster(self) -> EtcdCluster:
        """The cluster, for calls that do not concern records (leases)."""
        return self._cluster

    @property
    def round_trips(self) -> RoundTrips:
        return self._cluster.round_trips

    def get(self, key: Key, deadline: Deadline) -> Versioned | None:
        path = record_path(key)
        doing = f"read {path}"
        deadline.require(doing)
        with _reading(doing):
            answer = self._cluster.read("Range", pb.RangeRequest(key=path.encode()), doing, deadline)
        return _versioned(key, answer.kvs[0]) if answer.kvs else None

    def list(
        self, listing: ListKey, deadline: Deadline, *, revision: Revision | None = None, reading: Reading = WHOLE
    ) -> Listing:
        doing = f"list {etcd_prefix(listing)}"
        deadline.require(doing)
        if revision is not None and not isinstance(revision, int):
            raise Compacted(f"cannot {doing}: {revision!r} is no revision of etcd")
        for attempt in range(RELISTS):
            try:
                return self._read_pages(listing, doing, deadline, revision or 0, reading)
            except Compacted:
                if revision is not None or attempt == RELISTS - 1:
                    raise
        raise AssertionError("not reached")

    def _read_pages(self, listing: ListKey, doing: str, deadline: Deadline, revision: int, how: Reading) -> Listing:
        """All pages as of one revision, or the newest if ``revision`` is 0."""
        prefix = etcd_prefix(listing)
        start, end = prefix.encode(), prefix_end(prefix).encode()
        items: list[Versioned] = []
        unreadable: list[tuple[Key, str]] = []
        with _reading(doing):
            while True:
                request = pb.RangeRequest(key=start, range_end=end, limit=PAGE, revision=revision)
                page = self._cluster.read("Range", request, doing, deadline, attempt_s=PAGE_S)
                revision = revision or page.header.revision
                for stored in page.kvs:
                    key = parse_path(stored.key.decode(errors="replace"))
                    if key is not None and covers(listing, key):
                        try:
                            items.append(how.receive(_versioned(key, stored)))
                        except CorruptRecord as e:
                            unreadable.append((key, str(e)))
                            self.corrupt(key, str(e))
                if not page.more:
                    return Listing(items, revision, unreadable)
                start = page.kvs[-1].key + b"\0"

    def get_many(self, keys: Sequence[Key], deadline: Deadline) -> Sequence[Versioned | None]:
        found: list[Versioned | None] = []
        for start in range(0, len(keys), MANY):
            part = keys[start : start + MANY]
            paths = [record_path(key) for key in part]
            doing = f"read {_named(paths)}"
            deadline.require(doing)
            with _reading(doing):
                request = pb.TxnRequest(success=[_range(path) for path in paths])
                answer = self._cluster.read("Txn", request, doing, deadline)
            kvs = [response.response_range.kvs for response in answer.responses]
            found += [_versioned(key, kv[0]) if kv else None for key, kv in zip(part, kvs, strict=True)]
        return found

    def commit(self, writes: Sequence[Write], deadline: Deadline) -> Committed:
        paths, texts = plan_commit(writes, self.max_commit)
        doing = f"write {_named(paths)}"
        deadline.require(doing)
        puts = [i for i, write in enumerate(writes) if write.op == "put"]
        bases = {i: (v.revision if v else 0) for i, v in zip(puts, self._bases(writes, puts, deadline), strict=True)}
        while True:
            expected = [_expected_revision(write, bases.get(i)) for i, write in enumerate(writes)]
            request = _transaction(writes, paths, texts, expected)
            if self._guard is not None:
                key, created = self._guard()
                request.compare.add(result=pb.Compare.EQUAL, target=pb.Compare.CREATE, key=key, create_revision=created)
            try:
                answer = self._cluster.transact(request, doing, deadline, COMMIT)
            except DatastoreForbidden as e:
                e.details = f"etcd does not say which key: {', '.join(paths)}" if len(paths) > 1 else e.details
                raise
            if answer.succeeded:
                at = answer.header.revision
                return Committed(at, [Versioned(w.key, w.value, at) for w in writes if w.value is not None])
            failed = _failed_members(writes, expected, answer)
            conflicts = [f for f in failed if f.index not in bases]
            if conflicts:
                raise CommitConflict(conflicts)
            if not failed:
                raise LeaseLost(f"cannot {doing}: the lease that allows it is no longer ours")
            bases.update({f.index: f.current.revision if f.current else 0 for f in failed})
            deadline.require(doing)

    def _bases(self, writes: Sequence[Write], puts: Indexes, deadline: Deadline) -> Sequence[Versioned | None]:
        return self.get_many([writes[i].key for i in puts], deadline) if puts else ()

    def watch(self, listing: ListKey, revision: Revision, *, unread_from: int | None = None) -> EtcdWatch:
        from cni_calico.datastore.etcd.watch import EtcdWatch

        return EtcdWatch(self._cluster, listing, int(revision), self.corrupt, unread_from)

    def close(self) -> None:
        self._cluster.close()


def _expected_revision(write: Write, base: Revision | None) -> int | None:
    """The modification revision that a member compares with (0: absent); None if it does not compare."""
    if write.op == "remove":
        return None
    if base is not None:
        return int(base)
    return write.revision if isinstance(write.revision, int) else (0 if write.revision is None else -1)


def _transaction(
    writes: Sequence[Write], paths: Sequence[str], texts: Sequence[str | None], expected: Sequence[int | None]
) -> Any:
    request = pb.TxnRequest()
    for write, path, text, revision in zip(writes, paths, texts, expected, strict=True):
        key = path.encode()
        if revision is not None:
            request.compare.add(result=pb.Compare.EQUAL, target=pb.Compare.MOD, key=key, mod_revision=revision)
            request.failure.append(_range(path))
        if write.op in WRITING and text is not None:
            request.success.append(pb.RequestOp(request_put=pb.PutRequest(key=key, value=text.encode())))
        elif write.op in ("delete", "remove"):
            request.success.append(pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key)))
    return request


def _failed_members(writes: Sequence[Write], expected: Sequence[int | None], answer: Any) -> list[Failed]:
    """The members whose comparison fails against what the failure branch read. Raises CorruptRecord."""
    compared = [i for i, revision in enumerate(expected) if revision is not None]
    failed = []
    for i, response in zip(compared, answer.responses, strict=True):
        kvs = response.response_range.kvs
        if (kvs[0].mod_revision if kvs else 0) != expected[i]:
            failed.append(Failed(i, writes[i].key, _versioned(writes[i].key, kvs[0]) if kvs else None))
    return failed
