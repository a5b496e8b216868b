"""Keys of connections from packets, against packets written by hand and any bytes."""

from __future__ import annotations

from ipaddress import ip_address
from struct import pack
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.flows.packets import key_of, parts_of
from tests.netns.wire import frame
from tests.unit.policy.cluster import PACKETS

A6, B6 = ip_address("fd00::1").packed, ip_address("fd00::2").packed


@pytest.mark.parametrize("packet", PACKETS)
def test_the_parts_are_the_packets(packet: dict[str, Any]) -> None:
    key = key_of(frame(packet, 1)[14:78])
    assert key is not None
    source, destination, protocol, sport, dport = parts_of(key)
    assert (source, destination) == (packet["source"].packed, packet["destination"].packed)
    assert protocol == packet["protocol"]
    if protocol in (1, 58):
        assert (sport, dport) == (7, packet["icmp"][0] << 8 | packet["icmp"][1])
    else:
        assert (sport, dport) == (packet["sport"], packet["dport"])


def test_extension_headers_are_skipped() -> None:
    header = pack(">IHBB", 6 << 28, 100, 0, 64) + A6 + B6
    udp = pack(">HHHH", 1000, 53, 8, 0)
    key = key_of(header + bytes((17, 0, 5, 2, 0, 0, 0, 0)) + udp)
    assert key is not None and parts_of(key) == (A6, B6, 17, 1000, 53)
    assert key_of(header + bytes((17, 255)) + udp) is None  # the header goes on behind what was copied


def test_options_are_skipped() -> None:
    header = pack(">BBHHHBBH4s4s", 0x46, 0, 36, 0, 0, 64, 6, 0, bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2))) + bytes(4)
    key = key_of(header + pack(">HH", 1, 2))
    assert key is not None and parts_of(key)[2:] == (6, 1, 2)


@given(st.binary(max_size=64))
def test_any_bytes_are_a_key_or_none(data: bytes) -> None:
    key = key_of(data)
    assert key is None or len(key) in (13, 37)
