"""Networks of a set as a minimal cover, against the standard library's, also after any changes."""

from ipaddress import collapse_addresses, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.policy import cover
from cni_calico.policy.cover import Cover, minimal_cover


@st.composite
def networks(draw):
    """Close to one another, so that they overlap and join; of both families."""
    bits, base = draw(st.sampled_from([(32, 10 << 24), (128, 0xFD << 120)]))
    length = draw(st.one_of(st.integers(bits - 6, bits), st.integers(0, bits)))
    number = (base + draw(st.integers(0, 127))) >> (bits - length) << (bits - length)
    return ip_network((number.to_bytes(bits // 8, "big"), length))


def packed(nets):
    return {(net.network_address.packed, net.prefixlen) for net in nets}


def collapsed(nets):
    return packed(
        net for version in (4, 6) for net in collapse_addresses(net for net in nets if net.version == version)
    )


@settings(max_examples=500, deadline=None)
@given(st.lists(networks(), max_size=12))
def test_minimal_cover(nets):
    assert minimal_cover((net.network_address.packed, net.prefixlen) for net in nets) == collapsed(nets)


@pytest.mark.parametrize(("few", "many"), [(0, 0), (1000, 0), (0, 8)], ids=["together", "one by one", "anew"])
@settings(max_examples=300, deadline=None)
@given(versions=st.lists(st.sets(networks(), max_size=25), max_size=6))
def test_a_cover_that_is_kept_up_to_date(few, many, versions):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cover, "_FEW", few)
        patched.setattr(cover, "_MANY", many)
        kept, there, before = Cover(), set(), set()
        for nets in versions:
            come, gone = kept.change(packed(nets - before), packed(before - nets))
            assert gone <= there and not come & there
            there = there - gone | come
            assert there == collapsed(nets)
            before = nets
