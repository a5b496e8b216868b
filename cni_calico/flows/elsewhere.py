"""What other nodes' ends are called, as the agent says: only where it follows the pods of all nodes (FlowsNames).

Rule: the file is a list of changes, of which the last one of an end counts; it is replaced as a whole when most of it
is out of date. A line that cannot be read changes nothing. Without the file no other node's end has a name.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from cni_calico.flows.export.wanted import EndPath, ExportedEnd
from cni_calico.flows.labels import LabelsSince, LabelVersions, note_labels
from cni_calico.flows.names import EndName, FollowedFile
from cni_calico.flows.network_sets import NetworkSets
from cni_calico.flows.services import NamedServices

ELSEWHERE = "flow-ends-elsewhere"
_MOST_GONE = 5_000  # of which labels are remembered


class EndElsewhere(NamedTuple):
    """``shared``: what it is called for others, as in ``export.wanted``."""

    name: EndName
    shared: str
    labels: Mapping[str, str]
    addresses: tuple[bytes, ...]


def render_end(key: str, end: EndElsewhere | None) -> bytes:
    """A line; None: it is gone."""
    if end is None:
        return json.dumps([key]).encode() + b"\n"
    addresses = [address.hex() for address in end.addresses]
    labels = dict(sorted(end.labels.items()))
    name = end.name.kind, end.name.namespace, end.name.name
    return json.dumps([key, *name, end.shared, labels, addresses], separators=(",", ":")).encode() + b"\n"


def parse_end(line: bytes) -> tuple[str, EndElsewhere | None]:
    """Raises ValueError."""
    try:
        key, *rest = json.loads(line)
        if not rest:
            return str(key), None
        kind, namespace, name, shared, labels, addresses = rest
        texts = {str(label): str(value) for label, value in labels.items()}
        packed = tuple(bytes.fromhex(address) for address in addresses)
        return str(key), EndElsewhere(EndName(str(kind), str(namespace), str(name)), str(shared), texts, packed)
    except (TypeError, AttributeError) as e:
        raise ValueError(f"it is not the agent's line: {e}") from e


class EndsElsewhere:
    """``look`` often; ``get`` by address, ``find`` what is exported of it, by namespace and name. ``network_sets``: in
    which addresses are that are nobody's; ``services``: to which connections are sent. ``now``: seconds since 1970.
    """

    def __init__(self, run_dir: str, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._file = FollowedFile(f"{run_dir}/{ELSEWHERE}")
        self.network_sets, self.services = NetworkSets(run_dir), NamedServices(run_dir)
        self._ends: dict[str, EndElsewhere] = {}
        self._at: dict[bytes, dict[str, None]] = {}  # who says that it is theirs, the last one last
        self._exported: dict[EndPath, ExportedEnd] = {}
        self._labels: dict[frozenset[tuple[str, str]], Mapping[str, str]] = {}
        self._before: dict[EndPath, ExportedEnd] = {}  # in the file that was replaced
        self._gone: dict[EndPath, Mapping[str, str]] = {}
        self._changed: dict[EndPath, LabelVersions] = {}  # where they were others before

    def __len__(self) -> int:
        return len(self._ends)

    def look(self) -> bool:
        """Returns whether ends may have changed."""
        self.network_sets.look()
        self.services.look()
        found = self._file.follow(self._forget, parse_end, self._take)
        if self._before:
            for path in self._before.keys() - self._exported.keys():
                self._note_gone(path, self._before[path].labels)
            self._before = {}
        return found

    def get(self, address: bytes) -> EndName | None:
        keys = self._at.get(address)
        return self._ends[next(reversed(keys))].name if keys else None

    def find(self, path: EndPath) -> ExportedEnd | None:
        return self._exported.get(path)

    def labels_of(self, name: EndName) -> LabelVersions:
        """The newest few that an end elsewhere has or had."""
        path = name.namespace, name.name
        end = self._exported.get(path)
        labels = self._gone.get(path) if end is None else end.labels
        if labels is None:
            return ()
        return self._changed.get(path) or (LabelsSince(0, labels),)

    def _forget(self) -> None:
        self._before = self._before | self._exported
        self._ends, self._at, self._exported, self._labels = {}, {}, {}, {}

    def _take(self, key: str, end: EndElsewhere | None) -> None:
        was = self._remove(key)
        if end is None:
            if was is not None:
                self._note_gone((was.name.namespace, was.name.name), was.labels)
            return
        labels = self._labels.setdefault(frozenset(end.labels.items()), end.labels)  # those of a Deployment are alike
        self._ends[key] = end._replace(labels=labels)
        for address in end.addresses:
            self._at.setdefault(address, {})[key] = None
        path = end.name.namespace, end.name.name
        self._note_change(path, was, labels)
        self._exported[path] = ExportedEnd(end.shared, labels)

    def _note_change(self, path: EndPath, was: EndElsewhere | None, labels: Mapping[str, str]) -> None:
        """If an end of that name had other labels."""
        replaced, gone = self._before.get(path), self._gone.pop(path, None)
        before = was.labels if was is not None else replaced.labels if replaced is not None else gone
        if before is not None and before != labels:
            told = self._changed.get(path) or (LabelsSince(0, before),)
            self._changed[path] = note_labels(told, labels, self._now())

    def _note_gone(self, path: EndPath, labels: Mapping[str, str]) -> None:
        self._gone[path] = labels
        while len(self._gone) > _MOST_GONE:
            oldest = next(iter(self._gone))
            del self._gone[oldest]
            self._changed.pop(oldest, None)

    def _remove(self, key: str) -> EndElsewhere | None:
        end = self._ends.pop(key, None)
        if end is None:
            return None
        self._exported.pop((end.name.namespace, end.name.name), None)
        for address in end.addresses:
            keys = self._at.get(address, {})
            keys.pop(key, None)
            if not keys:
                self._at.pop(address, None)
        return end
