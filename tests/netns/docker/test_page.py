"""docs/docker.md to the letter: every command of its pages for one host and for compose, with what they say comes out.

Rule: ``alpine`` is the image of the other tests, and ``calicoctl node init``, which needs systemd, is the policy
engine's start; everything else runs as it stands there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

import pytest

from tests.conftest import LAB_CACHE, ROOT
from tests.netns.docker.machine import IMAGE, Machine
from tests.netns.policing.lab import NODE
from tests.pages import blocks

pytestmark = [pytest.mark.netns, pytest.mark.docker]

COMPOSE = LAB_CACHE / "docker-28/usr/libexec/docker/cli-plugins"
CALICOCTL = f"""#!/bin/sh
export DATASTORE_TYPE=local NODENAME={NODE} PYTHONPATH={ROOT}
exec {sys.executable} -m cni_calico.ctl.main "$@"
"""


def commands(block: str) -> Iterator[tuple[str, str]]:
    """Each command of a block, here-documents with theirs, and what its comment says of what comes out."""
    for found in re.finditer(r"(?ms)^([^\n]*<<'END'\n.*?^END)$|^([^\n]+)$", block):
        command, _, comment = (found[1] or found[2]).partition("   #" if found[2] else "\0")
        yield command.strip(), comment.strip()


def follow(box: Machine, heading: str) -> list[str]:
    """What the commands below a heading print."""
    tools = box.root / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "calicoctl").write_text(CALICOCTL)
    (tools / "calicoctl").chmod(0o755)
    plugins = box.root / ".docker" / "cli-plugins"
    plugins.mkdir(parents=True, exist_ok=True)
    if COMPOSE.exists() and not (plugins / "docker-compose").exists():
        (plugins / "docker-compose").symlink_to(COMPOSE / "docker-compose")
    printed = []
    for command, comment in (each for block in blocks("docker.md", heading) for each in commands(block)):
        if command.startswith("calicoctl node init"):
            box.lab.start()
            continue
        script = f"export PATH={tools}:$PATH DATASTORE_PATH={box.root}/store.db; cd {box.root}; {command}"
        done = box.in_machine("sh", "-c", script, check=False)
        if comment.startswith("hello"):
            assert done.stdout == "hello\n", (command, done, box.log()[-2000:])
        elif comment.startswith("nothing"):
            assert not done.stdout, (command, done)
        else:
            assert not done.returncode, (command, done, box.log()[-2000:])
        if command.startswith("calicoctl apply"):
            box.lab.until_in_force()
        printed.append(done.stdout)
    return printed


@pytest.fixture
def followed(box: Machine) -> Iterator[Machine]:
    box.docker("tag", IMAGE, "alpine")
    yield box
    for document in box.lab.documents("NetworkPolicy", "libnetwork"):
        box.lab.remove("NetworkPolicy", document["metadata"]["name"], "libnetwork")


def test_one_host(followed: Machine) -> None:
    printed = follow(followed, "One host")
    assert any("libnetwork" in text and "10.65.0." in text for text in printed), "calicoctl get shows the containers"
    assert "db" in printed[-1], "and policy show the policy"


@pytest.mark.slow
@pytest.mark.docker28
def test_compose(followed: Machine) -> None:
    followed.lab.start()
    follow(followed, "Compose")
