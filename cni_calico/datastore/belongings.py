"""Finds and removes the records that belong to a deleted node.

Rule: a record is removed only if it is unchanged since it was read, so one that now belongs to another node stays.
"""

from __future__ import annotations

from cni_calico.datastore.interface import CommitConflict, Datastore, Versioned, Write
from cni_calico.deadline import Deadline
from cni_calico.model.belongings import LISTINGS, names_node, own_configuration, was_made_before


def read_belongings(store: Datastore, node: str, deadline: Deadline) -> list[Versioned]:
    """Raises DatastoreError."""
    found = [one for one in store.get_many(list(own_configuration(node)), deadline) if one is not None]
    for listing in LISTINGS:
        found += [item for item in store.list(listing, deadline).items if names_node(item.value, node)]
    return found


def remove_belongings(store: Datastore, node: str, deadline: Deadline, *, made_before_s: float | None = None) -> int:
    """Returns the number of records removed. ``made_before_s`` (Unix time): records that were made later, or whose age
    is unknown, stay.

    Raises DatastoreError.
    """
    removed = 0
    for found in read_belongings(store, node, deadline):
        if made_before_s is not None and not was_made_before(found.value, made_before_s):
            continue
        try:
            store.commit([Write.delete(found)], deadline)
            removed += 1
        except CommitConflict:
            continue  # changed or gone meanwhile
    return removed
