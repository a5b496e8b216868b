"""Keeps the labels that say who a container is as its runtime has them: after a rename, and where an ADD could not ask.

Rule: only labels of identity are written (model/identity.py), by compare-and-swap, and only to endpoints of this node
whose containers a runtime's store knows: what cannot be read changes nothing. Without a store this costs a few stats
every five seconds; with one, the endpoints are listed when it has changed, and once a minute for new ones: an ADD that
could not ask may write its endpoint after the store has changed for the last time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from cni_calico.daemon.keeper import Keeper
from cni_calico.daemon.said import Said
from cni_calico.datastore.cas import update
from cni_calico.datastore.interface import Document, Versioned
from cni_calico.deadline import Deadline
from cni_calico.errors import CorruptRecord, TryAgain
from cni_calico.model.documents.codec import decode_endpoint, encode
from cni_calico.model.identity import NETWORK, merge_labels, plan_labels, shown_name
from cni_calico.model.keys import ResourceKey, endpoints_of_node
from cni_calico.model.names import runtimes_id, short_id
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.nodeagent.context.agent import Context
from cni_calico.plugin.attachment import PLAIN
from cni_calico.plugin.identity.places import STORES

LOOK_S, PATIENCE_S = 5.0, 1.0
LIST_S = 60.0
TOPIC = "labels of containers"  # in the agent's troubles
_READ_S = 30.0
_BESIDE = ("", "-wal")  # SQLite may write what is new into a second file
_SHOWN = 5


class ContainerNames:
    """``look`` compares, if a store has changed since the last one, or there are endpoints that were not compared."""

    def __init__(self, context: Context, node: str, now: Callable[[], float] = time.monotonic) -> None:
        self.context, self.node, self.now = context, node, now
        self._next_list = 0.0
        self._compared: frozenset[tuple[str, str]] = frozenset()
        self._seen: tuple[tuple[int, int, int], ...] | None = None
        self._said = Said(context.log)

    def look(self) -> None:
        """Raises TryAgain while a store cannot be read, DatastoreError."""
        seen = tuple(self._stores())
        if not (seen or self._seen):
            return
        if seen == self._seen and self.now() < self._next_list:
            return
        records = list(self._endpoints())
        present = frozenset((record.metadata.name, record.metadata.uid) for _, record in records)
        if seen != self._seen or present - self._compared:
            self._compare(records)
        self._seen, self._compared, self._next_list = seen, present, self.now() + LIST_S

    def _compare(self, records: list[tuple[ResourceKey, WorkloadEndpoint]]) -> None:
        from cni_calico.plugin.identity.stores import read_identity  # where there is a store

        troubles: dict[str, None] = {}
        left_out: list[str] = []
        for key, record in records:
            answer = read_identity(record.container_id, self.context.files, PATIENCE_S)
            if answer.identity is None:
                troubles.update(dict.fromkeys(answer.troubles))
                continue
            labels = record.metadata.labels
            known = plan_labels(answer.identity, labels.get(NETWORK) or next(iter(record.profiles), ""))
            left_out += [f"{answer.identity.name or short_id(record.container_id)!r}: {why}" for why in known.left_out]
            if merge_labels(labels, known.labels) != labels:
                self._write(key, record, known.labels)
        self._report(left_out)
        if troubles:
            raise TryAgain(
                f"cannot tell who this node's containers are, so labels may be missing: {'; '.join(troubles)}"
            )

    def _stores(self) -> Iterator[tuple[int, int, int]]:
        for path in STORES:
            for end in _BESIDE:
                try:
                    status = os.stat(self.context.files.path(path + end))
                except OSError:
                    continue
                yield status.st_ino, status.st_mtime_ns, status.st_size

    def _endpoints(self) -> Iterator[tuple[ResourceKey, WorkloadEndpoint]]:
        for item in self.context.store.list(endpoints_of_node(self.node), Deadline.after(_READ_S)).items:
            try:
                record = decode_endpoint(item.key, item.value) if isinstance(item.key, ResourceKey) else None
            except CorruptRecord:
                continue  # status and calicoctl name it
            if record is None or record.node != self.node or record.orchestrator != PLAIN:
                continue
            if runtimes_id(record.container_id):
                assert isinstance(item.key, ResourceKey)
                yield item.key, record

    def _write(self, key: ResourceKey, record: WorkloadEndpoint, labels: Mapping[str, str]) -> None:
        def change(current: Versioned | None) -> Document | None:
            if current is None:
                return None
            now = decode_endpoint(key, current.value)
            if now.metadata.uid != record.metadata.uid or now.container_id != record.container_id:
                return current.value
            merged = merge_labels(now.metadata.labels, labels)
            return encode(replace(now, metadata=replace(now.metadata, labels=merged)))

        update(self.context.store, key, change, Deadline.after(_READ_S))
        was = shown_name(record.metadata.labels)
        self.context.log.info(
            f"container {short_id(record.container_id)} is {shown_name(labels) or 'without a name'}"
            + (f", was {was}" if was else "")
        )

    def _report(self, left_out: list[str]) -> None:
        self._said.say(TOPIC, left_out[:_SHOWN])
        if left_out:
            more = f"; and {len(left_out) - _SHOWN} more" if len(left_out) > _SHOWN else ""
            self.context.troubles[TOPIC] = "; ".join(left_out[:_SHOWN]) + more
        else:
            self.context.troubles.pop(TOPIC, None)


def names_keeper(context: Context, node: str) -> Keeper:
    names = ContainerNames(context, node)
    return Keeper("names of containers", names.look, LOOK_S, context.log, context.troubles)
