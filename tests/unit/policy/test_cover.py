"""Networks of a set as a minimal cover, against the standard library's, also after any changes."""

from ipaddress import collapse_addresses, ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.policy import cover
from cni_calico.policy.cover import Cover, minimal_cover


def network_of(number):
    """Close to one another, so that they overlap and join; of both families."""
    rest, host = divmod(number, 128)
    rest, is_v6 = divmod(rest, 2)
    shorter, is_any = divmod(rest, 2)
    bits, base = (128, 0xFD << 120) if is_v6 else (32, 10 << 24)
    length = bits - shorter % (bits + 1 if is_any else 7)
    return ip_network(((base + host >> (bits - length) << (bits - length)).to_bytes(bits // 8, "big"), length))


# drawn by one number: there are seventy thousand of them in this file, and each draw takes longer than all the rest
NETWORKS = st.integers(0, 128 * 2 * 2 * 903 - 1).map(network_of)  # 903: all lengths of both, and 7


def packed(nets):
    return {(net.network_address.packed, net.prefixlen) for net in nets}


def collapsed(nets):
    return packed(
        net for version in (4, 6) for net in collapse_addresses(net for net in nets if net.version == version)
    )


@settings(max_examples=500, deadline=None)
@given(st.lists(NETWORKS, max_size=12))
def test_minimal_cover(nets):
    assert minimal_cover((net.network_address.packed, net.prefixlen) for net in nets) == collapsed(nets)


@pytest.mark.parametrize(("few", "many"), [(0, 0), (1000, 0), (0, 8)], ids=["together", "one by one", "anew"])
@settings(max_examples=300, deadline=None)
@given(versions=st.lists(st.sets(NETWORKS, max_size=25), max_size=6))
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
