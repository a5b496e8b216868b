"""Puts the build machine's dynamic linker and C library into the bundle, for hosts whose own are older or not glibc.

Rule: they are in a separate directory that nothing searches before the installer has made the executables use the
dynamic linker from the same directory; a C library does not start under another release's dynamic linker.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from bootloader import GLIBC
from elf import is_elf, read_elf

# loaded by name at run time: for host names in etcd_endpoints, and user names. nsswitch.conf may name others; one that
# cannot be loaded counts as unavailable, and the next one is asked.
NAME_SERVICES = ("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2")


def bundle_glibc(contents: Path, executables: list[Path]) -> None:
    """Copy the dynamic linker and every library that is needed in the bundle but not in it."""
    linker = Path(_interpreter(Path(sys.executable).resolve()))
    system = linker.resolve().parent
    target = contents / GLIBC
    target.mkdir()
    shutil.copy(linker.resolve(), target / linker.name)
    files = [p for p in contents.rglob("*") if p.is_file() and not p.is_symlink() and is_elf(p)]
    wanted = {name for path in (*files, *executables) for name in read_elf(path).needed} | set(NAME_SERVICES)
    bundled = {p.name for p in files} | {linker.name}
    while missing := sorted(wanted - bundled):
        for name in missing:
            shutil.copy((system / name).resolve(strict=True), target / name)
            bundled.add(name)
            wanted |= set(read_elf(target / name).needed)


def _interpreter(path: Path) -> str:
    interpreter = read_elf(path).interpreter
    if interpreter is None:
        raise SystemExit(f"cannot find the dynamic linker: {path} names none")
    return interpreter.text
