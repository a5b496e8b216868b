"""A command in a container: what servers may answer instead of running it."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.exec.command import CommandFailedThere, ContainerCommand, RunningCommand
from cni_calico.datastore.kubernetes.exec.frames import accept_of
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, DatastoreForbidden, DatastoreUnavailable, DeadlineExceeded
from cni_calico.model.access import KubernetesAccess
from tests.fakes.tcp import TcpFake

COMMAND = ContainerCommand("kube-system", "calico-node-x", "calico-node", ("calico-node", "-flows-pipe"))
Answer = Callable[[dict[str, str]], bytes]


class Server(TcpFake):
    """Answers each request with the next one of ``answers``, and keeps the heads."""

    def __init__(self, *answers: Answer) -> None:
        self.answers, self.heads = list(answers), list[str]()
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += connection.recv(4096)
        self.heads.append(head.decode())
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:-2])
        connection.sendall(self.answers.pop(0)(headers))


def switched(*frames: bytes, protocol: str = "v4.channel.k8s.io") -> Answer:
    def answer(headers: dict[str, str]) -> bytes:
        accept = accept_of(headers["Sec-WebSocket-Key"])
        lines = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade"]
        lines += [f"Sec-WebSocket-Accept: {accept}", f"Sec-WebSocket-Protocol: {protocol}", "", ""]
        return "\r\n".join(lines).encode() + b"".join(frames)

    return answer


def refused(status: int, message: str) -> Answer:
    body = json.dumps({"message": message}).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return lambda headers: head + body


def frame(channel: int, data: bytes) -> bytes:
    return bytes((0x82, len(data) + 1, channel)) + data


SUCCESS = frame(3, b'{"status":"Success"}')


@contextmanager
def running(*answers: Answer, timeout_s: float = 20) -> Iterator[tuple[Server, RunningCommand]]:
    server = Server(*answers)
    api = KubernetesAPI(KubernetesAccess(api_root=server.url, token="t"))
    try:
        with RunningCommand(api, COMMAND, lambda: Deadline.after(timeout_s)) as command:
            yield server, command
    finally:
        api.close()
        server.close()


def test_lines_come_across_frames() -> None:
    with running(switched(frame(1, b"one\ntw"), frame(2, b"warning"), b"\x89\x00", frame(1, b"o\n"), SUCCESS)) as (
        server,
        command,
    ):
        assert list(command.lines()) == [b"one", b"two"]
        (head,) = server.heads
    assert head.startswith(
        "GET /api/v1/namespaces/kube-system/pods/calico-node-x/exec?command=calico-node&command=-flows-pipe"
        "&container=calico-node&stdin=true&stdout=true&stderr=true HTTP/1.1\r\n"
    )
    assert "Authorization: Bearer t\r\n" in head


@pytest.mark.parametrize(
    ("frames", "kind", "says"),
    [
        (
            (frame(2, b"calico-node: no such flag\nusage"), frame(3, b'{"status":"Failure","message":"code 2"}')),
            CommandFailedThere,
            "cannot run calico-node in pod kube-system/calico-node-x: calico-node: no such flag",
        ),
        ((frame(3, b'{"status":"Failure","message":"code 2"}'),), CommandFailedThere, "code 2"),
        ((frame(3, b"nonsense"),), CommandFailedThere, "its exit status cannot be read"),
        ((b"\x88\x00",), DatastoreUnavailable, "the connection ended before the command did"),
        ((b"\xff\xff",), DatastoreUnavailable, "none that a server may send"),
    ],
)
def test_what_ends_badly(frames: tuple[bytes, ...], kind: type[CalicoError], says: str) -> None:
    with running(switched(*frames)) as (_, command), pytest.raises(kind, match=says):
        list(command.lines())


@pytest.mark.parametrize(
    ("answers", "kind", "says"),
    [
        ([refused(403, "you may not exec")], DatastoreForbidden, "you may not exec"),
        ([refused(401, "who?"), refused(401, "who?")], CalicoError, "who"),
        ([refused(500, "no kubelet")], DatastoreUnavailable, "no kubelet"),
        ([refused(200, "")], DatastoreUnavailable, "does not change to WebSocket"),
        ([switched(protocol="v9")], DatastoreUnavailable, "not the one that was asked for"),
    ],
)
def test_what_is_refused(answers: list[Answer], kind: type[CalicoError], says: str) -> None:
    with pytest.raises(kind, match=says), running(*answers):
        pass


def test_credentials_that_were_replaced() -> None:
    with running(refused(401, "old"), switched(SUCCESS)) as (server, command):
        assert list(command.lines()) == [] and len(server.heads) == 2


def test_a_silent_command() -> None:
    with running(switched(), timeout_s=0.2) as (_, command), pytest.raises(DeadlineExceeded):
        list(command.lines())
