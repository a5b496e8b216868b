"""Pages over HTTP: both families, and nobody can keep others out by connecting."""

from __future__ import annotations

import http.client
import resource
import socket
import threading
from collections.abc import Iterator

import pytest

from cni_calico.daemon import http_server
from cni_calico.daemon.http_server import PLACES, REQUEST_BYTES, TEXT, PageServer
from tests.deadlines import until

PAGES = {"/ok": lambda: (200, TEXT, b"fine\n"), "/bad": lambda: (_ for _ in ()).throw(ValueError("no"))}


@pytest.fixture
def page_server() -> Iterator[PageServer]:
    made = PageServer("localhost", 0, PAGES)
    yield made
    made.close()


def ask(port: int, path: str = "/ok", host: str = "127.0.0.1", method: str = "GET") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(host, port, timeout=20)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_both_families_of_localhost(page_server: PageServer) -> None:
    assert [ask(page_server.port, host=host) for host in ("127.0.0.1", "::1")] == [(200, b"fine\n")] * 2
    assert page_server.missing == ""


def test_every_address_of_both_families() -> None:
    server = PageServer("", 0, PAGES)
    try:
        assert [ask(server.port, host=host)[0] for host in ("127.0.0.2", "::1")] == [200, 200]
    finally:
        server.close()


def test_without_ipv6_ipv4_is_enough() -> None:
    with socket.socket(socket.AF_INET6) as taken:
        taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        taken.bind(("::1", 0))
        taken.listen()
        server = PageServer("localhost", taken.getsockname()[1], PAGES)
        try:
            assert ask(server.port)[0] == 200 and server.missing == "[::1]: Address already in use"
        finally:
            server.close()


def test_an_address_that_cannot_be_had_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for host in ("localhost", "127.0.0.1"):
            with pytest.raises(OSError, match="in use"):
                PageServer(host, taken.getsockname()[1], {})


@pytest.mark.parametrize(
    ("method", "path", "answer"),
    [
        ("GET", "/ok?verbose", (200, b"fine\n")),
        ("HEAD", "/ok", (200, b"")),
        ("POST", "/ok", (405, b"only GET\n")),
        ("GET", "/other", (404, b"not found\n")),
        ("GET", "/bad", (500, b"ValueError: no\n")),
    ],
)
def test_answers(page_server: PageServer, method: str, path: str, answer: tuple[int, bytes]) -> None:
    assert ask(page_server.port, path, method=method) == answer


def test_more_idle_connections_than_descriptors_keep_nobody_out(page_server: PageServer) -> None:
    """What a pod did to the agent: idle connections until it had no descriptor left."""
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 4 * PLACES
    idle = [socket.create_connection(("127.0.0.1", page_server.port)) for _ in range(3 * PLACES)]
    try:
        assert ask(page_server.port) == (200, b"fine\n")
        until(lambda: sum(map(is_closed, idle)) >= 2 * PLACES, "the oldest are closed")
        assert not is_closed(idle[-1])
    finally:
        for connection in idle:
            connection.close()


def test_a_request_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch, page_server: PageServer) -> None:
    monkeypatch.setattr(http_server, "REQUEST_S", 0.2)
    slow = socket.create_connection(("127.0.0.1", page_server.port))
    slow.sendall(b"GET /ok HTTP/1.1\r\nX: ")
    until(lambda: is_closed(slow), "it is closed")
    endless = socket.create_connection(("127.0.0.1", page_server.port))
    endless.sendall(b"x" * (REQUEST_BYTES + 1))
    until(lambda: is_closed(endless), "it is closed")


def test_who_does_not_read_its_answer_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "ANSWER_S", 0.2)
    large = b"x" * (1 << 24)
    server = PageServer("127.0.0.1", 0, {"/large": lambda: (200, TEXT, large), **PAGES})
    deaf = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2 * http_server.WORKERS)]
    try:
        for connection in deaf:
            connection.sendall(b"GET /large HTTP/1.1\r\n\r\n")
        assert ask(server.port) == (200, b"fine\n")
    finally:
        for connection in deaf:
            connection.close()
        server.close()


def test_it_ends_with_everything_open(page_server: PageServer) -> None:
    open_ones = [socket.create_connection(("127.0.0.1", page_server.port)) for _ in range(5)]
    port = page_server.port
    page_server.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(f"http-{port}")]
    for connection in open_ones:
        until(lambda connection=connection: is_closed(connection), "it is closed")
        connection.close()
