"""Follows the datastore for commands that run without the data plane's loop."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cni_calico.datastore.interface import Datastore
from cni_calico.nodeagent.view.snapshot import Snapshot
from cni_calico.nodeagent.view.sources import Sources


def follow(store: Datastore, node: str, on_snapshot: Callable[[Snapshot], None], stopping: threading.Event) -> None:
    """Call ``on_snapshot`` with every new view of the datastore, if no agent does it."""
    changed = threading.Event()
    sources = Sources(store, node, changed.set)
    try:
        while not stopping.is_set():
            if changed.wait(0.5) and sources.settle():
                changed.clear()
                on_snapshot(sources.snapshot())
    finally:
        sources.stop()
