"""Single interleavings that matter, one by one: who is about to do what when somebody else comes in between."""

import pytest

from cni_calico.errors import PoolExhausted
from cni_calico.ipam.claims import release_block, secure_block
from cni_calico.ipam.ledger import Ledger
from cni_calico.ipam.view import DirectView
from cni_calico.model.keys import AffinityKey, BlockKey
from cni_calico.model.resources import Affinity
from tests.deadlines import soon
from tests.unit.ipam.interleave import Operation
from tests.unit.ipam.world import SECOND, World, ip_address, ip_network, request, texts

TINY = ip_network("10.77.0.0/30")


def ledger(world, store=None):
    store = store or world.store
    return Ledger(store, DirectView(store), soon(), world.allocator()._patience)


def at_commit(world, nth, work):
    """An operation that waits right before its nth commit."""
    operation = Operation(world.store, work)
    seen = 0
    while not operation.ended:
        if operation.waiting == "commit":
            seen += 1
            if seen == nth:
                return operation
        operation.step()
    raise AssertionError(f"it made {seen} commits only: {operation.error!r}")


def finish(operation):
    while not operation.ended:
        operation.step()
    return operation


def test_own_block_is_not_released_after_its_owner_took_it_back():
    world = World(max_commit=1)
    secure_block(ledger(world), "n1", TINY, world.now_ns)
    release = at_commit(world, 2, lambda store: release_block(ledger(world, store), "n1", TINY, world.now_ns))
    assert world.affinities()[("n1", TINY)].state == "pendingDeletion"
    assert secure_block(ledger(world), "n1", TINY, world.now_ns)
    release.step()  # deletes the block it saw: must fail, the owner relies on it now
    assert TINY in world.blocks()
    finish(release)
    world.require_consistent()


def test_release_after_the_block_was_written_again(world):
    secure_block(ledger(world), "n1", TINY, world.now_ns)
    seen = world.blocks()[TINY].sequence_number
    world.pool("p", str(TINY), 30)
    world.allocator().assign(request("net.a"), soon())
    world.allocator().release_handle("net.a", soon())
    assert not release_block(ledger(world), "n1", TINY, world.now_ns, sequence_number=seen)
    assert world.blocks()[TINY].node == "n1"
    assert release_block(ledger(world), "n1", TINY, world.now_ns)
    world.require_consistent()


def test_release_that_lost_the_race_confirms_the_affinity_again():
    world = World(max_commit=1)
    world.pool("p", str(TINY), 30)
    secure_block(ledger(world), "n1", TINY, world.now_ns)
    world.config()
    owner = at_commit(world, 1, lambda store: world.allocator(store).assign(request("net.a"), soon()))
    release = at_commit(world, 2, lambda store: release_block(ledger(world, store), "n1", TINY, world.now_ns))
    finish(owner)
    assert finish(release).result is False
    assert world.held() == {"net.a": {TINY[0]}}
    world.require_consistent()


def test_a_chosen_block_that_was_reclaimed_is_not_taken_from(world):
    world.pool("p", str(TINY), 30)
    world.config(strict_affinity=True)
    world.allocator().assign(request("net.old"), soon())
    world.allocator().release_handle("net.old", soon())
    world.now_ns += 61 * SECOND
    taking = at_commit(world, 1, lambda store: world.allocator(store).assign(request("net.a", "n1"), soon()))
    world.allocator().assign(request("net.b", "n2"), soon())
    assert isinstance(finish(taking).error, PoolExhausted)
    assert set(world.held()) == {"net.b"} and set(world.handles()) == {"net.b"}
    world.require_consistent()


@pytest.mark.parametrize(("max_commit", "nth"), [(60, 1), (1, 1), (1, 2), (1, 3)])
def test_two_nodes_claim_the_same_block(max_commit, nth):
    world = World(max_commit=max_commit)
    world.config()
    world.pool("p", str(TINY), 30)
    slow = at_commit(world, nth, lambda store: world.allocator(store).assign(request("net.a"), soon()))
    world.allocator().assign(request("net.b", "n2"), soon())
    assert len(finish(slow).result) == 1
    assert len(world.blocks()) == 1
    world.require_consistent()


def test_own_claim_of_somebody_else_on_the_node_is_used_and_not_unconfirmed():
    world = World(max_commit=1)
    world.config(strict_affinity=True)
    world.pool("p", str(TINY), 30)
    slow = at_commit(world, 1, lambda store: world.allocator(store).assign(request("net.a"), soon()))
    world.allocator().assign(request("net.b"), soon())
    world.store.commits.clear()
    assert len(finish(slow).result) == 1
    assert not [w for (w,) in world.store.commits if isinstance(w.key, AffinityKey)]
    world.require_consistent()


def test_a_block_claimed_since_the_affinities_were_read_is_found(world):
    world.config(strict_affinity=True)
    world.pool("p", str(TINY), 30)
    slow = Operation(world.store, lambda store: world.allocator(store).assign(request("net.a"), soon()))
    for _ in range(6):  # facts, pools, reservations, affinities, those of all nodes
        slow.step()
    assert slow.waiting == "get_many"
    world.allocator().assign(request("net.b"), soon())
    assert len(finish(slow).result) == 1
    world.require_consistent()


def test_own_affinity_that_is_gone_by_the_time_its_block_is_made_again(world):
    """The affinity was read as confirmed, then it went with its block: the block must not come back alone."""
    world.pool("p", str(TINY), 30)
    world.config()
    secure_block(ledger(world), "n1", TINY, world.now_ns)
    slow = Operation(world.store, lambda store: world.allocator(store).assign(request("net.a"), soon()))
    for _ in range(5):  # facts, pools, reservations, affinities
        slow.step()
    assert slow.waiting == "get_many"
    assert release_block(ledger(world), "n1", TINY, world.now_ns)
    assert len(finish(slow).result) == 1
    world.require_consistent()


def test_a_reclaimed_block_is_not_counted_again_as_a_lender(world):
    world.pool("p", str(TINY), 32)
    allocator = world.allocator()
    allocator.assign(request("net.a", "n1", num4=3), soon())
    allocator.release_addresses([next(iter(world.held()["net.a"]))], soon())
    world.now_ns += 61 * SECOND
    with pytest.raises(PoolExhausted, match="Assigned 2 out of 3"):
        allocator.assign(request("net.b", "n2", num4=3), soon())
    assert len(allocator.assign(request("net.b", "n2", num4=2), soon())) == 2
    world.require_consistent()


@pytest.mark.parametrize("how", ["lost", "vanish"])
@pytest.mark.parametrize("nth", range(3))
def test_lost_answer_to_a_release_by_address(world, how, nth):
    world.pool("p", "10.77.0.0/29", 30)
    allocator = world.allocator()
    got = allocator.assign(request("net.a", num4=6), soon())
    world.store.script.extend([None] * nth + [how])
    assert set(allocator.release_addresses([a.address for a in got], soon())) == {a.address for a in got}
    assert not world.handles()
    world.require_consistent()


def test_release_by_address_repeated_after_a_crash_counts_the_handle_anew():
    world = World(max_commit=1)
    world.pool("p", str(TINY), 30)
    [got] = world.allocator().assign(request("net.a"), soon())
    address = got.address
    dying = at_commit(world, 2, lambda s: world.allocator(s).release_addresses([address], soon(), handle_id="net.a"))
    dying.step("crash before")
    assert "net.a" in world.handles() and not world.held()
    assert world.allocator().release_addresses([address], soon(), handle_id="net.a") == ()
    assert not world.handles()


def test_after_a_lost_answer_nothing_is_written_twice(world):
    world.pool("p", str(TINY), 30)
    world.allocator().assign(request("net.a"), soon())
    world.store.round_trips.writes = 0
    world.store.script.append("lost")
    world.allocator().assign(request("net.b"), soon())
    assert world.store.round_trips.writes == (1 if world.store.max_commit > 1 else 2)
    world.require_consistent()


@pytest.mark.parametrize("point", ["before", "after"])
@pytest.mark.parametrize("nth", range(1, 7))
def test_a_request_that_dies_is_finished_by_deleting_it(world, point, nth):
    world.pool("four", str(TINY), 30)
    world.pool("six", "fd00:77::/126", 126)
    operation = Operation(world.store, lambda store: world.allocator(store).assign(request("net.a", num6=1), soon()))
    seen = 0
    while not operation.ended:
        seen += operation.waiting == "commit"
        operation.step(f"crash {point}" if seen == nth and operation.waiting == "commit" else "go")
    world.require_consistent(crashed=True)
    [again] = [world.allocator().assign(request("net.a", num6=1), soon())]  # a repeated ADD heals
    world.require_consistent()
    assert len(texts(again)) == 2
    world.allocator().release_handle("net.a", soon())
    assert not world.held() and not world.handles()
    world.require_consistent()


def test_affinity_without_block_of_another_process_is_not_removed(world):
    """A claim under way on this node looks like one that died: it is joined, not undone."""
    world.config()
    world.pool("p", str(TINY), 30)
    world.put(AffinityKey("n1", TINY), Affinity("pending"))
    assert len(world.allocator().assign(request("net.a"), soon())) == 1
    assert world.store.documents()["/calico/ipam/v2/host/n1/ipv4/block/10.77.0.0-30"]["state"] == "confirmed"
    world.require_consistent()
    assert BlockKey(TINY).cidr in world.blocks() and ip_address("10.77.0.0") in world.held()["net.a"]
