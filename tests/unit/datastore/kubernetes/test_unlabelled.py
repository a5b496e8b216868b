"""Affinities without labels while somebody else writes them, too."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from cni_calico.datastore.interface import CommitConflict, Committed, Failed, Versioned
from cni_calico.datastore.kubernetes.unlabelled import label_affinities
from cni_calico.deadline import Deadline
from cni_calico.errors import TryAgain
from cni_calico.model.keys import AffinityKey


def key(number: int, node: str = "n1") -> AffinityKey:
    return AffinityKey(node, ip_network(f"10.65.{number}.0/26"))


class Objects:
    """Records without labels by key; ``others`` is what somebody does just before the n-th write."""

    def __init__(self, *keys, state="confirmed"):
        self.without = {k: Versioned(k, {"state": state, "deleted": False}, i) for i, k in enumerate(keys)}
        self.others, self.written, self.lists = [], {}, 0

    def unlabelled_affinities(self, deadline):
        self.lists += 1
        return list(self.without.values())

    def commit(self, writes, deadline):
        [write] = writes
        if self.others:
            self.others.pop(0)(self)
        current = self.without.get(write.key)
        if current is None or current.revision != write.revision:
            raise CommitConflict([Failed(0, write.key, current or self.written.get(write.key))])
        stored = self.written[write.key] = Versioned(write.key, write.value, 100)
        del self.without[write.key]
        return Committed(100, (stored,))


def label(objects, **options):
    return {item.key for item in label_affinities(objects, Deadline.after(5), **options)}


def test_nothing_to_do_is_one_request():
    objects = Objects()
    assert label(objects) == set() and objects.lists == 1


def test_a_nodes_own_are_its_hosts():
    virtual = AffinityKey("n1", ip_network("10.65.9.0/26"), "virtual")
    objects = Objects(key(1), key(2, "n2"), virtual)
    assert label(objects, node="n1") == {key(1)}
    assert set(objects.without) == {key(2, "n2"), virtual}
    assert label(objects) == {key(2, "n2"), virtual}


def test_what_changed_meanwhile_is_looked_at_again():
    objects = Objects(key(1), key(2))
    changed = Versioned(key(1), {"state": "pendingDeletion", "deleted": False}, 50)
    objects.others = [lambda o: o.without.update({key(1): changed})]
    assert label(objects) == {key(1), key(2)}
    assert objects.written[key(1)].value["state"] == "pendingDeletion"


def test_somebody_else_labelled_it():
    objects = Objects(key(1))

    def done(o):
        o.written[key(1)] = o.without.pop(key(1))

    objects.others = [done]
    assert label(objects) == set() and not objects.without


def test_one_that_is_gone_is_no_reason_to_look_again():
    """Nor is an object whose name is not that of its block: nothing can be written to it."""
    objects = Objects(key(1), key(2))
    objects.others = [lambda o: o.without.pop(key(1))]
    assert label(objects) == {key(2)} and objects.lists == 1


def test_it_does_not_go_on_for_ever():
    objects = Objects(key(1))

    def change(o):
        o.without[key(1)] = Versioned(key(1), {"state": "confirmed"}, o.lists + 500)

    objects.others = [change] * 100
    with pytest.raises(TryAgain, match="keep changing"):
        label(objects)
    assert objects.lists <= 10


def test_a_state_that_is_missing_is_written():
    """Very old ones have none; it counts as confirmed."""
    objects = Objects(key(1), state="")
    assert label(objects) == {key(1)} and objects.written[key(1)].value["state"] == "confirmed"
