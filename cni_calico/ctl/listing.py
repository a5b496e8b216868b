"""The resources of a kind, as commands read them.

Rule: one that cannot be read stops nothing; who asks says who hears of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from cni_calico.ctl.session import Session
from cni_calico.datastore.interface import Document
from cni_calico.errors import CorruptRecord
from cni_calico.model.keys import Key, ResourceKey, ResourceList

ListedRecord = TypeVar("ListedRecord")


def read_kind(
    session: Session,
    kind: str,
    decode: Callable[[Key, Document], ListedRecord],
    damaged: Callable[[ResourceKey, CorruptRecord], object] = lambda key, error: None,
) -> Iterator[tuple[ResourceKey, ListedRecord]]:
    """Raises DatastoreError."""
    for item in session.store.list(ResourceList(kind), session.deadline).items:
        assert isinstance(item.key, ResourceKey)
        try:
            record = decode(item.key, item.value)
        except CorruptRecord as e:
            damaged(item.key, e)
        else:
            yield item.key, record
