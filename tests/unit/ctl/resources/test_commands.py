"""A table of a list that may be long is made record by record, and says the same as one of whole documents."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest

from cni_calico.ctl.output.looks import PLAIN
from cni_calico.ctl.resources.commands import get
from cni_calico.ctl.session import Session
from cni_calico.datastore.interface import Listing, Write
from cni_calico.deadline import Deadline
from cni_calico.model.documents.codec import encode
from cni_calico.model.keys import ListKey, ResourceKey
from tests.deadlines import SOON
from tests.fakes.memory_store import MemoryStore
from tests.netns.agents import key_of
from tests.unit.nodeagent.fabric import workload


class InOrder(MemoryStore):
    """Lists as etcd does: after a compaction once more from the beginning."""

    kind = "etcdv3"
    overtaken = False

    def list(self, listing: ListKey, deadline: Deadline, **options: Any) -> Listing:
        if self.overtaken:
            super().list(listing, deadline, **options)
        return super().list(listing, deadline, **options)


def filled(store: MemoryStore) -> MemoryStore:
    for number in range(12):
        endpoint = workload(f"p{number}", f"cali{number}", f"10.65.0.{number}/32", node=f"n{number % 3}")
        store.commit([Write.put(key_of(endpoint), encode(endpoint))], SOON)
    store.commit([Write.put(ResourceKey("WorkloadEndpoint", "n0-k8s-x-eth0", "default"), {"spec": 7})], SOON)
    return store


def shown(store: MemoryStore, **given: Any) -> tuple[str, list[str], list[tuple[str, str]]]:
    """What is printed, noted, and told of damaged records."""
    notes: list[str] = []
    said: list[str] = []
    arguments = Namespace(
        **{"words": ["wep"], "filename": None, "output": "ps", "namespace": "", "all_namespaces": True, "export": False}
        | given,
        look=PLAIN,
        note=notes.append,
        say=said.append,
    )
    session = Session(store, SOON, lambda: "", lambda: "")
    last = get(session, arguments)
    return "".join([*said, last]), notes, session.damaged


@pytest.mark.parametrize("overtaken", [False, True])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"output": "wide"},
        {"output": "custom-columns=NAME,NODE", "export": True},
        {"words": ["profiles"], "all_namespaces": False},
    ],
)
def test_it_says_the_same(given: dict[str, Any], overtaken: bool) -> None:
    store = InOrder()
    store.overtaken = overtaken
    text, notes, damaged = shown(filled(store), **given)
    whole = shown(filled(MemoryStore()), **given)
    assert (text, notes, set(damaged)) == (whole[0], whole[1], set(whole[2]))
    if not given:
        assert len(text.splitlines()) == 14 and "10.65.0.11/32" in text and len(set(damaged)) == 1


def test_of_nothing_it_has_headings() -> None:
    assert shown(InOrder()) == shown(MemoryStore())
    assert shown(InOrder())[1] == ["No WorkloadEndpoint found."]
