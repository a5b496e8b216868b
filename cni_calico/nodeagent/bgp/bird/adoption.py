"""A BIRD that something else runs (runit, systemd, another container), found by the control socket at which it answers.

Rule: it is configured where its command line says, reloaded and watched; it is never started, ended or relieved of its
routes. BIRD 1.6, and a second daemon for IPv6 beside it, are refused by name.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cni_calico.deadline import Deadline
from cni_calico.errors import BirdUnavailable, BirdUnsupported
from cni_calico.kernel.child import Child
from cni_calico.kernel.files import Files
from cni_calico.nodeagent.bgp.bird.control import BirdControl

AUTO, EXTERNAL, OWN = "auto", "external", "own"  # CALICO_BIRD_SERVICE
SECOND_SOCKET = "bird6.ctl"
BUILT_IN = "/etc/bird/bird.conf"  # what distributions' BIRD reads if its command line names no file
KEPT_SUFFIX = ".before-calico"
MARK = "# Written by calico-node"
_ANSWER_S = 2.0
_PEER = struct.Struct("3i")  # process, user, group
_PROC = Path("/proc")


@dataclass(slots=True)
class AdoptedBird:
    """``pid`` 0: its process cannot be seen from here; then the socket alone says whether it is there.

    ``config_file`` is where its command line says, "" if that is unknown.
    """

    socket: str
    version: str
    pid: int = 0
    config_file: str = ""
    user: int = 0
    group: int = 0
    child: Child | None = field(default=None, repr=False)

    def ended(self, timeout_s: float) -> bool:
        """Whether it is gone, waiting up to ``timeout_s``."""
        if self.child is not None:
            return self.child.ended(timeout_s)
        return not answers(self.socket)

    def close(self) -> None:
        """Stop watching it."""
        if self.child is not None:
            self.child.close()
            self.child = None

    def __str__(self) -> str:
        process = f"process {self.pid}" if self.pid else "in another container"
        return f"BIRD {self.version} ({process}), which another service runs"


def answers(path: str) -> bool:
    """Whether anything answers at a control socket."""
    try:
        with BirdControl(path, Deadline.after(_ANSWER_S)):
            return True
    except BirdUnavailable:
        return False


def find_adopted(path: str, oldest: tuple[int, ...]) -> AdoptedBird | None:
    """The BIRD that answers at ``path``; None if there is none. Raises BirdUnsupported."""
    try:
        with BirdControl(path, Deadline.after(_ANSWER_S)) as control:
            greeting, peer = control.greeting.text, _peer_of(control.socket)
    except BirdUnavailable:
        return None
    pid = _process_at(path, peer)
    named, version = _named(greeting, pid, path), parse_greeting(greeting)
    if version < oldest:
        raise BirdUnsupported(
            f"cannot use {named}: {'.'.join(map(str, oldest))} is the oldest that works",
            details="stop that service, and run BIRD 2 there, or none: calico-node then starts one",
        )
    _require_single(path, pid, named)
    words = _words(pid)
    child = Child("bird", pid, ours=False) if pid else None
    user, group = _owner_of(pid)
    file = _config_file(words, pid)
    file = file if file and may_write(file, user) else ""
    return AdoptedBird(path, ".".join(map(str, version)), pid, file, user, group, child)


def parse_greeting(text: str) -> tuple[int, ...]:
    """(2, 0, 12) of "BIRD 2.0.12 ready."; (1, 6, 8) of upstream's "BIRD v0.3.3+birdv1.6.8 ready."; () if unknown."""
    found = re.search(r"(?:BIRD |birdv)(\d+(?:\.\d+)+)", text)
    return tuple(map(int, found[1].split("."))) if found else ()


def _require_single(path: str, pid: int, named: str) -> None:
    """Raises BirdUnsupported if another daemon serves IPv6."""
    second = f"{os.path.dirname(path)}/{SECOND_SOCKET}"
    try:
        with BirdControl(second, Deadline.after(_ANSWER_S)) as control:
            greeting, other = control.greeting.text, _process_at(second, _peer_of(control.socket))
    except BirdUnavailable:
        return
    if os.path.realpath(second) != os.path.realpath(path) and (not pid or other != pid):
        raise BirdUnsupported(
            f"cannot use two daemons: {named}, and {_named(greeting, other, second)}",
            details="one BIRD 2 speaks both families: stop the service bird6",
        )


def _named(greeting: str, pid: int, path: str) -> str:
    said = greeting.removesuffix(" ready.") or "something"
    return f"{said}{f' (process {pid})' if pid else ''}, which answers at {path}"


def _peer_of(connection: socket.socket) -> int:
    """Who opened the socket at the other end; 0 if that process is in another container."""
    pid, _, _ = _PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
    return int(pid)


def _process_at(path: str, peer: int) -> int:
    """The BIRD behind a socket: its opener, or, if that has gone to the background since, the one that has the socket
    on its command line. 0 if there is none to be seen.
    """
    if is_bird(_words(peer)):
        return peer
    wanted = os.path.realpath(path)
    for entry in _PROC.iterdir() if peer else ():
        words = _words(int(entry.name)) if entry.name.isdecimal() else []
        if is_bird(words) and wanted in {os.path.realpath(os.fsdecode(word).removeprefix("-s")) for word in words[1:]}:
            return int(entry.name)
    return 0


def find_beside() -> int:
    """The process of a BIRD in this thread's network namespace; 0 if there is none to be seen."""
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and is_bird(_words(int(entry.name))):
            with suppress(OSError):  # it has ended
                if os.path.samefile(entry / "ns" / "net", _PROC / "thread-self" / "ns" / "net"):
                    return int(entry.name)
    return 0


def is_bird(words: list[bytes]) -> bool:
    """Of a command line; those of birdc and bird_exporter may name the same socket."""
    return bool(words) and re.fullmatch(rb"bird\d*", os.path.basename(words[0])) is not None


def _words(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")[:-1] if pid else []
    except OSError:
        return []


def _config_file(words: list[bytes], pid: int) -> str:
    """Of "-c FILE" or "-cFILE"; without it the built-in one, if it is there. "" if its directory is another one here,
    because the process sees other mounts: like any BIRD of another container it is configured where ours would be.
    """
    texts = [os.fsdecode(word) for word in words]
    for at, word in enumerate(texts[1:], 1):
        name = texts[at + 1] if word == "-c" and at + 1 < len(texts) else word[2:] if word.startswith("-c") else ""
        if name:
            file = os.path.join(_directory_of(pid), name)
            return file if _is_seen_here(os.path.dirname(file), pid) else ""
    return BUILT_IN if words and os.path.exists(BUILT_IN) and _is_seen_here(os.path.dirname(BUILT_IN), pid) else ""


def _is_seen_here(directory: str, pid: int) -> bool:
    """Whether this is the directory that the process has there."""
    try:
        if not pid or os.path.samefile(_PROC / str(pid) / "ns" / "mnt", _PROC / "self" / "ns" / "mnt"):
            return True
        return os.path.samefile(f"{_PROC}/{pid}/root{directory}", directory)
    except OSError:
        return False


def may_write(file: str, user: int) -> bool:
    """Whether a file that a process of ``user`` names may be written by root: one that is not root may only name a file
    in a directory of its own, below directories that only root changes, or it could choose any file of the host.
    """
    if not user:
        return True
    directory = Path(os.path.realpath(os.path.dirname(file)))
    try:
        above = [found.stat() for found in directory.parents]
        return directory.stat().st_uid == user and not any(s.st_uid or s.st_mode & 0o022 for s in above)
    except OSError:
        return False


def _directory_of(pid: int) -> str:
    try:
        return os.readlink(_PROC / str(pid) / "cwd")
    except OSError:
        return "/"


def _owner_of(pid: int) -> tuple[int, int]:
    try:
        found = os.stat(_PROC / str(pid)) if pid else None
    except OSError:
        found = None
    return (found.st_uid, found.st_gid) if found else (0, 0)


def keep_first(path: str, files: Files) -> str:
    """Keep what somebody else has written at ``path``, once; returns where, "" if there was nothing to keep. Raises
    OSError.
    """
    kept = path + KEPT_SUFFIX
    if not files.exists(path) or files.exists(kept):
        return ""
    with open(path, "rb") as file:
        before = file.read()
    if before.startswith(MARK.encode()):
        return ""
    files.write_atomic(kept, before, 0o600)
    return kept


def process_at(path: str) -> int:
    """The process that answers at a control socket, 0 if there is none to be seen from here."""
    try:
        with BirdControl(path, Deadline.after(_ANSWER_S)) as control:
            return _process_at(path, _peer_of(control.socket))
    except BirdUnavailable:
        return 0
