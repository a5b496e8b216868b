"""Several requests on the same blocks: one write, everybody's own outcome."""

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.errors import AddressInUse, AddressMismatch
from cni_calico.ipam.batch import Assignment, Give, GiveAddresses, plan_batch
from cni_calico.ipam.block import Release, allocate, count_free, holdings, new_block, next_write, without_affinity
from cni_calico.model.keys import BlockKey, HandleKey
from cni_calico.model.resources import Handle

FOUR, SIX = ip_network("10.0.0.0/29"), ip_network("fd00::/125")


def fresh(cidr=FOUR):
    return new_block(cidr, "n1", 1000, "2026-11-20T12:06:28Z")


def records(plan):
    return {step.key: step.record for step in plan.steps}


def addresses(outcome):
    return [str(item.address) for item in outcome]


def test_many_takes_are_one_write_of_the_block():
    assignments = [Assignment(f"net.{i}", {"pod": str(i)}, num4=1) for i in range(5)]
    plan = plan_batch({FOUR: fresh()}, {t.handle_id: None for t in assignments}, assignments)
    assert [addresses(o) for o in plan.outcomes] == [[f"10.0.0.{i}"] for i in range(5)]
    assert [step.key for step in plan.steps] == [*(HandleKey(f"net.{i}") for i in range(5)), BlockKey(FOUR)]
    block = records(plan)[BlockKey(FOUR)]
    assert block.sequence_number == 1001 and set(block.sequence_for.values()) == {1000}
    assert records(plan)[HandleKey("net.3")] == Handle({FOUR: 1})


def test_a_take_that_does_not_fit_takes_nothing_and_stops_nobody():
    assignments = [
        Assignment("net.a", {}, num4=7),
        Assignment("net.b", {}, num4=2),
        Assignment("net.c", {}, num4=1, num6=9),
        Assignment("net.d", {}, num4=1),
    ]
    blocks = {FOUR: fresh(), SIX: fresh(SIX)}
    plan = plan_batch(blocks, {t.handle_id: None for t in assignments}, assignments)
    assert plan.outcomes[1] is None and plan.outcomes[2] is None
    assert addresses(plan.outcomes[3]) == ["10.0.0.7"]
    assert {step.key for step in plan.steps} == {HandleKey("net.a"), HandleKey("net.d"), BlockKey(FOUR)}


def test_explicit_addresses_fail_alone():
    assignments = [Assignment("net.a", {}, addresses=(FOUR[3],)), Assignment("net.b", {}, addresses=(FOUR[4], FOUR[3]))]
    plan = plan_batch({FOUR: fresh()}, {"net.a": None, "net.b": None}, assignments)
    assert addresses(plan.outcomes[0]) == ["10.0.0.3"] and isinstance(plan.outcomes[1], AddressInUse)
    assert holdings(records(plan)[BlockKey(FOUR)]) == {"net.a": 1}
    with pytest.raises(ValueError, match="none of the blocks"):
        plan_batch({FOUR: fresh()}, {"net.a": None}, [Assignment("net.a", {}, addresses=(ip_address("10.9.9.9"),))])


def test_what_is_freed_is_not_given_out_in_the_same_write():
    block, _ = allocate(fresh(), 8, "net.old", {})
    handles = {"net.old": Handle({FOUR: 8}), "net.new": None}
    plan = plan_batch({FOUR: block}, handles, [Give("net.old"), Assignment("net.new", {}, num4=1)])
    assert len(plan.outcomes[0]) == 8 and plan.outcomes[1] is None
    assert [step.key for step in plan.steps] == [BlockKey(FOUR), HandleKey("net.old")]
    assert records(plan)[HandleKey("net.old")] is None


def test_gaining_handles_come_first_and_losing_ones_last():
    block, _ = allocate(fresh(), 2, "net.old", {})
    handles = {"net.old": Handle({FOUR: 2}), "net.new": None}
    plan = plan_batch({FOUR: block}, handles, [Give("net.old"), Assignment("net.new", {}, num4=1)])
    assert [step.key for step in plan.steps] == [HandleKey("net.new"), BlockKey(FOUR), HandleKey("net.old")]
    with pytest.raises(ValueError, match="gains and loses"):
        plan_batch({FOUR: block}, handles, [Give("net.old"), Assignment("net.old", {}, num4=1)])


def test_counts_are_set_to_what_is_true():
    block, _ = allocate(fresh(), 1, "net.a", {})
    handle = Handle({FOUR: 7, SIX: 1, ip_network("10.9.0.0/29"): 4}, extra={"future": 1})
    plan = plan_batch({FOUR: block, SIX: None}, {"net.a": handle}, [Assignment("net.a", {}, num4=1)])
    wanted = Handle({ip_network("10.9.0.0/29"): 4, FOUR: 2}, extra={"future": 1})
    assert records(plan)[HandleKey("net.a")] == wanted
    assert plan_batch({FOUR: None}, {"net.a": Handle({})}, [Give("net.a")]).steps[0].record is None
    assert plan_batch({}, {"net.a": None}, [Give("net.a")]).steps == ()


def test_keeping_some():
    block, given = allocate(fresh(), 3, "net.a", {})
    plan = plan_batch({FOUR: block}, {"net.a": Handle({FOUR: 3})}, [Give("net.a", frozenset(given[:1]))])
    assert addresses(plan.outcomes[0]) == ["10.0.0.1", "10.0.0.2"]
    assert records(plan)[HandleKey("net.a")] == Handle({FOUR: 1})


@pytest.mark.parametrize(("held", "kept"), [(0, 0), (1, 1)])
def test_where_less_is_held_than_counted_the_block_is_written_first(held, kept):
    """Its counter may have died with the block's write on its way."""
    block, given = allocate(fresh(), held, "net.a", {})
    plan = plan_batch({FOUR: block}, {"net.a": Handle({FOUR: 2})}, [Give("net.a", frozenset(given[:kept]))])
    assert [step.key for step in plan.steps] == [BlockKey(FOUR), HandleKey("net.a")] and plan.outcomes == ((),)
    assert records(plan)[BlockKey(FOUR)] == next_write(block)
    again = plan_batch({FOUR: block}, {"net.a": Handle({FOUR: held})}, [Give("net.a", frozenset(given))])
    assert BlockKey(FOUR) not in records(again)


def test_guards_fail_alone():
    block, given = allocate(fresh(), 2, "net.a", {})
    block, _ = allocate(block, 1, "net.b", {})
    handles = {"net.a": Handle({FOUR: 2}), "net.b": Handle({FOUR: 1})}
    requests = [
        GiveAddresses((Release(given[0]), Release(given[1], "net.zzz"))),
        GiveAddresses((Release(FOUR[2], "net.b"), Release(ip_address("fd00::1")))),
    ]
    plan = plan_batch({FOUR: block}, handles, requests)
    assert isinstance(plan.outcomes[0], AddressMismatch)
    assert holdings(records(plan)[BlockKey(FOUR)]) == {"net.a": 2}
    assert records(plan)[HandleKey("net.b")] is None and HandleKey("net.a") not in records(plan)


def test_an_empty_block_of_nobody_goes():
    block, _ = allocate(without_affinity(fresh()), 1, "net.a", {})
    plan = plan_batch({FOUR: block}, {"net.a": Handle({FOUR: 1})}, [Give("net.a")])
    assert records(plan) == {BlockKey(FOUR): None, HandleKey("net.a"): None}


TAKES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8)


@given(TAKES, st.frozensets(st.integers(0, 7), max_size=3))
def test_a_batch_gives_what_one_after_the_other_would(counts, reserved):
    assignments = [Assignment(f"net.{i}", {}, num4=a, num6=b) for i, (a, b) in enumerate(counts)]
    handles = {t.handle_id: None for t in assignments}
    together = plan_batch({FOUR: fresh(), SIX: fresh(SIX)}, handles, assignments, {FOUR: reserved})
    blocks = {FOUR: fresh(), SIX: fresh(SIX)}
    for asked, outcome in zip(assignments, together.outcomes, strict=True):
        plan = plan_batch(blocks, handles, [asked], {FOUR: reserved})
        assert plan.outcomes == (outcome,)
        blocks |= {step.key.cidr: step.record for step in plan.steps if isinstance(step.key, BlockKey)}
    for cidr, block in blocks.items():
        written = records(together).get(BlockKey(cidr), fresh(cidr))
        assert (written.allocations, written.unallocated) == (block.allocations, block.unallocated)
        assert count_free(written) == count_free(block)
    assert next_write(fresh()).sequence_number == 1001
