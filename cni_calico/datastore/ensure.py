"""Makes records what a pure function says, with the compare-and-swap loop of datastore/cas.py.

Rule: the function gets the stored document (None: absent) and returns the one to store, or None to leave it as it is;
equal documents are not written. It must accept its own result unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cni_calico.datastore.cas import update
from cni_calico.datastore.interface import Datastore, Document, Versioned
from cni_calico.deadline import Deadline
from cni_calico.model.keys import Key

Plan = Callable[[Document | None], Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True)
class Ensured:
    """``stored`` is the record as it is now (None: absent), ``changed`` whether this call wrote it."""

    stored: Versioned | None
    changed: bool


def ensure_record(store: Datastore, key: Key, plan: Plan, deadline: Deadline) -> Ensured:
    """Make the record what ``plan`` says. Raises DatastoreError, DeadlineExceeded, and what ``plan`` raises."""
    wrote = False

    def change(current: Versioned | None) -> Document | None:
        nonlocal wrote
        document = None if current is None else current.value
        wanted = plan(document)
        if wanted is None or wanted == document:
            return document
        wrote = True
        return wanted

    return Ensured(update(store, key, change, deadline), wrote)


def ensure_present(store: Datastore, key: Key, document: Mapping[str, Any], deadline: Deadline) -> bool:
    """Create the record unless one exists, whatever its content; returns whether it was created."""
    return ensure_record(store, key, lambda old: document if old is None else None, deadline).changed
