"""Which pools, and what is said when there is none."""

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from cni_calico.errors import CorruptRecord, NoPool
from cni_calico.ipam.pools import (
    NodeFacts,
    PoolsRead,
    pool_of,
    reserved_networks,
    select_pools,
    selects_node,
    unreadable_pool,
)
from cni_calico.model.resources import IPPool, IPReservation, Metadata

NODE = NodeFacts("n1", {"zone": "a"})


def pool(name, cidr, **fields):
    network = ip_network(cidr)
    metadata = Metadata(name, deletion_timestamp=fields.pop("deletion_timestamp", ""))
    return IPPool(metadata, network, 26 if network.version == 4 else 122, **fields)


POOLS = [
    pool("b", "10.2.0.0/16"),
    pool("a", "10.1.0.0/16", node_selector="zone == 'a'"),
    pool("other-zone", "10.3.0.0/16", node_selector="zone == 'b'"),
    pool("off", "10.4.0.0/16", disabled=True),
    pool("going", "10.5.0.0/16", deletion_timestamp="2026-11-20T12:06:28Z"),
    pool("unallocatable", "10.6.0.0/16", allocatable=False),
    pool("manual", "10.7.0.0/16", assignment_mode="Manual"),
    pool("tunnels", "10.8.0.0/16", allowed_uses=("Tunnel",)),
    pool("team", "10.9.0.0/16", namespace_selector="team == 'x'"),
    pool("six", "fd00:65::/112"),
]


def names(pools):
    return [p.metadata.name for p in pools]


def test_automatic_pools_in_name_order():
    assert names(select_pools(POOLS, family=4, node=NODE)) == ["a", "b"]
    assert names(select_pools(POOLS, family=6, node=NODE)) == ["six"]
    assert names(select_pools(POOLS, family=4, node=NodeFacts("n2", known=False))) == ["b"]
    assert names(select_pools(POOLS, family=4, node=NODE, use="Tunnel")) == ["a", "b", "tunnels"]


@pytest.mark.parametrize("wrong", [{"node_selector": "((("}, {"namespace_selector": "not a selector(("}])
def test_a_pool_that_selects_by_nothing_readable_spoils_no_other(wrong):
    odd = pool("a-first", "10.1.0.0/16", **wrong)
    assert names(select_pools([odd, POOLS[0]], family=4, node=NODE, namespace_labels={})) == ["b"]
    with pytest.raises(NoPool, match="cannot use IPPool a-first: its n"):
        select_pools([odd, POOLS[2]], family=4, node=NODE, namespace_labels={})
    assert names(select_pools([odd], family=4, node=NODE, explicit=("a-first",))) == ["a-first"]


def test_a_pool_into_which_no_block_fits_is_not_used():
    tight = replace(pool("a-tight", "10.1.0.0/28"), block_size=26)
    assert names(select_pools([tight, POOLS[0]], family=4, node=NODE)) == ["b"]
    with pytest.raises(NoPool, match="does not exist, or is not enabled"):
        select_pools([tight], family=4, node=NODE, explicit=("a-tight",))


def test_namespaces():
    assert names(select_pools(POOLS, family=4, node=NODE, namespace_labels={"team": "x"})) == ["a", "b", "team"]
    assert names(select_pools(POOLS, family=4, node=NODE, namespace_labels={"team": "y"})) == ["a", "b"]


def test_named_pools_whatever_they_select():
    asked = ("10.3.0.0/16", "manual", "team", "a")
    assert names(select_pools(POOLS, family=4, node=NODE, explicit=asked)) == ["other-zone", "manual", "team", "a"]
    assert names(select_pools(POOLS, family=4, node=NODE, explicit=("a", "10.1.0.0/16"))) == ["a"]


@pytest.mark.parametrize(
    ("explicit", "text"),
    [
        (("x",), 'error parsing pool "x": invalid CIDR address: x'),
        (("10.9.9.9",), 'error parsing pool "10.9.9.9": invalid CIDR address: 10.9.9.9'),
        (("10.99.0.0/16",), "the given pool (10.99.0.0/16) does not exist, or is not enabled"),
        (("off",), "the given pool (10.4.0.0/16) does not exist, or is not enabled"),
        (("10.5.0.0/16",), "the given pool (10.5.0.0/16) does not exist, or is not enabled"),
        (("unallocatable",), "the given pool (10.6.0.0/16) does not exist, or is not enabled"),
        (("six",), 'error parsing pool "six": fd00:65::/112 is no IPv4 network'),
        (("tunnels",), "cannot find a qualified ippool, no pools match the required use (Workload)"),
    ],
)
def test_named_pools_that_cannot_be_used(explicit, text):
    with pytest.raises(NoPool) as caught:
        select_pools(POOLS, family=4, node=NODE, explicit=explicit)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("pools", "text"),
    [
        ([POOLS[3], POOLS[9]], "cannot find a qualified ippool"),
        ([POOLS[2]], "no configured Calico pools for node n1"),
        ([POOLS[6]], "no configured Calico pools for node n1"),
        ([POOLS[8]], "no configured Calico pools for node n1"),
        ([POOLS[7]], "cannot find a qualified ippool, no pools match the required use (Workload)"),
        ([pool("odd", "10.1.0.0/16", node_selector="zone ==")], "cannot use IPPool odd: its nodeSelector is wrong"),
    ],
)
def test_no_automatic_pool(pools, text):
    with pytest.raises(NoPool) as caught:
        select_pools(pools, family=4, node=NODE)
    assert text in str(caught.value)


def test_where_an_address_lies():
    nested = [*POOLS, pool("narrow", "10.2.3.0/24")]
    assert pool_of(nested, ip_address("10.2.3.4")).metadata.name == "narrow"
    assert pool_of(nested, ip_network("10.2.4.0/26")).metadata.name == "b"
    assert pool_of(nested, ip_address("fd00:65::1")).metadata.name == "six"
    assert pool_of(nested, ip_address("192.0.2.1")) is None
    assert selects_node(nested[1], NODE) and not selects_node(nested[2], NODE)


def test_reservations():
    cidrs = tuple(map(ip_network, ("10.1.0.0/24", "fd00:65::/120", "10.2.0.7/32")))
    found = reserved_networks([IPReservation(Metadata("x"), cidrs[:2]), IPReservation(Metadata("y"), cidrs[2:])])
    assert found == cidrs


def test_of_overlapping_pools_with_blocks_of_different_sizes_only_the_oldest_is_used():
    old = IPPool(Metadata("z-old", creation_timestamp="2026-01-01T00:00:00Z"), ip_network("10.0.0.0/16"), 26)
    new = IPPool(Metadata("a-new", creation_timestamp="2026-02-01T00:00:00Z"), ip_network("10.0.128.0/17"), 28)
    same = replace(new, block_size=26)
    assert names(select_pools([new, old], family=4, node=NODE)) == ["z-old"]
    assert names(select_pools([same, old], family=4, node=NODE)) == ["a-new", "z-old"]  # the blocks are the same ones
    with pytest.raises(NoPool, match=r"cannot use IPPool a-new: it overlaps IPPool z-old \(10\.0\.0\.0/16\)"):
        select_pools([new, old], family=4, node=NODE, explicit=("a-new",))
    with pytest.raises(NoPool, match="no IPv4 pool exists that is enabled"):
        select_pools([new, replace(old, disabled=True)], family=4, node=NODE)  # its blocks may hold addresses still


WRONG = {"spec": {"cidr": "10.2.1.0/24", "blockSize": "big"}}


def test_no_other_pool_gives_the_addresses_of_one_that_cannot_be_read():
    unreadable, why = unreadable_pool("wrong", WRONG), {"wrong": "spec.blockSize is no number"}
    assert unreadable is not None
    apart, inside = pool("apart", "10.3.0.0/16"), pool("inside", "10.2.1.128/25")
    assert names(select_pools(PoolsRead([unreadable, apart, inside], why), family=4, node=NODE)) == ["apart"]
    with pytest.raises(CorruptRecord, match=r"cannot use IPPool wrong: spec\.blockSize is no number"):
        select_pools(PoolsRead([unreadable, inside], why), family=4, node=NODE)
    for asked in ("10.2.1.0/24", "10.2.1.128/25"):
        with pytest.raises(CorruptRecord, match="cannot use IPPool wrong"):
            select_pools(PoolsRead([unreadable, apart, inside], why), family=4, node=NODE, explicit=[asked])


def test_a_pool_whose_network_is_not_known_is_named_where_no_other_is_left():
    lost = CorruptRecord("cannot read IPPool wrong: it ends too early")
    pools = PoolsRead([pool("six", "fd00::/64")], lost=lost)
    assert names(select_pools(pools, family=6, node=NODE)) == ["six"]
    with pytest.raises(CorruptRecord, match="cannot read IPPool wrong"):
        select_pools(pools, family=4, node=NODE)
    pools = PoolsRead([pool("other", "10.0.0.0/16", node_selector="zone == 'east'")], lost=lost)
    with pytest.raises(CorruptRecord, match="cannot read IPPool wrong"):
        select_pools(pools, family=4, node=NODE)


@pytest.mark.parametrize("document", [{}, {"spec": 7}, {"spec": {"cidr": 7}}, {"spec": {"cidr": "10.0.0.0/99"}}])
def test_a_pool_without_a_network_says_nothing(document):
    assert unreadable_pool("wrong", document) is None
