#!/usr/bin/env python3
"""The apt repository: a tree of files, signed, that any web server can hand out: ``apt.py [--check] TREE DEB...``.

Rule: everything is read and compared before TREE is changed, and it is changed by renames: packages first, then what
lists them, what is no longer listed last. Indexes lie by their hash, too, and those of the state before stay, so that
an ``apt update`` that began with it ends well. Nothing appears without a signature that gpgv has checked. Without a
new package nothing is written, with --check nothing in any case: what would be refused is refused.

``pool/NAME_VERSION_ARCH.deb``, ``dists/stable`` (the last two minor versions), ``dists/vX.Y`` (one of them),
``cni-calico-archive.gpg`` (the key), ``cni-calico.sources`` (for /etc/apt/sources.list.d).

The key is the only one that can sign in gpg's directory (GNUPGHOME), or the one of --key. SOURCE_DATE_EPOCH sets the
date. Needs gpg, gpgv and dpkg-deb.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from functools import cmp_to_key
from pathlib import Path

KEYRING, SOURCES = "cni-calico-archive.gpg", "cni-calico.sources"
STABLE, COMPONENT, POOL, BY_HASH = "stable", "main", "pool", "by-hash/SHA256"
ORIGIN = "cni-calico"
KEPT_MINORS = 2
_MINOR = re.compile(r"(\d+)\.(\d+)\.\d")
_FIELD = re.compile(r"[a-z0-9][a-z0-9+.~-]*")  # of a name, and of an architecture: what may become a file's name
_VERSION = re.compile(r"[0-9][A-Za-z0-9.+~]*")
_USABLE = "ufm-"  # gpg: validity of a key that neither expired nor was revoked; "-" and "u" of a fresh one


class Refused(Exception):
    """Nothing was changed: why, and what to do."""


@dataclass(frozen=True)
class Deb:
    """``control``: its paragraph, as it is in the package."""

    path: Path
    name: str
    version: str
    architecture: str
    control: str
    digest: str

    @property
    def file(self) -> str:
        return f"{self.name}_{self.version}_{self.architecture}.deb"

    @property
    def minor(self) -> tuple[int, int]:
        match = _MINOR.match(self.version)
        assert match is not None
        return int(match[1]), int(match[2])


def read_deb(path: Path) -> Deb:
    """Raises Refused."""
    asked = subprocess.run(["dpkg-deb", "--field", path], capture_output=True, text=True)
    if asked.returncode:
        raise Refused(f"cannot read the package {path}: {' '.join(asked.stderr.split())}")
    fields = dict(re.findall(r"(?m)^(Package|Version|Architecture): (\S+)$", asked.stdout))
    name, version, architecture = (fields.get(one, "") for one in ("Package", "Version", "Architecture"))
    if not (_FIELD.fullmatch(name) and _FIELD.fullmatch(architecture) and _VERSION.fullmatch(version)):
        raise Refused(f"cannot take {path}: its name, version or architecture is none of a release's")
    if not _MINOR.match(version):
        raise Refused(f"cannot take {path}: its version {version} is not X.Y.Z, so it belongs to no dists/vX.Y")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Deb(path, name, version, architecture, asked.stdout.strip() + "\n", digest)


def select_kept(there: Iterable[Deb], given: Iterable[Deb]) -> dict[str, Deb]:
    """By file name, what the repository has afterwards: of the newest minor versions. Raises Refused."""
    every: dict[str, Deb] = {}
    for deb in (*there, *given):
        if (known := every.get(deb.file)) and known.digest != deb.digest:
            raise Refused(
                f"{deb.file} is there already with other bytes ({known.path} and {deb.path}): a version is published"
                " once; raise the version"
            )
        every.setdefault(deb.file, deb)
    minors = sorted({deb.minor for deb in every.values()})[-KEPT_MINORS:]
    return {name: deb for name, deb in sorted(every.items()) if deb.minor in minors}


def render_index(debs: Sequence[Deb]) -> str:
    """A Packages file: the newest version of a package first."""
    newest_first = sorted(debs, key=cmp_to_key(_compare))
    return "\n".join(
        f"{deb.control}Filename: {POOL}/{deb.file}\nSize: {deb.path.stat().st_size}\nSHA256: {deb.digest}\n"
        for deb in newest_first
    )


def _compare(one: Deb, other: Deb) -> int:
    if one.name != other.name:
        return -1 if one.name < other.name else 1
    newer = subprocess.run(["dpkg", "--compare-versions", one.version, "gt", other.version]).returncode == 0
    return -1 if newer else int(one.version != other.version)


def render_release(suite: str, architectures: Sequence[str], indexes: Mapping[str, bytes], date: str) -> str:
    """A Release file. ``indexes``: name below the suite -> contents. ``date``: "" for a comparison."""
    fields = {
        "Origin": ORIGIN,
        "Label": ORIGIN,
        "Suite": suite,
        "Codename": suite,
        "Date": date,
        "Acquire-By-Hash": "yes",
        "Architectures": " ".join(architectures),
        "Components": COMPONENT,
        "Description": "Calico for containers in Python",
    }
    sums = [f" {hashlib.sha256(data).hexdigest()} {len(data)} {name}" for name, data in sorted(indexes.items())]
    return "".join(f"{name}: {text}\n" for name, text in fields.items()) + "\n".join(["SHA256:", *sums]) + "\n"


def render_sources(address: str) -> str:
    return (
        f"Types: deb\nURIs: {address}\nSuites: {STABLE}\nComponents: {COMPONENT}\n"
        f"Signed-By: /etc/apt/keyrings/{KEYRING}\n"
    )


# -- the key ----------------------------------------------------------------------------------------------------------


def find_key(wanted: str) -> str:
    """Its fingerprint. Raises Refused if it has expired, or if it is not clear which one it is."""
    listed = _gpg("--with-colons", "--list-secret-keys", *([wanted] if wanted else []), check=False)
    keys: list[tuple[str, str]] = []  # validity, fingerprint
    validity = ""
    for row in (line.split(":") for line in listed.decode().splitlines()):
        if row[0] == "sec":
            validity = row[1]
        elif row[0] == "fpr" and validity:
            keys.append((validity, row[9]))
            validity = ""
    if not keys:
        named = f" {wanted}" if wanted else ""
        raise Refused(f"gpg has no secret key{named}, and nothing is published unsigned: GNUPGHOME is its directory")
    if len(keys) > 1:
        raise Refused(f"gpg has {len(keys)} secret keys: name one with --key ({', '.join(key for _, key in keys)})")
    ((validity, fingerprint),) = keys
    if validity == "e":
        raise Refused(
            f"the key {fingerprint} has expired: apt would refuse what it signs;"
            f" prolong it (gpg --quick-set-expire {fingerprint} 2y), or sign with another (--key)"
        )
    if validity not in _USABLE:
        raise Refused(f"the key {fingerprint} cannot be used: gpg calls it {validity!r} (r: revoked, i: invalid)")
    return fingerprint


def _sign(fingerprint: str, file: Path, keyring: Path) -> None:
    """Write InRelease and Release.gpg beside a Release. Raises Refused."""
    signed, detached = file.with_name("InRelease"), file.with_name("Release.gpg")
    how = ("--local-user", fingerprint, "--digest-algo", "SHA512")
    _gpg(*how, "--clear-sign", "--output", str(signed), str(file))
    _gpg(*how, "--armor", "--detach-sign", "--output", str(detached), str(file))
    if not _is_signed(file.parent, keyring):
        raise Refused(f"what gpg signed with {fingerprint} does not fit that key's public half: nothing is published")


def _is_signed(suite: Path, keyring: Path) -> bool:
    gpgv = ["gpgv", "--quiet", "--keyring", str(keyring.resolve())]
    named = [suite / name for name in ("InRelease", "Release.gpg", "Release")]
    if not all(path.is_file() for path in (*named, keyring)):
        return False
    checked = ([named[0]], [named[1], named[2]])
    return all(subprocess.run([*gpgv, *files], capture_output=True).returncode == 0 for files in checked)


def _gpg(*words: str, check: bool = True) -> bytes:
    done = subprocess.run(["gpg", "--batch", "--yes", "--quiet", "--no-tty", *words], capture_output=True)
    if check and done.returncode:
        raise Refused(f"cannot sign: gpg says {' '.join(done.stderr.decode(errors='replace').split())}")
    return done.stdout


# -- the tree ---------------------------------------------------------------------------------------------------------


def update_tree(tree: Path, given: Sequence[Path], key: str, address: str, *, check: bool = False) -> bool:
    """Whether something was written; with ``check``, whether something would be. Raises Refused."""
    pool = tree / POOL
    kept = select_kept([read_deb(path) for path in sorted(pool.glob("*.deb"))], [read_deb(path) for path in given])
    if not kept:
        raise Refused("no package is given, and none is there")
    fingerprint = find_key(key)
    if not check:
        tree.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".apt-", dir=None if check else tree.parent) as made:
        scratch = Path(made)
        (scratch / KEYRING).write_bytes(_gpg("--export", fingerprint))
        suites = {STABLE: list(kept.values())}
        for deb in kept.values():
            suites.setdefault(f"v{deb.minor[0]}.{deb.minor[1]}", []).append(deb)
        changed = [name for name, debs in suites.items() if _make_suite(scratch, tree, name, debs, fingerprint)]
        files = {KEYRING: (scratch / KEYRING).read_bytes()}
        if address:
            files[SOURCES] = render_sources(address).encode()
        gone = [path for path in (tree / "dists").glob("*") if path.name not in suites]
        gone += [path for path in pool.glob("*.deb") if path.name not in kept]
        stale = [name for name, data in files.items() if not _holds(tree / name, data)]
        if check or not (changed or gone or stale):
            return bool(changed or gone or stale)
        _put(tree, scratch, kept, changed)
        for name in stale:
            (scratch / "file").write_bytes(files[name])
            (scratch / "file").chmod(0o644)
            (scratch / "file").replace(tree / name)
        for path in gone:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return True


def _holds(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data


def _make_suite(scratch: Path, tree: Path, name: str, debs: Sequence[Deb], fingerprint: str) -> bool:
    """Write the suite below ``scratch`` if TREE has it not already; whether that is so."""
    architectures = sorted({deb.architecture for deb in debs})
    indexes: dict[str, bytes] = {}
    for architecture in architectures:
        index = render_index([deb for deb in debs if deb.architecture == architecture]).encode()
        below = f"{COMPONENT}/binary-{architecture}"
        indexes |= {f"{below}/Packages": index, f"{below}/Packages.gz": gzip.compress(index, 9, mtime=0)}
    there = tree / "dists" / name
    if (there / "Release").is_file() and _is_signed(there, scratch / KEYRING):
        said = re.sub(r"(?m)^Date: .*$", "Date: ", (there / "Release").read_text())
        if said == render_release(name, architectures, indexes, ""):
            return False
    suite = scratch / "dists" / name
    for file, data in indexes.items():
        target = suite / file
        hashed = target.parent / BY_HASH / hashlib.sha256(data).hexdigest()
        hashed.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        hashed.write_bytes(data)
    for digest, file in _listed(there):
        before, after = (one / Path(file).parent / BY_HASH / digest for one in (there, suite))
        if before.is_file() and after.parent.is_dir():
            shutil.copy(before, after)
    date = formatdate(int(os.environ.get("SOURCE_DATE_EPOCH") or time.time()), usegmt=True).replace("GMT", "UTC")
    (suite / "Release").write_text(render_release(name, architectures, indexes, date))
    _sign(fingerprint, suite / "Release", scratch / KEYRING)
    return True


def _listed(suite: Path) -> list[tuple[str, str]]:
    """Sum and name of the indexes of a suite as it is."""
    if not (suite / "Release").is_file():
        return []
    return re.findall(r"(?m)^ ([0-9a-f]{64}) \d+ (\S+)$", (suite / "Release").read_text())


def _put(tree: Path, scratch: Path, kept: Mapping[str, Deb], changed: Sequence[str]) -> None:
    for directory in (tree / POOL, tree / "dists"):
        directory.mkdir(parents=True, exist_ok=True)
    for name, deb in kept.items():
        if not (tree / POOL / name).exists():
            shutil.copyfile(deb.path, scratch / name)
            (scratch / name).chmod(0o644)
            (scratch / name).replace(tree / POOL / name)
    for name in changed:
        suite = scratch / "dists" / name
        for path in (suite, *suite.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        there = tree / "dists" / name
        if there.exists():
            there.replace(scratch / f"{name}.before")
        suite.replace(there)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Add Debian packages to an apt repository in the directory TREE, and sign it.",
        epilog=f"The last {KEPT_MINORS} minor versions stay. GNUPGHOME has the key; SOURCE_DATE_EPOCH sets the date.",
    )
    parser.add_argument("tree", type=Path, metavar="TREE")
    parser.add_argument("debs", type=Path, nargs="*", metavar="DEB")
    parser.add_argument("--key", default="", help="fingerprint of the key, if gpg has several")
    parser.add_argument("--address", default="", help=f"where it will be: writes {SOURCES}, apt's file of it")
    parser.add_argument("--check", action="store_true", help="everything but the writing")
    words = parser.parse_intermixed_args()
    try:
        written = update_tree(words.tree, words.debs, words.key, words.address, check=words.check)
    except (Refused, OSError) as e:
        print(f"apt.py: {e}", file=sys.stderr)
        sys.exit(1)
    done = "would be written and signed" if words.check else "written and signed"
    print(f"{words.tree}: {done if written else 'nothing new'}")


if __name__ == "__main__":
    main()
