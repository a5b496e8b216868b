"""Several collections as one list: in the order of etcd's keys, unless nobody cares."""

from __future__ import annotations

from types import SimpleNamespace

from cni_calico.datastore.interface import WHOLE, Reading, Versioned
from cni_calico.datastore.kubernetes.store import listing_of
from cni_calico.model.keys import ResourceKey


def part(*names):
    return SimpleNamespace(items=[Versioned(ResourceKey("Node", name), {}, "1") for name in names], unreadable=[])


def names(reading):
    return [item.key.name for item in listing_of([part("c", "a"), part("b")], ["3", "2"], reading).items]


def test_sorted_by_default():
    assert names(WHOLE) == ["a", "b", "c"]


def test_in_any_order_nothing_is_sorted():
    assert names(Reading(ordered=False)) == ["c", "a", "b"]
