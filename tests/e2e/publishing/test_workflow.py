"""release.yml, run here up to a published release: its lines in their order, in a registry of this machine.

The releases of the two processors are small ones in the real form (tests/releases.py): building them is tested by
itself, and takes longer than all the rest.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import LAB_CACHE, ROOT
from tests.e2e.publishing.identity import Identity
from tests.e2e.publishing.registry import CACHES, Registry
from tests.releases import VERSION, make_release
from tests.workflows.runner import Runner, read_workflow

from published import PUBLISHED, parse_published  # isort: skip

pytestmark = [pytest.mark.slow, pytest.mark.registries, pytest.mark.takes(90)]

BIN = LAB_CACHE / "bin"
PASSPHRASE = "of the test's key"


def run(*words: str | Path, cwd: Path | None = None) -> str:
    environment = {**os.environ, **CACHES, "PATH": f"{BIN}:{os.environ['PATH']}", "COSIGN_PASSWORD": PASSPHRASE}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300, cwd=cwd)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def repository(tmp_path: Path, empty_registry: Registry) -> Path:
    """The sources as they are, with a place to publish and a key."""
    directory = tmp_path / "repository"
    directory.mkdir()
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    names = [name for name in listed.split("\0") if name and (ROOT / name).exists()]
    run("cp", "--parents", "-Pp", "--", *names, directory, cwd=ROOT)
    run("cosign", "generate-key-pair", "--output-key-prefix", tmp_path / "signing")
    keys = directory / "build" / "release" / "keys"
    keys.mkdir(exist_ok=True)
    (keys / "test.pub").write_bytes((tmp_path / "signing.pub").read_bytes())
    fingerprint = run(ROOT / "build/release/verify.sh", "--fingerprint", tmp_path / "signing.pub").split()[0]
    (directory / PUBLISHED.relative_to(ROOT)).write_text(
        f'registry = "{empty_registry.prefix}"\nreleases = "https://example.org/releases"\nkeys = ["{fingerprint}"]\n'
    )
    git = ("git", "-C", directory, "-c", "user.name=test", "-c", "user.email=test@example.org")
    run(*git, "init", "--quiet")
    run(*git, "add", "--all", "--force")
    run(*git, "commit", "--quiet", "--message=all", "--no-verify")
    run(*git, "tag", f"v{VERSION}")
    return directory


def build(directory: Path, line: str, environment: Mapping[str, str]) -> None:
    """What build/release.sh makes, but small."""
    words = line.replace('"', "").replace("$ARCH", environment.get("ARCH", "")).split()
    architecture, out = words[words.index("--arch") + 1], words[-1]
    sources = directory / words[0].removesuffix(".ci/debian")
    make_release(directory / out, architecture, parse_published((sources / PUBLISHED.relative_to(ROOT)).read_text()))


def test_from_a_tag_to_a_published_release(
    repository: Path, empty_registry: Registry, identity: Identity, tmp_path: Path
) -> None:
    commit = run("git", "-C", repository, "rev-parse", "HEAD").strip()
    runner = Runner(
        read_workflow(repository / ".github" / "workflows" / "release.yml"),
        repository,
        tmp_path / "run",
        context={
            "github.sha": commit,
            "github.actor": "somebody",
            "secrets.SIGNING_KEY": (tmp_path / "signing.key").read_text(),
            "secrets.COSIGN_PASSWORD": PASSPHRASE,
            "secrets.GITHUB_TOKEN": "",
        },
        environment={
            **{name: os.environ[name] for name in ("PATH", "HOME", "XDG_CACHE_HOME") if name in os.environ},
            **CACHES,
            **identity.settings(),
            "GITHUB_REF_NAME": f"v{VERSION}",
        },
        instead={"build/release.sh": build},
    )
    runner.run("publish")
    assert [job for job, _ in runner.ran if job == "build"] == ["build"] * 2
    assert list(dict.fromkeys(job for job, _ in runner.ran)) == ["build", "again", "join", "sign", "publish"]
    verify, key = ROOT / "build" / "release" / "verify.sh", tmp_path / "signing.pub"
    prefix = empty_registry.prefix
    for image in (f"{prefix}/node:v{VERSION}", f"oci://{prefix}/charts/cni-calico:{VERSION}"):
        run(verify, "--key", key, image)
    pages = tmp_path / "run" / "jobs" / "publish-0" / "dist" / "pages" / "releases"
    run(verify, "--key", key, pages / f"v{VERSION}")
    run(verify, *identity.trust, pages / f"v{VERSION}")
    # a chart that was pulled is the one that was made
    run(BIN / "helm", "pull", "--plain-http", f"oci://{prefix}/charts/cni-calico", "--version", VERSION, cwd=tmp_path)
    chart = (tmp_path / f"cni-calico-{VERSION}.tgz").read_bytes()
    assert chart == (pages / f"v{VERSION}" / f"cni-calico-chart-{VERSION}.tgz").read_bytes()
    # nobody's key stays where others find it
    keys = [path for path in (tmp_path / "run").rglob("release.key") if path.stat().st_mode & 0o077]
    assert keys == []
    assert not any(PASSPHRASE in log.read_text() for log in (tmp_path / "run").glob("*.log"))
