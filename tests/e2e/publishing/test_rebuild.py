"""build/release/rebuild.sh: what was published is made again and compared, and what cannot be had is said first.

The archive of Debian's past states is a server of this machine with Debian's own signed lists, as the build root has
them. What makes a root and a release is small, in the real form (tests/releases.py).
"""

from __future__ import annotations

import http.server
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.releases import VERSION, make_releases, write_lists

from join import join  # isort: skip
from published import Published  # isort: skip

pytestmark = [pytest.mark.slow, pytest.mark.netns, pytest.mark.lab]

PACKAGES = "base-files=12.4+deb12u11\nlibc6=2.36-9+deb12u10\n"
# in the place of those that take minutes; what they are told is in files beside the repository
_ROOT = """\
#!/bin/bash
set -eu
made=$XDG_CACHE_HOME/cni-calico/root
if [ "${2:-}" = --print ]; then echo "$made"; exit; fi
mkdir -p "$made"
cp "$TOLD/packages" "$made/packages"
cp "$DEBIAN_SOURCES" "$TOLD/sources"
cp "$DEBIAN_PINS" "$TOLD/pins"
"""
_RELEASE = """\
#!/bin/bash
set -eu
cd "$(dirname "$0")/.."
echo "$* $SOURCE_DATE_EPOCH" >>"$TOLD/release"
ln -s "$VENV" .venv
cp -R "$TOLD/made/$2" "${*: -1}"
"""


class PastStates(http.server.SimpleHTTPRequestHandler):
    """Every time's state is the one that we have."""

    def translate_path(self, path: str) -> str:
        _, place, _, *rest = path.strip("/").split("/")
        found = list(Path(self.directory).glob(f"*_{place}_{'_'.join(rest)}"))
        return str(found[0] if found else "/nonexistent")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def archive() -> Iterator[str]:
    """The address of an archive of past states."""
    command = [ROOT / "build/release/root.sh", "amd64", "--print"]
    root = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    handler = partial(PastStates, directory=f"{root}/lists")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/archive"
        server.shutdown()
        thread.join()


@dataclass(frozen=True)
class Place:
    """``repository``: a clone whose commit a release was made from; ``release``: that, as it was published; ``told``:
    what the small scripts take from, and what they were told.
    """

    repository: Path
    release: Path
    told: Path
    archive: str

    def rebuild(self, *words: str | Path) -> tuple[int, str]:
        """Status, and what was said."""
        environment = {**os.environ, "TOLD": str(self.told), "VENV": str(ROOT / ".venv")}
        environment["XDG_CACHE_HOME"] = str(self.told / "cache")
        script = self.repository / "build/release/rebuild.sh"
        done = subprocess.run([script, *words], capture_output=True, text=True, env=environment, timeout=300)
        assert not list((self.told / "cache/cni-calico").glob("rebuild.*"))
        return done.returncode, done.stdout + done.stderr

    def again(self, *more: str | Path, architectures: Sequence[str] = ("amd64", "arm64")) -> tuple[int, str]:
        infos = [self.release / f"BUILDINFO-{each}" for each in architectures]
        return self.rebuild("--snapshot", self.archive, *more, *infos)


def commit_all(repository: Path) -> str:
    """The commit's name."""
    git = ["git", "-C", repository, "-c", "user.name=test", "-c", "user.email=test@example.org"]
    for words in (["add", "--all"], ["commit", "--quiet", "--message=all"]):
        subprocess.run([*git, *words], check=True)
    return subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def published_place(tmp_path: Path, archive: str) -> Place:
    repository, told = tmp_path / "repository", tmp_path / "told"
    shutil.copytree(ROOT / "build", repository / "build", ignore=shutil.ignore_patterns("__pycache__", "keys"))
    for name in ("manifests", "cni_calico"):
        (repository / name).symlink_to(ROOT / name)
    (repository / "build/release/root.sh").write_text(_ROOT)
    (repository / "build/release.sh").write_text(_RELEASE)
    subprocess.run(["git", "-C", repository, "init", "--quiet"], check=True)
    commit = commit_all(repository)
    told.mkdir()
    (told / "packages").write_text(PACKAGES)
    made = make_releases(told / "made", Published())
    for directory in made:
        write_lists(directory, directory.name, {"Commit": commit})
    join(tmp_path / "release", made, Published(), Path("/nonexistent"))
    return Place(repository, tmp_path / "release", told, archive)


def test_the_same_bytes(published_place: Place, tmp_path: Path) -> None:
    status, said = published_place.again("--at", "20261126T000000Z", "--out", tmp_path / "kept")
    assert status == 0, said
    assert said.count(": the same bytes (") == 3
    assert (published_place.told / "release").read_text().splitlines()[0].startswith("--arch amd64 ")
    assert all(line.endswith(" 1577836800") for line in (published_place.told / "release").read_text().splitlines())
    sources = (published_place.told / "sources").read_text().splitlines()
    times = ("20261126T000000Z", "20261125T022230Z", "20261125T102230Z", "20261127T022230Z")
    wanted = [f"{published_place.archive}/debian/{time} bookworm main" for time in times]
    assert [line.split("] ")[1] for line in sources][::3] == wanted
    assert f"{published_place.archive}/debian-security/{times[1]} bookworm-security main" in sources[5]
    assert "Package: libc6\nPin: version 2.36-9+deb12u10\n" in (published_place.told / "pins").read_text()
    assert (tmp_path / "kept/release/SHA256SUMS").read_bytes() == (published_place.release / "SHA256SUMS").read_bytes()


def test_a_trial_is_made_as_one(published_place: Place) -> None:
    """One processor alone; a list that is not joined."""
    [directory] = make_releases(published_place.told / "trial", Published(), f"{VERSION}.dirty")[:1]
    commit = subprocess.run(
        ["git", "-C", published_place.repository, "rev-parse", "HEAD"], capture_output=True, text=True
    ).stdout
    write_lists(directory, "amd64", {"Commit": commit.strip(), "Version": f"{VERSION}.dirty"})
    (published_place.told / "made").rename(published_place.told / "before")
    shutil.copytree(published_place.told / "trial", published_place.told / "made")
    status, said = published_place.rebuild("--snapshot", published_place.archive, directory / "BUILDINFO-amd64")
    assert status == 0 and (published_place.told / "release").read_text().startswith("--arch amd64 --dirty "), said


def test_the_first_difference_is_named(published_place: Place) -> None:
    for made in make_releases(published_place.told / "other", Published(), contents="other"):
        name = f"cni-calico-{VERSION}-images-{made.name}.tar"
        shutil.copy(made / name, published_place.told / "made" / made.name / name)
    (published_place.told / "made/arm64/more").write_text("x")
    (published_place.told / f"made/arm64/cni-calico-{VERSION}-arm64.cdx.json").unlink()
    with (published_place.told / "made/arm64/SHA256SUMS").open("a") as listed:
        listed.write(f"{'0' * 64}  more\n")
    status, said = published_place.again()
    assert status == 1
    assert [line for line in said.splitlines() if not line.startswith(("making ", "asking "))] == [
        f"rebuild.sh: cni-calico-{VERSION}-images-amd64.tar differs: image 1 layer 1 > processor > line 1",
        f"rebuild.sh: cni-calico-{VERSION}-arm64.cdx.json: not made again",
        f"rebuild.sh: cni-calico-{VERSION}-images-arm64.tar differs: image 1 layer 1 > processor > line 1",
        "rebuild.sh: made besides: more",
    ]


def test_what_was_only_joined_otherwise(published_place: Place) -> None:
    """Each processor's files are the same; the manifest beside them is not what join.py makes."""
    manifest = published_place.release / "calico.yaml"
    manifest.write_text(manifest.read_text().replace("hostNetwork: true", "hostNetwork: false", 1))
    status, said = published_place.again()
    assert status == 1 and "rebuild.sh: calico.yaml differs: line " in said and said.count("differs") == 1
    assert published_place.again(architectures=["amd64"])[0] == 0


def test_what_cannot_be_had_is_said_before_anything_is_built(published_place: Place, tmp_path: Path) -> None:
    info = published_place.release / "BUILDINFO-amd64"
    text = info.read_text()
    changed = tmp_path / "BUILDINFO"
    lost = re.sub("(?m)^Commit: .*", f"Commit: {'0' * 40}", text)
    cases: list[tuple[str, tuple[str | Path, ...], str]] = [
        ("", (), "which release?"),
        ("", (info, info), "two BUILDINFOs for amd64"),
        ("", ("--key", "x", info), "unknown option --key"),
        ("", ("--snapshot", "ftp://x", info), "no address: ftp://x"),
        ("", ("--at", "yesterday", info), "no time of a state of Debian: yesterday"),
        ("", ("--out", tmp_path, info), f"{tmp_path} exists"),
        (
            "",
            ("--snapshot", "http://127.0.0.1:1/archive", info),
            "archive of Debian's past states: E: Failed to fetch http://127.0.0.1:1/",
        ),
        ("", ("--snapshot", "http://snapshot.invalid/archive", info), "Could not resolve 'snapshot.invalid'"),
        ("", ("--snapshot", f"{published_place.archive}/nothing", info), "404  File not found"),
        ("", (tmp_path / "none",), f"cannot read {tmp_path / 'none'}"),
        (lost, (changed,), "this clone does not have the commit 0000"),
        (text.replace("Debian: ", "Debian-: "), (changed,), "Debian is ''"),
        (
            text.replace("2.36-9+deb12u10", "2.36-9+deb12u9"),
            ("--snapshot", published_place.archive, changed),
            "first is libc6=2.36-9+deb12u9",
        ),
        (text.replace(" libc6 (= 2.36-9+deb12u10)\n", ""), ("--snapshot", published_place.archive, changed), "which"),
    ]
    for written, words, said in cases:
        changed.write_text(written)
        status, found = published_place.rebuild(*words)
        assert status == 2 and said in found, (words, found)
    assert not (published_place.told / "release").exists()


def test_an_archive_that_is_lost_half_way(published_place: Place) -> None:
    """It has Debian's lists and none of the packages; the script that makes the root is the real one."""
    repository = published_place.repository
    (repository / "tests/setup").mkdir(parents=True)
    for name in ("build/release/root.sh", "tests/setup/debian.sh"):
        shutil.copy(ROOT / name, repository / name)
    info = published_place.release / "BUILDINFO-amd64"
    info.write_text(re.sub("(?m)^Commit: .*", f"Commit: {commit_all(repository)}", info.read_text()))
    status, said = published_place.again(architectures=["amd64"])
    assert status == 2 and "404" in said, said
    assert said.endswith(f"rebuild.sh: cannot make the build root of {VERSION} for amd64\n")
    assert not (published_place.told / "release").exists()


def test_a_build_that_fails_says_why(published_place: Place) -> None:
    script = published_place.repository / "build/release.sh"
    script.write_text("#!/bin/sh\necho cannot make it: no compiler >&2\nexit 1\n")
    commit = commit_all(published_place.repository)
    info = published_place.release / "BUILDINFO-amd64"
    info.write_text(re.sub("(?m)^Commit: .*", f"Commit: {commit}", info.read_text()))
    status, said = published_place.again(architectures=["amd64"])
    assert status == 2 and "no compiler\nrebuild.sh: cannot make 0.1.0 for amd64 again" in said
