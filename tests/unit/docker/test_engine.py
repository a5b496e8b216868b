"""What Docker's API answers, over a real socket: whole answers, a stream of events, and what is neither."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cni_calico.docker.engine import EVENTS, DockerEngine
from cni_calico.errors import TryAgain
from cni_calico.log import SILENT
from tests.deadlines import SOON, until

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def whole(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


class ApiServer:
    """A server: what it sends for each path, on connections that stay open; ``connections`` counts them."""

    def __init__(self, path: Path) -> None:
        self.answers: dict[str, bytes] = {EVENTS: CHUNKED}
        self.connections = 0
        self.streams: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            thread.start()
            self._threads.append(thread)

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(65536):
                path = data.split(b" ")[1].decode()
                connection.sendall(self.answers[path])
                if path == EVENTS:
                    self.streams.append(connection)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def following(server: ApiServer, path: Path) -> Iterator[tuple[DockerEngine, list[str]]]:
    """An engine whose stream of events is open, and the containers that it says have another name."""
    engine, renamed, stopping = DockerEngine(str(path), SILENT), list[str](), threading.Event()
    engine.renamed = renamed.append
    thread = threading.Thread(target=engine.follow, args=(stopping,), daemon=True)
    thread.start()
    until(lambda: engine.is_open and server.streams, "the stream is open")
    yield engine, renamed
    stopping.set()
    server.streams[-1].shutdown(socket.SHUT_RDWR)
    thread.join()
    server.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "docker.sock"


def test_nothing_is_asked_before_the_stream_is_open(path: Path) -> None:
    engine = DockerEngine(str(path), SILENT)
    with pytest.raises(TryAgain, match="does not serve yet"):
        engine.ask("/info", SOON)


def test_answers(path: Path) -> None:
    server = ApiServer(path)
    server.answers |= {
        "/whole": whole(b'{"a": 1}'),
        "/chunks": CHUNKED + chunk(b'{"a"') + chunk(b": 2}") + chunk(b""),
        "/absent": whole(b"{}", b"404 Not Found"),
    }
    with following(server, path) as (engine, _):
        assert engine.ask("/whole", SOON) == {"a": 1} and engine.ask("/chunks", SOON) == {"a": 2}
        assert engine.ask("/absent", SOON) is None
        assert server.connections == 2, "the stream's, and one for the questions"


@pytest.mark.parametrize(
    "answer", [whole(b"{"), whole(b"{}", b"500 Oh"), b"hello\r\n\r\n", CHUNKED + b"x\r\n", whole(b"[" * 100_000)]
)
def test_what_is_no_answer(path: Path, answer: bytes) -> None:
    server = ApiServer(path)
    server.answers |= {"/bad": answer, "/good": whole(b"1")}
    with following(server, path) as (engine, _):
        with pytest.raises(TryAgain, match="cannot ask Docker"):
            engine.ask("/bad", SOON)
        assert engine.ask("/good", SOON) == 1


def test_events_come_in_any_pieces(path: Path) -> None:
    server = ApiServer(path)
    with following(server, path) as (_, renamed):
        line = b'{"Actor": {"ID": "%s"}}\n'
        sent = line % b"one" + b"\n" + line % b"two" + b"3\n" + b'{"Actor": 7}\n' + line % b"three"
        for at in range(0, len(sent), 7):
            server.streams[0].sendall(chunk(sent[at : at + 7]))
        until(lambda: renamed == ["one", "two", "three"], "each is told once")


def test_a_stream_that_ends_closes_the_door_until_the_next_one(path: Path) -> None:
    server = ApiServer(path)
    with following(server, path) as (engine, renamed):
        opened = threading.Event()
        engine.opened = opened.set
        server.streams[0].sendall(chunk(b"no JSON\n"))
        assert opened.wait(60), "it is opened again"
        until(lambda: len(server.streams) == 2, "by a second stream")
        server.streams[1].sendall(chunk(b'{"Actor": {"ID": "one"}}\n'))
        until(lambda: renamed == ["one"], "which is followed")
