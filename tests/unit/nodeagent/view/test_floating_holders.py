"""What IPAM says of floating IPs: only asked if there are any, and what cannot be read is not free."""

from __future__ import annotations

import threading
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.model.documents.codec import encode
from cni_calico.model.keys import BlockKey, BlockList
from cni_calico.model.resources import IPNAT, Attribute, Block
from cni_calico.nodeagent.view.sources import Sources
from tests.deadlines import until
from tests.fakes.memory_store import MemoryStore
from tests.netns.agents import key_of
from tests.unit.nodeagent.fabric import NODES, pool, workload

AROUND = ip_network("10.65.9.0/26")
HOLDERS = (
    Attribute("h0", {"namespace": "web", "pod": "a", "node": "n2"}),
    Attribute("vxlan-tunnel-addr-n2", {"node": "n2"}),
    Attribute(None),
)
BLOCK = Block(AROUND, "host:n2", (0, 1, 2, *[None] * 61), tuple(range(3, 64)), HOLDERS)


@pytest.fixture
def asking_store() -> MemoryStore:
    made = MemoryStore()
    nats = (
        IPNAT(ip_address("10.65.1.5"), ip_address("10.65.9.1")),
        IPNAT(ip_address("10.65.1.5"), ip_address("1.2.3.4")),
    )
    for record in (NODES["n1"], pool("10.65.0.0/16"), replace(workload("w", "calia", "10.65.1.5/32"), ip_nats=nats)):
        made.elsewhere(Write.put(key_of(record), encode(record)))
    return made


def test_it_is_asked_for_the_block_and_goes_on_being_asked(asking_store: MemoryStore) -> None:
    enabled = [False]
    sources = Sources(asking_store, "n1", threading.Event().set, floating=lambda felix: enabled[0])
    try:
        sources.wait_synced(Deadline.after(10))
        assert sources.snapshot().floating == {}
        enabled[0] = True

        def says(expected: object) -> bool:
            sources.settle()
            return sources.snapshot().floating == expected

        until(lambda: says({AROUND: {}}), "the block is not there")
        asking_store.elsewhere(Write.put(BlockKey(AROUND), {"cidr": 7}))
        until(lambda: says({}), "what cannot be read")
        asking_store.elsewhere(Write.put(BlockKey(AROUND), encode(BLOCK)))
        given = {"10.65.9.0": "web/a", "10.65.9.1": "vxlan-tunnel-addr-n2", "10.65.9.2": "somebody"}
        until(lambda: says({AROUND: {ip_address(at): who for at, who in given.items()}}), "holders")
        enabled[0] = False
        until(lambda: says({}), "nobody asks any more")
    finally:
        sources.stop()


def test_the_first_pass_waits_for_the_answer(asking_store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an agent that starts would end what an earlier run translated. Later ones wait for none."""
    held, asked, read = threading.Event(), threading.Event(), asking_store.list

    def read_late(listing: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(listing, BlockList) and listing.cidr == AROUND:
            asked.set()
            held.wait()
        return read(listing, *arguments, **options)

    monkeypatch.setattr(asking_store, "list", read_late)
    sources = Sources(asking_store, "n1", threading.Event().set, floating=lambda felix: True)
    try:

        def has_asked() -> bool:
            assert not sources.settle()
            return asked.is_set()

        until(has_asked, "the question")
        caches = tuple(sources._kept.all)
        until(lambda: all(cache.synced for cache in caches), "everything else has been read")
        assert not sources.settle()
        held.set()
        until(sources.settle, "the answer")
        assert sources.snapshot().floating == {AROUND: {}}
    finally:
        held.set()
        sources.stop()
