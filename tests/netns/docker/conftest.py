"""One machine with Docker for each module: dockerd takes a second to start. Newer releases only with ``--slow``."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.netns.docker.machine import OLDEST, Machine, docker_machine

NEWER = [
    pytest.param(release, marks=(pytest.mark.slow, getattr(pytest.mark, f"docker{release}"))) for release in (28, 29)
]


@pytest.fixture(scope="module", params=[OLDEST, *NEWER])
def docker_host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    root: Path = tmp_path_factory.mktemp("docker")
    with docker_machine(root, str(request.param), CALICO_DOCKER_POLICY_WAIT="1s") as made:
        yield made


@pytest.fixture
def box(docker_host: Machine) -> Iterator[Machine]:
    """With nothing of an earlier test: no container, no network, no policy, no agent."""
    yield docker_host
    docker_host.lab.stop(signal.SIGKILL)
    docker_host.make_well()
    docker_host.remove_everything()
