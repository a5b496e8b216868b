"""What systemd holds for us: the listening sockets, and the bound sockets of published ports in its descriptor store.

Rule: a stored socket outlives a crash of ours, so that nobody else gets its port meanwhile; it is dropped from the
store before its port counts as free. Without systemd nothing is stored, and ports are bound again (sd_notify(3)).
"""

from __future__ import annotations

import os
import select
import socket
import threading
from array import array
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

_FIRST_FD = 3  # SD_LISTEN_FDS_START
_BARRIER_MS = 2000
_UNNAMED = "unknown"


@dataclass(frozen=True, slots=True)
class Adopted:
    """``listeners``: by their file's name. ``stored``: of former lives of this service, by the names that it gave."""

    listeners: Mapping[str, socket.socket] = field(default_factory=dict)
    stored: Mapping[str, socket.socket] = field(default_factory=dict)


def adopt_descriptors(environ: Mapping[str, str]) -> Adopted:
    """What systemd has given to this process; nothing without it (sd_listen_fds_with_names(3))."""
    count = environ.get("LISTEN_FDS", "")
    if environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal():
        return Adopted()
    names = environ.get("LISTEN_FDNAMES", "").split(":")
    listeners, stored = {}, {}
    for at in range(int(count)):
        try:
            os.set_inheritable(_FIRST_FD + at, False)
            adopted = socket.socket(fileno=_FIRST_FD + at)
        except OSError:
            continue  # what is no socket is not ours
        if adopted.family == socket.AF_UNIX:
            listeners[os.path.basename(str(adopted.getsockname())).removesuffix(".sock")] = adopted
        else:
            stored[names[at] if at < len(names) else _UNNAMED] = adopted
    return Adopted(listeners, stored)


class DescriptorStore:
    """systemd's store of this service (``FileDescriptorStoreMax=``). Safe with threads. A socket that could not be
    stored is lost with this process, which is no failure: its port is bound again.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._guard = threading.Lock()
        self._former: dict[str, socket.socket] = {}

    def use(self, stored: Mapping[str, socket.socket]) -> None:
        """What a former life of this service has stored."""
        with self._guard:
            self._former.update(stored)

    def take(self, name: str) -> socket.socket | None:
        """A socket that a former life has stored, which stays in the store; each once."""
        with self._guard:
            return self._former.pop(name, None)

    def keep(self, name: str, kept: socket.socket) -> None:
        """``name``: no other socket has it. FDPOLL: a bound TCP socket that does not listen counts as hung up."""
        self._tell(f"FDSTORE=1\nFDPOLL=0\nFDNAME={name}", (kept.fileno(),))

    def drop(self, names: Collection[str]) -> None:
        """Returns when systemd does not have them any more."""
        told = [self._tell(f"FDSTOREREMOVE=1\nFDNAME={name}") for name in names]
        if any(told):
            self._await_systemd()

    def drop_rest(self) -> None:
        """What nobody has taken: its container has ended while we did not run."""
        with self._guard:
            rest, self._former = self._former, {}
        self.drop(rest)
        for each in rest.values():
            each.close()

    def _await_systemd(self) -> None:
        """It closes its end of a pipe when it has read everything before (sd_notify_barrier(3))."""
        ours, theirs = os.pipe2(os.O_CLOEXEC)
        try:
            told = self._tell("BARRIER=1", (theirs,))
            os.close(theirs)
            if told:
                waiting = select.poll()
                waiting.register(ours, 0)
                waiting.poll(_BARRIER_MS)
        finally:
            os.close(ours)

    def _tell(self, text: str, descriptors: Iterable[int] = ()) -> bool:
        if not self._address.startswith(("/", "\0")):
            return False
        sent = array("i", descriptors)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, sent)] if sent else []
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as told:
                told.sendmsg([text.encode()], rights, 0, self._address)
        except OSError:
            return False
        return True
