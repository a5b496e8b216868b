"""docs/publishing.md, block by block, in a copy of the repository, with a local registry in the place of an account."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.e2e.publishing.conftest import PASSPHRASE
from tests.e2e.publishing.registry import Registry, environment, free_port, running
from tests.releases import VERSION, make_releases

sys.path.insert(0, str(ROOT / "build" / "release"))

from published import read_published

pytestmark = [pytest.mark.registries, pytest.mark.slow, pytest.mark.takes(90), pytest.mark.timeout(900)]


def blocks(page: str, kind: str) -> list[str]:
    return re.findall(rf"(?ms)^```{kind}\n(.*?)^```", page)


def shell(block: str, directory: Path) -> str:
    """What it prints; each line in the order of the page, in one shell."""
    done = subprocess.run(
        ["bash", "-euc", block],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=600,
        env=environment(COSIGN_PASSWORD=PASSPHRASE),
    )
    assert done.returncode == 0, block + done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def sources_copy(tmp_path: Path) -> Path:
    directory = tmp_path / "repository"
    directory.mkdir()
    for name in ("build", "manifests"):
        shutil.copytree(ROOT / name, directory / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "CHANGELOG.md", directory)
    (directory / ".venv").symlink_to(ROOT / ".venv")
    return directory


def test_to_the_letter(sources_copy: Path, empty_registry: Registry, tmp_path: Path) -> None:
    page = (ROOT / "docs/publishing.md").read_text()
    key, make, join, publish, trial, users = blocks(page, "sh")
    (names,) = blocks(page, "toml")
    shell(key, sources_copy)
    fingerprint = shell("build/release/verify.sh --fingerprint release.pub", sources_copy).strip()
    filled = names.replace("REGISTRY", empty_registry.prefix).replace("FINGERPRINT", fingerprint)
    (sources_copy / "build/release/published.toml").write_text(filled)
    published = read_published(sources_copy / "build/release/published.toml")
    assert published.registry == empty_registry.prefix

    # what the third block makes, which other tests run
    assert re.findall(r"--arch (\w+) (\S+)", make) == [("amd64", "dist/amd64"), ("arm64", "dist/arm64")]
    make_releases(sources_copy / "dist", published)
    assert join.startswith("build/release/join.py dist/release dist/amd64 dist/arm64\n")
    shell(join.replace("build/release/join.py", f"{sys.executable} build/release/join.py"), sources_copy)

    www = tmp_path / "www"
    assert publish.count("/srv/www") == 2
    shell(publish.replace("/srv/www", str(www)), sources_copy)
    assert (www / f"releases/v{VERSION}/cni-calico.pub").is_file()
    assert len(empty_registry.versions()) == 7

    # a user, who has the release's directory
    text = users.replace("DIRECTORY", ".").replace("VERSION", VERSION).replace("REGISTRY", empty_registry.prefix)
    with running("crane", tmp_path / "mirror") as mirror:
        shell(text.replace("MIRROR", mirror.prefix), www / f"releases/v{VERSION}")
        assert len(mirror.versions()) == 3

    # the trial without an account; it serves until it is killed
    serve, *rest = trial.splitlines()
    assert serve.startswith("docker-registry serve registry.yml")
    port = free_port()
    with running("docker-registry", tmp_path / "trial", port=port):
        local = "\n".join(["export SIGNING_KEY=release.key", *rest])
        said = shell(local.replace("5000", str(port)).replace("VERSION", VERSION), sources_copy)
        assert f"127.0.0.1:{port}/cni-calico/node:v{VERSION}: signed" in said
