"""The order of blocks: every block once, spread over hosts, without walking what is not needed."""

from dataclasses import replace
from ipaddress import ip_network
from itertools import islice

import pytest

from cni_calico.ipam.block import allocate, new_block, without_affinity
from cni_calico.ipam.candidates import (
    block_of,
    chunked,
    count_blocks,
    is_borrowable,
    is_reclaimable,
    sort_blocks,
    start_of,
    walk_pool,
)
from cni_calico.model.resources import IPPool, Metadata

SECOND = 1_000_000_000
NOW = 1795176388 * SECOND


def pool(cidr, size):
    return IPPool(Metadata("p"), ip_network(cidr), size)


@pytest.mark.parametrize(("cidr", "size"), [("10.0.0.0/24", 28), ("10.0.0.0/30", 32), ("10.0.0.0/26", 26)])
def test_every_block_once_from_the_hosts_start(cidr, size):
    walked = list(walk_pool(pool(cidr, size), "n1"))
    every = list(ip_network(cidr).subnets(new_prefix=size))
    start = start_of("n1", len(every))
    assert walked == every[start:] + every[:start]
    assert sort_blocks(pool(cidr, size), "n1", every) == walked
    assert count_blocks(pool(cidr, size)) == len(every)


def test_hosts_spread():
    starts = {start_of(f"node-{i}", 1 << 14) for i in range(1000)}
    assert len(starts) > 950
    quarters = [sum(s >> 12 == q for s in starts) for q in range(4)]
    assert min(quarters) > 200


def test_huge_pools_are_walked_lazily():
    six = pool("fd00::/48", 122)
    assert count_blocks(six) == 1 << 74
    walked = list(islice(walk_pool(six, "n1"), 5))
    assert len(set(walked)) == 5 and all(cidr.prefixlen == 122 and cidr.subnet_of(six.cidr) for cidr in walked)
    assert sort_blocks(six, "n1", reversed(walked)) == walked
    assert block_of(six, walked[3][17]) == walked[3]


def test_a_pool_smaller_than_its_blocks_has_none():
    wrong = pool("10.0.0.0/28", 26)
    assert (count_blocks(wrong), list(walk_pool(wrong, "n")), sort_blocks(wrong, "n", [wrong.cidr])) == (0, [], [])


def test_sorting_leaves_out_other_pools():
    assert sort_blocks(pool("10.0.0.0/24", 26), "n1", [ip_network("10.1.0.0/26"), ip_network("fd00::/122")]) == []


def test_chunks_grow():
    members = list(ip_network("10.0.0.0/24").subnets(new_prefix=28))
    assert [len(chunk) for chunk in chunked(members, 2, 8)] == [2, 4, 8, 2]
    assert [cidr for chunk in chunked(members, 2, 8) for cidr in chunk] == members
    assert list(chunked([], 2, 8)) == []


def test_what_may_be_reclaimed():
    block = new_block(ip_network("10.0.0.0/26"), "n2", NOW, "2026-11-20T12:06:28Z")
    minute = 60 * SECOND
    assert is_reclaimable(block, "n1", NOW + minute + 1)
    assert not is_reclaimable(block, "n1", NOW + minute)
    assert not is_reclaimable(block, "n2", NOW + 2 * minute)
    assert not is_reclaimable(allocate(block, 1, "net.a", {})[0], "n1", NOW + 2 * minute)
    assert not is_reclaimable(replace(block, affinity="virtual:lb"), "n1", NOW + 2 * minute)
    assert is_reclaimable(without_affinity(block), "n1", NOW)
    old = replace(block, affinity_claim_time="")
    assert is_reclaimable(old, "n1", NOW + minute + 1) and not is_reclaimable(old, "n1", NOW + minute)


def test_what_may_be_borrowed_from():
    block = new_block(ip_network("10.0.0.0/26"), "n2", NOW, "")
    assert is_borrowable(block) and is_borrowable(without_affinity(block))
    assert not is_borrowable(replace(block, affinity="virtual:lb"))
