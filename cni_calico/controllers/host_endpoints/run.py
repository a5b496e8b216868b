"""The controller of automatic host endpoints: computes them from all nodes and writes what differs from the stored
ones.

Rule: level-triggered; a host endpoint without our label is never touched, even if we want one with its name. A node
that seems to be deleted is read again before its host endpoint is removed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from operator import eq

from cni_calico.controllers.attempts import CALL_S, LOOK_S, Leading, Sight
from cni_calico.controllers.host_endpoints.rules import (
    KIND,
    HostEndpointWish,
    desired_host_endpoints,
    is_current,
    is_ours,
    merged,
)
from cni_calico.daemon.fresh import Fresh
from cni_calico.daemon.said import Said
from cni_calico.datastore.cache import Cache, stop_caches
from cni_calico.datastore.interface import CommitConflict, Datastore, Document, Versioned, Write
from cni_calico.datastore.remembered import Kept, Listeners
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, CorruptRecord
from cni_calico.model.documents.codec import decode_node
from cni_calico.model.keys import Key, ResourceKey, ResourceList

NAME = "host endpoints"
AGAIN_S = 5.0  # after a failure


def _node(item: Versioned) -> Document:
    """The part of a Node that matters here. Raises CorruptRecord."""
    assert isinstance(item.key, ResourceKey)
    decode_node(item.key, item.value)
    metadata, spec = item.value["metadata"], item.value.get("spec") or {}
    kept = ("bgp", "ipv4VXLANTunnelAddr", "ipv6VXLANTunnelAddr", "wireguard", "addresses", "interfaces")
    return {
        "metadata": {"name": item.key.name, "labels": metadata.get("labels") or {}},
        "spec": {name: spec[name] for name in kept if name in spec},
    }


def _endpoint(item: Versioned) -> Document:
    if not isinstance(item.value.get("metadata"), dict):
        raise CorruptRecord(f"cannot read {item.key}: it has no metadata")
    return item.value


class HostEndpoints:
    """``store`` is fenced. To be used by one thread."""

    def __init__(self, store: Datastore, fresh: Fresh, say: Callable[[str], None]) -> None:
        self._store, self._fresh, self._say = store, fresh, say
        self._foreign: set[ResourceKey] = set()

    def apply(
        self,
        wish: HostEndpointWish,
        nodes: dict[Key, Document],
        unread: set[str],
        found: dict[Key, Versioned],
        deadline: Deadline,
    ) -> int:
        """Returns the number of writes. ``unread``: nodes that cannot be read; their host endpoints stay. Raises
        CalicoError.
        """
        wanted = desired_host_endpoints(wish, nodes.values())
        writes = 0
        for key, document in wanted.items():
            current = found.get(key)
            if current is None or not is_ours(current.value) or not is_current(document, current.value):
                writes += self._ensure(key, document, deadline)
        for known, item in found.items():
            assert isinstance(known, ResourceKey)
            if known not in wanted and is_ours(item.value):
                node = str((item.value.get("spec") or {}).get("node") or "")
                if node not in unread:
                    writes += self._remove(known, node, wish, deadline)
        return writes

    def _ensure(self, key: ResourceKey, document: Document, deadline: Deadline) -> int:
        current = self._store.get(key, deadline)
        if current is None:
            identity = {"uid": self._fresh.uid(), "creationTimestamp": self._fresh.timestamp()}
            write = Write.create(key, {**document, "metadata": {**document["metadata"], **identity}})
        elif not is_ours(current.value):
            if key not in self._foreign:
                self._foreign.add(key)
                self._say(
                    f"HostEndpoint {key.name} was not made by this controller, but has the name of an automatic one; "
                    "it stays as it is"
                )
            return 0
        elif is_current(document, current.value):
            return 0
        else:
            write = Write.update(current, merged(document, current.value))
        return self._commit(write, deadline)

    def _remove(self, key: ResourceKey, node: str, wish: HostEndpointWish, deadline: Deadline) -> int:
        current = self._store.get(key, deadline)
        if current is None or not is_ours(current.value):
            return 0
        there = self._store.get(ResourceKey("Node", node), deadline) if wish.auto and node else None
        if there is not None and key in desired_host_endpoints(wish, [_node(there)]):
            return 0  # the cache was out of date
        return self._commit(Write.delete(current), deadline)

    def _commit(self, write: Write, deadline: Deadline) -> int:
        try:
            self._store.commit([write], deadline)
        except CommitConflict:
            return 0  # the watch will report the present record
        return 1


class HostEndpointLoop:
    """``wish``: which host endpoints there should be."""

    def __init__(self, leading: Leading, wish: Callable[[], HostEndpointWish]) -> None:
        self._leading, self._wish = leading, wish
        self._store, self._log, self.numbers = leading.store, leading.log, leading.numbers
        self._said = Said(leading.log)
        self._sight = Sight(NAME, leading.numbers, leading.log)

    def run(self, stopping: threading.Event) -> None:
        """Work whenever we lead, until ``stopping``."""
        self._leading.work(lambda: self._lead(stopping), stopping)

    def _lead(self, stopping: threading.Event) -> None:
        changed = threading.Event()
        nodes: Cache[Document] = Cache(
            self._store,
            Kept(ResourceList("Node"), _node, keep_documents=False, same=eq),
            Listeners(on_change=lambda keys: changed.set()),
        )
        endpoints: Cache[Document] = Cache(
            self._store, Kept(ResourceList(KIND), _endpoint), Listeners(on_change=lambda keys: changed.set())
        )
        work = HostEndpoints(self._store, Fresh(), lambda text: self._log.warning(f"{NAME}: {text}"))
        again_at, wish = 0.0, None
        try:
            while not stopping.is_set() and self._leading.leads():
                if self._sight.is_clear((nodes, endpoints)):
                    if changed.is_set() or wish != self._wish() or time.monotonic() >= again_at:
                        changed.clear()
                        wish = self._wish()
                        done = self._try(work, wish, nodes, endpoints)
                        again_at = time.monotonic() + (self._leading.period_s() if done else AGAIN_S)
                changed.wait(LOOK_S)
                stopping.wait(LOOK_S)  # handle a burst of changes in one go
        finally:
            stop_caches((nodes, endpoints))

    def _try(
        self, work: HostEndpoints, wish: HostEndpointWish, nodes: Cache[Document], endpoints: Cache[Document]
    ) -> bool:
        known = nodes.records()
        unread = {key.name for key in nodes.items() if key not in known and isinstance(key, ResourceKey)}
        try:
            self.numbers.writes += work.apply(wish, known, unread, endpoints.items(), Deadline.after(CALL_S))
        except CalicoError as e:
            self.numbers.failures += 1
            self._said.say("", [f"{NAME}: {e}"])
            self.numbers.failing = 1
            return False
        self._said.say("", ())
        self.numbers.failing = 0
        return True
