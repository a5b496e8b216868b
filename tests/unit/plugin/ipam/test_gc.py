"""What GC takes for lost among addresses without attributes: nothing that another node may have borrowed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreDenied
from cni_calico.model.keys import IPAMConfigKey, ResourceKey, ResourceList
from cni_calico.plugin.ipam.gc import find_orphans
from tests.deadlines import soon
from tests.unit.ipam.cluster import Cluster
from tests.unit.ipam.world import World, request

GONE, BORROWED = "c0ffee" + 58 * "0", "ab" * 32
OLDEST = {f"net.{GONE}", BORROWED}
NEWER, POD = "net.newer", "ns.gone"


@pytest.fixture
def world_of_three() -> World:
    """Three nodes; another's container may have borrowed an address of the block of n1."""
    made: World = Cluster(False).world
    for handle in (*OLDEST, POD):
        made.allocator().assign(replace(request(handle, "n1"), attributes={}), soon())
    made.allocator().assign(request(NEWER, "n1"), soon())
    return made


def configure(world: World, *, strict: bool) -> None:
    world.store.elsewhere(Write.put(IPAMConfigKey(), {"strict_affinity": strict, "auto_allocate_blocks": True}))


def orphans(world: World) -> set[str]:
    found, unreadable = find_orphans(world.store, "net", "n1", (), soon(), lambda namespace, name: False)
    assert not unreadable
    return {orphan.handle_id for orphan in found}


def test_another_node_may_have_borrowed_it(world_of_three: World) -> None:
    """Its container needs no endpoint, under another network plugin; of a pod Kubernetes says that it is nowhere."""
    configure(world_of_three, strict=False)
    assert orphans(world_of_three) == {NEWER, POD}
    configure(world_of_three, strict=True)
    assert orphans(world_of_three) == {NEWER, POD, *OLDEST}


def test_where_there_is_no_other_node(world_of_three: World) -> None:
    configure(world_of_three, strict=False)
    for name in ("n2", "n3"):
        world_of_three.store.elsewhere(Write.remove(ResourceKey("Node", name)))
    assert orphans(world_of_three) == {NEWER, POD, *OLDEST}


def test_a_plugin_that_may_not_read_the_nodes_keeps_it(world_of_three: World, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(world_of_three, strict=False)
    lists = world_of_three.store.list

    def refuse(key: object, deadline: Deadline) -> object:
        if key == ResourceList("Node"):
            raise DatastoreDenied("cannot list nodes: forbidden")
        return lists(key, deadline)

    monkeypatch.setattr(world_of_three.store, "list", refuse)
    assert orphans(world_of_three) == {NEWER, POD}
