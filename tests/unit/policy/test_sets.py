"""Networks of a set as a minimal cover, against the standard library's."""

from ipaddress import collapse_addresses, ip_network

from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.policy.sets import minimal_cover


@st.composite
def networks(draw):
    """Close to one another, so that they overlap and join; of both families."""
    bits, base = draw(st.sampled_from([(32, 10 << 24), (128, 0xFD << 120)]))
    length = draw(st.one_of(st.integers(bits - 6, bits), st.integers(0, bits)))
    number = (base + draw(st.integers(0, 127))) >> (bits - length) << (bits - length)
    return ip_network((number.to_bytes(bits // 8, "big"), length))


@settings(max_examples=500, deadline=None)
@given(st.lists(networks(), max_size=12))
def test_minimal_cover(nets):
    expected = {
        (net.network_address.packed, net.prefixlen)
        for version in (4, 6)
        for net in collapse_addresses(net for net in nets if net.version == version)
    }
    assert minimal_cover((net.network_address.packed, net.prefixlen) for net in nets) == expected
