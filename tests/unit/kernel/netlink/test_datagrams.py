"""Many datagrams with one call: each with its length, in its place, in their order; none is waited for."""

from __future__ import annotations

import socket

import pytest

from cni_calico.kernel.netlink.datagrams import Datagrams


def test_each_is_in_its_place_with_its_length() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        room = Datagrams(4, 16)
        sent = [b"", b"a", b"bc" * 8, b"d" * 17, b"e", b"f" * 9]
        for data in sent:
            theirs.send(data)
        found: list[tuple[int, bytes]] = []
        for most, count in ((3, 3), (100, 3)):
            lengths = room.receive(ours.fileno(), most)
            assert len(lengths) == count
            found += [(length, bytes(room.data[16 * i :][: min(16, length)])) for i, length in enumerate(lengths)]
        assert found == [(len(data), data[:16]) for data in sent]  # one is cut off, and its length says so
        with pytest.raises(BlockingIOError):
            room.receive(ours.fileno(), 1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        room.receive(-1, 1)
