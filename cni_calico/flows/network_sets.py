"""Which network set an address is in that is no workload's, as the agent says: only where it follows what is everywhere
(FlowsNames).

Rule: of several sets the one that upstream's collector takes: those of the other end's namespace come first, then the
global ones, then other namespaces'; among them the smallest network, and then the first name. The file is a list of
changes, of which the last one of a set counts. A set that there is no room for has no name here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from cni_calico.flows.names import FollowedFile

NETWORK_SETS = "flow-network-sets"
MOST_NETWORKS = 10_000  # of one set
_MOST_ALL = 50_000
_REMEMBERED = 10_000
PackedNetwork = tuple[bytes, int]
SetPath = tuple[str, str]  # namespace, "" for a global one's, and name


class NetworkSetName(NamedTuple):
    namespace: str
    name: str
    labels: Mapping[str, str]


SetOf = Callable[[bytes, str], NetworkSetName | None]
"""The set in which an address is, for somebody in a namespace."""


class NetworkSetLine(NamedTuple):
    """``networks``: packed address and length of the prefix."""

    labels: Mapping[str, str]
    networks: tuple[PackedNetwork, ...]


def render_set(path: SetPath, found: NetworkSetLine | None) -> bytes:
    """A line; None: it is gone."""
    if found is None:
        return json.dumps(path).encode() + b"\n"
    networks = [[address.hex(), length] for address, length in found.networks]
    return json.dumps([*path, dict(sorted(found.labels.items())), networks], separators=(",", ":")).encode() + b"\n"


def parse_set(line: bytes) -> tuple[SetPath, NetworkSetLine | None]:
    """Raises ValueError."""
    try:
        namespace, name, *rest = json.loads(line)
        if not rest:
            return (str(namespace), str(name)), None
        labels, networks = rest
        packed = tuple((bytes.fromhex(address), int(length)) for address, length in networks)
        return (str(namespace), str(name)), NetworkSetLine({str(k): str(v) for k, v in labels.items()}, packed)
    except (TypeError, AttributeError) as e:
        raise ValueError(f"it is not the agent's line: {e}") from e


class NetworkSets:
    """``look`` often; ``find`` by address, and the namespace of who talks with it, "" for none."""

    def __init__(self, run_dir: str) -> None:
        self._file = FollowedFile(f"{run_dir}/{NETWORK_SETS}")
        self._forget()

    def _forget(self) -> None:
        self._sets: dict[SetPath, tuple[NetworkSetName, tuple[PackedNetwork, ...]]] = {}
        self._at: dict[tuple[int, int], dict[int, dict[SetPath, None]]] = {}  # by bits of a family, and of a prefix
        self._networks = 0
        self._found: dict[tuple[bytes, str], NetworkSetName | None] = {}

    def __len__(self) -> int:
        return len(self._sets)

    def look(self) -> None:
        self._file.follow(self._forget, parse_set, self._take)

    def find(self, address: bytes, namespace: str) -> NetworkSetName | None:
        if not self._sets:
            return None
        asked = address, namespace
        if asked not in self._found:
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            self._found[asked] = self._look_up(address, namespace)
        return self._found[asked]

    def _look_up(self, address: bytes, namespace: str) -> NetworkSetName | None:
        bits, number = 8 * len(address), int.from_bytes(address, "big")
        best: tuple[int, int, SetPath] | None = None
        for (family, length), there in self._at.items():
            if family == bits:
                for path in there.get(number >> (bits - length), ()):
                    rank = 0 if path[0] and path[0] == namespace else 2 if path[0] else 1
                    one = rank, -length, path
                    best = one if best is None else min(best, one)
        return None if best is None else self._sets[best[2]][0]

    def _take(self, path: SetPath, found: NetworkSetLine | None) -> None:
        self._found.clear()
        self._remove(path)
        if found is not None and self._networks + len(found.networks) <= _MOST_ALL:
            self._put(path, found)

    def _put(self, path: SetPath, found: NetworkSetLine) -> None:
        self._sets[path] = NetworkSetName(*path, found.labels), found.networks
        self._networks += len(found.networks)
        for address, length in found.networks:
            self._prefixes(address, length).setdefault(_prefix(address, length), {})[path] = None

    def _remove(self, path: SetPath) -> None:
        _, networks = self._sets.pop(path, (None, ()))
        self._networks -= len(networks)
        for address, length in networks:
            there, prefix = self._prefixes(address, length), _prefix(address, length)
            paths = there.get(prefix, {})
            paths.pop(path, None)
            if not paths:
                there.pop(prefix, None)
            if not there:
                del self._at[8 * len(address), length]

    def _prefixes(self, address: bytes, length: int) -> dict[int, dict[SetPath, None]]:
        return self._at.setdefault((8 * len(address), length), {})


def _prefix(address: bytes, length: int) -> int:
    return int.from_bytes(address, "big") >> (8 * len(address) - length)
