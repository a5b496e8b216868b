"""The engine reads before it is told what to enforce, and says how many policies there are whatever comes of them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cni_calico.datastore.interface import Write
from cni_calico.log import SILENT, Log
from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.policing.engine import PolicyEngine
from tests.deadlines import SOON, until
from tests.fakes.memory_store import MemoryStore
from tests.netns.policing.lab import private_settings

DENY, OTHER = ResourceKey("GlobalNetworkPolicy", "deny"), ResourceKey("NetworkPolicy", "deny", "default")


@contextmanager
def untold(store: MemoryStore, directory: Path) -> Iterator[PolicyEngine]:
    """An engine that is never told parameters and tunnels."""
    stopping = threading.Event()
    engine = PolicyEngine(Context(private_settings(directory), store, Log(SILENT), lambda _: True), "n1")
    thread = threading.Thread(target=engine.run, args=(stopping,))
    thread.start()
    try:
        yield engine
    finally:
        stopping.set()
        thread.join()


def test_reading_begins_before_anything_is_known(tmp_path: Path) -> None:
    store = MemoryStore()
    store.commit([Write.put(DENY, {"spec": {"selector": "all()"}})], SOON)
    with untold(store, tmp_path) as engine:
        until(lambda: engine.count_policies() == 1, "the policy has been read")
        store.commit([Write.put(OTHER, {"spec": "unreadable"})], SOON)
        until(lambda: engine.count_policies() == 2, "one that cannot be read counts, too")
        store.commit([Write.remove(DENY)], SOON)
        until(lambda: engine.count_policies() == 1, "it is gone")
        assert not engine.standing.decided


def test_collections_come_seldom_until_something_is_decided(tmp_path: Path) -> None:
    usual = gc.get_threshold()
    with untold(MemoryStore(), tmp_path) as engine:
        until(lambda: gc.get_threshold()[0] > usual[0], "much is to be read")
        engine.tell(engine.standing)
        assert gc.get_threshold()[0] > usual[0], "nothing is decided"
    assert gc.get_threshold() == usual
