"""Networks around an address, against a look at each of them."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.ctl.policy.networks_around import NetworksAround

_bits = st.integers(0, 7)
_addresses = st.tuples(st.sampled_from((4, 16)), _bits).map(lambda one: bytes([one[1] << 5]) + bytes(one[0] - 1))
_nets = st.tuples(_addresses, st.sampled_from((0, 1, 2, 3, 32)))


@given(st.lists(_nets, max_size=20), _addresses)
def test_the_smallest_first(nets: list[tuple[bytes, int]], address: bytes) -> None:
    around = NetworksAround((net, number) for number, net in enumerate(nets))
    parsed = [ip_network((ip_address(packed), length), strict=False) for packed, length in nets]
    having = [number for number, net in enumerate(parsed) if ip_address(address) in net]
    assert list(around.of(address)) == sorted(having, key=lambda number: -nets[number][1])
