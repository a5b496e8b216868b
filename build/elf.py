"""Reads the few facts of a 64-bit little-endian ELF file that the bundle needs: interpreter, search path, libraries.

Rule: nothing is moved or resized here. patchelf makes longer what must be longer while the bundle is built; after that
only bytes inside fields of known place and size are overwritten, which a shell script can do too.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

PT_LOAD, PT_DYNAMIC, PT_INTERP = 1, 2, 3
DT_NULL, DT_NEEDED, DT_STRTAB, DT_SONAME, DT_RPATH, DT_RUNPATH = 0, 1, 5, 14, 15, 29
DT_SIZES_OF_RELOCATIONS = (2, 8, 18, 35)  # PLT, RELA, REL, RELR


class NotElf(ValueError):
    """The file is not an ELF file of the kind this module reads."""


@dataclass(frozen=True, slots=True)
class Field:
    """A text inside the file: it has room for ``size`` bytes from ``offset``, including the terminating zero."""

    offset: int
    size: int
    text: str


@dataclass(frozen=True, slots=True)
class Elf:
    """``search_path`` is DT_RPATH, else DT_RUNPATH; ``inherits``: the libraries it loads are searched there too.

    ``relocations``: bytes of what a dynamic linker would have to relocate.
    """

    interpreter: Field | None
    search_path: Field | None
    inherits: bool
    needed: tuple[str, ...]
    relocations: int


def parse_elf(data: bytes) -> Elf:
    """Raises NotElf."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise NotElf("not a 64-bit little-endian ELF file")
    table, _, _, _, size, count = struct.unpack_from("<QQIHHH", data, 0x20)
    headers = [struct.unpack_from("<IIQQQQQQ", data, table + i * size) for i in range(count)]
    interpreter = None
    dynamic: list[tuple[int, int]] = []
    for kind, _, offset, _, _, room, _, _ in headers:
        if kind == PT_INTERP:
            interpreter = Field(offset, room, _text(data, offset))
        elif kind == PT_DYNAMIC:
            dynamic = list(struct.iter_unpack("<QQ", data[offset : offset + room]))
    tags = [(tag, value) for tag, value in dynamic if tag != DT_NULL]
    values = dict(tags)
    strings = _file_offset(headers, values[DT_STRTAB]) if DT_STRTAB in values else 0
    path_tag = next((t for t in (DT_RPATH, DT_RUNPATH) if t in values), None)
    path = None
    if path_tag is not None:
        text = _text(data, strings + values[path_tag])
        path = Field(strings + values[path_tag], len(text) + 1, text)
    needed = tuple(_text(data, strings + value) for tag, value in tags if tag == DT_NEEDED)
    relocations = sum(values.get(tag, 0) for tag in DT_SIZES_OF_RELOCATIONS)
    return Elf(interpreter, path, path_tag == DT_RPATH, needed, relocations)


def read_elf(path: Path) -> Elf:
    """Raises NotElf, OSError."""
    return parse_elf(path.read_bytes())


def is_elf(path: Path) -> bool:
    with path.open("rb") as f:
        return f.read(6) == b"\x7fELF\x02\x01"


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Replace bytes in place; the size of the file stays."""
    with path.open("r+b") as f:
        f.seek(offset)
        f.write(data)


def _text(data: bytes, offset: int) -> str:
    return data[offset : data.index(0, offset)].decode()


def _file_offset(headers: list[tuple[int, ...]], address: int) -> int:
    for kind, _, offset, virtual, _, room, _, _ in headers:
        if kind == PT_LOAD and virtual <= address < virtual + room:
            return offset + address - virtual
    raise NotElf("the dynamic section points outside of every segment")
