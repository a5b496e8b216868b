"""The compilers of a release, and whether this machine has them: ``toolchain.py`` says so by its exit status.

Rule: build/toolchain.txt alone names versions; another version is refused before anything is built.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path

from native import compiler_version

TOOLCHAIN = Path(__file__).resolve().parent.parent / "toolchain.txt"


class OtherBytes(SystemExit):
    """What would not come out the same elsewhere."""


def parse_toolchain(text: str) -> dict[str, str]:
    """Program -> the version that releases are made with."""
    lines = (line.split() for line in text.splitlines() if line.strip() and not line.startswith("#"))
    return {words[0]: words[1] for words in lines}


def read_toolchain() -> dict[str, str]:
    """What is here of what parse_toolchain names; not Go, which is fetched in the version that is wanted."""
    return {"gcc": compiler_version().split()[0], "python": platform.python_version()}


def require_toolchain(wanted: Mapping[str, str], have: Mapping[str, str]) -> None:
    """Raises OtherBytes where a version differs."""
    for name, version in have.items():
        if version != wanted[name]:
            raise OtherBytes(
                f"cannot make a release: {name} is {version} here, releases are made with {wanted[name]}"
                " (build/toolchain.txt), and another one writes other bytes; build on Debian 12, which has that version"
            )


if __name__ == "__main__":
    require_toolchain(parse_toolchain(TOOLCHAIN.read_text()), read_toolchain())
