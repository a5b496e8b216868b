"""The apt repository of ``build/release/apt.py``: apt itself reads it, and what must not be published stops it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "build" / "release"))

import apt

SCRIPT = ROOT / "build" / "release" / "apt.py"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """gpg's directory with one key. Its agent listens below a short path, and ends with it."""
    with pytest.MonkeyPatch.context() as patch:
        home = tmp_path_factory.mktemp("gpg")
        home.chmod(0o700)
        patch.setenv("GNUPGHOME", str(home))
        make_key(home, "releases")
        yield home
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "gpg-agent"], check=False)


def make_key(home: Path, name: str, *, expires: str = "never", at: str = "") -> None:
    faked = [f"--faked-system-time={at}"] if at else []
    words = ["--batch", "--quiet", "--passphrase", "", "--quick-generate-key", f"{name}@localhost", "ed25519", "sign"]
    subprocess.run(["gpg", "--homedir", home, *faked, *words, expires], check=True, capture_output=True)


def make_deb(directory: Path, version: str, name: str = "calicoctl", text: str = "", arch: str = "amd64") -> Path:
    root = directory / f"{name}-{version}-{arch}-{text}"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "usr/share").mkdir(parents=True)
    (root / "usr/share" / name).write_text(text)
    fields = {"Package": name, "Version": version, "Architecture": arch, "Maintainer": "x <x@localhost>"}
    fields |= {"Description": "command line\n of Calico"}
    (root / "DEBIAN/control").write_text("".join(f"{field}: {said}\n" for field, said in fields.items()))
    file = root.with_name(f"{root.name}.deb")
    build: list[str | Path] = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", root, file]
    subprocess.run(build, check=True, capture_output=True, env={**os.environ, "SOURCE_DATE_EPOCH": "0"})
    return file


def call(tree: Path, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, tree, *words], capture_output=True, text=True, env={**os.environ, **environment}
    )


def state(tree: Path) -> dict[str, bytes]:
    return {str(path.relative_to(tree)): path.read_bytes() for path in tree.rglob("*") if path.is_file()}


def ask_apt(tree: Path, scratch: Path, suite: str, *words: str) -> subprocess.CompletedProcess[str]:
    """apt-get with this repository alone."""
    for name in ("lists/partial", "cache/archives/partial", "none"):
        (scratch / name).mkdir(parents=True, exist_ok=True)
    (scratch / "status").touch()
    line = f"deb [arch=amd64 signed-by={tree / apt.KEYRING}] file:{tree} {suite} main\n"
    (scratch / "sources.list").write_text(line)
    options = {
        "Dir::State": scratch,
        "Dir::State::lists": scratch / "lists",
        "Dir::State::status": scratch / "status",
        "Dir::Cache": scratch / "cache",
        "Dir::Etc::sourcelist": scratch / "sources.list",
        "Dir::Etc::sourceparts": scratch / "none",
        "APT::Sandbox::User": "root",
    }
    argv = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in options.items()), *words]
    return subprocess.run(argv, capture_output=True, text=True, cwd=scratch)


def update(tree: Path, scratch: Path, suite: str = "stable") -> str:
    """What ``apt-get update`` complains of, "" if of nothing."""
    done = ask_apt(tree, scratch, suite, "update")
    said = [line for line in (done.stdout + done.stderr).splitlines() if line[:2] in ("E:", "W:")]
    return "\n".join(said) or ("" if done.returncode == 0 else "failed")


def versions(tree: Path, scratch: Path, suite: str) -> str:
    """The version that apt would install."""
    assert update(tree, scratch, suite) == ""
    done = ask_apt(tree, scratch, suite, "--print-uris", "download", "calicoctl")
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[1].split("_")[1]


def test_apt_takes_the_newest_of_each_suite(keys: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    assert call(tree, make_deb(tmp_path, "0.9.0"), "--address", "https://apt.example/x").returncode == 0
    debs = [make_deb(tmp_path, version) for version in ("0.10.0", "0.10.2", "0.10.2~rc1")]
    assert call(tree, *debs, make_deb(tmp_path, "0.10.2", arch="arm64")).stdout.endswith("written and signed\n")
    assert versions(tree, tmp_path / "a", "stable") == "0.10.2"
    assert versions(tree, tmp_path / "b", "v0.9") == "0.9.0"
    got = ask_apt(tree, tmp_path / "a", "stable", "-y", "download", "calicoctl=0.10.0")
    assert got.returncode == 0 and (tmp_path / "a" / "calicoctl_0.10.0_amd64.deb").is_file(), got.stderr
    assert "URIs: https://apt.example/x\nSuites: stable\n" in (tree / apt.SOURCES).read_text()
    assert {path.name for path in (tree / "dists/stable/main").iterdir()} == {"binary-amd64", "binary-arm64"}
    assert all(path.stat().st_mode & 0o044 == 0o044 for path in tree.rglob("*"))
    # 0.9 goes with the third minor version
    assert call(tree, make_deb(tmp_path, "1.0.0")).returncode == 0
    assert {path.name for path in (tree / "dists").iterdir()} == {"stable", "v0.10", "v1.0"}
    assert versions(tree, tmp_path / "a", "stable") == "1.0.0"
    assert not list((tree / "pool").glob("*_0.9.*"))


def test_again_changes_nothing(keys: Path, tmp_path: Path) -> None:
    tree, deb = tmp_path / "tree", make_deb(tmp_path, "0.1.0")
    call(tree, deb)
    before = state(tree)
    assert call(tree, deb, SOURCE_DATE_EPOCH="86400").stdout.endswith("nothing new\n")
    assert call(tree).returncode == 0
    assert state(tree) == before and not list(tmp_path.glob(".apt-*"))


def test_a_check_says_what_would_be_and_writes_nothing(keys: Path, tmp_path: Path) -> None:
    tree, deb = tmp_path / "below" / "tree", make_deb(tmp_path, "0.1.0")
    done = call(tree, deb, "--check")
    assert (done.returncode, done.stdout) == (0, f"{tree}: would be written and signed\n"), done.stderr
    assert not tree.parent.exists()
    call(tree, deb)
    before = state(tree)
    assert call(tree, deb, "--check").stdout.endswith("nothing new\n")
    refused = call(tree, make_deb(tmp_path, "0.1.0", text="other"), "--check")
    assert refused.returncode == 1 and "is there already with other bytes" in refused.stderr
    assert state(tree) == before and not list(tree.parent.glob(".apt-*"))


def test_an_update_that_began_before_ends_well(keys: Path, tmp_path: Path) -> None:
    """The indexes that the former InRelease names are still there, by their hash."""
    tree = tmp_path / "tree"
    call(tree, make_deb(tmp_path, "0.1.0"))
    first = dict(apt._listed(tree / "dists/stable"))
    call(tree, make_deb(tmp_path, "0.1.1"))
    there = {path.name for path in (tree / "dists/stable/main/binary-amd64" / apt.BY_HASH).iterdir()}
    assert set(first) < there and len(there) == 4
    call(tree, make_deb(tmp_path, "0.1.2"))
    there = {path.name for path in (tree / "dists/stable/main/binary-amd64" / apt.BY_HASH).iterdir()}
    assert not set(first) & there and len(there) == 4


@pytest.mark.parametrize("where", ["InRelease", "main/binary-amd64/Packages"])
def test_apt_refuses_a_broken_index(keys: Path, tmp_path: Path, where: str) -> None:
    tree = tmp_path / "tree"
    call(tree, make_deb(tmp_path, "0.1.0"))
    file = tree / "dists/stable" / where
    broken = file.read_text().replace("calicoctl", "calicoctr").replace("Calico for", "Calico fur")
    for path in [file, *file.parent.glob("Packages.gz"), *file.parent.glob(f"{apt.BY_HASH}/*")]:
        path.write_text(broken)
    assert "E:" in update(tree, tmp_path / "a")


def test_a_version_is_published_once(keys: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    call(tree, make_deb(tmp_path, "0.1.0"))
    before = state(tree)
    done = call(tree, make_deb(tmp_path, "0.2.0"), make_deb(tmp_path, "0.1.0", text="other"))
    assert done.returncode == 1 and "calicoctl_0.1.0_amd64.deb is there already with other bytes" in done.stderr
    assert state(tree) == before


@pytest.mark.parametrize(
    ("version", "name", "why"),
    [("1", "calicoctl", "is not X.Y.Z"), ("1:0.1.0", "calicoctl", "none of a release's")],
)
def test_what_is_no_package_of_a_release(keys: Path, tmp_path: Path, version: str, name: str, why: str) -> None:
    done = call(tmp_path / "tree", make_deb(tmp_path, version, name))
    assert done.returncode == 1 and why in done.stderr and not (tmp_path / "tree").exists()


def test_half_a_package(keys: Path, tmp_path: Path) -> None:
    deb = make_deb(tmp_path, "0.1.0")
    deb.write_bytes(deb.read_bytes()[:200])
    done = call(tmp_path / "tree", deb)
    assert done.returncode == 1 and f"cannot read the package {deb}" in done.stderr and not (tmp_path / "tree").exists()


def test_nothing_is_published_without_a_usable_key(keys: Path, tmp_path: Path) -> None:
    tree, deb = tmp_path / "tree", make_deb(tmp_path, "0.1.0")
    home = tmp_path / "other"
    home.mkdir(mode=0o700)
    none = call(tree, deb, GNUPGHOME=str(home))
    assert none.returncode == 1 and "gpg has no secret key, and nothing is published unsigned" in none.stderr
    make_key(home, "old", expires="1d", at="20200101T000000")
    expired = call(tree, deb, GNUPGHOME=str(home))
    assert expired.returncode == 1 and "has expired" in expired.stderr
    make_key(home, "new")
    two = call(tree, deb, GNUPGHOME=str(home))
    assert two.returncode == 1 and "gpg has 2 secret keys: name one with --key" in two.stderr
    assert not tree.exists()
    assert call(tree, deb, "--key", "new@localhost", GNUPGHOME=str(home)).returncode == 0
    subprocess.run(["gpgconf", "--homedir", home, "--kill", "gpg-agent"], check=False)


def test_another_key_signs_everything_anew(keys: Path, tmp_path: Path) -> None:
    tree, deb = tmp_path / "tree", make_deb(tmp_path, "0.1.0")
    call(tree, deb)
    home = tmp_path / "other"
    home.mkdir(mode=0o700)
    make_key(home, "next")
    assert call(tree, deb, GNUPGHOME=str(home)).stdout.endswith("written and signed\n")
    assert update(tree, tmp_path / "a") == ""
    subprocess.run(["gpgconf", "--homedir", home, "--kill", "gpg-agent"], check=False)
