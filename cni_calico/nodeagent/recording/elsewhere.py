"""Tells the recorder of flows what other nodes' workloads are called, while that is wanted (FlowsNames).

Rule: nothing is followed and no file is there while it is not wanted. Changes are appended; the file is written as a
whole at first, and when more of it is out of date than not.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from cni_calico.datastore.cache import Cache
from cni_calico.datastore.interface import Datastore, Versioned
from cni_calico.datastore.remembered import Kept, Listeners
from cni_calico.flows.elsewhere import ELSEWHERE, EndElsewhere, render_end
from cni_calico.kernel.files import Files
from cni_calico.log import Log
from cni_calico.model.documents.codec import decode_endpoint
from cni_calico.model.keys import Key, ResourceKey, ResourceList
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.nodeagent.recording.exporting import end_of
from cni_calico.nodeagent.recording.keeper import name_of
from cni_calico.regular import append_whole

_PART = "names of other nodes' workloads"
_SLACK = 1000  # lines out of date that are no reason to write all again


def end_elsewhere(endpoint: WorkloadEndpoint) -> EndElsewhere:
    _, exported = end_of(endpoint)
    addresses = tuple(net.network_address.packed for net in endpoint.ip_networks)
    return EndElsewhere(name_of(endpoint), exported.name, exported.labels, addresses)


class ElsewhereTeller:
    """``use`` in one thread. ``tell`` is called with a part and what is wrong with it, "" for nothing."""

    def __init__(
        self,
        store: Datastore,
        node: str,
        run_dir: str,
        log: Log,
        tell: Callable[[str, str], object] = lambda part, why: None,
    ) -> None:
        self._store, self._node, self._log, self._tell = store, node, log, tell
        self._path = f"{run_dir}/{ELSEWHERE}"
        self._cache: Cache[EndElsewhere | None] | None = None
        self._lines: ChangedLines | None = None
        self._trouble = ""
        with suppress(OSError):
            os.unlink(self._path)  # of an agent before this one

    def use(self, *, wanted: bool) -> None:
        if wanted and self._cache is None:
            lines = self._lines = ChangedLines(self._path, self._note)
            listeners = Listeners(lines.write, hand_over=lines.put, gone=lines.drop)
            kept = Kept(ResourceList("WorkloadEndpoint"), self._decode, keep_documents=False)
            self._cache = Cache(self._store, kept, listeners, cached=True)
        elif not wanted and self._cache is not None:
            self._cache.stop()
            self._cache = self._lines = None
            with suppress(FileNotFoundError):
                os.unlink(self._path)
            self._note("")

    def _decode(self, item: Versioned) -> EndElsewhere | None:
        """None for this node's own, which the recorder knows otherwise. Raises CorruptRecord."""
        assert isinstance(item.key, ResourceKey)
        endpoint = decode_endpoint(item.key, item.value)
        return None if endpoint.node == self._node else end_elsewhere(endpoint)

    def _note(self, trouble: str) -> None:
        if trouble != self._trouble:
            if trouble:
                self._log.warning(trouble)
            self._trouble = trouble
            self._tell(_PART, trouble)


class ChangedLines:
    """A file of which the last line about a key counts; for one thread, the cache's."""

    def __init__(self, path: str, note: Callable[[str], object]) -> None:
        self._path, self._note = path, note
        self._known: dict[Key, bytes] = {}
        self._changed: dict[Key, bytes] = {}
        self._count = -1  # lines in the file; negative: it is not ours yet

    def put(self, key: Key, end: EndElsewhere | None) -> None:
        if end is None:
            return
        line = render_end(_text(key), end)
        if self._known.get(key) != line:
            self._known[key] = self._changed[key] = line

    def drop(self, key: Key) -> None:
        if self._known.pop(key, None) is not None:
            self._changed[key] = render_end(_text(key), None)

    def write(self, _: frozenset[Key]) -> None:
        if not self._changed:
            return
        whole = not 0 <= self._count + len(self._changed) <= 2 * len(self._known) + _SLACK or self._count < 0
        lines = self._known if whole else self._changed
        try:
            data = b"".join(lines.values())
            if whole:
                Files().write_atomic(self._path, data, 0o600, durable=False)
            else:
                append_whole(self._path, data)
            self._count = len(lines) if whole else self._count + len(lines)
            self._changed = {}
            self._note("")
        except OSError as e:
            self._count = -1
            self._note(f"flows have no names of other nodes' workloads: cannot write {self._path}: {e.strerror}")


def _text(key: Key) -> str:
    assert isinstance(key, ResourceKey)
    return f"{key.namespace}/{key.name}"
