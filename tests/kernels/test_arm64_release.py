"""A release for arm64, made here, where its programs are emulated; and what it does on a bare arm64 host.

RELEASE_ARM64 names one that is there already, for a try; what making it printed is unknown then.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT, SUMMARY
from tests.kernels.release import find_tarball, run_release
from tests.release_sizes import too_large

sys.path.insert(0, str(ROOT / "build"))
sys.path.insert(0, str(ROOT / "build" / "image"))

from archive import read_files
from bootloader import RESTARTS
from elf import is_elf

pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.arm64,
    pytest.mark.arm64_kernel,
    pytest.mark.takes(1800),
    pytest.mark.timeout(7200),
]
AARCH64 = 183  # of an ELF file


@dataclass(frozen=True)
class Made:
    """``log``: what making it printed, if it was made here; ``tree``: the tarball's."""

    out: Path
    log: str
    tree: Path


@pytest.fixture(scope="module")
def arm64_release(tmp_path_factory: pytest.TempPathFactory) -> Made:
    tree, log = tmp_path_factory.mktemp("tree"), ""
    if given := os.environ.get("RELEASE_ARM64"):
        out = Path(given)
    else:
        out = tmp_path_factory.mktemp("release")
        command = [ROOT / "build/release.sh", "--arch", "arm64", "--dirty", out]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout[-5000:]
        log = done.stdout
    tarball = find_tarball(out, "arm64")
    assert tarball is not None, sorted(out.iterdir())
    subprocess.run(["tar", "-C", tree, "-xf", tarball, "--strip-components=1"], check=True)
    return Made(out, log, tree)


def one(made: Made, pattern: str) -> Path:
    (found,) = made.out.glob(pattern)
    return found


def test_executables_start_once(arm64_release: Made) -> None:
    assert "will start twice" not in arm64_release.log
    restart, once = RESTARTS["aarch64"]
    data = (arm64_release.tree / "bin/calicoctl").read_bytes()
    assert once in data and restart not in data


def test_every_program_is_for_that_processor(arm64_release: Made) -> None:
    programs = [
        path for path in arm64_release.tree.rglob("*") if path.is_file() and not path.is_symlink() and is_elf(path)
    ]
    assert len(programs) > 50
    others = [path for path in programs if int.from_bytes(path.read_bytes()[18:20], "little") != AARCH64]
    assert others == []


def test_every_file_says_the_processor(arm64_release: Made) -> None:
    fields = dict(
        line.split(": ", 1) for line in one(arm64_release, "BUILDINFO-arm64").read_text().splitlines() if ": " in line
    )
    assert fields["Architecture"] == "arm64"
    for package in arm64_release.out.glob("*.deb"):
        said = subprocess.run(["dpkg-deb", "-f", package, "Architecture"], capture_output=True, text=True, check=True)
        assert (said.stdout.strip(), package.name.endswith("_arm64.deb")) == ("arm64", True)
    document = json.loads(one(arm64_release, "*-arm64.cdx.json").read_text())
    debian = [each["purl"] for each in document["components"] if each["purl"].startswith("pkg:deb/")]
    assert len(debian) > 50 and all("?arch=arm64&" in purl for purl in debian)
    assert not [path.name for path in arm64_release.out.iterdir() if "amd64" in path.name]


def test_nothing_is_larger_than_it_may_be(arm64_release: Made) -> None:
    assert too_large(arm64_release.out) == {}


def test_both_images_name_their_platform(arm64_release: Made) -> None:
    archive = one(arm64_release, "*-images-arm64.tar")
    files = read_files(archive)
    manifests = json.loads(files["index.json"])["manifests"]
    assert len(manifests) == 2
    for entry in manifests:
        assert entry["platform"] == {"architecture": "arm64", "os": "linux"}
        manifest = json.loads(files[f"blobs/{entry['digest'].replace(':', '/')}"])
        config = json.loads(files[f"blobs/{manifest['config']['digest'].replace(':', '/')}"])
        assert config["architecture"] == "arm64"
    with tarfile.open(archive) as tar:
        assert tar.getnames()[0] == "oci-layout"


def test_two_pods_ping_one_another_on_a_bare_host_unless_a_policy_denies_it(
    arm64_release: Made, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    tarball = find_tarball(arm64_release.out, "arm64")
    assert tarball is not None
    done = run_release(tarball, "arm64", tmp_path / "results")
    assert done.status == 0, done.output[-20000:]
    assert "processor: aarch64" in done.output
    assert re.findall(r"(\d+) packets transmitted, (\d+) received", done.output) == [("3", "3"), ("3", "3")]
    assert re.findall(r"(?m)^policy: (.*)", done.output) == ["pings are denied", "gone, and pings pass"]
    held, _, left = done.output.partition("afterwards:")
    assert re.search(r"\| 10\.77\.0\.0/16 .*\| 2 \(0%\)", held), held
    assert re.search(r"\| 10\.77\.0\.0/16 .*\| 0 \(0%\)", left), left
    assert "veth" not in left
    record_property(SUMMARY, f"arm64: a release, installed in a machine: {done.seconds:.0f} s")
