"""Programs that speak HTTP/2 by hand: they take little, or nothing, of what is due to them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cni_calico.nodeagent.sync import connections
from cni_calico.nodeagent.sync.felix_pb2 import ToDataplane
from tests.deadlines import until
from tests.unit.nodeagent.sync.test_http2 import CALL, DATA, HEADERS, HELLO, PING, SETTINGS, frame, window
from tests.unit.nodeagent.sync.test_serving import Served, clients, wanted_with


@contextmanager
def connected(path: Path) -> Iterator[socket.socket]:
    until(path.is_socket, f"{path} is there")
    directory = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        made.settimeout(90)
        until(lambda: not made.connect_ex(f"/proc/self/fd/{directory}/socket"), "it listens, a moment later")
        os.close(directory)
        yield made


def frames_of(sock: socket.socket) -> Iterator[tuple[int, bytes]]:
    """Kind and payload, until the connection is closed."""
    while head := sock.recv(9, socket.MSG_WAITALL):
        length = int.from_bytes(head[:3])
        yield head[3], sock.recv(length, socket.MSG_WAITALL) if length else b""


@pytest.mark.parametrize("room", [1, 3, 5, 7, 70_000])
def test_a_reader_gets_everything_however_little_it_takes(served: Served, room: int) -> None:
    """Of messages with what gRPC has before them, which may be cut anywhere, too."""
    served.server.become(wanted_with(clients(3)))
    with connected(served.add()) as sock:
        sock.sendall(HELLO + frame(SETTINGS, 0, 0, b"\0\4" + room.to_bytes(4)) + frame(SETTINGS, 1) + CALL)
        got, kinds = b"", list[str]()
        for kind, payload in frames_of(sock):
            if kind == DATA:
                assert 0 < len(payload) <= room
                got += payload
                sock.sendall(window(1, len(payload)) + window(0, len(payload)))
            while len(got) >= 5 and len(got) >= (end := 5 + int.from_bytes(got[1:5])):
                kinds.append(str(ToDataplane.FromString(got[5:end]).WhichOneof("payload")))
                got = got[end:]
            if kinds[-1:] == ["in_sync"]:
                break
    assert len(kinds) == 5 and not got


@pytest.mark.parametrize("served", [0.2], indirect=True)
def test_half_a_message_is_no_reason_to_wait(served: Served) -> None:
    """Another reader of the pod ends the stream there; one that takes no more is cut off."""
    path = served.add()
    with connected(path) as first:
        first.sendall(HELLO + frame(SETTINGS, 0, 0, b"\0\4\0\0\0\7") + frame(SETTINGS, 1) + CALL)
        kinds = [kind for kind, _ in frames_of(first)]
    assert DATA in kinds and HEADERS in kinds
    assert any("has not read a message" in text for text in served.log.said)


def test_who_only_makes_us_answer_is_cut_off(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_MOST_BUFFERED", 100)
    with connected(served.add()) as sock, pytest.raises(OSError, match=r"Broken pipe|reset"):
        sock.sendall(HELLO + frame(SETTINGS, 1))
        while True:
            sock.sendall(frame(PING, 0, 0, bytes(8)))
    assert not served.failed
