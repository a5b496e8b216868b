"""Whoever answers as AWS: how long, how much, and what of a request is in an error."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from cni_calico.deadline import Deadline
from cni_calico.errors import TryAgain
from cni_calico.nodeagent.aws import web
from cni_calico.nodeagent.aws.web import AwsAnswer, ask

OK = b"HTTP/1.1 200 OK\r\nDate: today\r\n"


@contextmanager
def answering(answer: Callable[[socket.socket, threading.Event], object]) -> Iterator[tuple[str, list[bytes]]]:
    """The URL, and the requests; ``answer`` works until its event is set."""
    requests: list[bytes] = []
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError), listener.accept()[0] as connection:
                requests.append(connection.recv(65536))
                answer(connection, ended)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
        finally:
            ended.set()
            thread.join()


def drip(connection: socket.socket, ended: threading.Event) -> None:
    connection.sendall(OK + b"X: ")
    while not ended.wait(0.02):
        connection.sendall(b"x")


def test_an_answer_that_comes_byte_by_byte_ends_with_the_deadline() -> None:
    with answering(drip) as (url, _), pytest.raises(TryAgain, match="no answer in time"):
        ask("GET", url, Deadline.after(0.5))


@pytest.mark.parametrize(
    "head", [OK + b"Content-Length: 65\r\n\r\n", OK + b"Transfer-Encoding: chunked\r\n\r\n41\r\n", OK + b"\r\n"]
)
def test_an_answer_that_is_too_long_is_none(monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    monkeypatch.setattr(web, "ANSWER_BYTES", 64)
    with (
        answering(lambda connection, ended: connection.sendall(head + b"x" * 65)) as (url, _),
        pytest.raises(TryAgain, match=r"too long|content-length '65'"),
    ):
        ask("GET", url, Deadline.after(60))


def test_a_request_and_its_answer() -> None:
    body = OK + b"Content-Length: 2\r\n\r\n{}"
    with answering(lambda connection, ended: connection.sendall(body)) as (url, requests):
        assert ask("POST", f"{url}/a?b=c", Deadline.after(60), {"host": "x", "n": "v"}, "f") == AwsAnswer(
            200, "{}", "today"
        )
    host = url.removeprefix("http://").encode()
    head = b"POST /a?b=c HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nContent-Length: 1\r\nn: v\r\n\r\nf"
    assert requests[0] == head % host


@pytest.mark.parametrize("secret", ["to\nken", "to\r\nken: x", "tokén"])
def test_a_secret_that_can_be_no_header_is_not_in_the_error(secret: str) -> None:
    url = "http://127.0.0.1:1"
    with pytest.raises(TryAgain) as failed:
        ask("GET", url, Deadline.after(60), {"Authorization": secret})
    assert str(failed.value) == (
        f"cannot ask {url}: what is to be its header Authorization has characters that none can have"
    )


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/", "http:///x", "http://127.0.0.1:port/", "http://127.0.0.1:1/a b"])
def test_what_is_no_address_is_said(url: str) -> None:
    with pytest.raises(TryAgain, match=r"no address of HTTP|Port could not be"):
        ask("GET", url, Deadline.after(60))
