"""Changes that wait: a node that is as it was is none, unless something else has come since."""

from __future__ import annotations

from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.policing.feed.changes import FedChange
from cni_calico.nodeagent.policing.feed.pending import PendingChanges
from cni_calico.policy.records import Labelled

KEY = ResourceKey("Node", "n1")


def node(last: int) -> Labelled:
    return Labelled(frozenset(), addresses=(bytes((10, 0, 0, last)),))


def taken(pending: PendingChanges) -> dict[ResourceKey, FedChange]:
    return pending.take()[0]


def test_a_node_that_is_as_it_was_is_no_change() -> None:
    pending = PendingChanges()
    pending.put(KEY, node(1))
    assert taken(pending) == {KEY: node(1)}
    pending.put(KEY, node(1))
    assert taken(pending) == {}
    pending.put(KEY, None)
    pending.put(KEY, node(1))
    assert taken(pending) == {KEY: node(1)}


def test_a_node_that_was_read_again_meanwhile_is_a_change() -> None:
    """Else what a rule means would stay as the other reading said."""
    pending = PendingChanges()
    pending.put(KEY, node(1))
    pending.leave_out(KEY)
    pending.ask_again(KEY)
    assert pending.put_again(KEY, node(2)) and taken(pending) == {KEY: node(2)}
    pending.put(KEY, node(1))
    assert taken(pending) == {KEY: node(1)} and not pending.left_out()


def test_a_node_that_was_left_out_is_not_any_more_when_it_is_as_before() -> None:
    pending = PendingChanges()
    pending.put(KEY, node(1))
    pending.leave_out(KEY)
    pending.put(KEY, node(1))
    assert not pending.left_out()
