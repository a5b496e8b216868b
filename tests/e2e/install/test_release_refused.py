"""build/release.sh says what speaks against a release before it makes anything; --dirty makes a trial all the same."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.netns  # it needs root

# in the place of what takes minutes: the first thing that is made ends it
SETUP = "#!/bin/sh\necho setting up >&2\nexit 3\n"
NOTHING = "#!/bin/sh\nexit 0\n"
NEWS = '#!/bin/sh\n[ "$2" != --news ] || { echo "libssl3 [3.0.1] (3.0.2 Debian-Security:12/stable)"; exit 1; }\n'


class Sources:
    """A repository with as much as is looked at before anything is made: version 1.2.0, released."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.write("build/release.sh", (ROOT / "build/release.sh").read_text())
        self.write("cni_calico/__init__.py", '__version__ = "1.2.0"\n')
        self.write("CHANGELOG.md", "# Changelog\n\n## 1.2.0 (2026-01-02)\n")
        self.write("tests/setup/python.sh", SETUP)
        self.write("build/release/root.sh", NEWS)
        self.git("init", "-q")
        self.commit()

    def write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def git(self, *words: str) -> None:
        who = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *words], cwd=self.directory, check=True)

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "x")

    def release(self, *words: str, **environment: str) -> tuple[int, str]:
        script = self.directory / "build/release.sh"
        done = subprocess.run([script, *words], capture_output=True, text=True, env={**os.environ, **environment})
        assert not (self.directory / "dist").exists()
        return done.returncode, done.stderr


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    return Sources(tmp_path / "sources")


def test_a_released_version_is_made(sources: Sources) -> None:
    sources.git("tag", "v1.2.0")
    sources.git("tag", "latest")
    assert sources.release() == (3, "setting up\n")


def change(sources: Sources) -> None:
    sources.write("CHANGELOG.md", "## 1.2.0 (2026-01-03)\n")


def add(sources: Sources) -> None:
    sources.write("notes", "")


def tag(sources: Sources) -> None:
    sources.git("tag", "v1.1.9")


def announce(sources: Sources) -> None:
    sources.write("CHANGELOG.md", "# Changelog\n\n## 1.2.0 (unreleased)\n")
    sources.commit()


@pytest.mark.parametrize(
    ("act", "why"),
    [
        (change, "the work tree has changes: commit them, or make a trial with --dirty\n M CHANGELOG.md\n"),
        (add, "the work tree has changes: commit them, or make a trial with --dirty\n?? notes\n"),
        (tag, "the commit is tagged v1.1.9, and cni_calico/__init__.py says 1.2.0\n"),
        (announce, "CHANGELOG.md still calls 1.2.0 unreleased: write its date, or make a trial with --dirty\n"),
    ],
)
def test_what_speaks_against_it(sources: Sources, act: object, why: str) -> None:
    assert callable(act)
    act(sources)
    assert sources.release() == (1, f"release.sh: cannot make a release: {why}")
    assert sources.release("--dirty") == (3, "setting up\n")


@pytest.mark.parametrize("arch", ["amd64", "arm64"])
def test_newer_packages_of_debian_are_listed(sources: Sources, arch: str) -> None:
    sources.write("tests/setup/python.sh", NOTHING)
    sources.write("build/image/plugins.sh", SETUP)
    sources.commit()
    status, said = sources.release("--arch", arch)
    assert status == 1
    assert f"Debian has newer packages than the build root: build/release/root.sh {arch} --update" in said
    assert "\nlibssl3 [3.0.1] (3.0.2 " in said
    assert sources.release("--dirty") == (3, "setting up\n")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--arch", "s390x"], "no release for s390x: known are amd64, arm64\n"),
        (["--fast"], "unknown option --fast; build/release.sh --help\n"),
    ],
)
def test_arguments(sources: Sources, words: list[str], why: str) -> None:
    assert sources.release(*words) == (1, f"release.sh: cannot make a release: {why}")


def test_help_is_its_own_head(sources: Sources) -> None:
    script = ROOT / "build/release.sh"
    said = subprocess.run([script, "--help"], capture_output=True, text=True, check=True).stdout
    assert said.startswith("Makes a release: ") and "[--arch ARCH] [--dirty] [OUT]" in said and "set -e" not in said


def test_without_git_nobody_could_say_what_it_was_made_from(sources: Sources) -> None:
    (sources.directory / ".git").rename(sources.directory.parent / "git")
    status, said = sources.release("--dirty", GIT_CEILING_DIRECTORIES=str(sources.directory.parent))
    assert status == 1 and "this is no git work tree" in said
