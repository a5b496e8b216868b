"""Records in a rehearsal: what start-up would write, into a store that keeps writes in memory.

Rule: it is start-up itself that runs; a record is named with the fields that would differ.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cni_calico.datastore.interface import Datastore
from cni_calico.datastore.rehearsed import RehearsedStore
from cni_calico.deadline import Deadline
from cni_calico.model.documents.codec import describe
from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.startup.run import run_startup

_WRITERS = frozenset(("resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"))


def rehearse_startup(context: Context, deadline: Deadline) -> Iterator[str]:
    """What ``calico-node -startup`` would write, in words. Raises CalicoError."""
    store = RehearsedStore(context.store)
    run_startup(replace(context, store=store, settings=replace(context.settings, wait_for_datastore=False)))
    yield from _written(store, context.store, deadline)


def _written(rehearsed: RehearsedStore, store: Datastore, deadline: Deadline) -> Iterator[str]:
    for key, item in rehearsed.written.items():
        before = store.get(key, deadline)
        name = describe(key) if isinstance(key, ResourceKey) else str(key)
        if item is None:
            yield f"delete {name}"
        elif before is None:
            yield f"create {name}"
        elif fields := sorted(differing(before.value, item.value)):
            yield f"change {name}: {', '.join(fields)}"


def differing(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """The paths of what differs between two documents, without what stores write themselves."""
    if not (isinstance(before, Mapping) and isinstance(after, Mapping)):
        if before != after:
            yield path
        return
    for name in sorted(before.keys() | after.keys()):
        if path != "metadata" or name not in _WRITERS:
            yield from differing(before.get(name), after.get(name), f"{path}.{name}" if path else name)
