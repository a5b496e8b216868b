"""What this driver has done for Docker: a small file for each network, address and endpoint.

Rule: a file is written before its effect and removed after the effect is undone, so that what a crash leaves can be
found. A file that cannot be read is reported, and is not used; nothing is removed because of it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, Generic, TypeVar

from cni_calico.deadline import Deadline
from cni_calico.docker.handles import HandleIds
from cni_calico.doing import Doing
from cni_calico.errors import DeadlineExceeded
from cni_calico.kernel.files import Files
from cni_calico.log import Log
from cni_calico.model.documents.fields import brief

DIRECTORY = "docker"  # in the state directory
FORMAT = 1
_TURNS = 64  # entries of one kind that are written at once
MADE, JOINED = "made", "joined"  # steps of an endpoint


@dataclass(frozen=True, slots=True)
class DockerNetwork:
    """``name`` "": Docker has not told it yet. ``made_s``: Unix time."""

    id: str
    mtu: int = 0
    ingress: str = ""
    name: str = ""
    made_s: float = 0.0


@dataclass(frozen=True, slots=True)
class HeldAddress:
    """``id`` is the second half of the handle. ``address`` "": the request was under way. ``made_s``: Unix time.
    ``owed``: to be released. ``former``: upstream's plugin has assigned it, without a handle.
    ``container``: the name of whoever has it, if Docker has told.
    """

    id: str
    boot: str
    pool: str = ""
    address: str = ""
    made_s: float = 0.0
    owed: bool = False
    former: bool = False
    container: str = ""


@dataclass(frozen=True, slots=True)
class DockerEndpoint:
    """``waits``: its interface is closed until its policy is in force. ``known``: its record says who the container is.
    ``owed``: it is to be removed. ``made_s``: Unix time. ``labels``: of ``--driver-opt``. ``hop``: which of its
    container's networks it is, and so which next hop is its own. ``ports``: published ones
    (``docker.ports:render_forward``). ``container``, ``name``: the container's ID and name. ``left_out``: what of it is
    no label, a sentence each. ``former``: upstream's plugin has made it.
    """

    id: str
    network: str
    boot: str
    made_s: float
    addresses: list[str] = field(default_factory=list)
    mac: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    step: str = MADE
    sandbox: str = ""
    container: str = ""
    name: str = ""
    waits: bool = False
    known: bool = False
    hop: int = 1
    ports: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    owed: bool = False
    former: bool = False


Shelved = TypeVar("Shelved", DockerNetwork, HeldAddress, DockerEndpoint)


class Shelf(Generic[Shelved]):
    """The files of one kind, and what is in them. Safe with threads: changes of one entry take turns, and none of them
    brings back what another one has changed or removed.
    """

    def __init__(self, files: Files, directory: str, kind: type[Shelved], log: Log) -> None:
        self._files, self._directory, self._log = files, directory, log
        self._kind: type[Shelved] = kind
        self._guard = threading.Lock()
        self._turns = tuple(threading.Lock() for _ in range(_TURNS))
        self._entries: dict[str, Shelved] = {}
        self.unreadable: tuple[str, ...] = ()

    def read(self, *, only_look: bool = False) -> None:
        """Read the directory, which is made unless it is to be looked at only; unreadable files are logged. Raises
        KernelError.
        """
        found, unreadable = {}, []
        with Doing(f"use {self._directory}"):
            if not only_look:
                self._files.make_directory(self._directory, 0o700)
            there = not only_look or self._files.exists(self._directory)
            for name in self._files.names(self._directory) if there else ():
                if name.startswith(".") or not name.endswith(".json"):
                    continue
                path = f"{self._directory}/{name}"
                try:
                    entry = _parse(self._kind, json.loads(self._files.read_bytes(path)))
                    if f"{entry.id}.json" != name:
                        raise ValueError(f"it says that it is {brief(entry.id)}'s")
                except (OSError, ValueError, RecursionError) as e:
                    unreadable.append(f"{path}: {brief(str(e), 200)}")
                    continue
                found[entry.id] = entry
        for text in unreadable:
            self._log.error(f"not used, because it cannot be read: {text}")
        with self._guard:
            self._entries, self.unreadable = found, tuple(unreadable)

    def get(self, id: str) -> Shelved | None:
        with self._guard:
            return self._entries.get(id)

    def all(self) -> list[Shelved]:
        with self._guard:
            return list(self._entries.values())

    def find(self, judge: Callable[[Shelved], bool]) -> Shelved | None:
        return next(filter(judge, self.all()), None)

    def put(self, entry: Shelved, *, durable: bool = False) -> None:
        """Raises KernelError. ``durable``: it is to survive a crash of the machine, too."""
        with self._turn(entry.id):
            self._write(entry, durable)

    def change(self, id: str, **changed: Any) -> None:
        """Change an entry, if it is there. Raises KernelError."""
        with self._turn(id):
            entry = self.get(id)
            if entry is not None:
                self._write(replace(entry, **changed))

    def remove(self, id: str) -> None:
        """Absent is success. Raises KernelError."""
        path = self._path(id)
        with self._turn(id):
            with Doing(f"remove {path}"):
                self._files.remove(path)
            with self._guard:
                self._entries.pop(id, None)

    def _write(self, entry: Shelved, durable: bool = False) -> None:
        data = json.dumps({"format": FORMAT, **_document(entry)}, separators=(",", ":")).encode()
        path = self._path(entry.id)
        with Doing(f"write {path}"):
            self._files.write_atomic(path, data, 0o600, durable=durable)
        with self._guard:
            self._entries[entry.id] = entry

    def _turn(self, id: str) -> threading.Lock:
        return self._turns[hash(id) % len(self._turns)]

    def _path(self, id: str) -> str:
        return f"{self._directory}/{id}.json"


def _parse(kind: type[Shelved], document: Any) -> Shelved:
    """Raises ValueError."""
    if not isinstance(document, dict) or document.pop("format", None) != FORMAT:
        raise ValueError("its format is unknown")
    shapes = {name: _SHAPES[type(value)] for name, value in _document(_SAMPLES[kind]).items()}
    for name, value in document.items():
        if name not in shapes or not shapes[name](value):
            raise ValueError(f"{brief(name)} is wrong")
    try:
        return kind(**document)
    except TypeError as e:
        raise ValueError("a field is missing") from e


def _document(entry: Any) -> dict[str, Any]:
    """Without ``asdict``'s copies, which take longer than writing the file."""
    return {each.name: getattr(entry, each.name) for each in fields(entry)}


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_SHAPES: dict[type[Any], Callable[[Any], bool]] = {
    str: _is_text,
    bool: lambda value: isinstance(value, bool),
    int: lambda value: isinstance(value, int) and not isinstance(value, bool),
    float: lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    list: lambda value: isinstance(value, list) and all(map(_is_text, value)),
    dict: lambda value: isinstance(value, dict) and all(map(_is_text, value.values())),
}
# the executables have no annotations, so what a field may be is what a sample has in it
_SAMPLES: dict[type[Any], Any] = {
    DockerNetwork: DockerNetwork(""),
    HeldAddress: HeldAddress("", ""),
    DockerEndpoint: DockerEndpoint("", "", "", 0.0),
}


class EntryLocks:
    """One lock for each name in use. Who waits for one waits until a deadline: dockerd waits for an answer for ever."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    def hold(self, name: str, deadline: Deadline) -> _HeldLock:
        """Entering it raises DeadlineExceeded."""
        return _HeldLock(self, name, deadline)

    def borrow(self, name: str) -> threading.Lock:
        with self._guard:
            lock, users = self._locks.get(name, (threading.Lock(), 0))
            self._locks[name] = lock, users + 1
            return lock

    def give_back(self, name: str) -> None:
        with self._guard:
            lock, users = self._locks[name]
            if users == 1:
                del self._locks[name]
            else:
                self._locks[name] = lock, users - 1


class _HeldLock:
    def __init__(self, locks: EntryLocks, name: str, deadline: Deadline) -> None:
        self._locks, self._name, self._deadline = locks, name, deadline

    def __enter__(self) -> None:
        self._lock = self._locks.borrow(self._name)
        if not self._lock.acquire(timeout=self._deadline.remaining_s()):
            self._locks.give_back(self._name)
            raise DeadlineExceeded(f"cannot go on with {self._name[:12]}: another call for it does not end")

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        self._locks.give_back(self._name)


class DockerState:
    """The three shelves and the IDs of the next handles, as files below the state directory."""

    def __init__(self, files: Files, state_dir: str, log: Log) -> None:
        base = f"{state_dir}/{DIRECTORY}"
        self.networks: Shelf[DockerNetwork] = Shelf(files, f"{base}/networks", DockerNetwork, log)
        self.addresses: Shelf[HeldAddress] = Shelf(files, f"{base}/addresses", HeldAddress, log)
        self.endpoints: Shelf[DockerEndpoint] = Shelf(files, f"{base}/endpoints", DockerEndpoint, log)
        self.handles = HandleIds(files, f"{base}/handles.json", log)

    def read(self, *, only_look: bool = False) -> None:
        """Raises KernelError."""
        for shelf in (self.networks, self.addresses, self.endpoints):
            shelf.read(only_look=only_look)
        if not only_look:
            self.handles.read()

    def holding(self, address: str) -> HeldAddress | None:
        """Whoever has the address now comes before one that is still being released."""
        found = [held for held in self.addresses.all() if held.address == address]
        return min(found, key=lambda held: held.owed, default=None)

    def endpoint_with(self, address: str) -> DockerEndpoint | None:
        return self.endpoints.find(lambda endpoint: address in endpoint.addresses)

    def unreadable(self) -> Iterator[str]:
        for shelf in (self.networks, self.addresses, self.endpoints):
            yield from shelf.unreadable
