"""The lower layer of the image has what apt knew of when it was made: updates and security updates, too."""

from __future__ import annotations

import re
import subprocess
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.conftest import ROOT

BASE = ROOT / "build" / "image" / "base.sh"
SUITES = ("bookworm", "bookworm-updates", "bookworm-security")


def said(*words: str) -> str:
    return subprocess.run([BASE, *words], capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_its_packages_come_from_all_suites_and_it_is_made_again_each_week() -> None:
    rows = [line.split() for line in said("--sources").splitlines()]
    assert [row[3] for row in rows] == list(SUITES)
    assert all(row[0] == "deb" and row[4:] == ["main"] for row in rows)
    year, week, _ = datetime.now(UTC).isocalendar()
    assert Path(said("--print")).name.endswith(f"-{year}-W{week:02}.tar.gz")


@pytest.mark.slow  # makes the base if no other test has this week
def test_apt_knows_no_newer_version_of_any_of_its_packages(tmp_path: Path) -> None:
    subprocess.run([BASE], check=True, timeout=600)
    archive = Path(said("--print"))
    lists = tmp_path / "lists"
    lists.mkdir()
    with tarfile.open(archive.with_name(archive.name.removesuffix(".tar.gz") + ".lists.tar.gz")) as tar:
        tar.extractall(lists)
    indexes = sorted(path.name for path in lists.glob("*_Packages*"))
    for suite in SUITES:
        assert any(f"_dists_{suite}_main_binary-" in name for name in indexes), indexes
    with tarfile.open(archive) as tar:
        member = tar.extractfile("./var/lib/dpkg/status")
        assert member is not None
        status = member.read()
    (tmp_path / "status").write_bytes(status)
    (tmp_path / "sources").write_text(said("--sources") + "\n")
    assert newer(tmp_path) == []
    # apt would name an older one
    before, package, rest = status.partition(b"\nPackage: kmod\n")
    fields, _, others = rest.partition(b"\n\n")
    (tmp_path / "status").write_bytes(
        before + package + re.sub(rb"(?m)^Version: .*$", b"Version: 1", fields) + b"\n\n" + others
    )
    assert [line.split()[1] for line in newer(tmp_path)] == ["kmod"]


def newer(directory: Path) -> list[str]:
    """What apt would install instead of the packages in ``status``, from its lists of that day."""
    options = {
        "Dir::State::status": directory / "status",
        "Dir::State::lists": directory / "lists",
        "Dir::Etc::sourcelist": directory / "sources",
        "Dir::Etc::sourceparts": "-",
        "Dir::Etc::preferencesparts": "-",
        "Dir::Cache": directory / "cache",
        "Dir::Log": directory,
        "APT::Get::Show-User-Simulation-Note": "false",
    }
    (directory / "cache").mkdir(exist_ok=True)
    words = [f"-o={name}={value}" for name, value in options.items()]
    done = subprocess.run(["apt-get", "-s", *words, "dist-upgrade"], capture_output=True, text=True, timeout=60)
    found = [line for line in done.stdout.splitlines() if line.startswith("Inst ")]
    assert done.returncode == 0, done.stdout + done.stderr
    return found
