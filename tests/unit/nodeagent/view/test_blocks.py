"""Following few blocks gives the same routes as following all of them, whatever happens to the blocks meanwhile."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import ip_network

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cni_calico.datastore.forwarding import ForwardingStore
from cni_calico.datastore.interface import WHOLE, Write
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreDenied
from cni_calico.model.documents.codec import (
    decode_block,
    decode_ipam_config,
    decode_pool,
    encode,
    encode_node,
    encode_pool,
)
from cni_calico.model.keys import (
    AffinityKey,
    AffinityList,
    BlockKey,
    BlockList,
    IPAMConfigKey,
    IPAMConfigList,
    ResourceKey,
)
from cni_calico.model.resources import Affinity, Attribute, Block, IPAMConfig
from cni_calico.nodeagent.dataplane.routes import Fabric, desired_blackholes, desired_remote_routes, makes_routes
from cni_calico.nodeagent.view.snapshot import Snapshot, may_use, reduce_block
from cni_calico.nodeagent.view.sources import Sources
from tests.deadlines import until
from tests.fakes.memory_store import MemoryStore
from tests.unit.nodeagent.fabric import FELIX, INTERFACES, NODES, pool

POOL = ResourceKey("IPPool", "p")
CIDRS = [ip_network(f"10.65.{number}.0/26") for number in range(1, 5)]
NAMES = ["n1", "n2", "n3"]
BACKEND = "bird"


class World:
    """A cluster of three nodes whose IPAM is written by hand; the view under test is n1's."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        for node in NODES.values():
            self.put(ResourceKey("Node", node.metadata.name), encode_node(node))

    def put(self, key, document) -> None:
        self.store.elsewhere(Write.put(key, document))

    def remove(self, key) -> None:
        self.store.elsewhere(Write.remove(key))

    def set_pool(self, vxlan: str, *, disabled: bool = False) -> None:
        made = replace(pool("10.65.0.0/16", vxlan, "Never" if vxlan != "Never" else "Always"), disabled=disabled)
        self.put(POOL, {**encode_pool(made), "metadata": {"name": "p"}})

    def set_strict(self, strict: bool) -> None:
        self.put(IPAMConfigKey(), encode(IPAMConfig(strict, auto_allocate_blocks=True)))

    def block(self, cidr) -> Block | None:
        found = self.store.get(BlockKey(cidr), Deadline.after(5))
        return None if found is None else decode_block(found.key, found.value)

    def owner(self, cidr) -> str | None:
        block = self.block(cidr)
        return None if block is None else block.node

    def set_block(self, block: Block) -> None:
        self.put(BlockKey(block.cidr), encode(block))

    def claim(self, node: str, cidr) -> None:
        if self.owner(cidr) is not None:
            return
        self.put(AffinityKey(node, cidr), encode(Affinity("pending")))
        block = self.block(cidr)
        if block is None:
            block = Block(cidr, None, (None,) * 64, tuple(range(64)))
        self.set_block(replace(block, affinity=f"host:{node}"))
        self.put(AffinityKey(node, cidr), encode(Affinity("confirmed")))

    def assign(self, node: str, cidr, *, pod: str) -> None:
        """To a pod of ``node``, which borrows the address if the block is another's."""
        block = self.block(cidr)
        if block is None or not block.unallocated:
            return
        ordinal, *rest = block.unallocated
        allocations = list(block.allocations)
        allocations[ordinal] = len(block.attributes)
        attribute = Attribute("h", {"node": node, "namespace": "default", "pod": pod})
        attributes = (*block.attributes, attribute)
        self.set_block(replace(block, allocations=tuple(allocations), unallocated=tuple(rest), attributes=attributes))

    def abandon(self, cidr) -> None:
        """The node releases its affinity and its addresses stay; an empty block goes."""
        block, owner = self.block(cidr), self.owner(cidr)
        if block is None or owner is None:
            return
        self.put(AffinityKey(owner, cidr), encode(Affinity("pendingDeletion")))
        if block.empty:
            self.remove(BlockKey(cidr))
        else:
            self.set_block(replace(block, affinity=None))
        self.remove(AffinityKey(owner, cidr))

    def empty(self, cidr) -> None:
        block = self.block(cidr)
        if block is not None and block.affinity is None:
            self.remove(BlockKey(cidr))
        elif block is not None:
            self.set_block(Block(cidr, block.affinity, (None,) * 64, tuple(range(64))))


def decides(pools, felix_node, felix_default, scoped) -> bool:
    return makes_routes(pools, FELIX, BACKEND)


@contextmanager
def following(store, on_change=lambda: None):
    """The view under test."""
    few = Sources(store, "n1", on_change, routed=decides)
    try:
        few.wait_synced(Deadline.after(30))
        yield few
    finally:
        few.stop()


def listings(sources) -> set:
    return {cache.listing for cache in sources._kept.all}


def routes_of(snapshot) -> set:
    fabric = Fabric(4, snapshot, INTERFACES, frozenset({"vxlan.calico"}), FELIX, BACKEND)
    found = desired_remote_routes(fabric, snapshot.blocks) | desired_blackholes(fabric, snapshot.blocks)
    return {str(route) for route in found}


def seen(snapshot) -> tuple:
    """Everything that anybody looks at."""
    mine = [block for block in snapshot.blocks if block.node == "n1"]
    own = {(block.cidr, block.used, tuple(sorted(block.held.items()))) for block in mine}
    users = {(pool.metadata.name, name) for pool in snapshot.pools for name in NAMES if may_use(snapshot, pool, name)}
    return routes_of(snapshot), own, users


OPERATIONS = st.one_of(
    st.tuples(st.just("claim"), st.sampled_from(NAMES), st.sampled_from(CIDRS)),
    st.tuples(st.just("assign"), st.sampled_from(NAMES), st.sampled_from(CIDRS)),
    st.tuples(st.sampled_from(["abandon", "empty"]), st.sampled_from(CIDRS)),
    st.tuples(st.just("pool"), st.sampled_from(["Always", "Never", "CrossSubnet"]), st.booleans()),
    st.tuples(st.just("strict"), st.booleans()),
)


def whole_view(world: World) -> Snapshot:
    """What there is to know, read from the store at once."""
    found = world.store.get(POOL, Deadline.after(5))
    blocks = [block for cidr in CIDRS if (block := world.block(cidr)) is not None]
    routes = [route for block in blocks if (route := reduce_block(block, "n1")) is not None]
    return Snapshot("n1", nodes=NODES, pools=(decode_pool(POOL, found.value),), blocks=tuple(routes))


def carry_out(world: World, operation: tuple, number: int) -> None:
    match operation:
        case ("claim", node, cidr):
            world.claim(node, cidr)
        case ("assign", node, cidr):
            config = world.store.get(IPAMConfigKey(), Deadline.after(5))
            strict = config is not None and decode_ipam_config(IPAMConfigKey(), config.value).strict_affinity
            if not strict or world.owner(cidr) == node:
                world.assign(node, cidr, pod=f"pod-{number}")
        case ("abandon", cidr):
            world.abandon(cidr)
        case ("empty", cidr):
            world.empty(cidr)
        case ("pool", mode, disabled):
            world.set_pool(mode, disabled=disabled)
        case ("strict", strict):
            world.set_strict(strict)


@settings(max_examples=40, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(st.lists(st.tuples(OPERATIONS, st.booleans()), min_size=1, max_size=12), st.integers(0, 6), st.booleans())
def test_both_views_come_to_the_same(steps: list[tuple[tuple, bool]], before: int, strict: bool) -> None:
    """``before``: how many operations precede the views; after some of the others they come to rest."""
    world = World()
    world.set_pool("Always")
    world.set_strict(strict)
    for node, cidr in zip(NAMES, CIDRS, strict=False):
        world.claim(node, cidr)
        world.assign(node, cidr, pod=f"first-{node}")
    operations = [operation for operation, _ in steps]
    for number, operation in enumerate(operations[:before]):
        carry_out(world, operation, number)
    with following(world.store) as few:

        def agree() -> bool:
            return few.settle() and seen(few.snapshot()) == seen(whole_view(world))

        for number, (operation, rest) in enumerate(steps[before:]):
            carry_out(world, operation, before + number)
            if rest:
                until(agree, f"the same after {operations[: before + number + 1]}")
        until(agree, f"the same after {operations}")


@pytest.fixture
def blocks_world() -> World:
    made = World()
    made.claim("n1", CIDRS[0])
    made.claim("n2", CIDRS[1])
    return made


def test_with_bird_no_block_of_others_is_followed(blocks_world: World) -> None:
    blocks_world.set_pool("Never")
    with following(blocks_world.store) as few:
        assert {each for each in listings(few) if isinstance(each, BlockList)} == {BlockList(cidr=CIDRS[0])}
        assert AffinityList() in listings(few) and IPAMConfigList() not in listings(few)


@pytest.mark.parametrize("vxlan", ["Never", "Always"])
def test_addresses_are_counted_whoever_has_them(blocks_world: World, vxlan: str) -> None:
    """Those of tunnels, and of containers that are no pods, too."""
    blocks_world.set_pool(vxlan)
    woken = threading.Event()
    with following(blocks_world.store, woken.set) as few:
        for change, used in (
            (lambda: blocks_world.assign("n1", CIDRS[0], pod=""), 1),
            (lambda: blocks_world.empty(CIDRS[0]), 0),
        ):
            woken.clear()
            change()
            until(woken.is_set, "the agent is told")
            assert few.settle()
            assert {block.cidr: block.used for block in few.snapshot().blocks}[CIDRS[0]] == used


def test_a_pool_that_becomes_vxlan_has_all_blocks_followed_and_back(blocks_world: World) -> None:
    blocks_world.set_pool("Never")
    with following(blocks_world.store) as few:
        blocks_world.assign("n3", CIDRS[1], pod="a")
        blocks_world.set_pool("Always")
        until(lambda: few.settle() and BlockList() in listings(few), "all blocks are asked for")
        until(lambda: few.settle() and AffinityList() not in listings(few), "and have been read")
        assert any("10.65.2.0/32" in route for route in routes_of(few.snapshot())), "the borrowed address"
        blocks_world.set_pool("Never")
        until(lambda: few.settle() and BlockList() not in listings(few), "back")
        assert routes_of(few.snapshot()) == set()


def test_strict_affinity_needs_no_blocks_until_one_loses_its_node(blocks_world: World) -> None:
    blocks_world.set_pool("Always")
    blocks_world.set_strict(True)
    blocks_world.assign("n2", CIDRS[1], pod="a")
    with following(blocks_world.store) as few:
        until(lambda: few.settle() and BlockList() not in listings(few), "the affinities suffice")
        assert any("10.65.2.0/26" in route for route in routes_of(few.snapshot()))
        blocks_world.abandon(CIDRS[1])
        until(lambda: few.settle() and BlockList() in listings(few), "an address without a block's route")
        until(lambda: few.settle() and any("10.65.2.0/32" in route for route in routes_of(few.snapshot())), "its own")
        blocks_world.empty(CIDRS[1])
        until(lambda: few.settle() and BlockList() not in listings(few), "the affinities suffice again")


def test_a_claimed_address_in_the_block_of_another_is_confirmed(blocks_world: World) -> None:
    """Nobody but IPAM confirms what only the annotation says; the block is followed only as long as that takes."""
    from cni_calico.nodeagent.view.claims import LocalEndpoint
    from tests.unit.nodeagent.fabric import workload

    blocks_world.set_pool("Never")
    blocks_world.assign("n1", CIDRS[1], pod="a")
    with following(blocks_world.store) as few:
        endpoint = replace(workload("a", "calia", "10.65.2.0/32"), pod="a")
        claims = {ResourceKey("WorkloadEndpoint", endpoint.metadata.name, "default"): LocalEndpoint(endpoint, True)}
        plain = few._kept.records

        def records(cache):
            return claims if cache is few._endpoints else plain(cache)

        few._kept.records = records
        until(lambda: few.settle() and few.snapshot().endpoints[0].ip_networks != (), "confirmed")
        assert not few.snapshot().unproven and BlockList(cidr=CIDRS[1]) in listings(few)
        claims.clear()
        until(lambda: few.settle() and BlockList(cidr=CIDRS[1]) not in listings(few), "no longer needed")


class Denying(ForwardingStore):
    """A store whose IPAM configuration may not be listed, as with upstream's role."""

    def list(self, listing, deadline, *, revision=None, reading=WHOLE):
        if isinstance(listing, IPAMConfigList):
            raise DatastoreDenied("cannot list ipamconfigs: forbidden")
        return self.store.list(listing, deadline, revision=revision, reading=reading)


def test_without_the_right_to_know_about_strict_affinity_all_blocks_are_followed(blocks_world: World) -> None:
    blocks_world.set_pool("Always")
    blocks_world.set_strict(True)
    with following(Denying(blocks_world.store)) as few:
        until(lambda: few.settle() and IPAMConfigList() not in listings(few), "the question is given up")
        assert BlockList() in listings(few) and few.error == "" and few.healthy
