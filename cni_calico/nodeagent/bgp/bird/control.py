"""BIRD's control socket: sends commands, reads replies, translates errors.

Rule: one command at a time per connection, every wait under a deadline. A reply is lines "NNNN-text" (more follow),
"NNNN text" (the last one), " text" (continues the code of the line before) and "+text" (asynchronous, not part of any
reply).
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, replace

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.errors import BirdRefused, BirdUnavailable
from cni_calico.nodeagent.bgp.bird.session_ends import SessionState, parse_sessions
from cni_calico.nodeagent.bgp.bird.status import BirdStatus, parse_peers, parse_status

CONNECT = faults.declare("bird.connect")
COMMAND = faults.declare("bird.command")

OK_CONFIGURATION = 20
OK_RECONFIGURED = (3, 4)  # 4: sessions change; BIRD replies before it has finished
_OUR_PROTOCOLS = ("Mesh_*", "Global_*", "Node_*", "static_v*")  # the protocols whose routes are in the kernel
_WITHDRAW_S = 2.0
_POLL_S = 0.02
_REPLY_MAX_BYTES = 64 * 1024 * 1024  # a router with a full table prints a lot
_ERRORS_FROM = 8000  # 8xxx: the command failed, 9xxx: it was not understood


@dataclass(frozen=True, slots=True)
class BirdReply:
    """``lines`` are (code, text); ``code`` and ``text`` are those of the last line."""

    lines: tuple[tuple[int, str], ...]

    @property
    def code(self) -> int:
        return self.lines[-1][0]

    @property
    def text(self) -> str:
        return self.lines[-1][1].strip()


class ReplyReader:
    """Splits a stream into replies. Feed bytes; ``reply`` is set once the last line has arrived."""

    def __init__(self) -> None:
        self.pending = b""
        self.lines: list[tuple[int, str]] = []
        self.code = 0
        self.size = 0

    def feed(self, data: bytes) -> BirdReply | None:
        """The reply that these bytes complete. Raises BirdUnavailable for something that is not a reply."""
        self.size += len(data)
        if self.size > _REPLY_MAX_BYTES:
            raise BirdUnavailable(f"cannot read BIRD's reply: more than {_REPLY_MAX_BYTES} bytes")
        *complete, self.pending = (self.pending + data).split(b"\n")
        for i, raw in enumerate(complete):
            if self._receive(raw.decode("utf-8", "replace")):
                self.pending = b"\n".join([*complete[i + 1 :], self.pending])
                reply = BirdReply(tuple(self.lines))
                self.lines, self.code, self.size = [], 0, len(self.pending)
                return reply
        return None

    def _receive(self, line: str) -> bool:
        """True for the last line of a reply."""
        if line.startswith("+"):
            return False
        if line.startswith(" ") or not line:
            self.lines.append((self.code, line[1:]))
            return False
        if not (line[:4].isascii() and line[:4].isdecimal()) or line[4:5] not in ("", " ", "-"):
            raise BirdUnavailable(f"cannot read BIRD's reply: unexpected line {line[:80]!r}")
        self.code = int(line[:4])
        self.lines.append((self.code, line[5:]))
        return line[4:5] != "-"


class BirdControl:
    """A connection. Raises BirdUnavailable if BIRD is not there, does not answer or hangs up."""

    def __init__(self, path: str, deadline: Deadline) -> None:
        self.path = path
        self.reader = ReplyReader()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            faults.before(CONNECT)
            self._wait(deadline, "connect to BIRD")
            self.socket.connect(path)
            faults.after(CONNECT)
            self.greeting = self._read(deadline)
        except OSError as e:
            self.socket.close()
            raise self._unavailable("connect to BIRD", e) from e
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self) -> BirdControl:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def ask(self, command: str, deadline: Deadline) -> BirdReply:
        """The reply to a command, whatever it says. Raises BirdUnavailable."""
        if "\n" in command:
            raise ValueError("a command is one line")
        try:
            faults.before(COMMAND)
            self._wait(deadline, f"ask BIRD to {command}")
            self.socket.sendall(command.encode() + b"\n")
            reply = self._read(deadline)
            faults.after(COMMAND)
        except OSError as e:
            raise self._unavailable(f"ask BIRD to {command}", e) from e
        return reply

    def tell(self, command: str, deadline: Deadline) -> BirdReply:
        """Like ``ask``; raises BirdRefused if BIRD reports that the command failed or was not understood."""
        reply = self.ask(command, deadline)
        for code, text in reply.lines:
            if code >= _ERRORS_FROM:
                raise BirdRefused(f"cannot {command}: {text.strip()}", details=f"BIRD's code {code}")
        return reply

    def _wait(self, deadline: Deadline, doing: str) -> None:
        self.socket.settimeout(max(0.001, deadline.require(doing)))

    def _read(self, deadline: Deadline) -> BirdReply:
        while True:
            self._wait(deadline, "read BIRD's reply")
            data = self.socket.recv(65536)
            if not data:
                raise BirdUnavailable(f"cannot read BIRD's reply from {self.path}: it closed the connection")
            reply = self.reader.feed(data)
            if reply is not None:
                return reply

    def _unavailable(self, doing: str, error: OSError) -> BirdUnavailable:
        reason = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        return BirdUnavailable(f"cannot {doing} at {self.path}: {reason}")


def _quoted(path: str) -> str:
    if '"' in path or "\n" in path:
        raise ValueError("a path in a BIRD command cannot hold quotes or line breaks")
    return f'"{path}"'


def read_status(path: str, deadline: Deadline) -> BirdStatus:
    """Daemon and sessions. Raises BirdUnavailable, BirdRefused."""
    with BirdControl(path, deadline) as control:
        status = parse_status(control.tell("show status", deadline).lines)
        return replace(status, peers=parse_peers(control.tell("show protocols all", deadline).lines))


def read_sessions(path: str, deadline: Deadline) -> dict[str, SessionState]:
    """The sessions in one line each, which costs BIRD and us little. Raises BirdUnavailable, BirdRefused."""
    with BirdControl(path, deadline) as control:
        return parse_sessions(control.tell("show protocols", deadline).lines)


def check_config(control: BirdControl, file: str, deadline: Deadline) -> None:
    """Have the running BIRD read a configuration without using it. Raises BirdRefused with file, line and column."""
    reply = control.tell(f"configure check {_quoted(file)}", deadline)
    if reply.code != OK_CONFIGURATION:
        raise BirdRefused(f"cannot use configuration {file}: {reply.text}", details=f"BIRD's code {reply.code}")


def apply_config(control: BirdControl, file: str, deadline: Deadline) -> None:
    """Put a configuration in force. Raises BirdRefused; then the old one stays in force."""
    reply = control.tell(f"configure {_quoted(file)}", deadline)
    if reply.code not in OK_RECONFIGURED:
        raise BirdRefused(f"cannot use configuration {file}: {reply.text}", details=f"BIRD's code {reply.code}")


def withdraw_and_end(control: BirdControl, deadline: Deadline) -> None:
    """Remove BIRD's routes from the kernel, which would otherwise keep them (``persist``), then end BIRD."""
    for pattern in _OUR_PROTOCOLS:
        control.ask(f'disable "{pattern}"', deadline)  # it refuses a pattern that matches nothing
    soon = deadline.sooner(_WITHDRAW_S)
    while _holds_routes(control, deadline) and not soon.expired():
        time.sleep(_POLL_S)
    control.tell("down", deadline)


def _holds_routes(control: BirdControl, deadline: Deadline) -> bool:
    reply = control.ask('show protocols all "kernel_v*"', deadline)
    return any("Routes:" in text and " 0 exported" not in text for _, text in reply.lines)
