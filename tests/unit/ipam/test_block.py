"""Blocks against a naive model, and the guards of a release."""

import tracemalloc
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.errors import AddressInUse, AddressMismatch
from cni_calico.ipam.block import (
    Release,
    addresses_of,
    allocate,
    allocate_address,
    count_free,
    holder_of,
    holdings,
    new_block,
    next_write,
    ordinal_of,
    release_addresses,
    release_handle,
    reserved_ordinals,
    without_affinity,
)

CIDR = ip_network("10.0.0.16/28")
NOW = 1795176388957943422


def fresh(cidr=CIDR):
    return new_block(cidr, "n1", NOW, "2026-11-20T12:06:28Z")


def test_new_block():
    block = fresh()
    assert (block.affinity, block.node, block.empty) == ("host:n1", "n1", True)
    assert block.sequence_number == NOW
    assert block.unallocated == tuple(range(16))
    assert without_affinity(block).affinity is None
    assert without_affinity(block).affinity_claim_time == ""
    assert new_block(CIDR, None, NOW, "x").affinity_claim_time == ""


def test_equal_attributes_are_shared_and_different_ones_are_not():
    block, _ = allocate(fresh(), 2, "net.a", {"node": "n1"})
    block, _ = allocate(block, 1, "net.a", {"node": "n1"})
    assert len(block.attributes) == 1
    block, _ = allocate(block, 1, "net.a", {"node": "n2"})
    block, _ = allocate(block, 1, "net.b", {"node": "n1"})
    assert block.allocations[:5] == (0, 0, 0, 1, 2)
    assert holdings(block) == {"net.a": 4, "net.b": 1}
    block, freed = release_handle(block, "net.a")
    assert len(freed) == 4
    assert block.allocations[4] == 0 and len(block.attributes) == 1


def test_allocate_gives_what_there_is():
    block, given = allocate(fresh(), 99, "net.a", {})
    assert len(given) == 16 and count_free(block) == 0
    assert allocate(block, 1, "net.b", {}) == (block, ())


def test_reserved_addresses_are_skipped_and_keep_their_place():
    reserved = reserved_ordinals(CIDR, [ip_network("10.0.0.0/27"), ip_network("fd00::/64")])
    assert reserved == frozenset(range(16))
    assert allocate(fresh(), 1, "net.a", {}, reserved)[1] == ()
    reserved = reserved_ordinals(CIDR, [ip_network("10.0.0.16/31"), ip_network("10.0.0.19/32")])
    assert reserved == frozenset({0, 1, 3})
    assert count_free(fresh(), reserved) == 13
    block, given = allocate(fresh(), 2, "net.a", {}, reserved)
    assert [str(a) for a in given] == ["10.0.0.18", "10.0.0.20"]
    assert block.unallocated[:3] == (0, 1, 3)
    taken = allocate_address(block, ip_address("10.0.0.17"), "net.b", {})  # asking for one by name is allowed
    assert holder_of(taken, ip_address("10.0.0.17")).handle_id == "net.b"


def test_explicit_address():
    block = allocate_address(fresh(), ip_address("10.0.0.20"), "net.a", {"node": "n1"})
    with pytest.raises(AddressInUse, match="Address already assigned in block"):
        allocate_address(block, ip_address("10.0.0.20"), "net.b", {})
    for outside in ("10.0.0.32", "10.0.0.15", "fd00::1"):
        with pytest.raises(ValueError):
            ordinal_of(CIDR, ip_address(outside))


def test_release_guards():
    block = next_write(allocate(fresh(), 2, "net.a", {})[0])
    first, second, free = CIDR[0], CIDR[1], CIDR[9]
    for guard in (Release(first, "net.b"), Release(first, "net.a", NOW + 1), Release(first, None, NOW - 1)):
        with pytest.raises(AddressMismatch, match=r"10\.0\.0\.16"):
            release_addresses(block, [Release(second), guard])
    after, freed = release_addresses(block, [Release(first, "net.a", NOW), Release(free), Release(first)])
    assert freed == (first,)
    assert after.unallocated[-1] == 0 and after.sequence_for == {1: NOW}
    assert release_addresses(after, [Release(first, "net.zzz")]) == (after, ())


def test_release_by_handle_keeps_what_it_is_told():
    block, given = allocate(fresh(), 3, "net.a", {})
    after, freed = release_handle(block, "net.a", keep={given[1]})
    assert freed == (given[0], given[2])
    assert addresses_of(after, "net.a") == (given[1],)
    assert release_handle(block, "net.zzz") == (block, ())


def test_large_block_stays_small():
    for cidr in (ip_network("10.0.0.0/20"), ip_network("fd00::/116")):
        block, _ = allocate(fresh(cidr), 4000, "net.a", {"node": "n1"})
        tracemalloc.start()
        changed, given = allocate(block, 1, "net.b", {"node": "n1"})
        release_handle(changed, "net.b")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert given == (cidr[4000],)
        assert peak < 2_000_000


@st.composite
def histories(draw):
    handle = st.sampled_from(["net.a", "net.b", "net.c"])
    event = st.one_of(
        st.tuples(st.just("allocate"), handle, st.integers(1, 5)),
        st.tuples(st.just("explicit"), handle, st.integers(0, 15)),
        st.tuples(st.just("handle"), handle),
        st.tuples(st.just("address"), st.integers(0, 15)),
    )
    return draw(st.lists(event, max_size=25)), draw(st.frozensets(st.integers(0, 15), max_size=6))


@given(histories())
def test_against_a_list_and_a_dict(history):
    events, reserved = history
    block, queue, held, since = fresh(), list(range(16)), {}, {}
    for event in events:
        if event[0] == "allocate":
            block, given = allocate(block, event[2], event[1], {"node": event[1]}, reserved)
            wanted = [o for o in queue if o not in reserved][: event[2]]
            assert given == tuple(CIDR[o] for o in wanted)
        elif event[0] == "explicit":
            wanted = [event[2]] if event[2] in queue else []
            if not wanted:
                with pytest.raises(AddressInUse):
                    allocate_address(block, CIDR[event[2]], event[1], {})
                continue
            block = allocate_address(block, CIDR[event[2]], event[1], {"node": event[1]})
        else:
            if event[0] == "handle":
                wanted = sorted(o for o, h in held.items() if h == event[1])
                block, freed = release_handle(block, event[1])
            else:
                wanted = [event[1]] if event[1] in held else []
                block, freed = release_addresses(block, [Release(CIDR[event[1]])])
            assert freed == tuple(CIDR[o] for o in wanted)
            queue += wanted
            for o in wanted:
                del held[o], since[o]
            wanted = []
        for o in wanted:
            queue.remove(o)
            held[o], since[o] = event[1], block.sequence_number
        block = next_write(block)
        assert list(block.unallocated) == queue
        assert {o: block.attributes[i].handle_id for o, i in enumerate(block.allocations) if i is not None} == held
        assert dict(block.sequence_for) == since
        assert sorted({a.handle_id for a in block.attributes}) == sorted(set(held.values()))
