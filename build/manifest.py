"""Lists of a bundle's contents, in forms that a POSIX shell can check and use.

Rule: build/install-bundle.sh reads exactly these three files of the contents directory, and nothing else uses them.

``manifest``      sha256sum's format, paths relative to the contents directory, every file except these three
``executables``   sha256sum's format, the executables as built, in the order in which they are put into place
``placeholders``  ``NAME INTERPRETER-OFFSET INTERPRETER-ROOM SEARCH-PATH-CUT``: where to overwrite, see bootloader.py;
                  no line for an executable that needs no dynamic linker
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from elf import read_elf

LISTS = ("manifest", "executables", "placeholders")


def write_manifests(bundle: Path, contents: str, names: list[str]) -> None:
    """Write the three lists of a bundle."""
    directory = bundle / contents
    files = sorted(p for p in directory.rglob("*") if p.is_file() and p not in _lists(directory))
    _write(directory / "manifest", [f"{_sha256(p)}  {p.relative_to(directory)}" for p in files])
    _write(directory / "executables", [f"{_sha256(bundle / name)}  {name}" for name in names])
    _write(directory / "placeholders", [line for name in names if (line := _placeholder(bundle / name))])


def verify_bundle(bundle: Path, contents: str, names: list[str]) -> bool:
    """Whether the bundle of that name is in place, with the executables that belong to it."""
    listing = bundle / contents / "executables"
    if not listing.is_file():
        return False
    lines = [line.split() for line in listing.read_text().splitlines()]
    return [name for _, name in lines] == names and all(
        (bundle / name).is_file() and _sha256(bundle / name) == digest for digest, name in lines
    )


def _lists(directory: Path) -> set[Path]:
    return {directory / name for name in LISTS}


def _placeholder(executable: Path) -> str:
    """Empty for a program that needs no dynamic linker."""
    elf = read_elf(executable)
    if elf.interpreter is None and not elf.needed:
        return ""
    if elf.interpreter is None or elf.search_path is None:
        raise SystemExit(f"cannot list {executable}: it has no interpreter or no search path")
    cut = elf.search_path.offset + elf.search_path.size - 1
    return f"{executable.name} {elf.interpreter.offset} {elf.interpreter.size} {cut}"


def _sha256(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def _write(path: Path, lines: list[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines))
