"""The labels of a node's old block affinities: asked for until it succeeded once."""

from __future__ import annotations

import pytest

from cni_calico.errors import DatastoreUnavailable
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.settings import parse_settings
from cni_calico.nodeagent.keepers.labels import label_keeper
from tests.fakes.memory_store import MemoryStore
from tests.netns.startups import Notes
from tests.unit.datastore.kubernetes.test_unlabelled import Objects, key


class Broken(Objects):
    """The first list fails."""

    def unlabelled_affinities(self, deadline):
        found = super().unlabelled_affinities(deadline)
        if self.lists == 1:
            raise DatastoreUnavailable("the API server is away")
        return found


@pytest.mark.parametrize(("objects", "lists"), [(Objects, 1), (Broken, 2)])
def test_until_it_has_succeeded(objects, lists):
    stored, log = objects(key(1), key(2, "n2")), Notes()
    context = Context(
        parse_settings({}),
        MemoryStore(),
        log,
        wait=lambda _: True,
        kubernetes_store=stored,
        is_kubernetes_datastore=True,
    )
    keeper = label_keeper(context, "n1")
    tried = [keeper._try() for _ in range(3)]
    assert tried == [False] * (lists - 1) + [True] * (4 - lists) and stored.lists == lists
    assert set(stored.written) == {key(1)} and set(stored.without) == {key(2, "n2")}
    assert ("the API server is away" in str(log.texts)) == (lists == 2) and context.troubles == {}
    assert "info: wrote the labels of 1 block affinities" in log.texts
