"""What is released that nobody else would release, and above all what is not."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.datastore.interface import Write
from cni_calico.ipam.claims import secure_block
from cni_calico.ipam.janitor import Janitor, is_of_network
from cni_calico.model.keys import AffinityKey, BlockKey, HandleKey
from cni_calico.model.resources import Affinity, Handle
from tests.unit.ipam.world import SECOND, World, ip_network, request, soon


@pytest.fixture(params=[60, 1], ids=["transactions", "one-write-at-a-time"])
def world(request):
    world = World(max_commit=request.param)
    for name in ("n1", "n2"):
        world.node(name)
    world.pool("four", "10.65.0.0/26", 28)
    world.pool("six", "fd00:65::/116", 122)
    return world


def test_handles_that_could_be_another_networks():
    assert is_of_network("net.abc", "net")
    for handle_id in ("net.abc.def", "other.abc", "netabc", "net"):
        assert not is_of_network(handle_id, "net")


def test_stale_addresses_of_one_node_and_network(world):
    allocator = world.allocator()
    for handle_id, node in [("net.a", "n1"), ("net.b", "n1"), ("net.c", "n2"), ("other.d", "n1"), ("net.x.e", "n1")]:
        allocator.assign(request(handle_id, node, num6=1), soon())
    janitor = Janitor(allocator)
    done = janitor.release_stale("n1", "net", {"net.a"}, soon())
    assert (done.handles, len(done.addresses), done.failures) == (["net.b"], 2, [])
    assert set(world.held()) == {"net.a", "net.c", "other.d", "net.x.e"}
    done = janitor.release_stale("n1", "net", {"net.a"}, soon(), is_ours=lambda handle_id: True)
    assert done.handles == ["net.x.e"]
    world.require_consistent()


def test_borrowed_addresses_are_the_borrowers(world):
    allocator = world.allocator()
    [lent] = allocator.assign(request("net.a", "n1"), soon())
    allocator.assign_address(lent.block[9], "net.b", {"node": "n2"}, "n2", soon())
    assert Janitor(allocator).release_stale("n1", "net", {"net.a"}, soon()).addresses == []
    assert Janitor(allocator).release_stale("n2", "net", (), soon()).addresses == [lent.block[9]]


def test_addresses_without_a_handle_are_found(world):
    allocator = world.allocator()
    [got] = allocator.assign(request("net.a"), soon())
    handle = world.store.get(HandleKey("net.a"), soon())
    world.store.elsewhere(Write.delete(handle))
    assert allocator.release_handle("net.a", soon()) == ()
    assert Janitor(allocator).release_stale("n1", "net", (), soon()).addresses == [got.address]
    world.require_consistent()


def test_a_handle_without_addresses_goes_when_it_has_not_changed_for_a_while(world):
    allocator = world.allocator()
    [got] = allocator.assign(request("net.a"), soon())
    [other] = allocator.assign(request("net.b", "n2"), soon())
    for handle_id, cidr in [("net.idle", got.block), ("net.moving", got.block), ("net.theirs", other.block)]:
        world.put(HandleKey(handle_id), Handle({cidr: 1}))
    janitor = Janitor(allocator)
    valid = {"net.a"}
    assert janitor.release_stale("n1", "net", valid, soon()).handles == []
    world.now_ns += 61 * SECOND
    world.put(HandleKey("net.moving"), Handle({got.block: 2}))
    assert janitor.release_stale("n1", "net", valid, soon()).handles == ["net.idle"]
    world.now_ns += 61 * SECOND
    assert janitor.release_stale("n1", "net", valid, soon()).handles == ["net.moving"]
    assert set(world.handles()) == {"net.a", "net.b", "net.theirs"}
    assert not allocator.drop_idle_handle("net.a", soon()) and not allocator.drop_idle_handle("net.none", soon())


def test_deleted_node(world):
    allocator = world.allocator()
    allocator.assign(request("net.a", "n1", num6=1), soon())
    allocator.assign(request("ipip-tunnel-addr-n1", "n1", use="Tunnel"), soon())
    [lent] = allocator.assign(request("net.b", "n1"), soon())
    allocator.assign(request("net.c", "n2", num6=1), soon())
    allocator.assign_address(lent.block[9], "net.d", {"node": "n2"}, "n2", soon())
    theirs = allocator.assign_address(world.blocks_of("n2", 4)[0][11], "net.e", {"node": "n1"}, "n1", soon())
    empty = next(c for c in ip_network("10.65.0.0/26").subnets(new_prefix=28) if c not in world.blocks())
    secure_block(allocator.ledger(soon()), "n1", empty, world.now_ns)
    world.put(HandleKey("net.idle"), Handle({lent.block: 1}))
    paced = []
    done = Janitor(allocator, pace=lambda: paced.append(1), grace_s=0).release_node("n1", soon())
    assert done.failures == []
    assert set(done.handles) == {"net.a", "net.b", "net.e", "net.idle", "ipip-tunnel-addr-n1"}
    assert theirs.address in done.addresses
    assert len(paced) == len(done.handles) + len(done.blocks)
    assert set(world.held()) == {"net.c", "net.d"}
    assert {node for node, _ in world.affinities()} == {"n2"}
    assert world.blocks()[lent.block].affinity is None
    world.require_consistent()
    assert Janitor(allocator).release_node("n1", soon()).handles == []
    allocator.release_handle("net.d", soon())
    assert lent.block not in world.blocks()


def test_half_released_blocks_of_a_deleted_node(world):
    cidr = ip_network("10.65.0.0/28")
    world.put(AffinityKey("n1", cidr), Affinity("pendingDeletion"))
    assert Janitor(world.allocator()).release_node("n1", soon()).blocks == [cidr]
    assert not world.affinities()


def test_what_cannot_be_read_is_reported_and_left(world):
    allocator = world.allocator()
    allocator.assign(request("net.a"), soon())
    bad = BlockKey(ip_network("10.65.0.0/28"))
    if bad.cidr in world.blocks():
        bad = BlockKey(ip_network("10.65.0.16/28"))
    world.store.plant(bad, b'{"cidr":7}')
    done = Janitor(allocator).release_stale("n1", "net", (), soon())
    assert done.handles == ["net.a"] and len(done.failures) == 1
    assert str(bad.cidr.network_address) in done.failures[0]


HOLDINGS = st.lists(
    st.tuples(st.sampled_from(["net", "other", "net.sub"]), st.sampled_from("abcdef"), st.sampled_from(["n1", "n2"])),
    max_size=8,
    unique_by=lambda h: h[:2],
)


@settings(max_examples=40, deadline=None)
@given(HOLDINGS, st.frozensets(st.sampled_from([f"net.{c}" for c in "abcdef"])), st.sampled_from([1, 60]))
def test_exactly_what_is_stale_goes(holdings, valid, max_commit):
    world = World(max_commit=max_commit)
    world.pool("four", "10.65.0.0/26", 28)
    allocator = world.allocator()
    for network, container, node in holdings:
        allocator.assign(request(f"{network}.{container}", node), soon())
    Janitor(allocator).release_stale("n1", "net", valid, soon())
    stale = {f"net.{c}" for network, c, node in holdings if network == "net" and node == "n1"} - valid
    assert set(world.held()) == {f"{network}.{c}" for network, c, _ in holdings} - stale
    world.require_consistent()
    Janitor(allocator).release_node("n1", soon())
    assert set(world.held()) == {f"{network}.{c}" for network, c, node in holdings if node == "n2"}
    assert {node for node, _ in world.affinities()} <= {"n2"}
    world.require_consistent()
