"""Fixtures: keys that cosign made, releases signed with them, and a registry of each kind that one was published to."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.e2e.publishing.identity import Identity, vouching
from tests.e2e.publishing.registry import KINDS, Registry, environment, running
from tests.releases import VERSION, make_releases

from join import join  # isort: skip
from published import Published  # isort: skip

RELEASE = ROOT / "build" / "release"
PASSPHRASE = "a passphrase with spaces"


def run(script: str, *words: str | Path, **more: str) -> tuple[int, str]:
    """Status, and what was said."""
    done = subprocess.run(
        [RELEASE / script, *words],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment(**{"COSIGN_PASSWORD": PASSPHRASE, **more}),
    )
    return done.returncode, done.stdout + done.stderr


def succeed(script: str, *words: str | Path, **more: str) -> str:
    status, said = run(script, *words, **more)
    assert status == 0, said
    return said


def cosign(*words: str | Path, **more: str) -> None:
    command = ["cosign", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(COSIGN_PASSWORD=PASSPHRASE, **more))
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True)
class Keys:
    ours: Path
    other: Path

    @property
    def public(self) -> Path:
        return self.ours.with_suffix(".pub")


@pytest.fixture(scope="session")
def cosign_keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    directory = tmp_path_factory.mktemp("keys")
    for name in ("ours", "other"):
        cosign("generate-key-pair", "--output-key-prefix", directory / name)
    return Keys(directory / "ours.key", directory / "other.key")


@pytest.fixture(scope="session")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Identity]:
    """What only a workflow has: services that vouch for it."""
    with vouching(tmp_path_factory.mktemp("identity") / "with a space") as found:
        yield found


def make_signed(directory: Path, cosign_keys: Keys, version: str = VERSION, contents: str = "") -> Path:
    made = make_releases(directory / "made", Published(), version, contents)
    join(directory / "out", made, Published(), Path("/nonexistent"))
    shutil.rmtree(directory / "made")
    succeed("sign.sh", "--key", cosign_keys.ours, directory / "out")
    return directory / "out"


@pytest.fixture(scope="session")
def signed(cosign_keys: Keys, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_signed(tmp_path_factory.mktemp("signed"), cosign_keys)


@pytest.fixture
def empty_registry(tmp_path: Path) -> Iterator[Registry]:
    """An empty one."""
    with running("docker-registry", tmp_path / "registry") as found:
        yield found


@pytest.fixture(scope="module", params=KINDS)
def full_registry(
    request: pytest.FixtureRequest, signed: Path, cosign_keys: Keys, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Registry]:
    """One that a release was published to; the tests add to it under names of their own."""
    with running(request.param, tmp_path_factory.mktemp("registry")) as found:
        succeed("publish.sh", "--registry", found.prefix, "--key", cosign_keys.ours, signed)
        yield found
