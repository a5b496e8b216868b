"""Which service a connection was sent to, as the agent says: only where it follows what is everywhere (FlowsNames).

Rule: a service is named by the address and the port to which the connection was sent, or by its node port if what was
chosen has the service's port of pods; nothing is guessed. The file is a list of changes, of which the last one of a
service counts. The first of several with one address and port, by name, is the one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import NamedTuple

from cni_calico.flows.names import FollowedFile
from cni_calico.flows.records import FlowRecord

SERVICES = "flow-services"
_MOST = 50_000  # addresses and ports
ServicePath = tuple[str, str]  # namespace and name
_ServicePlace = tuple[bytes, int, int]  # address, b"" for a node's; protocol; port


class ServiceName(NamedTuple):
    """``port``: the name of the service's port, "" for none."""

    namespace: str
    name: str
    port: str


ServiceOf = Callable[[FlowRecord], ServiceName | None]
"""The service that a connection was sent to, as far as it is known where it was sent."""


class ServicePort(NamedTuple):
    """``node_port``: 0 for none. ``target``: the port of pods, 0 if each says its own by a name."""

    name: str
    protocol: int
    port: int
    node_port: int
    target: int


class ServiceLine(NamedTuple):
    """``addresses``: packed, of the cluster, from outside and of load balancers."""

    addresses: tuple[bytes, ...]
    ports: tuple[ServicePort, ...]


def render_service(path: ServicePath, found: ServiceLine | None) -> bytes:
    """A line; None: it is gone."""
    if found is None:
        return json.dumps(path).encode() + b"\n"
    addresses = [address.hex() for address in found.addresses]
    return json.dumps([*path, addresses, found.ports], separators=(",", ":")).encode() + b"\n"


def parse_line(line: bytes) -> tuple[ServicePath, ServiceLine | None]:
    """Raises ValueError."""
    try:
        namespace, name, *rest = json.loads(line)
        if not rest:
            return (str(namespace), str(name)), None
        addresses, ports = rest
        packed = tuple(map(bytes.fromhex, addresses))
        read = tuple(ServicePort(str(called), *map(int, numbers)) for called, *numbers in ports)
        return (str(namespace), str(name)), ServiceLine(packed, read)
    except (TypeError, AttributeError) as e:
        raise ValueError(f"it is not the agent's line: {e}") from e


class NamedServices:
    """``look`` often; then ``find``."""

    def __init__(self, run_dir: str) -> None:
        self._file = FollowedFile(f"{run_dir}/{SERVICES}")
        self._forget()

    def _forget(self) -> None:
        self._known: dict[ServicePath, ServiceLine] = {}
        self._at: dict[_ServicePlace, dict[ServicePath, ServicePort]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def look(self) -> bool:
        """Returns whether something is another one now."""
        return self._file.follow(self._forget, parse_line, self._take)

    def find(self, record: FlowRecord) -> ServiceName | None:
        """Of a connection to a service; None also while it is not known where it was sent, as of what was denied."""
        if not self._at or (record.asked, record.asked_port) == (record.destination, record.dport):
            return None
        for address in (record.asked, b""):
            there = self._at.get((address, record.protocol, record.asked_port), {})
            fitting = [path for path, port in there.items() if address or port.target in (0, record.dport)]
            if fitting:
                path = min(fitting)
                return ServiceName(*path, there[path].name)
        return None

    def _take(self, path: ServicePath, found: ServiceLine | None) -> None:
        for place, _ in _places(self._known.pop(path, None)):
            there = self._at.get(place, {})
            there.pop(path, None)
            if not there:
                self._at.pop(place, None)
        if found is not None and len(self._at) + len(found.addresses) * len(found.ports) <= _MOST:
            self._known[path] = found
            for place, port in _places(found):
                self._at.setdefault(place, {})[path] = port


def _places(found: ServiceLine | None) -> Iterable[tuple[_ServicePlace, ServicePort]]:
    if found is None:
        return
    for port in found.ports:
        yield from (((address, port.protocol, port.port), port) for address in found.addresses)
        if port.node_port:
            yield (b"", port.protocol, port.node_port), port
