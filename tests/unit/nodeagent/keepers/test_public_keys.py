"""What a Node says of this node's keys."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.log import SILENT
from cni_calico.model.documents.codec import decode_node, encode_node
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Node
from cni_calico.model.timestamps import parse_rfc3339
from cni_calico.model.wireguard import (
    MADE,
    ROTATE,
    awaited_by,
    published_key,
    render_public_key,
    rotation_of,
    with_published_key,
    with_rotation_due,
)
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.settings import parse_settings
from cni_calico.nodeagent.keepers.public_keys import GIVES_UP, PublicKeyKeeper
from cni_calico.nodeagent.view.snapshot import Snapshot
from tests.fakes.memory_store import MemoryStore
from tests.unit.nodeagent.fabric import node

NODE = ResourceKey("Node", "n1")
KEY, OTHER = bytes((7,)) * 32, render_public_key(bytes((8,)) * 32)


class World:
    def __init__(self) -> None:
        self.store = MemoryStore()
        self.tell("")
        context = Context(parse_settings({}), self.store, SILENT, wait=lambda _: True)
        self.keeper = PublicKeyKeeper(context, "n1")

    def tell(self, text: str) -> None:
        """As somebody else writes it."""
        self.store.elsewhere(Write.put(NODE, encode_node(with_published_key(node("n1", "10.0.0.1/24"), 4, text))))

    def stored(self) -> Node:
        stored = self.store.get(NODE, Deadline.after(5))
        assert stored is not None
        return decode_node(NODE, stored.value)

    def said(self, family: int = 4) -> str:
        return published_key(self.stored(), family)

    def use(self, **keys: bytes) -> None:
        self.keeper.use({int(name[1]): key for name, key in keys.items()}, Snapshot("n1"))
        self.keeper.keeper.do()


def test_a_key_that_is_old_is_to_be_replaced() -> None:
    """Not before, nor again while that is asked for; and nodes at different times."""
    world = World()
    world.use(v4=KEY)
    made = world.stored().metadata.annotations[MADE[4]]
    made_s = parse_rfc3339(made)
    assert made_s is not None and not rotation_of(world.stored(), 4)
    due = []
    for name in ("n1", "n2", "n3"):
        one = replace(world.stored(), metadata=replace(world.stored().metadata, name=name))
        assert with_rotation_due(one, 4, 0, made_s + 10**9) is with_rotation_due(one, 4, 1000, made_s + 999) is one
        assert with_rotation_due(one, 6, 1000, made_s + 10**9) is one  # it has no key
        asked = with_rotation_due(one, 4, 1000, made_s + 1100)
        assert rotation_of(asked, 4) and with_rotation_due(asked, 4, 1000, made_s + 10**9) is asked
        due.append(next(s for s in range(1000, 1101) if with_rotation_due(one, 4, 1000, made_s + s) is not one))
    assert len(set(due)) > 1
    unknown = replace(world.stored(), metadata=replace(world.stored().metadata, annotations={}))
    assert rotation_of(with_rotation_due(unknown, 4, 3600, made_s), 4)
    world.keeper.use({4: KEY}, Snapshot("n1"), every_s=3600)
    world.keeper.keeper.do()
    assert not rotation_of(world.stored(), 4)
    world.tell(render_public_key(KEY))  # without the time when it was made
    world.keeper.keeper.do()
    assert rotation_of(world.stored(), 4)


def test_a_key_is_told_and_goes() -> None:
    world = World()
    world.use(v4=KEY, v6=b"")
    assert (world.said(), world.said(6)) == (render_public_key(KEY), "")
    world.use(v4=b"", v6=b"")
    assert world.said() == ""


def test_of_a_family_that_nothing_is_known_of_nothing_is_said() -> None:
    world = World()
    world.tell(OTHER)
    world.use(v6=KEY)
    assert (world.said(), world.said(6)) == (OTHER, render_public_key(KEY))


def test_another_key_is_corrected_but_not_for_ever() -> None:
    world = World()
    for _ in range(GIVES_UP + 1):
        world.use(v4=KEY)
        assert world.said() == render_public_key(KEY)
        world.tell(OTHER)
    with pytest.raises(KernelError, match="one more calico-node"):
        world.use(v4=KEY)
    assert world.said() == OTHER


def test_a_new_key_is_newer_than_what_asked_for_it() -> None:
    """Also if that was in the future."""
    world = World()
    made = node("n1", "10.0.0.1/24")
    asked = replace(made, metadata=replace(made.metadata, annotations={ROTATE: "2999-01-01T00:00:00Z"}))
    assert rotation_of(asked, 4) == "2999-01-01T00:00:00Z"
    world.store.elsewhere(Write.put(NODE, encode_node(asked)))
    world.use(v4=KEY)
    stored = world.store.get(NODE, Deadline.after(5))
    assert stored is not None and rotation_of(decode_node(NODE, stored.value), 4) == ""


@pytest.mark.parametrize("text", ["", "yesterday"])
def test_what_is_no_time_asks_for_nothing(text: str) -> None:
    made = node("n1", "10.0.0.1/24")
    assert rotation_of(replace(made, metadata=replace(made.metadata, annotations={ROTATE: text})), 4) == ""


def test_without_a_node_there_is_nothing_to_say() -> None:
    world = World()
    world.store.elsewhere(Write.remove(NODE))
    world.use(v4=KEY)
    assert world.store.get(NODE, Deadline.after(5)) is None


def test_who_has_not_followed_is_told_with_the_key() -> None:
    world = World()

    def awaited(*names: str) -> tuple[str, ...]:
        stored = world.store.get(NODE, Deadline.after(5))
        assert stored is not None
        node_now = decode_node(NODE, stored.value)
        world.keeper.use({4: KEY}, Snapshot("n1", nodes={"n1": node_now}), {4: names})
        world.keeper.keeper.do()
        stored = world.store.get(NODE, Deadline.after(5))
        assert stored is not None
        return awaited_by(decode_node(NODE, stored.value), 4)

    assert awaited("n2", "n3") == ("n2", "n3") and world.said() == render_public_key(KEY)
    assert awaited("n3") == ("n3",) and awaited() == ()
