"""HTTP by hand: however a request is cut into pieces, it is read as it was sent, or refused."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.docker.afterwards import Afterwards
from cni_calico.docker.documents import MalformedRequest, RequestFields
from cni_calico.docker.serving import DriverServer, TooLarge, open_listener, read_request
from cni_calico.errors import InvalidConfig
from cni_calico.log import SILENT
from tests.deadlines import SOON


def read(data: bytes) -> tuple[str, str, bytes]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(data)
        theirs.shutdown(socket.SHUT_WR)
        return read_request(ours, SOON)


def chunked(body: bytes, sizes: list[int]) -> bytes:
    parts, at = [], 0
    for size in [*sizes, len(body)]:
        piece = body[at : at + size]
        at += len(piece)
        if piece:
            parts.append(b"%x\r\n%s\r\n" % (len(piece), piece))
    return b"".join([*parts, b"0\r\n\r\n"])


@given(st.binary(max_size=60), st.lists(st.integers(1, 20), max_size=5))
def test_a_request_is_read_as_it_was_sent(body: bytes, sizes: list[int]) -> None:
    head = b"POST /X.Y HTTP/1.1\r\nHost: plugin\r\n"
    plain = head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    cut = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(body, sizes)
    assert read(plain) == read(cut) == ("POST", "/X.Y", body)


@given(st.binary(max_size=200))
def test_anything_else_is_refused(data: bytes) -> None:
    try:
        method, path, _ = read(data)
    except (MalformedRequest, TooLarge):
        return
    assert data.startswith(f"{method} {path} HTTP/1.".encode("latin-1"))


def test_what_is_too_large_is_not_read() -> None:
    with pytest.raises(TooLarge):
        read(b"POST / HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n")
    with pytest.raises(TooLarge):
        read(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n100001\r\n")
    with pytest.raises(TooLarge):
        read(b"POST / HTTP/1.1\r\n" + b"A: b\r\n" * 4000)


def test_a_socket_is_root_s_alone_and_one_driver_s(tmp_path: Path) -> None:
    directory = str(tmp_path / "plugins")
    (tmp_path / "plugins").mkdir()
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(f"{directory}/calico.sock")
    with open_listener(directory, "calico"):
        assert (tmp_path / "plugins" / "calico.sock").stat().st_mode & 0o777 == 0o600
        with pytest.raises(InvalidConfig, match="another driver does"):
            open_listener(directory, "calico")


def test_what_is_put_off_is_done_when_the_answer_is_out(tmp_path: Path) -> None:
    """Each in the order in which it was put off, whatever becomes of the others; Docker waits for none of it."""
    answered, done, afterwards, stopping = threading.Event(), list[str](), Afterwards(), threading.Event()
    turns = threading.Semaphore(1)

    def fail() -> None:
        raise ValueError("of ours")

    def call(_: RequestFields) -> dict[str, Any]:
        afterwards.do(lambda: done.append(f"answered: {answered.wait(60)}"))
        afterwards.do(fail)
        afterwards.do(lambda: done.append("last"))
        assert not done
        return {"Value": {}}

    listener = open_listener(str(tmp_path), "calico")
    server = DriverServer(listener, {"/X.Y": call}, frozenset(["/X.Y"]), turns, afterwards, SILENT)
    thread = threading.Thread(target=server.run, args=(stopping,))
    thread.start()
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(f"{tmp_path}/calico.sock")
        client.sendall(b"POST /X.Y HTTP/1.1\r\n\r\n")
        answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert answer.endswith(b'{"Value": {}}')
    assert not turns.acquire(blocking=False), "the call has its turn still"
    answered.set()
    assert turns.acquire(timeout=60)
    turns.release()
    assert done == ["answered: True", "last"]
    stopping.set()
    thread.join()
    listener.close()
    afterwards.do(lambda: done.append("at once"))
    assert done[-1] == "at once", "outside of a call"
