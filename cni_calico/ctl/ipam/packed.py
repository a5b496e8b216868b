"""What was read about addresses, packed: as documents the records of a large cluster take a gigabyte.

Rule: what comes out equals what was put in, in its order. It is unpacked some records at a time, so whoever looks at
all of them should keep only what he needs.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from ipaddress import ip_network
from typing import Any

from cni_calico.datastore.interface import PodDocument, Versioned
from cni_calico.model.keys import AffinityKey, BlockKey, HandleKey, IPAMConfigKey, Key, ResourceKey

_TOGETHER = 128  # records that are packed in one piece
_QUICKLY = 1  # zlib's level: others take twice the time to save a tenth


def kind_of(key: Key) -> str:
    """The kind of a record: a resource's, or "block", "affinity" (a node's), "virtual affinity", "handle", ""."""
    if isinstance(key, ResourceKey):
        return key.kind
    if isinstance(key, AffinityKey):
        return "affinity" if key.type == "host" else "virtual affinity"
    return "block" if isinstance(key, BlockKey) else "handle" if isinstance(key, HandleKey) else ""


def pack(value: Any) -> bytes:
    """JSON values; tuples become lists."""
    return zlib.compress(json.dumps(value).encode(), _QUICKLY)


def unpack(packed: bytes) -> Any:
    return json.loads(zlib.decompress(packed))


def _fields(key: Key) -> tuple[str, ...]:
    if isinstance(key, ResourceKey):
        return key.kind, key.name, key.namespace
    if isinstance(key, AffinityKey):
        return key.node, str(key.cidr), key.type, "affinity"
    return (
        (str(key.cidr), "block")
        if isinstance(key, BlockKey)
        else (key.handle_id,)
        if isinstance(key, HandleKey)
        else ()
    )


def _key_of(fields: Sequence[str]) -> Key:
    if len(fields) == 3:
        return ResourceKey(*fields)
    if len(fields) == 4:
        return AffinityKey(fields[0], ip_network(fields[1]), fields[2])
    return HandleKey(fields[0]) if len(fields) == 1 else BlockKey(ip_network(fields[0])) if fields else IPAMConfigKey()


class PackedItems:
    """Items in the order in which they were added."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._open: list[tuple[Any, ...]] = []
        self._kept: Collection[int] | None = None  # None: all of them

    def __len__(self) -> int:
        return self.added if self._kept is None else len(self._kept)

    @property
    def added(self) -> int:
        return len(self._pieces) * _TOGETHER + len(self._open)

    def add(self, item: Versioned) -> int:
        """Returns its number: how many were added before."""
        number, value = self.added, item.value
        pod = value.pod if isinstance(value, PodDocument) else None
        self._open.append((_fields(item.key), dict(value), item.revision, item.uid, pod))
        if len(self._open) == _TOGETHER:
            self._pieces.append(pack(self._open))
            self._open = []
        return number

    def keep(self, numbers: Collection[int]) -> None:
        """Leave the others out."""
        self._kept = None if len(numbers) == self.added else frozenset(numbers)

    def __iter__(self) -> Iterator[Versioned]:
        for first, piece in enumerate((*self._pieces, None)):
            items = self._open if piece is None else unpack(piece)
            for number, (fields, document, revision, uid, pod) in enumerate(items, first * _TOGETHER):
                if self._kept is None or number in self._kept:
                    value = document if pod is None else PodDocument(document, pod)
                    yield Versioned(_key_of(fields), value, revision, uid)


class Alike:
    """Decodes equal documents once, because most handles of a block say the same."""

    def __init__(self, decode: Callable[[Versioned], Any]) -> None:
        self._decode = decode
        self._known: dict[str, Any] = {}

    def __call__(self, item: Versioned) -> Any:
        """Raises what ``decode`` raises, for each item in its own words."""
        text = json.dumps(item.value)
        if text not in self._known:
            self._known[text] = self._decode(item)
        return self._known[text]
