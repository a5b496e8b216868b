"""The allocator over a store with and without transactions."""

from dataclasses import replace
from itertools import combinations

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.errors import (
    AddressInUse,
    AddressOutsidePools,
    BlockLimit,
    Contention,
    CorruptRecord,
    DatastoreUnavailable,
    DeadlineExceeded,
    IPAMError,
    NoPool,
    OutcomeUnknown,
    PoolExhausted,
)
from cni_calico.ipam.block import allocate, new_block
from cni_calico.ipam.candidates import start_of, walk_pool
from cni_calico.ipam.ledger import UNKNOWNS_MAX
from cni_calico.model.documents.codec import encode
from cni_calico.model.keys import AffinityKey, BlockKey, HandleKey, IPAMConfigKey, ResourceKey, etcd_path
from cni_calico.model.resources import Affinity, Handle
from tests.deadlines import soon
from tests.unit.ipam.world import SECOND, World, ip_address, ip_network, request, texts


@pytest.fixture
def dual(world):
    world.pool("four", "10.65.0.0/24", 28)
    world.pool("six", "fd00:65::/116", 122)
    return world


def test_first_address_makes_config_block_affinity_and_handle(dual):
    [got] = dual.allocator().assign(request("net.a"), soon())
    dual.require_consistent()
    documents = dual.store.documents()
    assert documents[etcd_path(IPAMConfigKey())] == {
        "auto_allocate_blocks": True,
        "kubeVirtVMAddressPersistence": "Enabled",
    }
    assert documents[etcd_path(AffinityKey("n1", got.block))] == {"state": "confirmed", "deleted": False}
    assert documents[etcd_path(HandleKey("net.a"))] == {"block": {str(got.block): 1}, "deleted": False}
    block = documents[etcd_path(BlockKey(got.block))]
    assert block["affinity"] == "host:n1" and block["affinity_claim_time"] == "2026-11-20T12:06:28Z"
    assert block["attributes"] == [
        {"handle_id": "net.a", "secondary": {"node": "n1", "timestamp": "2026-11-20 12:06:28 +0000 UTC"}}
    ]
    assert block["sequenceNumber"] == dual.now_ns + 1 and block["sequenceNumberForAllocation"] == {"0": dual.now_ns}


def test_second_address_costs_one_commit_with_transactions_and_two_without(dual):
    allocator = dual.allocator()
    allocator.assign(request("net.a"), soon())
    dual.store.commits.clear()
    before = dual.store.round_trips.reads
    allocator.assign(request("net.b"), soon())
    assert len(dual.store.commits) == (1 if dual.store.max_commit > 1 else 2)
    assert dual.store.round_trips.reads - before == 5
    if dual.store.max_commit == 1:
        assert [type(w.key) for (w,) in dual.store.commits] == [HandleKey, BlockKey]


def test_dual_stack_is_one_commit_or_handle_first(dual):
    allocator = dual.allocator()
    allocator.assign(request("net.a", num6=1), soon())
    dual.store.commits.clear()
    got = allocator.assign(request("net.b", num6=1), soon())
    assert [item.address.version for item in got] == [4, 6]
    if dual.store.max_commit > 1:
        assert len(dual.store.commits) == 1
    else:
        assert [type(w.key) for (w,) in dual.store.commits] == [HandleKey, BlockKey, BlockKey]
    assert dual.handles()["net.b"].blocks == {got[0].block: 1, got[1].block: 1}
    dual.store.commits.clear()
    assert set(allocator.release_handle("net.b", soon())) == {item.address for item in got}
    assert len(dual.store.commits) == (1 if dual.store.max_commit > 1 else 3)
    assert allocator.release_handle("net.b", soon()) == ()
    dual.require_consistent()


def test_repeated_request_returns_what_is_stored(dual):
    allocator = dual.allocator()
    first = allocator.assign(request("net.a", num6=1), soon())
    dual.store.commits.clear()
    assert allocator.assign(request("net.a", num6=1), soon()) == first
    assert allocator.addresses_of("net.a", soon()) == first
    assert allocator.assign(request("net.a"), soon()) == first[:1]
    dual.pool("four", "10.65.0.0/24", 28, disabled=True)
    assert allocator.assign(request("net.a", num6=1), soon()) == first
    assert dual.store.commits == []
    assert allocator.addresses_of("net.zzz", soon()) == ()


def test_repeated_request_adds_the_family_that_is_missing(dual):
    allocator = dual.allocator()
    [four] = allocator.assign(request("net.a"), soon())
    got = allocator.assign(request("net.a", num6=1), soon())
    assert got[0] == four and got[1].address.version == 6
    dual.require_consistent()


def test_many_addresses_over_several_blocks(world):
    world.pool("tiny", "10.77.0.0/29", 30)
    got = world.allocator().assign(request("net.a", num4=7), soon())
    assert len({item.address for item in got}) == 7 and len({item.block for item in got}) == 2
    world.require_consistent()


def test_exhausted_pool(world):
    world.pool("tiny", "10.77.0.0/30", 30)
    allocator = world.allocator()
    for i in range(4):
        allocator.assign(request(f"net.{i}"), soon())
    before = world.records()
    for node in ("n1", "n2"):
        with pytest.raises(PoolExhausted) as caught:
            allocator.assign(request("net.x", node), soon())
        assert str(caught.value) == (
            "failed to request IPv4 addresses: Assigned 0 out of 1 requested IPv4 addresses; "
            "No IPs available in pools: [10.77.0.0/30]"
        )
    with pytest.raises(PoolExhausted, match="Assigned 0 out of 2"):
        allocator.assign(request("net.x", num4=2), soon())
    assert world.records() == before


def test_part_of_a_request_is_not_taken(world):
    world.pool("four", "10.65.0.0/24", 28)
    world.pool("six", "fd00:65::/126", 126)
    allocator = world.allocator()
    allocator.assign(request("net.six", num4=0, num6=4), soon())
    with pytest.raises(PoolExhausted, match="failed to request IPv6 addresses: Assigned 0 out of 1"):
        allocator.assign(request("net.x", num6=1), soon())
    assert "net.x" not in world.held() and "net.x" not in world.handles()
    with pytest.raises(NoPool, match="failed to request IPv6 addresses: cannot find a qualified ippool"):
        world.store.elsewhere(Write.remove(next(k for k in world.records() if getattr(k, "name", "") == "six")))
        allocator.assign(request("net.x", num6=1), soon())
    world.require_consistent()


def test_no_pool_for_the_node(world):
    world.pool("p", "10.65.0.0/24", 28, node_selector="zone == 'a'")
    with pytest.raises(NoPool, match="no configured Calico pools for node n1"):
        world.allocator().assign(request("net.a"), soon())
    assert not world.blocks()


def test_borrowing_and_strict_affinity(world):
    world.pool("tiny", "10.77.0.0/30", 30)
    allocator = world.allocator()
    [mine] = allocator.assign(request("net.a"), soon())
    [borrowed] = allocator.assign(request("net.b", "n2"), soon())
    assert borrowed.block == mine.block
    assert world.blocks()[mine.block].node == "n1"
    assert set(world.affinities()) == {("n1", mine.block)}
    world.config(strict_affinity=True)
    with pytest.raises(PoolExhausted, match="No more free affine blocks and strict affinity enabled"):
        allocator.assign(request("net.c", "n2"), soon())
    assert len(allocator.assign(request("net.c", "n1"), soon())) == 1
    world.require_consistent()


def test_borrowing_goes_pool_by_pool_in_name_order(world):
    world.pool("b", "10.77.0.0/30", 30)
    world.pool("a", "10.78.0.0/30", 30)
    allocator = world.allocator()
    allocator.assign(request("net.all", "n1", num4=8), soon())
    allocator.release_addresses([ip_address("10.77.0.1"), ip_address("10.78.0.2")], soon())
    assert texts(allocator.assign(request("net.x", "n2"), soon())) == ["10.78.0.2"]
    assert texts(allocator.assign(request("net.y", "n2"), soon())) == ["10.77.0.1"]


def test_block_limit_forbids_borrowing_too(world):
    world.pool("p", "10.77.0.0/28", 30)
    world.config(max_blocks_per_host=1)
    allocator = world.allocator()
    allocator.assign(request("net.other", "n2"), soon())
    allocator.assign(request("net.a", num4=4), soon())
    with pytest.raises(BlockLimit, match="cannot allocate new block due to per host block limit"):
        allocator.assign(request("net.b"), soon())
    world.pool("q", "10.78.0.0/28", 30)  # counted over the pools of the request
    assert len(allocator.assign(request("net.c", pools4=("q",)), soon())) == 1
    world.require_consistent()


def test_default_limit_is_twenty(world):
    world.pool("p", "10.77.0.0/24", 32)
    allocator = world.allocator()
    with pytest.raises(BlockLimit):
        allocator.assign(request("net.a", num4=21), soon())
    assert len(allocator.assign(request("net.a", num4=20), soon())) == 20


def test_no_automatic_blocks(world):
    world.pool("p", "10.77.0.0/28", 30)
    world.config(auto_allocate_blocks=False)
    with pytest.raises(PoolExhausted, match="failed to find or claim a block"):
        world.allocator().assign(request("net.a"), soon())


def test_reservations_are_kept_from_automatic_assignment_only(world):
    world.pool("p", "10.77.0.0/29", 30)
    [first, second] = walk_pool(world.allocator().view.pools(soon())[0], "n1")
    world.reserve(str(first), f"{second[0]}/31")
    allocator = world.allocator()
    got = allocator.assign(request("net.a", num4=2), soon())
    assert [item.address for item in got] == [second[2], second[3]]
    assert set(world.blocks()) == {second}  # a block that is reserved altogether is not even claimed
    with pytest.raises(PoolExhausted):
        allocator.assign(request("net.b"), soon())
    assert allocator.assign_address(second[0], "net.b", {}, "n1", soon()).address == second[0]
    assert allocator.assign_address(first[0], "net.b", {}, "n1", soon()).address == first[0]


def test_empty_block_of_another_node_is_reclaimed_after_a_minute(world):
    world.pool("tiny", "10.77.0.0/30", 30)
    world.config(strict_affinity=True)
    allocator = world.allocator()
    [got] = allocator.assign(request("net.a", "n1"), soon())
    allocator.release_handle("net.a", soon())
    with pytest.raises(PoolExhausted):
        allocator.assign(request("net.b", "n2"), soon())
    world.now_ns += 61 * SECOND
    [again] = allocator.assign(request("net.b", "n2"), soon())
    assert again.block == got.block and world.blocks()[got.block].node == "n2"
    world.require_consistent()


def test_block_that_is_used_again_meanwhile_is_not_reclaimed(world):
    world.pool("tiny", "10.77.0.0/30", 30)
    world.config(strict_affinity=True)
    allocator = world.allocator()
    allocator.assign(request("net.a", "n1"), soon())
    allocator.release_handle("net.a", soon())
    world.now_ns += 61 * SECOND
    world.store.script.append(lambda store: world.allocator().assign(request("net.again", "n1"), soon()))
    with pytest.raises(PoolExhausted):
        allocator.assign(request("net.b", "n2"), soon())
    assert set(world.held()) == {"net.again"}
    world.require_consistent()


def test_explicit_address(dual):
    allocator = dual.allocator()
    address = ip_address("10.65.0.200")
    got = allocator.assign_address(address, "net.a", {"node": "n1"}, "n1", soon())
    assert (got.address, str(got.block)) == (address, "10.65.0.192/28")
    assert dual.blocks()[got.block].node == "n1"
    assert allocator.assign_address(address, "net.a", {"node": "n1"}, "n1", soon()) == got
    with pytest.raises(AddressInUse, match="Address already assigned in block"):
        allocator.assign_address(address, "net.b", {}, "n1", soon())
    assert set(dual.handles()) == {"net.a"}
    with pytest.raises(AddressOutsidePools, match="The provided IP address is not in a configured pool"):
        allocator.assign_address(ip_address("192.0.2.1"), "net.b", {}, "n1", soon())
    borrowed = allocator.assign_address(ip_address("10.65.0.201"), "net.b", {}, "n2", soon())
    assert borrowed.block == got.block
    dual.config(strict_affinity=True)
    with pytest.raises(IPAMError, match="strict affinity"):
        allocator.assign_address(ip_address("10.65.0.202"), "net.c", {}, "n2", soon())
    dual.require_consistent()


def test_explicit_address_beyond_the_block_limit(world):
    world.pool("p", "10.77.0.0/28", 30)
    world.config(max_blocks_per_host=1)
    allocator = world.allocator()
    allocator.assign_address(ip_address("10.77.0.1"), "net.a", {}, "n1", soon())
    got = allocator.assign_address(ip_address("10.77.0.9"), "net.b", {}, "n1", soon())
    assert world.blocks()[got.block].affinity is None
    world.require_consistent()
    allocator.release_handle("net.b", soon())
    assert got.block not in world.blocks()
    world.config(max_blocks_per_host=1, strict_affinity=True)
    with pytest.raises(BlockLimit):
        allocator.assign_address(ip_address("10.77.0.9"), "net.b", {}, "n1", soon())


def test_address_in_a_disabled_pool(world):
    world.pool("p", "10.77.0.0/28", 30, disabled=True)
    with pytest.raises(AddressOutsidePools):
        world.allocator().assign_address(ip_address("10.77.0.1"), "net.a", {}, "n1", soon())


# -- blocks that are let go of ----------------------------------------------------------------------------------------


def test_block_of_a_pool_that_does_not_select_the_node_goes_with_its_last_address(world):
    world.pool("p", "10.77.0.0/28", 30, node_selector="!all()")
    allocator = world.allocator()
    [got] = allocator.assign(request("net.a", pools4=("p",)), soon())
    allocator.assign(request("net.b", pools4=("p",)), soon())
    allocator.release_handle("net.a", soon())
    assert got.block in world.blocks()
    allocator.release_handle("net.b", soon())
    assert not world.blocks() and not world.affinities()


def test_empty_block_is_let_go_of_by_the_next_request_when_its_pool_stopped_selecting(world):
    world.pool("p", "10.77.0.0/28", 30)
    world.pool("q", "10.78.0.0/28", 30)
    allocator = world.allocator()
    allocator.assign(request("net.a", pools4=("p",)), soon())
    [kept] = allocator.assign(request("net.kept", pools4=("q",)), soon())
    allocator.release_handle("net.a", soon())
    assert len(world.blocks()) == 2
    world.pool("p", "10.77.0.0/28", 30, node_selector="zone == 'z'")
    allocator.assign(request("net.b"), soon())
    assert set(world.blocks()) == {kept.block}
    world.require_consistent()


def test_ownerless_block_goes_with_its_last_address(world):
    world.pool("tiny", "10.77.0.0/30", 30)
    allocator = world.allocator()
    [got] = allocator.assign(request("net.a"), soon())
    assert not allocator.release_node_block("n1", got.block, soon())
    assert allocator.release_node_block("n1", got.block, soon(), require_empty=False)
    assert world.blocks()[got.block].affinity is None and not world.affinities()
    world.require_consistent()
    assert texts(allocator.assign(request("net.b", "n2"), soon()))  # borrowed
    allocator.release_handle("net.a", soon())
    allocator.release_handle("net.b", soon())
    assert not world.blocks()


# -- giving back by address -------------------------------------------------------------------------------------------


def test_release_by_address(dual):
    allocator = dual.allocator()
    got = allocator.assign(request("net.a", num4=2, num6=1), soon())
    allocator.assign(request("net.b"), soon())
    addresses = [item.address for item in got]
    assert allocator.release_addresses([addresses[0], addresses[2]], soon()) == (addresses[0], addresses[2])
    assert dual.handles()["net.a"].blocks == {got[1].block: 1}
    assert allocator.release_addresses([addresses[0]], soon(), handle_id="net.zzz") == ()
    with pytest.raises(IPAMError, match=r"held under handle net\.a"):
        allocator.release_addresses([addresses[1]], soon(), handle_id="net.b")
    assert allocator.release_addresses([addresses[1], ip_address("192.0.2.1")], soon()) == (addresses[1],)
    assert set(dual.handles()) == {"net.b"}
    dual.require_consistent()


def test_release_by_address_when_the_pool_is_gone_or_its_blocks_have_another_size(world):
    world.pool("p", "10.77.0.0/24", 28)
    allocator = world.allocator()
    got = allocator.assign(request("net.a", num4=2), soon())
    world.pool("p", "10.77.0.0/24", 26)
    assert allocator.release_addresses([got[0].address], soon()) == (got[0].address,)
    world.store.elsewhere(Write.remove(next(k for k in world.records() if getattr(k, "kind", "") == "IPPool")))
    assert allocator.release_addresses([got[1].address], soon()) == (got[1].address,)
    assert not world.handles()


# -- what others do meanwhile -----------------------------------------------------------------------------------------


def test_conflicts_are_computed_anew(dual):
    allocator = dual.allocator()
    allocator.assign(request("net.a", num6=1), soon())
    for i in range(3):
        dual.store.script.append(lambda store, i=i: dual.allocator().assign(request(f"net.in{i}", num6=1), soon()))
        dual.store.script.extend([None] * 5)
    allocator.assign(request("net.b", num6=1), soon())
    dual.store.script.clear()
    allocator.assign(request("net.c", num6=1), soon())
    assert len({a for addresses in dual.held().values() for a in addresses}) == 2 * len(dual.held())
    dual.require_consistent()


def test_endless_conflicts_end(dual):
    allocator = dual.allocator()
    [got] = allocator.assign(request("net.a"), soon())
    before = dual.held()

    def touch(store):
        block = store.get(BlockKey(got.block), soon())
        store.elsewhere(Write.update(block, {**block.value, "sequenceNumber": block.value["sequenceNumber"] + 1}))
        store.script.append(touch)

    dual.store.script.append(touch)
    with pytest.raises(Contention, match=f"cannot write .*{got.block}: changed by somebody else"):
        allocator.assign(request("net.b"), soon())
    assert dual.slept > 50
    dual.store.script.clear()
    allocator.release_handle("net.b", soon())  # as the runtime does
    assert dual.held() == before
    dual.require_consistent()


@pytest.mark.parametrize("how", ["lost", "vanish"])
@pytest.mark.parametrize("nth", range(6))
def test_lost_answers(dual, how, nth):
    allocator = dual.allocator()
    dual.store.script.extend([None] * nth + [how])
    got = allocator.assign(request("net.a", num6=1), soon())
    assert dual.held() == {"net.a": {item.address for item in got}}
    dual.require_consistent()
    dual.store.script.clear()
    dual.store.script.extend([None] * (nth % 3) + [how])
    assert set(allocator.release_handle("net.a", soon())) == {item.address for item in got}
    assert not dual.held()
    dual.require_consistent()


@pytest.mark.parametrize("nth", range(6))
def test_failed_writes_leave_nothing_taken(dual, nth):
    allocator = dual.allocator()
    dual.store.script.extend([None] * nth + ["fail"])
    try:
        allocator.assign(request("net.a", num6=1), soon())
    except DatastoreUnavailable:
        assert "net.a" not in dual.held() and "net.a" not in dual.handles()
    dual.store.script.clear()
    assert len(allocator.assign(request("net.a", num6=1), soon())) == 2
    dual.require_consistent()


def test_undo_that_fails_too_is_told(dual):
    allocator = dual.allocator()
    allocator.assign(request("net.a", num6=1), soon())

    def go_down(store):
        store.set_down(True)
        raise DatastoreUnavailable("cannot write: gone")

    dual.store.script.extend(([None] if dual.store.max_commit == 1 else []) + [go_down])
    with pytest.raises(DatastoreUnavailable) as caught:
        allocator.assign(request("net.b", num6=1), soon())
    assert "what was taken under handle net.b may still be there" in caught.value.details


def test_a_store_that_never_says_what_became_of_a_write_is_not_asked_for_ever(dual):
    """Nobody else is at it, so it is no contention: the call ends with what the store said."""
    allocator = dual.allocator()
    allocator.assign(request("net.a"), soon())
    before = dual.store.round_trips.writes
    dual.store.script.extend(["vanish"] * 50)
    with pytest.raises(OutcomeUnknown):
        allocator.assign(request("net.b"), soon())
    assert dual.store.round_trips.writes - before <= 2 * UNKNOWNS_MAX
    dual.store.script.clear()
    dual.require_consistent()
    assert set(dual.held()) == {"net.a"}
    dual.store.script.extend(["vanish", "vanish", "lost"] * 3)
    assert len(allocator.assign(request("net.b"), soon())) == 1, "answers that are lost now and then are no reason"
    dual.require_consistent()


def test_second_block_lost_to_somebody_else_gives_back_the_first():
    world = World(max_commit=1)
    world.pool("four", "10.65.0.0/24", 28)
    world.pool("six", "fd00:65::/127", 127)
    world.node("n1")
    allocator = world.allocator()
    allocator.assign(request("net.a", num6=1), soon())
    world.store.script.extend([None, lambda store: world.allocator().assign(request("net.b", num4=0, num6=1), soon())])
    with pytest.raises(PoolExhausted, match="IPv6"):
        allocator.assign(request("net.c", num6=1), soon())
    assert "net.c" not in world.held() and "net.c" not in world.handles()
    world.require_consistent()


def test_deadline(dual):
    with pytest.raises(DeadlineExceeded):
        dual.allocator().assign(request("net.a"), Deadline.after(-1))
    assert not dual.blocks()


# -- what crashed ones left -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["pending", "pendingDeletion", "confirmed", ""])
@pytest.mark.parametrize("owner", ["n1", "n2", None, "absent"])
def test_affinities_left_behind(world, state, owner):
    world.pool("tiny", "10.77.0.0/29", 30)
    first = next(walk_pool(world.allocator().view.pools(soon())[0], "n1"))
    world.put(AffinityKey("n1", first), Affinity(state))
    if owner != "absent":
        block, _ = allocate(new_block(first, owner, world.now_ns, "2026-11-20T12:06:28Z"), 1, "net.old", {})
        world.put(BlockKey(first), block)
        world.put(HandleKey("net.old"), Handle({first: 1}))
        if owner == "n2":
            world.put(AffinityKey("n2", first), Affinity("confirmed"))
    [got] = world.allocator().assign(request("net.a"), soon())
    assert (got.block == first) == (owner in ("n1", "absent"))
    world.require_consistent()


def test_a_confirmed_affinity_without_a_block_does_not_hide_a_free_block(world):
    world.pool("p", "10.77.0.0/25", 32)  # more blocks than are probed
    cidrs = list(ip_network("10.77.0.0/25").subnets(new_prefix=32))
    order = cidrs[start_of("n1", 128) :] + cidrs[: start_of("n1", 128)]
    for cidr in cidrs:
        world.put(AffinityKey("n2", cidr), Affinity("confirmed"))
        if cidr != order[100]:
            block, _ = allocate(new_block(cidr, "n2", world.now_ns, "2026-11-20T12:06:28Z"), 1, "net.old", {})
            world.put(BlockKey(cidr), block)
    [got] = world.allocator().assign(request("net.a"), soon())
    assert got.block == order[100]


def test_a_nearly_full_pool_is_not_read_block_by_block(world):
    world.pool("p", "10.77.0.0/22", 32)
    cidrs = list(ip_network("10.77.0.0/22").subnets(new_prefix=32))
    order = cidrs[start_of("n1", 1024) :] + cidrs[: start_of("n1", 1024)]
    for cidr in order[:1000]:
        world.put(AffinityKey("n2", cidr), Affinity("confirmed"))
        block, _ = allocate(new_block(cidr, "n2", world.now_ns, "2026-11-20T12:06:28Z"), 1, "net.old", {})
        world.put(BlockKey(cidr), block)
    world.store.round_trips.reads = 0
    [got] = world.allocator().assign(request("net.a"), soon())
    assert got.block == order[1000]
    assert world.store.round_trips.reads < 15


def test_records_marked_as_deleted_are_not_there(dual):
    allocator = dual.allocator()
    [got] = allocator.assign(request("net.a"), soon())
    block = replace(dual.blocks()[got.block], deleted=True)
    dual.put(BlockKey(got.block), block)
    dual.put(HandleKey("net.a"), Handle({got.block: 1}, deleted=True))
    [again] = allocator.assign(request("net.a"), soon())
    assert again.block == got.block
    assert dual.handles()["net.a"] == Handle({got.block: 1})
    dual.require_consistent()


# -- corrupt records --------------------------------------------------------------------------------------------------


def test_a_corrupt_block_of_somebody_else_is_passed_by(world):
    world.pool("p", "10.77.0.0/29", 30)
    walk = list(walk_pool(world.allocator().view.pools(soon())[0], "n1"))
    for raw in (b"{not json", b'{"cidr":"10.77.0.0/30","allocations":[7]}'):
        world.store.plant(BlockKey(walk[0]), raw)
        allocator = world.allocator()
        got = allocator.assign(request("net.a"), soon())
        assert got[0].block == walk[1]
        assert world.store._past[etcd_path(BlockKey(walk[0]))][-1][1] == raw
        allocator.assign(request("net.b", "n1", num4=3), soon())
        with pytest.raises(PoolExhausted):
            allocator.assign(request("net.c", "n2"), soon())
        allocator.release_handle("net.a", soon())
        allocator.release_handle("net.b", soon())


@pytest.mark.parametrize("raw", [b"{not json", b'{"cidr":7}', b"[]"])
def test_corrupt_records_of_ours_are_named_and_left(dual, raw):
    allocator = dual.allocator()
    [got] = allocator.assign(request("net.a"), soon())
    dual.store.plant(BlockKey(got.block), raw)
    for operation in (
        lambda: allocator.assign(request("net.b"), soon()),
        lambda: allocator.release_handle("net.a", soon()),
        lambda: allocator.addresses_of("net.a", soon()),
        lambda: allocator.assign_address(got.block[3], "net.b", {}, "n1", soon()),
    ):
        with pytest.raises(CorruptRecord, match=str(got.block.network_address)):
            operation()
    assert dual.store._past[etcd_path(BlockKey(got.block))][-1][1] == raw


def test_corrupt_handle(dual):
    allocator = dual.allocator()
    dual.store.plant(HandleKey("net.a"), b'{"block":[]}')
    for operation in (
        lambda: allocator.assign(request("net.a"), soon()),
        lambda: allocator.release_handle("net.a", soon()),
    ):
        with pytest.raises(CorruptRecord, match=r"net\.a"):
            operation()


def test_stored_documents_are_encoded_records(dual):
    dual.allocator().assign(request("net.a", num6=1), soon())
    for key, record in dual.records().items():
        assert dual.store.documents()[etcd_path(key)] == encode(record)


UNREADABLE = (b"{not json", b'{"spec":7}')


@pytest.mark.parametrize("raw", UNREADABLE)
def test_reservations_that_cannot_be_read_stop_the_request(dual, raw):
    dual.store.plant(ResourceKey("IPReservation", "broken"), raw)
    with pytest.raises(CorruptRecord, match="IPReservation broken"):
        dual.allocator().assign(request("net.a"), soon())
    assert dual.store.commits == []


@pytest.mark.parametrize("raw", [*UNREADABLE, b'{"spec":{"cidr":"10.9.0.0/16","blockSize":"big"}}'])
def test_a_pool_that_cannot_be_read_spoils_no_other(dual, raw):
    dual.store.plant(ResourceKey("IPPool", "broken"), raw)
    allocator = dual.allocator()
    assert len(allocator.assign(request("net.a", num6=1), soon())) == 2
    allocator.release_handle("net.a", soon())


@pytest.mark.parametrize("raw", UNREADABLE)
def test_a_pool_that_cannot_be_read_is_named_where_there_is_no_other(world, raw):
    world.store.plant(ResourceKey("IPPool", "broken"), raw)
    with pytest.raises(CorruptRecord, match="IPPool broken"):
        world.allocator().assign(request("net.a"), soon())
    assert world.store.commits == []


def test_huge_pools_cost_no_more_than_small_ones(world):
    world.pool("four", "10.0.0.0/8", 26)
    world.pool("six", "fd00::/48", 122)
    before = world.store.round_trips.reads
    assert len(world.allocator().assign(request("net.a", num6=1), soon())) == 2
    assert world.store.round_trips.reads - before < 12
    world.require_consistent()


def test_large_blocks(world):
    world.pool("four", "10.0.0.0/16", 20)
    world.pool("six", "fd00::/112", 116)
    allocator = world.allocator()
    first, second = (allocator.assign(request(f"net.{i}", num4=200, num6=200), soon()) for i in range(2))
    assert len({item.block for item in first + second}) == 2
    assert len({item.address for item in first + second}) == 800
    allocator.release_handle("net.0", soon())
    world.require_consistent()


def test_a_pool_whose_blocks_have_another_size_gives_no_new_ones_until_it_fits_again(world):
    """kubectl gives a pool without a blockSize one: a new block would lie over one that is there."""
    world.pool("a", "10.77.0.0/28", 30)
    world.node("n1")
    world.config()
    first = world.allocator().assign(request("net.first"), soon())
    world.pool("a", "10.77.0.0/28", 31)
    for number in range(3):
        world.allocator().assign(request(f"net.{number}"), soon())
    [block] = [key for key in world.records() if isinstance(key, BlockKey)]
    assert block.cidr.prefixlen == 30 and len(first) == 1
    with pytest.raises(PoolExhausted) as caught:
        world.allocator().assign(request("net.more"), soon())
    assert f"IPPool a gets no new blocks, because its blockSize is not that of block {block.cidr} in it" in str(
        caught.value.details
    )
    world.pool("a", "10.77.0.0/28", 30)
    assert world.allocator().assign(request("net.more"), soon())


@pytest.mark.parametrize("size", [28, 31])
def test_another_nodes_blocks_of_another_size_are_in_the_way_too(world, size):
    """As a pool that was deleted and made again with another blockSize, while pods had their addresses."""
    world.pool("a", "10.77.0.0/27", 30)
    world.node("n1")
    world.node("n2")
    world.config()
    [held] = world.allocator().assign(request("net.first"), soon())
    world.pool("a", "10.77.0.0/27", size)
    world.pool("b", "10.78.0.0/28", 30)
    [given] = world.allocator().assign(replace(request("net.other"), node="n2"), soon())
    assert given.address in ip_network("10.78.0.0/28")
    blocks = [key.cidr for key in world.records() if isinstance(key, BlockKey)]
    assert not any(one.overlaps(other) for one, other in combinations(blocks, 2)), blocks
    with pytest.raises(IPAMError, match="IPPool a gets no new blocks, because its blockSize"):
        world.allocator().assign_address(held.address + 8, "net.asked", {}, "n2", soon())
    world.pool("a", "10.77.0.0/27", 30)
    assert world.allocator().assign_address(held.address + 8, "net.asked", {}, "n2", soon())
