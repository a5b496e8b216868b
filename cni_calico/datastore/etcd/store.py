"""The etcd v3 datastore: what upstream stores under /calico/, read linearizably and written in transactions.

Rule: a commit is one transaction that compares modification revisions; if it fails, its other branch returns what is
stored instead. A "put", which writes over any revision, costs a read, because a corrupt record must not be overwritten
unseen.
"""

from __future__ import annotations

from cni_calico import faults
from cni_calico.datastore.encoding import WRITING, plan_commit, record_path
from cni_calico.datastore.etcd.cluster import READ_S, EtcdCluster
from cni_calico.datastore.etcd.config import EtcdConfig
from cni_calico.datastore.etcd.credentials import as_it_is
from cni_calico.datastore.etcd.messages import pb
from cni_calico.datastore.etcd.reads import EtcdReads, ignore_corrupt, reading, versioned
from cni_calico.datastore.etcd.spans import SpanAnswer
from cni_calico.datastore.interface import CommitConflict, Committed, Failed, Versioned
from cni_calico.errors import DatastoreForbidden, LeaseLost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from cni_calico.datastore.etcd.spans import Span
    from cni_calico.datastore.etcd.watch import EtcdWatch
    from cni_calico.datastore.interface import Revision, RoundTrips, Write
    from cni_calico.deadline import Deadline
    from cni_calico.model.keys import Key, ListKey

    Indexes = list[int]
    Guard = Callable[[], tuple[bytes, int]]

COMMIT = faults.declare("etcd.commit")

PAGE_S = 10.0  # for one member's answer to a page of a list
MANY = 100  # reads in one transaction; etcd allows 128


def _named(paths: Sequence[str]) -> str:
    return paths[0] + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


def _range(path: str) -> Any:
    return pb.RequestOp(request_range=pb.RangeRequest(key=path.encode()))


class EtcdStore(EtcdReads):
    """A Datastore (see interface.py) on an etcd cluster. Connects at the first use. Revisions are integers.

    Safe with threads; not to be used in a forked child, where it raises DatastoreUnavailable.
    """

    def __init__(
        self,
        config: EtcdConfig,
        *,
        corrupt: Callable[[Key, str], None] = ignore_corrupt,
        reach: Callable[[str], str] = as_it_is,
    ) -> None:
        super().__init__(corrupt)
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

    def ask(self, span: Span, doing: str, deadline: Deadline) -> SpanAnswer:
        attempt_s = PAGE_S if span.end else READ_S
        request = pb.RangeRequest(key=span.start, range_end=span.end, limit=span.limit, revision=span.revision)
        answer = self._cluster.read("Range", request, doing, deadline, attempt_s=attempt_s)
        return SpanAnswer(answer.kvs, answer.header.revision, answer.more)

    def get_many(self, keys: Sequence[Key], deadline: Deadline) -> Sequence[Versioned | None]:
        found: list[Versioned | None] = []
        for start in range(0, len(keys), MANY):
            part = keys[start : start + MANY]
            paths = [record_path(key) for key in part]
            doing = f"read {_named(paths)}"
            deadline.require(doing)
            with reading(doing):
                request = pb.TxnRequest(success=[_range(path) for path in paths])
                answer = self._cluster.read("Txn", request, doing, deadline)
            kvs = [response.response_range.kvs for response in answer.responses]
            found += [versioned(key, kv[0]) if kv else None for key, kv in zip(part, kvs, strict=True)]
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

    def watch(self, listing: ListKey, revision: Revision) -> EtcdWatch:
        from cni_calico.datastore.etcd.watch import EtcdWatch

        return EtcdWatch(self._cluster, listing, int(revision), self.corrupt)

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
            failed.append(Failed(i, writes[i].key, versioned(writes[i].key, kvs[0]) if kvs else None))
    return failed
