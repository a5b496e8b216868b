"""What a server may send as an answer, and what is taken for a lost one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from cni_calico.datastore.http import ConnectionPool, Lost, Server, parse_head
from cni_calico.deadline import Deadline

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def ask(listener: socket.socket, answer: bytes) -> bytes:
    """The body that a client makes of it."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    pool = ConnectionPool(Server(*listener.getsockname()))
    try:
        return pool.request("GET", "/", {}, b"", Deadline.after(20)).body
    finally:
        pool.close()
        thread.join()


def test_chunks_are_put_together(listener: socket.socket) -> None:
    body = ask(listener, HEAD + b"5\r\nhello\r\n00A ; more=x\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n")
    assert body == b"hello0123456789"


@pytest.mark.parametrize("size", [b"-5", b"+5", b"0x5", b"1_0", b"", b"g", b"f" * 17, b"-0"])
def test_a_size_that_is_none(listener: socket.socket, size: bytes) -> None:
    """int() would read most of them; a negative one made the limit of an answer's length void."""
    with pytest.raises(Lost, match="size"):
        ask(listener, HEAD + size + b"\r\nhello\r\n0\r\n\r\n")


@pytest.mark.parametrize("head", [b"HTTP/1.1 " + b"2" * 5000, b"HTTP/1.1 -20 OK", b"HTTP/1.1 2_0 OK", b"HTTP/1.1"])
def test_a_status_that_is_none(head: bytes) -> None:
    with pytest.raises(Lost):
        parse_head(head)


@pytest.mark.parametrize("length", [b"9" * 5000, b"-1", b"1_0", b"99999999999"])
def test_a_length_that_is_none(listener: socket.socket, length: bytes) -> None:
    with pytest.raises(Lost, match="content-length"):
        ask(listener, b"HTTP/1.1 200 OK\r\nContent-Length: " + length + b"\r\n\r\nhello")
