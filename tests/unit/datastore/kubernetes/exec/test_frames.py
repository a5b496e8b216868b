"""WebSocket messages against the examples of RFC 6455, and against a reader that is written for this test."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.datastore.kubernetes.exec.frames import (
    BINARY,
    MESSAGE_LIMIT,
    PING,
    TEXT,
    NotWebSocket,
    accept_of,
    read_messages,
    render_frame,
)


def exactly(data: bytes) -> io.BytesIO:
    class Whole(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            found = super().read(size)
            if size is not None and len(found) < size:
                raise EOFError
            return found

    return Whole(data)


def server_frame(first: int, data: bytes) -> bytes:
    size = len(data)
    if size < 126:
        return bytes((first, size)) + data
    return bytes((first, 126)) + size.to_bytes(2, "big") + data if size < 65536 else _long(first, data)


def _long(first: int, data: bytes) -> bytes:
    return bytes((first, 127)) + len(data).to_bytes(8, "big") + data


def test_examples_of_the_rfc() -> None:
    assert accept_of("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert render_frame(TEXT, b"Hello", b"\x37\xfa\x21\x3d").hex() == "818537fa213d7f9f4d5158"
    pieces = bytes.fromhex("010348656c" + "80026c6f")
    assert next(read_messages(exactly(pieces).read)) == (TEXT, b"Hello")


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5), st.binary(max_size=125))
def test_pieces_and_a_ping_between_them(parts: list[bytes], ping: bytes) -> None:
    last = len(parts) - 1
    frames = b""
    for place, part in enumerate(parts):
        frames += server_frame((0x80 if place == last else 0) | (0 if place else BINARY), part)
        frames += server_frame(0x80 | PING, ping) if place < last else b""
    messages = read_messages(exactly(frames).read)
    found = [next(messages) for _ in range(len(parts))]
    assert found == [(PING, ping)] * last + [(BINARY, b"".join(parts))]


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65535, 65536])
def test_what_is_sent_can_be_read(size: int) -> None:
    data, mask = bytes(i % 251 for i in range(size)), b"\1\2\3\4"
    frame = render_frame(BINARY, data, mask)
    head = 2 if size < 126 else 4 if size < 65536 else 10
    assert frame[0] == 0x82 and frame[1] & 0x80 and frame[head : head + 4] == mask
    assert bytes(byte ^ mask[i % 4] for i, byte in enumerate(frame[head + 4 :])) == data
    if head > 2:
        assert int.from_bytes(frame[2:head], "big") == size


@pytest.mark.parametrize(
    "frames",
    [
        b"\xc2\x00",  # a bit that nobody has agreed on
        b"\x83\x00",  # a kind that there is not
        b"\x82\x80\0\0\0\0",  # a server does not mask
        b"\x80\x00",  # goes on without a beginning
        b"\x02\x01a\x82\x01b",  # begins inside another one
        b"\x09\x00",  # a control message in pieces
        b"\x89\x7e\x00\x7e" + bytes(126),  # one that is too long
        b"\x82\x7f" + (MESSAGE_LIMIT + 1).to_bytes(8, "big"),
    ],
)
def test_what_no_server_may_send(frames: bytes) -> None:
    with pytest.raises(NotWebSocket):
        next(read_messages(exactly(frames).read))


@given(st.binary(max_size=200))
def test_any_bytes(data: bytes) -> None:
    with pytest.raises((NotWebSocket, EOFError)):
        for _ in read_messages(exactly(data).read):
            pass
