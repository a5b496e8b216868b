"""What is guarded, against a naive model of addresses one by one; and the script."""

from __future__ import annotations

import itertools
from dataclasses import replace
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.model.host import HostInterface
from cni_calico.nodeagent.context.felix import FelixSettings, parse_felix
from cni_calico.nodeagent.dataplane.encryption.guard import (
    DesiredGuard,
    describe_mandatory,
    desired_guard,
    render_guard,
    subtract,
)
from cni_calico.nodeagent.view.snapshot import BlockRoute, Snapshot
from tests.unit.nodeagent.fabric import INTERFACES, NODES, block, node, pool, snapshot, workload

FELIX = FelixSettings(wireguard_strict="true")
HOLDERS = st.sampled_from(("n1", "n2", "n3"))


def covers(guard: DesiredGuard, address: str) -> bool:
    number = int(ip_address(address))
    return any(low <= number <= high for low, high in guard.guarded[":" in address])


def guarded(*pools: Any, felix: FelixSettings = FELIX, **more: Any) -> DesiredGuard:
    return desired_guard(snapshot(*pools, **more), INTERFACES, felix)


POOL = pool("10.65.0.0/16", "Always")


@pytest.mark.parametrize(
    ("address", "is_guarded"),
    [
        ("10.65.1.9", False),  # this node's block
        ("10.65.2.9", True),
        ("10.65.200.1", True),  # nobody's yet
        ("10.0.0.2", False),
        ("192.0.2.1", False),
        ("fd65::2:1", True),
        ("fd65::1:1", False),
    ],
)
def test_addresses(address: str, is_guarded: bool) -> None:
    assert covers(guarded(POOL, pool("fd65::/64")), address) == is_guarded


def test_what_was_lent_counts_for_who_has_it() -> None:
    blocks = (block("10.65.1.0/26", "n1", n3="10.65.1.9"), block("10.65.2.0/26", "n2", n1="10.65.2.9"))
    found = guarded(POOL, blocks=blocks)
    assert covers(found, "10.65.1.9") and not covers(found, "10.65.2.9") and not covers(found, "10.65.1.8")


def test_blocks_outside_of_pools_are_guarded_and_pools_of_services_are_not() -> None:
    services = pool("10.66.0.0/16", allowed_uses=("LoadBalancer",))
    found = guarded(services)
    assert covers(found, "10.65.2.9") and not covers(found, "10.66.0.1")


def test_a_node_in_a_pool_and_a_workload_without_a_block_are_free() -> None:
    nodes = {**NODES, "n2": node("n2", "10.65.0.2/24")}
    found = guarded(POOL, nodes=nodes, endpoints=(workload("a", "calia", "10.65.77.1/32"),))
    assert not covers(found, "10.65.0.2") and not covers(found, "10.65.77.1") and covers(found, "10.65.77.2")


def test_only_devices_of_wireguards_are_a_way_around() -> None:
    """A name is a setting: that of the uplink would let everything through in plain text."""
    felix = replace(FELIX, wireguard_name="eth0", wireguard_name_v6="wg6")
    assert guarded(POOL, felix=felix).devices == ("wg6",)  # not there yet
    made = (*INTERFACES, HostInterface(9, "wg6", True, 1420, kind="wireguard"))
    assert desired_guard(snapshot(POOL), made, felix).devices == ("wg6",)


def test_exempt_nodes_are_reached_in_plain_text() -> None:
    found = guarded(POOL, felix=replace(FELIX, wireguard_exempt=("n2",)))
    assert not covers(found, "10.65.2.9") and covers(found, "10.65.3.9")


@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.sampled_from((None, "n1", "n2", "n3"))), max_size=5, unique_by=lambda b: b[0]
    ),
    st.dictionaries(st.integers(0, 31), HOLDERS, max_size=6),
    st.frozensets(st.sampled_from(("n2", "n3"))),
)
def test_like_a_naive_model(owners: list[tuple[int, str | None]], lent: dict[int, str], exempt: frozenset[str]) -> None:
    """A pool of 32 addresses, blocks of 4."""
    first = int(IPv4Address("10.65.0.0"))
    blocks = tuple(
        BlockRoute(
            ip_network((first + at * 4, 30)),
            owner,
            {ip_address(first + n): who for n, who in lent.items() if n // 4 == at and who != owner},
        )
        for at, owner in owners
    )
    felix = replace(FELIX, wireguard_exempt=tuple(sorted(exempt)))
    found = desired_guard(Snapshot("n1", pools=(pool("10.65.0.0/27"),), blocks=blocks), INTERFACES, felix)
    by_block = dict(owners)
    for n in range(32):
        holder = lent.get(n, by_block[n // 4]) if n // 4 in by_block else None
        assert covers(found, str(IPv4Address(first + n))) == (holder not in {"n1", *exempt})


RANGES = st.lists(st.integers(0, 40), max_size=12, unique=True).map(
    lambda numbers: tuple((low, high) for low, high in zip(sorted(numbers)[::2], sorted(numbers)[1::2], strict=False))
)


@given(RANGES, RANGES)
def test_subtracting_is_subtracting(ranges: Any, without: Any) -> None:
    def numbers(of: Any) -> set[int]:
        return {n for low, high in of for n in range(low, high + 1)}

    found = subtract(ranges, without)
    assert numbers(found) == numbers(ranges) - numbers(without)
    assert all(one[1] < other[0] for one, other in itertools.pairwise(found))


def test_while_records_cannot_be_read_what_was_guarded_stays() -> None:
    before = DesiredGuard(("wg",), ("cali",), (((1, 9),), ()))
    now = DesiredGuard(("wg",), ("cali",), (((5, 12),), ((7, 7),)), partial=True)
    assert now.with_former(before).guarded == (((1, 12),), ((7, 7),))
    assert replace(now, partial=False).with_former(before).guarded == (((5, 12),), ((7, 7),))
    assert now.with_former(None) == now


def test_a_family_that_is_not_encrypted_is_cut_and_said() -> None:
    strict = replace(FELIX, wireguard_strict="true", wireguard_enabled=True, wireguard_enabled_v6=False)
    both = snapshot(pool("10.65.0.0/16"), pool("fd00:65::/48"))
    (said,) = describe_mandatory(both, strict)
    assert said.startswith("IPv6 packets between pods of different nodes are dropped")
    assert not list(describe_mandatory(snapshot(pool("10.65.0.0/16"), blocks=()), strict))
    assert len(list(describe_mandatory(both, replace(strict, wireguard_enabled=False)))) == 2
    assert list(describe_mandatory(snapshot(), replace(strict, wireguard_enabled_v6=True, wireguard_strict="ja"))) == [
        "wireguard-strict is 'ja', which counts as true"
    ]


def test_the_script() -> None:
    script = render_guard(
        DesiredGuard(("wireguard.cali",), ("cali",), (((0x0A410000, 0x0A4100FF), (0x0A420001,) * 2), ()))
    )
    assert "elements = { 10.65.0.0-10.65.0.255, 10.66.0.1 }" in script
    assert script.count("counter drop") == 4 and script.count('"cali*" accept') == 2
    assert render_guard(None).count("\n") == 2


@pytest.mark.parametrize(
    ("text", "strict"), [("true", True), ("false", False), ("maybe", True), ("0", False), ("none", True)]
)
def test_what_is_neither_yes_nor_no_is_yes(text: str, strict: bool) -> None:
    for environ in ({"CALICO_WIREGUARD_STRICT": text}, {"FELIX_WIREGUARDSTRICT": text}):
        assert bool(parse_felix(environ).settings.wireguard_strict) == strict
    assert bool(parse_felix({}, None, {"wireguardStrict": text}).settings.wireguard_strict) == strict
