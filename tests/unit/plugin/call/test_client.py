"""The Python caller: whom it passes a call to, and what it keeps for itself."""

from __future__ import annotations

import socket
import subprocess
import threading
from contextlib import chdir
from pathlib import Path

import pytest

from cni_calico.plugin.call import client, protocol
from tests.fakes.front import IMPOSTOR

ENVIRON = {"CNI_COMMAND": "ADD"}


@pytest.mark.netns
def test_nothing_is_sent_to_a_server_of_another_user(tmp_path: Path) -> None:
    for directory in (tmp_path, *tmp_path.parents[:3]):
        directory.chmod(0o777)
    argv = ["/usr/bin/python3", "-c", IMPOSTOR, str(tmp_path)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as impostor:
        assert impostor.stdout is not None and impostor.stdout.readline() == "listening\n"
        with chdir(tmp_path):
            assert client.call_server("cni.sock", "calico", ENVIRON, b"secret") is None
        assert impostor.stdout.readline() == "0\n"


@pytest.mark.parametrize("missing", [protocol.MOUNTS, protocol.ROOT])
def test_a_view_that_cannot_be_sent_along_is_for_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    names = [name for name in (protocol.ROOT, protocol.MOUNTS) if name != missing]
    monkeypatch.setattr(client, "_open_descriptors", lambda *_: names)
    assert received_by_a_server(tmp_path, b"{}") == (None, b"")


def test_a_body_over_the_limit_is_for_this_process(tmp_path: Path) -> None:
    assert received_by_a_server(tmp_path, b"x" * protocol.BODY_MAX) == (None, b"")


def received_by_a_server(directory: Path, stdin: bytes) -> tuple[object, bytes]:
    """The caller's answer, and the beginning of what it has sent."""
    seen: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as listener, chdir(directory):
        listener.bind("cni.sock")
        listener.listen(1)

        def accept() -> None:
            connection, _ = listener.accept()
            with connection:
                seen.append(connection.recv(100))

        thread = threading.Thread(target=accept)
        thread.start()
        answer = client.call_server("cni.sock", "calico", ENVIRON, stdin)
        thread.join()
    return answer, seen[0]
