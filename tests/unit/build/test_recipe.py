"""BUILDINFO as a recipe: what is printed can be read by a shell and by apt, and nothing else is printed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.releases import COMMIT, VERSION, make_release

from published import Published  # isort: skip
from recipe import NoRecipe, parse_recipe  # isort: skip

SCRIPT = ROOT / "build" / "release" / "recipe.py"


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_release(tmp_path_factory.mktemp("made") / "arm64", "arm64", Published()) / "BUILDINFO-arm64"


def call(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True)


def test_what_a_release_says_of_itself(info: Path) -> None:
    assert call("fields", info).stdout == f"arm64 {COMMIT} {VERSION} 1577836800 2026-11-25T02:22:30Z\n"
    assert call("packages", info).stdout == "base-files=12.4+deb12u11\nlibc6=2.36-9+deb12u10\n"
    listed = {line.split()[1]: line.split()[0] for line in call("sums", info).stdout.splitlines()}
    assert listed == {name: digest for digest, name in map(str.split, (info.parent / "SHA256SUMS").open())}
    for words in ((), ("fields",), ("other", info)):
        assert call(*words).returncode == 1 and "recipe.py WHAT BUILDINFO" in call(*words).stderr


def test_apt_takes_exactly_these_packages(info: Path, tmp_path: Path) -> None:
    """As apt itself reads the preferences, of packages that it knows; no other version has a chance."""
    shown = ["dpkg-query", "-W", "-f", "${Version}", "base-files"]
    version = subprocess.run(shown, capture_output=True, text=True, check=True).stdout
    text = info.read_text().replace("base-files (= 12.4+deb12u11)", f"base-files (= {version})")
    (tmp_path / "BUILDINFO").write_text(text)
    (tmp_path / "pins").write_text(call("pins", tmp_path / "BUILDINFO").stdout)
    policy = ["apt-cache", "-o", f"Dir::Etc::preferences={tmp_path / 'pins'}", "policy", "base-files"]
    said = subprocess.run(policy, capture_output=True, text=True, check=True)
    assert f" *** {version} 1001\n" in said.stdout and said.stderr == ""


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (f"Commit: {COMMIT}", f"Commit: {COMMIT} (changed)", "made from changed sources"),
        (f"Commit: {COMMIT}", "Commit: --upload-pack=x", "Commit is '--upload-pack=x'"),
        (f"Version: {VERSION}", "Version: 1;reboot", "Version is '1;reboot'"),
        ("Architecture: arm64", "Architecture: riscv64", "Architecture is 'riscv64'"),
        ("Source-Date-Epoch: 1577836800", "Source-Date-Epoch: now", "Source-Date-Epoch is 'now'"),
        ("Debian: 2026-11-25T02:22:30Z", "Debian: yesterday", "Debian is 'yesterday'"),
        ("Debian: 2026-11-25T02:22:30Z\n", "", "Debian is ''"),
        (" libc6 (= ", " --purge (= ", "no package of Debian: --purge"),
        (" base-files (= 12.4+deb12u11)\n libc6 (= 2.36-9+deb12u10)\n", "", "it lists no packages"),
        ("Checksums-Sha256:\n", "Checksums-Sha256:\n zz x\n", "no line of sha256sum"),
        ("Format: 1\n", "\nFormat: 1\n", "it has no Source, Version"),
    ],
)
def test_what_is_none(info: Path, old: str, new: str, said: str) -> None:
    text = info.read_text()
    assert old in text
    with pytest.raises(NoRecipe) as caught:
        parse_recipe(text.replace(old, new), "BUILDINFO")
    assert said in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    for path in (tmp_path / "none", tmp_path, tmp_path / "bytes"):
        done = call("fields", path)
        assert done.returncode == 1 and f"cannot read {path}" in done.stderr and "Traceback" not in done.stderr
