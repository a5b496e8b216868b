"""An empty registry for each test."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.conftest import LAB_CACHE
from tests.deadlines import until


@pytest.fixture
def registry() -> Iterator[str]:
    """The prefix of an empty one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [LAB_CACHE / "bin" / "crane", "registry", "serve", "--address", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        until(lambda: _listens(port), "the registry")
        yield f"127.0.0.1:{port}/team/cni-calico"
        server.kill()


def _listens(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0
