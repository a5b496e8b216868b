"""build/release/mirror.sh: a release in another registry, where it is checked as in the first."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.e2e.publishing.conftest import Keys, run, succeed
from tests.e2e.publishing.registry import CRANE, KINDS, Registry, running
from tests.releases import VERSION

pytestmark = [pytest.mark.registries, pytest.mark.slow, pytest.mark.takes(60), pytest.mark.timeout(900)]


def test_to_a_registry_of_the_other_kind(published: Registry, keys: Keys, tmp_path: Path) -> None:
    (kind,) = (each for each in KINDS if each != published.kind)
    with running(kind, tmp_path / "registry") as mirror:
        # the newest version is found
        said = succeed("mirror.sh", "--key", keys.public, published.prefix, mirror.prefix)
        assert said.count("signed") == 3
        wanted = {name: digest for name, digest in published.versions().items() if name.endswith(VERSION)}
        assert mirror.versions() == wanted and len(wanted) == 3
        assert mirror.tags().keys() - wanted.keys() == {each for each in published.tags() if ":sha256-" in each}
        published_by_us = f"{mirror.prefix}/node:v{VERSION}"
        succeed("verify.sh", "--key", keys.public, published_by_us)
        status, said = run("verify.sh", "--key", keys.other.with_suffix(".pub"), published_by_us)
        assert status == 1 and "has no signature by" in said
        # a second time, and from the mirror's own copy
        before = mirror.tags()
        succeed("mirror.sh", "--version", VERSION, "--key", keys.public, published.prefix, mirror.prefix)
        assert mirror.tags() == before


def test_what_is_not_signed_is_not_copied(published: Registry, keys: Keys, registry: Registry) -> None:
    unsigned = f"127.0.0.1:{published.port}/unsigned"
    for name in (f"node:v{VERSION}", f"kube-controllers:v{VERSION}", f"charts/cni-calico:{VERSION}"):
        command = [CRANE, "copy", f"{published.prefix}/{name}", f"{unsigned}/{name}"]
        subprocess.run(command, check=True, capture_output=True)
    status, said = run("mirror.sh", "--key", keys.public, unsigned, registry.prefix)
    assert status == 1 and f"verify.sh: {unsigned}/node:v{VERSION} is not signed" in said
    status, said = run("mirror.sh", "--key", keys.other.with_suffix(".pub"), published.prefix, registry.prefix)
    assert status == 1 and "has no signature by" in said
    status, said = run("mirror.sh", "--key", keys.public, f"{unsigned}/none", registry.prefix)
    assert status == 1 and f"{unsigned}/none/node has no version" in said
    assert run("mirror.sh", "--key", keys.public, unsigned)[0] == 2
    assert registry.tags() == {}
