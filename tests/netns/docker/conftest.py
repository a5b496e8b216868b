"""One machine with Docker for each module: dockerd takes a second to start."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.netns.docker.machine import Machine, docker_machine


@pytest.fixture(scope="module")
def docker_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    root: Path = tmp_path_factory.mktemp("docker")
    with docker_machine(root, CALICO_DOCKER_POLICY_WAIT="1s") as made:
        yield made


@pytest.fixture
def box(docker_host: Machine) -> Iterator[Machine]:
    """With nothing of an earlier test: no container, no network, no policy, no agent."""
    yield docker_host
    docker_host.lab.stop(signal.SIGKILL)
    docker_host.make_well()
    docker_host.remove_everything()
