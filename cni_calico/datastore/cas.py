"""The loop for records that several parts change: read, apply a pure function, write with compare-and-swap.

Rule: the function may be called several times, each time with what is stored then; a conflict returns the new value, so
it costs no read. After a lost answer the record is read again: the write counts as done if the record is as wanted. If
others have changed it meanwhile, it is unknown whether our write was applied before that: the function must then
recognise its own effect in its input, so make it idempotent ("this address is mine", not "one more").
"""

from __future__ import annotations

from collections.abc import Callable

from cni_calico.datastore.encoding import decode_document, encode_document
from cni_calico.datastore.interface import CommitConflict, Datastore, Document, Versioned, Write
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreUnavailable, OutcomeUnknown
from cni_calico.model.keys import Key

Change = Callable[[Versioned | None], Document | None]


def update(store: Datastore, key: Key, change: Change, deadline: Deadline, *, is_new: bool = False) -> Versioned | None:
    """Change a record as ``change`` says; returns it as stored (None: absent). ``is_new``: it is most likely absent, so
    it is not read before it is written.

    ``change(current)`` returns the document to store, None to remove the record, or the very object ``current.value``
    to leave it unchanged. An exception from it ends the loop. Raises DatastoreError, DeadlineExceeded; OutcomeUnknown
    when an answer was lost and the record could not be read again.
    """
    current = None if is_new else store.get(key, deadline)
    lost = False
    while True:
        wanted = change(current)
        write = plan_write(key, current, wanted)
        if write is None:
            return current
        try:
            stored = store.commit((write,), deadline).stored
            return stored[0] if stored else None
        except CommitConflict as conflict:
            current = conflict.failed[0].current
        except OutcomeUnknown as unknown:
            lost = True
            current = read_again(store, key, deadline, unknown)
        if lost and _same(current, wanted):
            return current
        deadline.require(f"write {key}: it keeps changing")


def plan_write(key: Key, current: Versioned | None, wanted: Document | None) -> Write | None:
    """The compare-and-swap write from ``current`` to ``wanted``; None if there is nothing to write."""
    if current is None:
        return None if wanted is None else Write.create(key, wanted)
    if wanted is None:
        return Write.delete(current)
    return None if wanted is current.value else Write.update(current, wanted)


def read_again(store: Datastore, key: Key, deadline: Deadline, unknown: OutcomeUnknown) -> Versioned | None:
    """What is stored after a write of which it is unknown whether it was applied. Raises ``unknown`` if that fails."""
    try:
        return store.get(key, deadline)
    except DatastoreUnavailable as e:
        raise unknown from e  # not the read's error: that would mean that nothing was written


def _same(current: Versioned | None, wanted: Document | None) -> bool:
    if current is None or wanted is None:
        return current is None and wanted is None
    return current.value == decode_document(encode_document(wanted).encode())
