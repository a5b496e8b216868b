#!/usr/bin/env python3
"""Where two forms of a file of a release differ: ``difference.py ONE OTHER`` prints the first place, in archives too.

Rule: nothing that differs is called equal; what looks equal from inside is said to be packed otherwise.
Understands tar, gzip, xz, zip, Debian's packages and archives of images, in one another.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_AR = b"!<arch>\n"
_INSIDE = 8  # an archive in an archive in ...
# what a format raises for what only begins like one of it
_DAMAGED = (OSError, EOFError, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, ValueError, KeyError, IndexError)


@dataclass(frozen=True)
class Member:
    """``about``: what an archive says of it besides its content, field -> value."""

    content: bytes
    about: Mapping[str, object]


def first_difference(one: bytes, other: bytes, depth: int = _INSIDE) -> str:
    """Where, as names joined by " > " and what differs there; "" where they are equal."""
    if one == other:
        return ""
    mine, theirs = (read_members(data) if depth else None for data in (one, other))
    if mine is None or theirs is None:
        return _place(one, other)
    for name, member in mine.items():
        if name not in theirs:
            return f"{name}: only in the first"
        if found := first_difference(member.content, theirs[name].content, depth - 1):
            return f"{name} > {found}" if name else found
        for field, value in member.about.items():
            if theirs[name].about.get(field) != value:
                return f"{name}: {field} is {value} and {theirs[name].about.get(field)}"
    if more := [name for name in theirs if name not in mine]:
        return f"{more[0]}: only in the second"
    if list(mine) != list(theirs):
        at = next(name for name, name_there in zip(mine, theirs, strict=True) if name != name_there)
        return f"{at}: at another place"
    return "packed otherwise, with the same content"


def _place(one: bytes, other: bytes) -> str:
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    if b"\0" in one[:4096] + other[:4096]:
        return f"byte {at + 1} ({len(one)} and {len(other)} bytes)"
    return f"line {one[:at].count(10) + 1}"


def read_members(data: bytes) -> dict[str, Member] | None:
    """Name -> member, "" for the one of what only compresses; None where it is no archive."""
    try:
        for begins, read in _FORMATS:
            if begins(data):
                return read(data)
    except _DAMAGED:
        pass
    return None


def _wrapped(content: bytes) -> dict[str, Member]:
    return {"": Member(content, {})}


def _tar(data: bytes) -> dict[str, Member]:
    found: dict[str, Member] = {}
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        for info in tar:
            file = tar.extractfile(info) if info.isreg() else None
            about: dict[str, object] = {"mode": oct(info.mode), "owner": f"{info.uid}:{info.gid}"}
            about |= {"owner's name": f"{info.uname}:{info.gname}", "time": info.mtime}
            about |= {"type": info.type, "link": info.linkname}
            found[info.name] = Member(file.read() if file else b"", about)
    if "oci-layout" in found:
        return _images({name: member.content for name, member in found.items()}) or found
    return found


def _images(files: Mapping[str, bytes]) -> dict[str, Member]:
    """Configuration and layers of each image by their order, since their own names are hashes."""
    found: dict[str, Member] = {}

    def read(descriptor: dict[str, Any]) -> bytes:
        return files["blobs/" + descriptor["digest"].replace(":", "/")]

    def add(name: str, descriptor: dict[str, Any]) -> None:
        manifest = json.loads(read(descriptor))
        for entry in manifest.get("manifests", ()):
            add(f"{name} {entry['platform']['architecture']}", entry)
        for i, layer in enumerate(manifest.get("layers", ()), 1):
            found[f"{name} layer {i}"] = Member(read(layer), {})
        if "config" in manifest:
            found[f"{name} configuration"] = Member(
                json.dumps(json.loads(read(manifest["config"])), indent=1).encode(), {}
            )

    for i, descriptor in enumerate(json.loads(files["index.json"])["manifests"], 1):
        add(f"image {i}", descriptor)
    found["index.json"] = Member(files["index.json"], {})
    return found


def _zip(data: bytes) -> dict[str, Member]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {
            info.filename: Member(archive.read(info), {"mode": oct(info.external_attr >> 16), "time": info.date_time})
            for info in archive.infolist()
        }


def _ar(data: bytes) -> dict[str, Member]:
    found: dict[str, Member] = {}
    at = len(_AR)
    while at < len(data):
        head = data[at : at + 60].decode("ascii")
        size = int(head[48:58])
        about = {"time": head[16:28].strip(), "mode": head[40:48].strip()}
        found[head[:16].strip().rstrip("/")] = Member(data[at + 60 : at + 60 + size], about)
        at += 60 + size + size % 2
    return found


_FORMATS: tuple[tuple[Callable[[bytes], bool], Callable[[bytes], dict[str, Member]]], ...] = (
    (lambda data: data.startswith(b"\x1f\x8b"), lambda data: _wrapped(gzip.decompress(data))),
    (lambda data: data.startswith(b"\xfd7zXZ\0"), lambda data: _wrapped(lzma.decompress(data))),
    (lambda data: data.startswith(_AR), _ar),
    (lambda data: data[257:262] == b"ustar", _tar),
    (lambda data: data.startswith((b"PK\x03\x04", b"#!")) and zipfile.is_zipfile(io.BytesIO(data)), _zip),
)


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(f"{__doc__}")
    try:
        one, other = (Path(word).read_bytes() for word in sys.argv[1:])
    except OSError as e:
        sys.exit(f"difference.py: cannot read {e.filename}: {e.strerror}")
    if found := first_difference(one, other):
        print(found)
        sys.exit(1)


if __name__ == "__main__":
    main()
