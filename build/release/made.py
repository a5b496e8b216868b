"""What build/release.sh made for one processor, read back: its BUILDINFO and its files, which have to fit each other.

Rule: a directory is taken whole or not at all: its list of sums, what lies there and what BUILDINFO lists are the same.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

_LINE = re.compile(r"([0-9a-f]{64})  ([A-Za-z0-9][A-Za-z0-9._+~-]*)")
ARCHITECTURES = ("amd64", "arm64")
# what must be the same for all processors of a release
SHARED = ("Source", "Version", "Build", "Commit", "Source-Date-Epoch", "Python", "Go", "Locks")


class Unjoinable(SystemExit):
    """What does not belong together."""


@dataclass(frozen=True)
class Made:
    """``fields``: of BUILDINFO; ``sums``: file name -> SHA-256, without BUILDINFO; ``packages``: Debian's, of the build
    root, name and version.
    """

    directory: Path
    fields: dict[str, str]
    sums: dict[str, str]
    packages: tuple[tuple[str, str], ...]

    @property
    def architecture(self) -> str:
        return self.fields["Architecture"]

    @property
    def buildinfo(self) -> Path:
        return self.directory / f"BUILDINFO-{self.architecture}"


def parse_sums(text: str, name: str) -> dict[str, str]:
    """File name -> SHA-256. Raises Unjoinable for what is no such list, or names a file twice."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if not match or match[2] in found:
            raise Unjoinable(f"cannot read {name}: {'twice' if match else 'no line of sha256sum'}: {line[:120]!r}")
        found[match[2]] = match[1]
    return found


def parse_buildinfo(text: str, name: str) -> tuple[dict[str, str], dict[str, str], tuple[tuple[str, str], ...]]:
    """The fields of one line; the sums; the packages."""
    message = Parser().parsestr(text)
    fields = {key: value.strip() for key, value in message.items()}
    if missing := [key for key in (*SHARED, "Architecture") if not fields.get(key)]:
        raise Unjoinable(f"cannot read {name}: it has no {', '.join(missing)}")
    lines = fields.pop("Checksums-Sha256", "").splitlines()
    sums = parse_sums("\n".join(re.sub(r"^\s*(\S+) ", r"\1  ", line) for line in lines if line.strip()), name)
    packages = re.findall(r"(?m)^ *(\S+) \(= (\S+)\)$", fields.pop("Installed-Packages", ""))
    return fields, sums, tuple(packages)


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_made(directory: Path) -> Made:
    """Raises Unjoinable, which says which file is wrong."""
    infos = sorted(directory.glob("BUILDINFO-*"))
    if len(infos) != 1:
        found = ", ".join(path.name for path in infos) or "no BUILDINFO"
        raise Unjoinable(f"{directory} is not what build/release.sh makes for one processor: it has {found}")
    fields, listed, packages = parse_buildinfo(infos[0].read_text(), str(infos[0]))
    if infos[0].name != f"BUILDINFO-{fields['Architecture']}":
        raise Unjoinable(f"{infos[0]} says that it is for {fields['Architecture']}")
    path = directory / "SHA256SUMS"
    if not path.exists():
        raise Unjoinable(f"{directory} has no SHA256SUMS: build/release.sh did not end; run it again")
    sums = parse_sums(path.read_text(), str(path))
    if sums != listed:
        raise Unjoinable(f"{path} and {infos[0].name} list other files or sums: they are of two builds")
    there = {each.name for each in directory.iterdir()} - {path.name, infos[0].name}
    if there != sums.keys():
        odd = ", ".join(sorted(there ^ sums.keys()))
        raise Unjoinable(f"{directory} has not exactly the files of its SHA256SUMS: {odd}; make it again, empty first")
    for name, digest in sums.items():
        if digest_of(directory / name) != digest:
            raise Unjoinable(
                f"{directory / name} is not what SHA256SUMS says: it was changed or cut off; make it again"
            )
    return Made(directory, fields, sums, packages)


def require_one_release(made: list[Made]) -> None:
    """Raises Unjoinable where the directories are not one release for every processor."""
    have = [each.architecture for each in made]
    for architecture in ARCHITECTURES:
        if have.count(architecture) > 1:
            twice = " and ".join(str(each.directory) for each in made if each.architecture == architecture)
            raise Unjoinable(f"two releases for {architecture}: {twice}")
    if missing := [architecture for architecture in ARCHITECTURES if architecture not in have]:
        raise Unjoinable(
            f"no release for {', '.join(missing)}: make it with build/release.sh --arch {missing[0]} OUT, and name OUT"
        )
    if odd := sorted(set(have) - set(ARCHITECTURES)):
        raise Unjoinable(f"releases are for {', '.join(ARCHITECTURES)}, not for {', '.join(odd)}")
    first, *others = made
    for other in others:
        for key in SHARED:
            if first.fields[key] != other.fields[key]:
                raise Unjoinable(
                    f"not of one release: {key} is {first.fields[key]} in {first.directory} and {other.fields[key]} in"
                    f" {other.directory}; make both from one commit"
                )
        for name in first.sums.keys() & other.sums.keys():
            if first.sums[name] != other.sums[name]:
                raise Unjoinable(f"{name} is in two forms, in {first.directory} and in {other.directory}")
