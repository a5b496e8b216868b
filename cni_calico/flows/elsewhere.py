"""What other nodes' ends are called, as the agent says: only where it follows the pods of all nodes (FlowsNames).

Rule: the file is a list of changes, of which the last one of an end counts; it is replaced as a whole when most of it
is out of date. A line that cannot be read changes nothing. Without the file no other node's end has a name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from cni_calico.flows.export.wanted import EndPath, ExportedEnd
from cni_calico.flows.names import EndName, FollowedFile
from cni_calico.flows.network_sets import NetworkSets
from cni_calico.flows.services import NamedServices

ELSEWHERE = "flow-ends-elsewhere"


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
    which addresses are that are nobody's; ``services``: to which connections are sent.
    """

    def __init__(self, run_dir: str) -> None:
        self._file = FollowedFile(f"{run_dir}/{ELSEWHERE}")
        self.network_sets, self.services = NetworkSets(run_dir), NamedServices(run_dir)
        self._ends: dict[str, EndElsewhere] = {}
        self._at: dict[bytes, dict[str, None]] = {}  # who says that it is theirs, the last one last
        self._exported: dict[EndPath, ExportedEnd] = {}
        self._labels: dict[frozenset[tuple[str, str]], Mapping[str, str]] = {}

    def __len__(self) -> int:
        return len(self._ends)

    def look(self) -> bool:
        """Returns whether ends may have changed."""
        self.network_sets.look()
        self.services.look()
        return self._file.follow(self._forget, parse_end, self._take)

    def get(self, address: bytes) -> EndName | None:
        keys = self._at.get(address)
        return self._ends[next(reversed(keys))].name if keys else None

    def find(self, path: EndPath) -> ExportedEnd | None:
        return self._exported.get(path)

    def _forget(self) -> None:
        self._ends, self._at, self._exported, self._labels = {}, {}, {}, {}

    def _take(self, key: str, end: EndElsewhere | None) -> None:
        self._remove(key)
        if end is None:
            return
        labels = self._labels.setdefault(frozenset(end.labels.items()), end.labels)  # those of a Deployment are alike
        self._ends[key] = end._replace(labels=labels)
        for address in end.addresses:
            self._at.setdefault(address, {})[key] = None
        self._exported[end.name.namespace, end.name.name] = ExportedEnd(end.shared, labels)

    def _remove(self, key: str) -> None:
        end = self._ends.pop(key, None)
        if end is None:
            return
        self._exported.pop((end.name.namespace, end.name.name), None)
        for address in end.addresses:
            keys = self._at.get(address, {})
            keys.pop(key, None)
            if not keys:
                self._at.pop(address, None)
