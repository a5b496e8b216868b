"""The files of a release as SHA256SUMS lists them, for texts that name them elsewhere.

Rule: a file that is not listed is not named; nothing is made up.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_LINE = re.compile(r"([0-9a-f]{64})  (\S+)")


class Unlisted(Exception):
    """What the list lacks, and what to do."""


@dataclass(frozen=True)
class Listed:
    """``address``: where the release's files are, without a slash at its end. ``sums``: file name -> SHA-256."""

    version: str
    address: str
    sums: dict[str, str]

    def sum_of(self, name: str) -> str:
        """Raises Unlisted."""
        if name not in self.sums:
            raise Unlisted(f"SHA256SUMS does not list {name}: make the release again, for every processor")
        return self.sums[name]


def read_listed(directory: Path, releases: str) -> Listed:
    """``releases``: the address below which each release has a directory, vVERSION. Raises Unlisted."""
    if not re.fullmatch(r"https://[^\s/'\"]+(/[^\s/'\"]+)*", releases):
        raise Unlisted(f"no address of releases: {releases!r}; wanted is https://..., without a slash at its end")
    path = directory / "SHA256SUMS"
    try:
        matches = [_LINE.fullmatch(line) for line in path.read_text().splitlines()]
    except OSError as e:
        raise Unlisted(f"cannot read {path}: {e.strerror}; a release directory has it") from e
    if not all(matches):
        raise Unlisted(f"cannot read {path}: it is not what sha256sum prints")
    sums = {match[2]: match[1] for match in matches if match}
    versions = {match[1] for name in sums if (match := re.fullmatch(r"calicoctl-(\d[\w.+~]*)\.pyz", name))}
    if len(versions) != 1:
        raise Unlisted(f"{path} lists {len(versions)} calicoctl-VERSION.pyz, so nobody knows the version")
    version = versions.pop()
    return Listed(version, f"{releases}/v{version}", sums)


def run(description: str, render: Callable[[Listed, str], str]) -> None:
    """The program that prints ``render(listed, homepage)``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("directory", type=Path, metavar="DIR", help="a release, with SHA256SUMS")
    parser.add_argument("--releases", required=True, metavar="URL", help="where releases are published")
    parser.add_argument("--homepage", metavar="URL", help="of the project (default: the same)")
    words = parser.parse_args()
    try:
        print(render(read_listed(words.directory, words.releases), words.homepage or words.releases), end="")
    except Unlisted as e:
        sys.exit(f"{parser.prog}: {e}")
