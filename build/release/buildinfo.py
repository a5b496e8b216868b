"""BUILDINFO: what a release was made from and with, so that somebody else can make it again and compare.

Rule: whoever has the same gets the same sums; it names no machine, no directory and no time when it was made (only that
of Debian's lists, by which build/release/rebuild.sh finds the packages again). It lists the sums of the files, as
Debian's .buildinfo does, and so is no line of SHA256SUMS: a commit that changes nothing that is shipped changes this
file alone.
"""

from __future__ import annotations

import hashlib
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from edition import Edition
from native import compiler_version
from toolchain import TOOLCHAIN, parse_toolchain

ROOT = Path(__file__).resolve().parent.parent.parent
LOCKS = ("requirements.lock",)


def read_packages() -> list[tuple[str, str]]:
    """Name and version of every Debian package that is installed here."""
    shown = subprocess.run(
        ["dpkg-query", "-W", "-f", "${db:Status-Status}\\t${Package}\\t${Version}\\n"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    rows = (line.split("\t") for line in shown.splitlines())
    return sorted({(name, version) for status, name, version in rows if status == "installed"})


def render_buildinfo(fields: Mapping[str, str], packages: Sequence[tuple[str, str]], sums: Mapping[str, str]) -> str:
    """Paragraphs of ``Name: value`` as in Debian's control files. ``sums``: name of a file -> SHA-256."""
    for name, value in fields.items():
        if not re.fullmatch("[A-Z][A-Za-z-]*", name) or "\n" in value:
            raise ValueError(f"no field of a control file: {name}: {value!r}")
    lines = [f"{name}: {value}" for name, value in fields.items()]
    lines += ["Checksums-Sha256:", *(f" {digest} {name}" for name, digest in sorted(sums.items()))]
    lines += ["Installed-Packages:", *(f" {name} (= {version})" for name, version in packages)]
    return "".join(f"{line}\n" for line in lines)


def describe_build(edition: Edition, commit: str, debian: str) -> dict[str, str]:
    """The fields of render_buildinfo, for the root that this runs in. ``debian``: the date of Debian's lists that its
    packages are from.
    """
    locks = (f"{name} {hashlib.sha256((ROOT / name).read_bytes()).hexdigest()}" for name in LOCKS)
    return {
        "Format": "1",
        "Source": "cni-calico",
        "Version": edition.version,
        "Build": edition.build,
        "Architecture": edition.architecture,
        "Commit": commit,
        "Source-Date-Epoch": str(edition.epoch),
        "Python": platform.python_version(),
        "Compiler": f"gcc {compiler_version()}",
        "Go": parse_toolchain(TOOLCHAIN.read_text())["go"],
        "Locks": ", ".join(locks),
        "Debian": debian,
    }
