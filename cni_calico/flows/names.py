"""Who has an address: what the agent says now, and the names that records refer to by number.

Rule: a record keeps the name that its ends had when it was made, whoever has the address later: no number is ever given
to another name. The agent's file is read again when it changes; one that cannot be read changes nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from errno import EFBIG
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from cni_calico.flows.deciders import FIRST, NUMBERS_BYTES, Decider, parse_line
from cni_calico.flows.host_parameters import HostParameters, parse_parameters, render_parameters
from cni_calico.flows.labels import LabelVersions, note_labels
from cni_calico.flows.limits import USUAL_LIMITS, AppliedLimits, FlowLimits
from cni_calico.kernel.files import Files
from cni_calico.regular import append_whole, make_directories, open_regular, read_regular

ENDS, NAMES, NUMBERS = "flow-ends.json", "names", "numbers"
SUMS_KEPT_S = 24 * 3600
_MOST_BYTES = NUMBERS_BYTES
_KEPT, _MOST = 60_000, 90_000  # when there are more names than that, those of the newest records are kept
_REMEMBERED = 5_000  # addresses
_MOST_LABELLED = 5_000  # ends
_TAIL = 512  # bytes by which a file is known that is only longer: more than a line
_UNWRITTEN = 1 << 16  # numbers that an earlier recorder may have given without writing them

FollowedKey = TypeVar("FollowedKey")
FollowedValue = TypeVar("FollowedValue")
FOLDED_NETWORK, FOLDED_SET = "network", "networkset"
FOLDED = FOLDED_NETWORK, FOLDED_SET


@dataclass(frozen=True, slots=True)
class EndName:
    """``kind``: pod, workload; in sums also FOLDED: one of many addresses that are not told apart."""

    kind: str
    namespace: str
    name: str

    @property
    def shown(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


class AddressedEnd(NamedTuple):
    """``addresses``: packed."""

    name: EndName
    addresses: Sequence[bytes]
    labels: Mapping[str, str] = MappingProxyType({})


class EndsHere(NamedTuple):
    """``named``: who has each address. ``kept_s``: how long sums are kept."""

    node: str
    named: Mapping[bytes, EndName]
    labels: Mapping[EndName, Mapping[str, str]]
    kept_s: int
    hosts: HostParameters | None = None
    limits: FlowLimits = USUAL_LIMITS


def render_ends(
    node: str,
    ends: Iterable[AddressedEnd],
    kept_s: float = SUMS_KEPT_S,
    hosts: HostParameters | None = None,
    limits: FlowLimits = USUAL_LIMITS,
) -> bytes:
    """The agent's file: this node's name, its ends, how long sums are kept, what counts at host endpoints, and how
    much is recorded.
    """
    listed = [
        [one.kind, one.namespace, one.name, [address.hex() for address in its], dict(sorted(labels.items()))]
        for one, its, labels in ends
    ]
    document = {"version": 1, "node": node, "kept": int(kept_s), "limits": limits, "ends": listed}
    if hosts is not None:
        document["hosts"] = render_parameters(hosts)
    return json.dumps(document, separators=(",", ":")).encode()


def parse_ends(data: bytes) -> EndsHere:
    """Raises ValueError."""
    found: dict[bytes, EndName] = {}
    labelled: dict[EndName, Mapping[str, str]] = {}
    try:
        document = json.loads(data)
        for kind, namespace, name, addresses, labels in document["ends"]:
            end = EndName(*map(_text, (kind, namespace, name)))
            found.update((bytes.fromhex(address), end) for address in addresses)
            labelled[end] = {_text(key): _text(value) for key, value in labels.items()}
        hosts = parse_parameters(document["hosts"]) if "hosts" in document else None
        limits = FlowLimits(*map(int, document.get("limits", ())))
        kept_s = int(document.get("kept", SUMS_KEPT_S))
        return EndsHere(str(document["node"]), found, labelled, kept_s, hosts, limits)
    except (TypeError, KeyError, AttributeError) as e:
        raise ValueError(f"it is not the agent's file: {e}") from e


def parse_name(line: str) -> tuple[int, EndName] | None:
    """A line of the file of names; None if it is none."""
    try:
        number, kind, namespace, name = json.loads(line)
    except (ValueError, TypeError):
        return None
    if type(number) is not int or not all(isinstance(text, str) for text in (kind, namespace, name)):
        return None
    return number, EndName(*map(_text, (kind, namespace, name)))


def _text(value: object) -> str:
    """Without half surrogate pairs, which JSON has and no file or terminal."""
    return str(value).encode("utf-8", "replace").decode()


def render_name(number: int, name: EndName) -> str:
    """With its end of line."""
    return json.dumps([number, name.kind, name.namespace, name.name]) + "\n"


class FollowedFile:
    """The content of a file whenever it is another one, and whatever is appended to it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._seen: tuple[int, int, int] | None = None
        self._end, self._tail = 0, b""  # of the lines that were read

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

    def read_on(self) -> tuple[bytes, bool]:
        """The lines that were not read yet, and whether they are all of another file; nothing if it cannot be read."""
        try:
            with open(open_regular(self.path, follow=False), "rb", buffering=0) as file:
                known = self._end - len(self._tail)
                is_another = not self._end or os.pread(file.fileno(), len(self._tail), known) != self._tail
                begin = 0 if is_another else self._end
                file.seek(begin)
                data = file.read(_MOST_BYTES)
        except OSError:
            return b"", False
        whole = data[: data.rfind(b"\n") + 1]
        self._end, self._tail = begin + len(whole), (whole or self._tail)[-_TAIL:]
        return whole, is_another

    def follow(
        self,
        forget: Callable[[], None],
        parse: Callable[[bytes], tuple[FollowedKey, FollowedValue]],
        put: Callable[[FollowedKey, FollowedValue], None],
    ) -> bool:
        """``put`` what each line that is new says, after ``forget`` if the file is another one; ``forget`` if it is
        gone. A line for which ``parse`` raises ValueError changes nothing. Returns whether anything may have changed.
        """
        if self._seen is not None and not os.path.exists(self.path):
            self._seen, self._end, self._tail = None, 0, b""
            forget()
            return True
        if not self.changed():
            return False
        data, is_another = self.read_on()
        if is_another:
            forget()
        for line in data.splitlines():
            try:
                key, value = parse(line)
            except ValueError:
                continue
            put(key, value)
        return bool(data) or is_another


class Deciders:
    """What numbers stand for, from the agent's file; one that is not known is looked up again if the file changed. Only
    what is in the file is known, unless it cannot be read.
    """

    def __init__(self, state_dir: str) -> None:
        self._file = FollowedFile(f"{state_dir}/{NUMBERS}")
        self._known: dict[int, Decider] = {}

    def get(self, number: int) -> Decider | None:
        found = self._known.get(number)
        if found is None and number >= FIRST and self._file.changed():
            data, is_another = self._file.read_on()
            lines = data.decode("utf-8", "surrogateescape").splitlines()
            new = dict(one for one in map(parse_line, lines) if one is not None)
            self._known = new if new and is_another else self._known | new
            found = self._known.get(number)
        return found


class Names:
    """``number_of(address)``: of the name that it has now; what a crash or a full disk took from the file is never
    another name's. ``node``, ``kept_s`` (how long sums are kept), ``hosts`` and ``limits`` are as the agent
    says. ``trouble``: why names are not kept. ``clock``: seconds since 1970. ``elsewhere``: the name of an address
    that is no end's here.
    """

    def __init__(
        self,
        state_dir: str,
        run_dir: str,
        clock: Callable[[], float] = time.time,
        elsewhere: Callable[[bytes], EndName | None] = lambda address: None,
    ) -> None:
        self.path, self.trouble = f"{state_dir}/{NAMES}", ""
        self._ends = FollowedFile(f"{run_dir}/{ENDS}")
        self.node, self.kept_s = "", SUMS_KEPT_S
        self.hosts: HostParameters | None = None
        self.limits = USUAL_LIMITS
        self.limited: AppliedLimits | None = None  # looks whenever the agent has said something
        self._elsewhere = elsewhere
        self._now: Mapping[bytes, EndName] = {}
        self._were: dict[bytes, None] = {}  # addresses that ends here had
        self._labels: dict[EndName, LabelVersions] = {}  # of ends that are or were here
        self._clock = clock
        self._numbers: dict[EndName, int] = {}
        self._given: dict[bytes, int] = {}  # lately: to look up by a name takes longer
        self.version = 0  # another one as soon as addresses may have other names, or names other numbers
        self._names: dict[int, EndName] = {}
        self._unwritten: list[int] = []
        self._anew = False  # the file has to be written as a whole
        self._last = int(clock())
        self._read()
        self.look()

    def look(self) -> None:
        """Read the agent's file again if it has changed."""
        if self._ends.changed():
            try:
                here = parse_ends(self._ends.read())
                self.look_elsewhere_again()
                self.node, self._now, self.kept_s = here.node, here.named, here.kept_s
                self.hosts, self.limits = here.hosts, here.limits
                if self.limited is not None:
                    self.limited.look()
                for end, labels in here.labels.items():
                    self._labels[end] = note_labels(self._labels.pop(end, ()), labels, self._clock())
                while len(self._labels) > max(_MOST_LABELLED, len(here.labels)):
                    del self._labels[next(iter(self._labels))]
                self._were |= dict.fromkeys(self._now)
                while len(self._were) > _MOST:
                    del self._were[next(iter(self._were))]
            except ValueError:
                pass  # it is replaced as a whole; the next one can be read
            self._write()

    def look_elsewhere_again(self) -> None:
        """Other addresses have names there now."""
        self.version += 1
        self._given.clear()

    def number_of(self, address: bytes) -> int:
        given = self._given.get(address)
        return self._look_up(address) if given is None else given

    def _look_up(self, address: bytes) -> int:
        if len(self._given) >= _REMEMBERED:
            self._given.clear()
        name = self._now.get(address) or self._elsewhere(address)
        number = self._given[address] = 0 if name is None else self.number_for(name)
        return number

    def number_for(self, name: EndName) -> int:
        number = self._numbers.get(name)
        if number is None:
            self._last += 1
            number = self._numbers[name] = self._last
            self._names[number] = name
            self._unwritten.append(number)
            self._write()
        return number

    def is_here(self, address: bytes) -> bool:
        """Whether it is, or was, one of this node's ends."""
        return address in self._now or address in self._were

    def labels_of(self, name: EndName) -> LabelVersions:
        """The newest few that an end here has or had; none of others."""
        return self._labels.get(name, ())

    def has_moved(self, address: bytes, name: EndName) -> bool:
        """Whether an address that is, or was, one of this node's ends' is not that end's any more."""
        return self.is_here(address) and self._now.get(address) != name

    def get(self, number: int) -> EndName | None:
        return self._names.get(number)

    def _read(self) -> None:
        try:
            data = read_regular(self.path, _MOST_BYTES, follow=False)
        except FileNotFoundError:
            return
        except OSError as e:
            self._last += _UNWRITTEN
            self.trouble = f"cannot read {self.path}: {e.strerror}"
            if e.errno == EFBIG:
                self._anew = True
            return
        lines = data.decode("utf-8", "replace").splitlines()
        self._names = dict(one for one in map(parse_name, lines) if one is not None)
        self._numbers = {name: number for number, name in self._names.items()}
        self._anew = len(self._names) < len(lines) or not data.endswith(b"\n")
        self._last = max(self._last, max(self._names, default=self._last) + _UNWRITTEN)

    def _write(self) -> None:
        """What is not in the file yet; what fails is tried again."""
        if len(self._names) > _MOST:
            self._forget()
        if self._anew:
            self._unwritten = list(self._names)
        if not self._unwritten and not self._anew:
            return
        lines = "".join(render_name(number, self._names[number]) for number in self._unwritten).encode()
        try:
            if self._anew:
                make_directories(os.path.dirname(self.path), 0o700)
                Files().write_atomic(self.path, lines, 0o600)
            else:
                append_whole(self.path, lines)
            self._unwritten, self._anew, self.trouble = [], False, ""
        except OSError as e:
            self.trouble = f"names of flows' ends are not kept: cannot write {self.path}: {e.strerror}"

    def _forget(self) -> None:
        """All but the newest, and those that ends have now."""
        known, having = list(self._names), set(self._now.values())
        kept = set(known[-_KEPT:])
        self.look_elsewhere_again()
        self._names = {number: name for number, name in self._names.items() if number in kept or name in having}
        self._numbers = {name: number for number, name in self._names.items()}
        self._anew = True
