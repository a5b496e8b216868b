"""Ends of connections and what connection tracking lists, against messages written by hand."""

from __future__ import annotations

from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.kernel.netlink.ended import (
    _START,
    TrackedConnection,
    _connection,
    _is_plain,
    _plain_connections,
    tracked_layouts,
)
from cni_calico.kernel.netlink.layouts import Layouts


def attribute(kind: int, data: bytes) -> bytes:
    return pack("=HH", len(data) + 4, kind) + data + bytes(-len(data) % 4)


def nest(kind: int, *parts: bytes) -> bytes:
    return attribute(kind | 0x8000, b"".join(parts))


def side(kind: int, source: bytes, destination: bytes, protocol: int, *ports: bytes) -> bytes:
    first = 1 if len(source) == 4 else 3
    return nest(
        kind,
        nest(1, attribute(first, source), attribute(first + 1, destination)),
        nest(2, attribute(1, bytes((protocol,))), *ports),
    )


def ports(source: int, destination: int) -> tuple[bytes, bytes]:
    return attribute(2, pack(">H", source)), attribute(3, pack(">H", destination))


A, SERVICE, POD = bytes((10, 0, 0, 1)), bytes((10, 96, 0, 1)), bytes((10, 0, 0, 2))
HEAD = bytes(_START)
TCP = (
    HEAD
    + side(1, A, SERVICE, 6, *ports(1000, 443))
    + side(2, POD, A, 6, *ports(8443, 1000))
    + attribute(3, bytes(4))
    + nest(9, attribute(1, pack(">Q", 5)), attribute(2, pack(">Q", 500)))
    + nest(10, attribute(1, pack(">Q", 4)), attribute(2, pack(">Q", 400)))
    + nest(20, attribute(1, pack(">Q", 10**18)), attribute(2, pack(">Q", 2 * 10**18)))
)
PING = HEAD + side(
    1, bytes(15) + b"\1", bytes(15) + b"\2", 58, attribute(7, b"\0\7"), attribute(8, b"\x80"), attribute(9, b"\0")
) + side(2, bytes(15) + b"\2", bytes(15) + b"\1", 58)  # fmt: skip


def read(data: bytes, layouts: Layouts) -> TrackedConnection:
    return _connection(layouts.run(data, 0, len(data))[0])


def parse(data: bytes) -> TrackedConnection:
    layouts = tracked_layouts()
    first, again = read(data, layouts), read(data, layouts)
    assert first == again and layouts.slow == 1  # the second one by what was remembered
    return first


def test_a_translated_connection_has_the_key_that_its_packets_have() -> None:
    key = A + POD + b"\6" + pack(">HH", 1000, 8443)
    assert parse(TCP) == TrackedConnection(key, SERVICE, 443, 5, 500, 4, 400, 1e9, 2e9, b"")


def test_what_is_plain_is_read_as_all_else() -> None:
    row = tracked_layouts().run(TCP, 0, len(TCP))[0]
    assert _is_plain(row) and _plain_connections([row]) == [_connection(row)]
    ping, cut = tracked_layouts().run(PING, 0, len(PING))[0], TCP[: TCP.index(nest(20)[2:4]) - 2]
    assert not _is_plain(ping) and not _is_plain(())
    assert not _is_plain(tracked_layouts().run(cut, 0, len(cut))[0])  # it has no times


def test_icmp_without_counters() -> None:
    found = parse(PING)
    assert found.key == bytes(15) + b"\1" + bytes(15) + b"\2" + pack(">BHBB", 58, 7, 128, 0)
    assert (found.packets, found.size_back, found.ended, found.port) == (None, None, 0.0, 0)


def test_another_message_of_the_same_length_is_taken_apart_again() -> None:
    layouts = tracked_layouts()
    read(TCP, layouts)
    other = TCP.replace(attribute(3, bytes(4)), attribute(7, b"\0\0\0\1"))
    assert len(other) == len(TCP) and read(other, layouts).key and layouts.slow == 2


@given(st.integers(0, len(TCP) - 1), st.integers(0, 255))
def test_a_damaged_message_is_refused_or_read(at: int, value: int) -> None:
    layouts = tracked_layouts()
    read(TCP, layouts)
    data = TCP[:at] + bytes((value,)) + TCP[at + 1 :]
    for damaged in (data, data[:at]):
        try:
            read(damaged, layouts)
        except ValueError:
            continue


@pytest.mark.parametrize("size", [0, 3, _START, _START + 3])
def test_a_message_without_addresses_is_refused(size: int) -> None:
    with pytest.raises(ValueError):
        read(TCP[:size].ljust(size, b"\0"), tracked_layouts())
