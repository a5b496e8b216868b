"""Reads buckets of a bbolt file without its lock: podman 4 and containerd keep their containers in such files.

Rule: nothing is written and nobody waits: containerd holds the file's lock as long as it runs. A writer never changes
a page that one of the two meta pages leads to, so what was read holds if at most one transaction has ended meanwhile;
otherwise it is read again. Every place and length is checked: the file may be damaged. Source: go.etcd.io/bbolt, format
version 2 (page.go, bucket.go).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from typing import TypeVar

from cni_calico.errors import DecodeFailure, TryAgain
from cni_calico.regular import open_regular

BoltAnswer = TypeVar("BoltAnswer")

_HEADER = struct.Struct("=QHHI")  # the page's number, its kind, elements, pages that follow and belong to it
# magic, version, page size, flags, the root bucket's page and sequence, free list, end, transaction
_META = struct.Struct("=IIIIQQQQQ")
_CHECKSUM = struct.Struct("=Q")
_MAGIC, _VERSION = 0xED0CDAED, 2
_BRANCH, _LEAF = 1, 2
_BRANCH_ELEMENT = struct.Struct("=IIQ")  # where its key is, the key's length, page
_LEAF_ELEMENT = struct.Struct("=IIII")  # flags, where its key is, the lengths of key and value
_BUCKET = struct.Struct("=QQ")  # its root's page (0: the page follows here), sequence
_IS_BUCKET = 1
_PAGE_SIZES = range(1024, 65537)
_DEPTH_MAX, _BYTES_MAX, _ATTEMPTS = 32, 64 << 20, 3
_FNV_START, _FNV_PRIME, _MASK64 = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1


class BoltFile:
    """An open file. Raises OSError if it cannot be opened."""

    def __init__(self, path: str) -> None:
        self._fd = open_regular(path)

    def __enter__(self) -> BoltFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def get(self, *path: bytes) -> bytes | None:
        """The value at the end of a path of buckets; None if there is none.

        Raises DecodeFailure if the file is damaged, TryAgain if it keeps changing, OSError.
        """

        def look(state: _BoltState) -> bytes | None:
            found = state.find(path)
            return found[0] if found is not None and not found[1] else None

        return self._consistently(look)

    def names(self, *path: bytes) -> tuple[bytes, ...]:
        """The buckets in a bucket; none if it does not exist. Raises as ``get``."""
        return self._consistently(lambda state: tuple(key for key, _, inner in state.listed(path) if inner))

    def values(self, *path: bytes) -> dict[bytes, bytes]:
        """The values in a bucket; none if it does not exist. Raises as ``get``."""
        return self._consistently(lambda state: {key: value for key, value, inner in state.listed(path) if not inner})

    def _consistently(self, look: Callable[[_BoltState], BoltAnswer]) -> BoltAnswer:
        for _ in range(_ATTEMPTS):
            state = _BoltState(self._fd)
            damaged: DecodeFailure | None = None
            try:
                answer = look(state)
            except DecodeFailure as e:
                damaged = e  # or changed while it was read
            if read_meta(self._fd)[0] <= state.transaction + 1:
                if damaged is not None:
                    raise damaged
                return answer
        raise TryAgain("cannot read the database: it keeps changing")


class _BoltState:
    """The file as of the newest transaction."""

    def __init__(self, fd: int) -> None:
        self.transaction, self._size, self._root = read_meta(fd)
        self._fd = fd
        self._left = _BYTES_MAX

    def find(self, path: tuple[bytes, ...]) -> tuple[bytes, bool] | None:
        """The value there, and whether it is a bucket."""
        page: bytes | int = self._root
        for step, name in enumerate(path):
            found = self._seek(page, name)
            if found is None or step == len(path) - 1 or not found[1]:
                return found if step == len(path) - 1 else None
            page = _root_of(found[0])
        return None

    def listed(self, path: tuple[bytes, ...]) -> Iterator[tuple[bytes, bytes, bool]]:
        found = self.find(path)
        if found is not None and found[1]:
            yield from self._all(_root_of(found[0]), _DEPTH_MAX)

    def _seek(self, page: bytes | int, name: bytes) -> tuple[bytes, bool] | None:
        for _ in range(_DEPTH_MAX):
            kind, count, data = self._page(page)
            if kind == _LEAF:
                return next(((value, inner) for key, value, inner in _leaves(data, count) if key == name), None)
            page = _child(data, count, name)
        raise DecodeFailure("cannot read the database: it has more levels than it can have")

    def _all(self, page: bytes | int, depth: int) -> Iterator[tuple[bytes, bytes, bool]]:
        if not depth:
            raise DecodeFailure("cannot read the database: it has more levels than it can have")
        kind, count, data = self._page(page)
        if kind == _LEAF:
            yield from _leaves(data, count)
            return
        for number in range(count):
            yield from self._all(_element(_BRANCH_ELEMENT, data, number)[2], depth - 1)

    def _page(self, page: bytes | int) -> tuple[int, int, bytes]:
        """A page's kind, number of elements, and its bytes. ``page``: its number, or one inside a bucket's value."""
        data = page if isinstance(page, bytes) else self._read(page)
        if len(data) < _HEADER.size:
            raise DecodeFailure("cannot read the database: a page is cut off")
        number, kind, count, _ = _HEADER.unpack_from(data)
        if kind not in (_BRANCH, _LEAF) or (isinstance(page, int) and number != page):
            raise DecodeFailure(f"cannot read the database: page {page if isinstance(page, int) else ''} is damaged")
        return kind, count, data

    def _read(self, page: int) -> bytes:
        first = self._bytes(self._size, page * self._size)
        following = _HEADER.unpack_from(first)[3] if len(first) >= _HEADER.size else 0
        return first + self._bytes(following * self._size, (page + 1) * self._size) if following else first

    def _bytes(self, size: int, at: int) -> bytes:
        self._left -= size
        if self._left < 0 or at + size >= 1 << 62:
            raise DecodeFailure("cannot read the database: a page is longer than it can be")
        data = os.pread(self._fd, size, at)
        if len(data) < size:
            raise DecodeFailure("cannot read the database: it is cut off")
        return data


def read_meta(fd: int) -> tuple[int, int, int]:
    """The newest transaction, the page size, and the root's page. Raises DecodeFailure, OSError."""
    found: list[tuple[int, int, int]] = []
    sizes = [0, os.sysconf("SC_PAGE_SIZE")]
    for at in sizes:
        data = os.pread(fd, _HEADER.size + _META.size + _CHECKSUM.size, at)
        if len(data) < _HEADER.size + _META.size + _CHECKSUM.size:
            continue
        magic, version, size, _, root, _, _, _, transaction = _META.unpack_from(data, _HEADER.size)
        (checksum,) = _CHECKSUM.unpack_from(data, _HEADER.size + _META.size)
        if magic == _MAGIC and version == _VERSION and size in _PAGE_SIZES:
            if checksum == _fnv(data[_HEADER.size : _HEADER.size + _META.size]):
                found.append((transaction, size, root))
            if at == 0 and size not in sizes:  # made on a host with other pages
                sizes.append(size)
    if not found:
        raise DecodeFailure("cannot read the database: it is not a bbolt file, or damaged")
    return max(found)


def _fnv(data: bytes) -> int:
    """FNV-1a, 64 bits."""
    found = _FNV_START
    for byte in data:
        found = (found ^ byte) * _FNV_PRIME & _MASK64
    return found


def _root_of(bucket: bytes) -> bytes | int:
    """A bucket's page: its number, or the page itself if it is small."""
    if len(bucket) < _BUCKET.size:
        raise DecodeFailure("cannot read the database: a bucket is cut off")
    page: int = _BUCKET.unpack_from(bucket)[0]
    return page or bucket[_BUCKET.size :]


def _element(kind: struct.Struct, data: bytes, number: int) -> tuple[int, ...]:
    at = _HEADER.size + number * kind.size
    if at + kind.size > len(data):
        raise DecodeFailure("cannot read the database: a page has more elements than room")
    return kind.unpack_from(data, at)


def _cut(data: bytes, start: int, size: int) -> bytes:
    if start + size > len(data):
        raise DecodeFailure("cannot read the database: an element lies outside its page")
    return data[start : start + size]


def _child(data: bytes, count: int, name: bytes) -> int:
    """The page below a branch that has the name if any has: the last one whose first key is not beyond it."""
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        place, size, _ = _element(_BRANCH_ELEMENT, data, middle)
        if _cut(data, _HEADER.size + middle * _BRANCH_ELEMENT.size + place, size) <= name:
            low = middle
        else:
            high = middle
    return _element(_BRANCH_ELEMENT, data, low)[2]


def _leaves(data: bytes, count: int) -> Iterator[tuple[bytes, bytes, bool]]:
    """Each element's key, value, and whether the value is a bucket."""
    for number in range(count):
        flags, place, key_size, value_size = _element(_LEAF_ELEMENT, data, number)
        at = _HEADER.size + number * _LEAF_ELEMENT.size + place
        key = _cut(data, at, key_size)
        yield key, _cut(data, at + key_size, value_size), bool(flags & _IS_BUCKET)
