"""build/release/publish.sh, killed after every write, or left by its registry: run again, it ends the same."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import LAB_CACHE
from tests.e2e.publishing.conftest import PASSPHRASE, RELEASE, Keys, succeed
from tests.e2e.publishing.registry import Registry, environment, running
from tests.releases import VERSION

pytestmark = [pytest.mark.registries, pytest.mark.slow, pytest.mark.takes(300), pytest.mark.timeout(1800)]

# in the place of each program that publish.sh writes with: the program itself, and after each write that was not seen
# before (a copy beside its place is made again), for example the end of everybody in the process group
_KILLING = """\
#!/bin/bash
{program} "$@"
status=$?
case "{name} $*" in
  "skopeo copy "*dir:*) ;;
  "skopeo copy "* | "cosign sign "* | "cosign attest "* | "cp "* | "mv "* | "ln "*)
    if ! grep -qxF -- "{name} $*" "$WRITES"; then
      echo "{name} $*" >>"$WRITES"
      {then}
    fi
    ;;
esac
exit $status
"""


def programs(directory: Path, then: str) -> str:
    """A search path."""
    directory.mkdir()
    for name in ("skopeo", "cosign", "cp", "mv", "ln"):
        program = shutil.which(name, path=environment()["PATH"])
        (directory / name).write_text(_KILLING.format(program=program, name=name, then=then))
        (directory / name).chmod(0o755)
    return f"{directory}:{os.environ['PATH']}:{LAB_CACHE / 'bin'}"


def publish(
    empty_registry: Registry, signed: Path, cosign_keys: Keys, pages: Path, **more: str
) -> subprocess.CompletedProcess[str]:
    command = [
        RELEASE / "publish.sh",
        "--registry",
        empty_registry.prefix,
        "--key",
        cosign_keys.ours,
        "--pages",
        pages,
        signed,
    ]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        start_new_session=True,
        env=environment(COSIGN_PASSWORD=PASSPHRASE, **more),
    )


def signatures(empty_registry: Registry) -> dict[str, int]:
    """How many each image has, attestations included."""
    found = {}
    for name in empty_registry.tags():
        repository, _, tag = name.partition(":")
        if tag.startswith("sha256-"):
            found[name] = len(empty_registry.get(f"{repository}/manifests/{tag}")["manifests"])
    return found


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_killed_after_every_write(empty_registry: Registry, signed: Path, cosign_keys: Keys, tmp_path: Path) -> None:
    writes, pages = tmp_path / "writes", tmp_path / "www"
    search = programs(tmp_path / "programs", "kill -KILL 0")
    verified: set[str] = set()
    killed = 0
    writes.write_text("")
    while (done := publish(empty_registry, signed, cosign_keys, pages, PATH=search, WRITES=str(writes))).returncode:
        killed += 1
        assert done.returncode == -9, done.stdout + done.stderr
        assert len(writes.read_text().splitlines()) == killed
        # whatever a tag leads to now is signed
        for name, digest in empty_registry.versions().items():
            if digest not in verified:
                succeed("verify.sh", "--key", cosign_keys.public, f"127.0.0.1:{empty_registry.port}/{name}")
                verified.add(digest)
    assert killed > 25 and len(verified) == 3
    with running("crane", tmp_path / "other") as other:
        done = publish(other, signed, cosign_keys, tmp_path / "others")
        assert done.returncode == 0, done.stderr
        assert empty_registry.versions() == other.versions()
        assert signatures(empty_registry) == signatures(other)
        assert files(pages) == files(tmp_path / "others")
        assert (pages / "releases/latest").readlink() == Path(f"v{VERSION}")


def test_a_registry_that_goes_away(empty_registry: Registry, signed: Path, cosign_keys: Keys, tmp_path: Path) -> None:
    assert empty_registry.process is not None
    then = f'[ "$(wc -l <"$WRITES")" != 9 ] || kill -KILL {empty_registry.process.pid}'
    search = programs(tmp_path / "programs", then)
    (tmp_path / "writes").write_text("")
    done = publish(empty_registry, signed, cosign_keys, tmp_path / "www", PATH=search, WRITES=str(tmp_path / "writes"))
    assert done.returncode == 1 and "cannot" in done.stderr, done.stderr
    assert not (tmp_path / "www").exists()
    empty_registry.stop()
    empty_registry.start()
    assert empty_registry.versions() == {}
    done = publish(empty_registry, signed, cosign_keys, tmp_path / "www")
    assert done.returncode == 0, done.stderr
    assert len(empty_registry.versions()) == 7
