"""build/release/mirror.sh: a release in another registry, where it is checked as in the first."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.e2e.publishing.conftest import Keys, run, succeed
from tests.e2e.publishing.registry import CRANE, KINDS, Registry, running
from tests.releases import VERSION

pytestmark = [pytest.mark.registries, pytest.mark.slow, pytest.mark.takes(60), pytest.mark.timeout(900)]


def test_to_a_registry_of_the_other_kind(full_registry: Registry, cosign_keys: Keys, tmp_path: Path) -> None:
    (kind,) = (each for each in KINDS if each != full_registry.kind)
    with running(kind, tmp_path / "registry") as mirror:
        # the newest version is found
        said = succeed("mirror.sh", "--key", cosign_keys.public, full_registry.prefix, mirror.prefix)
        assert said.count("signed") == 3
        wanted = {name: digest for name, digest in full_registry.versions().items() if name.endswith(VERSION)}
        assert mirror.versions() == wanted and len(wanted) == 3
        assert mirror.tags().keys() - wanted.keys() == {each for each in full_registry.tags() if ":sha256-" in each}
        published_by_us = f"{mirror.prefix}/node:v{VERSION}"
        succeed("verify.sh", "--key", cosign_keys.public, published_by_us)
        status, said = run("verify.sh", "--key", cosign_keys.other.with_suffix(".pub"), published_by_us)
        assert status == 1 and "has no signature by" in said
        # a second time, and from the mirror's own copy
        before = mirror.tags()
        succeed("mirror.sh", "--version", VERSION, "--key", cosign_keys.public, full_registry.prefix, mirror.prefix)
        assert mirror.tags() == before


def test_what_is_not_signed_is_not_copied(full_registry: Registry, cosign_keys: Keys, empty_registry: Registry) -> None:
    unsigned = f"127.0.0.1:{full_registry.port}/unsigned"
    for name in (f"node:v{VERSION}", f"kube-controllers:v{VERSION}", f"charts/cni-calico:{VERSION}"):
        command = [CRANE, "copy", f"{full_registry.prefix}/{name}", f"{unsigned}/{name}"]
        subprocess.run(command, check=True, capture_output=True)
    status, said = run("mirror.sh", "--key", cosign_keys.public, unsigned, empty_registry.prefix)
    assert status == 1 and f"verify.sh: {unsigned}/node:v{VERSION} is not signed" in said
    status, said = run(
        "mirror.sh", "--key", cosign_keys.other.with_suffix(".pub"), full_registry.prefix, empty_registry.prefix
    )
    assert status == 1 and "has no signature by" in said
    status, said = run("mirror.sh", "--key", cosign_keys.public, f"{unsigned}/none", empty_registry.prefix)
    assert status == 1 and f"{unsigned}/none/node has no version" in said
    assert run("mirror.sh", "--key", cosign_keys.public, unsigned)[0] == 2
    assert empty_registry.tags() == {}
