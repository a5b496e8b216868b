"""Who has an address: what the agent says now, and the names that records refer to by number.

Rule: a record keeps the name that its ends had when it was made, whoever has the address later. The agent's file is
read again when it changes; one that cannot be read changes nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cni_calico.flows.deciders import Decider, parse_line
from cni_calico.regular import make_directories, read_regular, require_regular, write_all

ENDS, NAMES, NUMBERS = "flow-ends.json", "names", "numbers"
_MOST_BYTES = 64 << 20
_KEPT = 100_000  # names of the newest records


@dataclass(frozen=True, slots=True)
class EndName:
    """``kind``: pod, workload, host."""

    kind: str
    namespace: str
    name: str

    @property
    def shown(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def render_ends(node: str, ends: Iterable[tuple[EndName, Iterable[bytes]]]) -> bytes:
    """The agent's file: this node's name, and each end with its packed addresses."""
    listed = [[one.kind, one.namespace, one.name, [address.hex() for address in its]] for one, its in ends]
    return json.dumps({"version": 1, "node": node, "ends": listed}, separators=(",", ":")).encode()


def parse_ends(data: bytes) -> tuple[str, dict[bytes, EndName]]:
    """(the node, who has each address). Raises ValueError."""
    found: dict[bytes, EndName] = {}
    try:
        document = json.loads(data)
        for kind, namespace, name, addresses in document["ends"]:
            end = EndName(str(kind), str(namespace), str(name))
            found.update((bytes.fromhex(address), end) for address in addresses)
        return str(document["node"]), found
    except (TypeError, KeyError) as e:
        raise ValueError(f"it is not the agent's file: {e}") from e


def parse_name(line: str) -> tuple[int, EndName] | None:
    """A line of the file of names; None if it is none."""
    try:
        number, kind, namespace, name = json.loads(line)
    except (ValueError, TypeError):
        return None
    if type(number) is not int or not all(isinstance(text, str) for text in (kind, namespace, name)):
        return None
    return number, EndName(kind, namespace, name)


class FollowedFile:
    """The content of a file whenever it is another one, and whatever is appended to it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None

    def changed(self) -> bool:
        try:
            status = os.stat(self.path)
        except OSError:
            return False
        seen = status.st_ino, status.st_size, status.st_mtime_ns
        if seen == self._seen:
            return False
        self._seen = seen
        return True

    def read(self) -> bytes:
        """Nothing if it cannot be read."""
        try:
            return read_regular(self.path, _MOST_BYTES)
        except OSError:
            return b""


class Deciders:
    """What numbers stand for, from the agent's file; one that is not known is looked up again if the file changed."""

    def __init__(self, state_dir: str) -> None:
        self._file = FollowedFile(f"{state_dir}/{NUMBERS}")
        self._known: dict[int, Decider] = {}

    def get(self, number: int) -> Decider | None:
        found = self._known.get(number)
        if found is None and number > 255 and self._file.changed():
            lines = self._file.read().decode("utf-8", "surrogateescape").splitlines()
            self._known.update(one for one in map(parse_line, lines) if one is not None)
            found = self._known.get(number)
        return found


class Names:
    """``number_of(address)``: of the name that it has now. ``trouble``: why names are not kept."""

    def __init__(self, state_dir: str, run_dir: str) -> None:
        self.path, self.trouble = f"{state_dir}/{NAMES}", ""
        self._ends = FollowedFile(f"{run_dir}/{ENDS}")
        self.node = ""
        self._now: Mapping[bytes, EndName] = {}
        self._numbers: dict[EndName, int] = {}
        self._names: dict[int, EndName] = {}
        self._last = 0
        self._read()
        self.look()

    def look(self) -> None:
        """Read the agent's file again if it has changed."""
        if self._ends.changed():
            try:
                self.node, self._now = parse_ends(self._ends.read())
            except ValueError:
                pass  # it is replaced as a whole; the next one can be read

    def number_of(self, address: bytes) -> int:
        name = self._now.get(address)
        if name is None:
            return 0
        number = self._numbers.get(name)
        if number is None:
            self._last += 1
            number = self._numbers[name] = self._last
            self._names[number] = name
            self._append([(number, name)])
        return number

    def get(self, number: int) -> EndName | None:
        return self._names.get(number)

    def _read(self) -> None:
        try:
            data = read_regular(self.path, _MOST_BYTES)
        except FileNotFoundError:
            return
        except OSError as e:
            self.trouble = f"cannot read {self.path}: {e.strerror}"
            return
        found = [one for one in map(parse_name, data.decode("utf-8", "replace").splitlines()) if one is not None]
        self._names = dict(found[-_KEPT:])
        self._numbers = {name: number for number, name in self._names.items()}
        self._last = max(self._names, default=0)

    def _append(self, new: Iterable[tuple[int, EndName]]) -> None:
        lines = "".join(json.dumps([number, one.kind, one.namespace, one.name]) + "\n" for number, one in new)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        try:
            make_directories(os.path.dirname(self.path), 0o700)
            fd = os.open(self.path, flags, 0o600)
            try:
                require_regular(fd, self.path)
                write_all(fd, lines.encode())
            finally:
                os.close(fd)
            self.trouble = ""
        except OSError as e:
            self.trouble = f"names of flows' ends are not kept: cannot write {self.path}: {e.strerror}"
