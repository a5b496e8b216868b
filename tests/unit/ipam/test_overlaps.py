"""Which pools overlap, held against every pair; and what IPAM makes of them."""

from ipaddress import ip_network
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.ipam.overlaps import describe_overlaps, overlapping_pools, refused
from cni_calico.ipam.pools import is_usable
from cni_calico.model.resources import IPPool, Metadata

OLD, NEW = "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"
CONDITION = {"type": "Allocatable", "status": "False", "reason": "CIDROverlap", "message": "..."}


def pool(name, cidr, size=28, created=OLD, **fields):
    return IPPool(Metadata(name, creation_timestamp=created), ip_network(cidr), size, **fields)


CIDRS = st.builds(
    lambda version, number, length: (
        str(ip_network((0xFD << 120 | number << 106, length), strict=False))
        if version == 6
        else str(ip_network((10 << 24 | number << 12, length), strict=False))
    ),
    st.sampled_from([4, 6]),
    st.integers(0, 15),
    st.integers(16, 22),
)
POOLS = st.lists(st.tuples(CIDRS, st.sampled_from([26, 28]), st.sampled_from([OLD, NEW])), max_size=8)


@given(POOLS)
def test_every_pair_of_pools_in_use_and_no_other(chosen):
    pools = [pool(f"p{i}", cidr, size + 96 * (":" in cidr), created) for i, (cidr, size, created) in enumerate(chosen)]
    naive = {
        mine.metadata.name: tuple(
            sorted(
                o.metadata.name
                for o in pools
                if o is not mine and o.cidr.version == mine.cidr.version and o.cidr.overlaps(mine.cidr)
            )
        )
        for mine in pools
    }
    assert overlapping_pools(pools) == {name: others for name, others in naive.items() if others}
    of_family = {version: [p for p in pools if p.cidr.version == version] for version in (4, 6)}
    for mine in pools:  # what is said to give no addresses is what IPAM takes none from
        assert refused(mine, of_family[mine.cidr.version]) != is_usable(mine, of_family[mine.cidr.version])


A, B = pool("a", "10.0.0.0/16"), pool("b", "10.0.1.0/24")


@pytest.mark.parametrize(
    ("pools", "said"),
    [
        ([A, pool("b", "10.1.0.0/16"), pool("c", "fd00::/64", 122)], {}),
        (
            [A, B],
            {
                "a": "IPPool a (10.0.0.0/16) overlaps b (10.0.1.0/24): addresses of both have "
                "the tunnel and NAT of the narrower; disable the other",
                "b": "IPPool b (10.0.1.0/24) overlaps a (10.0.0.0/16): addresses of both have "
                "the tunnel and NAT of the narrower; disable the other",
            },
        ),
        ([A, pool("b", "10.0.1.0/24", disabled=True)], {}),
        (
            [A, pool("b", "10.0.1.0/24", 26, NEW)],
            {
                "a": "IPPool a (10.0.0.0/16) overlaps b (10.0.1.0/24), which gives no addresses",
                "b": "IPPool b (10.0.1.0/24) overlaps a (10.0.0.0/16): it gives no addresses",
            },
        ),
        (  # its blocks are there, so IPAM heeds a disabled pool
            [pool("a", "10.0.0.0/16", disabled=True), pool("b", "10.0.1.0/24", 26, NEW)],
            {
                "a": "IPPool a (10.0.0.0/16) overlaps b (10.0.1.0/24), and is disabled",
                "b": "IPPool b (10.0.1.0/24) overlaps a (10.0.0.0/16): it gives no addresses",
            },
        ),
        (  # the condition decides, whoever is older
            [pool("a", "10.0.0.0/16", status={"conditions": [CONDITION]}, allocatable=False), B],
            {
                "a": "IPPool a (10.0.0.0/16) overlaps b (10.0.1.0/24): it gives no addresses",
                "b": "IPPool b (10.0.1.0/24) overlaps a (10.0.0.0/16), which gives no addresses",
            },
        ),
    ],
)
def test_what_is_said(pools, said):
    for order in permutations(pools):
        assert describe_overlaps(order) == said


@pytest.mark.parametrize("status", [None, {"conditions": 5}, {"conditions": [None, "x", {}]}, {}])
def test_a_status_of_another_shape_says_nothing(status):
    assert not refused(pool("a", "10.0.0.0/16", status=status), [])
