"""Pools that kubectl gets past an API server: which give no addresses, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network

import pytest

from cni_calico.ipam.pools import NodeFacts, select_pools
from cni_calico.ipam.unusable import describe_unusable
from cni_calico.model.resources import IPPool, Metadata

GOOD = IPPool(Metadata("good"), ip_network("10.80.0.0/16"), 26)
SIX = IPPool(Metadata("six"), ip_network("fd00::/64"), 122)


@pytest.mark.parametrize(
    ("cidr", "size", "said"),
    [
        ("11.0.0.0/8", 8, "its blockSize is 8, and must be from 20 to 32"),
        ("11.0.0.0/8", 19, "its blockSize is 19, and must be from 20 to 32"),
        ("10.79.0.0/28", 26, "10.79.0.0/28 is smaller than one of its blocks (blockSize 26)"),
        ("fd01::/64", 64, "its blockSize is 64, and must be from 116 to 128"),
    ],
)
def test_no_block_of_a_size_that_is_refused_is_made(cidr: str, size: int, said: str) -> None:
    odd = IPPool(Metadata("a-odd"), ip_network(cidr), size)
    assert describe_unusable([odd, GOOD, SIX], ()) == {"a-odd": f"IPPool a-odd gives no addresses: {said}"}
    family = odd.cidr.version
    [chosen] = select_pools([odd, GOOD, SIX], family=family, node=NodeFacts("n1"))
    assert chosen.metadata.name == ("good" if family == 4 else "six")
    assert describe_unusable([replace(odd, disabled=True)], ()) == {}


def test_a_selector_that_cannot_be_read_is_told() -> None:
    for field in ("node_selector", "namespace_selector"):
        said = describe_unusable([replace(GOOD, **{field: "((("})], ())["good"]
        assert said.startswith("cannot use IPPool good: its n") and said.endswith("only to who names it")


def test_blocks_of_another_size_are_told() -> None:
    blocks = [ip_network(text) for text in ("10.80.1.0/26", "10.80.0.64/27", "10.81.0.0/28", "fd00::/126")]
    said = describe_unusable([GOOD], blocks)
    assert said["good"].startswith(
        "IPPool good gets no new blocks, because its blockSize is not that of block 10.80.0.64/27"
    )
    assert describe_unusable([GOOD], blocks[:1]) == {}
