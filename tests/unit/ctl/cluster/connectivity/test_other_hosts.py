"""Which packets count as answers from another host, and the checksum of those that ask."""

from __future__ import annotations

import struct
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.ctl.cluster.connectivity.other_hosts import internet_checksum, is_answer

OURS = struct.pack("!HH", 77, 1)
TARGETS = {4: ip_address("10.65.3.7"), 6: ip_address("fd65::3")}
TYPES = {4: (8, 0, 11), 6: (128, 129, 3)}


def header(version: int, target: bytes) -> bytes:
    """An IP header of which only length and destination count here."""
    return b"\x45" + bytes(15) + target if version == 4 else bytes(24) + target


def received(version: int, message: bytes) -> bytes:
    """As a raw socket gives it: IPv4's with its header."""
    return header(4, bytes(4)) + message if version == 4 else message


@pytest.mark.parametrize("version", [4, 6])
def test_answers(version: int) -> None:
    request, reply, exceeded = TYPES[version]
    target = TARGETS[version]

    def report(to: bytes = target.packed, kind: int = request, ours: bytes = OURS) -> bytes:
        inner = header(version, to) + struct.pack("!BBH", kind, 0, 0) + ours
        return received(version, struct.pack("!BBHI", exceeded, 0, 0, 0) + inner)

    assert is_answer(report(), version, target, OURS)
    assert is_answer(received(version, struct.pack("!BBH", reply, 0, 0) + OURS), version, target, OURS)
    for other in (
        report(to=bytes(len(target.packed))),
        report(kind=reply),
        report(ours=struct.pack("!HH", 77, 2)),
        received(version, struct.pack("!BBH", reply, 0, 0) + struct.pack("!HH", 78, 1)),
        received(version, struct.pack("!BBH", request, 0, 0) + OURS),
        report()[:-1],
    ):
        assert not is_answer(other, version, target, OURS)


@given(st.binary(max_size=120), st.sampled_from([4, 6]))
def test_anything_may_arrive(data: bytes, version: int) -> None:
    assert is_answer(data, version, TARGETS[version], OURS) in (True, False)


@given(st.binary(min_size=2, max_size=64))
def test_a_packet_with_its_checksum_sums_up_to_nothing(data: bytes) -> None:
    """As RFC 1071 has receivers verify it."""
    even = data[: len(data) // 2 * 2]
    assert internet_checksum(even + struct.pack("!H", internet_checksum(even))) == 0
