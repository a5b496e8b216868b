"""Reads records from etcd by ranges of its keys, whichever way a range is asked for.

Rule: a list is read in pages, all of them as of one revision; a record that cannot be read is left out of a list and
told to ``corrupt``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import contextmanager

from cni_calico import faults
from cni_calico.datastore.encoding import corrupt_record, decode_document, prefix_end, record_path
from cni_calico.datastore.etcd.spans import Span
from cni_calico.datastore.interface import WHOLE, Listing, Versioned
from cni_calico.errors import Compacted, CorruptRecord, DatastoreUnavailable
from cni_calico.model.keys import covers, etcd_prefix, parse_path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cni_calico.datastore.etcd.spans import RawRecord, SpanAnswer
    from cni_calico.datastore.interface import Reading, Revision
    from cni_calico.deadline import Deadline
    from cni_calico.model.keys import Key, ListKey

READ = faults.declare("etcd.read")

PAGE = 500  # records of a list in one answer
RELISTS = 3  # if a list was overtaken by compaction


def ignore_corrupt(key: Key, why: str) -> None:
    pass


def versioned(key: Key, stored: RawRecord) -> Versioned:
    """Raises CorruptRecord."""
    try:
        return Versioned(key, decode_document(stored.value), stored.mod_revision)
    except ValueError as e:
        raise corrupt_record(key, e) from e


@contextmanager
def reading(doing: str) -> Iterator[None]:
    try:
        faults.before(READ)
        yield
        faults.after(READ)
    except OSError as e:
        raise DatastoreUnavailable(f"cannot {doing}: {e}") from e


class EtcdReads(ABC):
    """The reading half of a Datastore (see interface.py) on etcd. ``corrupt(key, why)`` is called for records left out
    of lists.
    """

    kind = "etcdv3"
    max_commit = 60
    commit_each = None

    def __init__(self, corrupt: Callable[[Key, str], None]) -> None:
        self.corrupt = corrupt

    @abstractmethod
    def ask(self, span: Span, doing: str, deadline: Deadline) -> SpanAnswer:
        """Raises DatastoreError, DeadlineExceeded."""

    def get(self, key: Key, deadline: Deadline) -> Versioned | None:
        path = record_path(key)
        doing = f"read {path}"
        deadline.require(doing)
        with reading(doing):
            page = self.ask(Span(path.encode()), doing, deadline)
        return versioned(key, page.records[0]) if page.records else None

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
        items: list[Versioned] = []
        unreadable: list[tuple[Key, str]] = []
        span = Span(prefix.encode(), prefix_end(prefix).encode(), PAGE, revision)
        with reading(doing):
            while True:
                page = self.ask(span, doing, deadline)
                revision = revision or page.revision
                for stored in page.records:
                    key = parse_path(stored.key.decode(errors="replace"))
                    if key is not None and covers(listing, key):
                        try:
                            items.append(how.take(versioned(key, stored)))
                        except CorruptRecord as e:
                            unreadable.append((key, str(e)))
                            self.corrupt(key, str(e))
                if not page.more:
                    return Listing(items, revision, unreadable)
                span = Span(page.records[-1].key + b"\0", span.end, PAGE, revision)
