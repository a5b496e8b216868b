"""A driver of another data plane: a child that reads messages at its descriptor 3 and writes them at its descriptor 4.

Rule: each message is its length in 8 bytes, the lowest first, and then itself. A driver that ends, that says what
cannot be understood, or that cannot be started, is not worked around: the error says which it was, and whoever has
started it ends.
"""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import signal
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from cni_calico.errors import KernelError
from cni_calico.kernel.process import spawn

MOST_BYTES = 64 << 20  # of a message from a driver
_LENGTH = struct.Struct("<Q")
_READ, _LOOK_S, _END_S = 64 << 10, 0.1, 2.0
_FREE = 10  # a descriptor above those that the child gets


class DriverFailed(KernelError):
    """There is no driver, or not any more."""


def frame(message: bytes) -> bytes:
    return _LENGTH.pack(len(message)) + message


class Frames:
    """The messages in what has been read so far."""

    def __init__(self) -> None:
        self._read = bytearray()

    def receive(self, data: bytes) -> list[bytes]:
        """The messages that are whole now. Raises ValueError."""
        self._read += data
        found: list[bytes] = []
        while len(self._read) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._read)
            if length > MOST_BYTES:
                raise ValueError(f"a message of {length} bytes (expected at most {MOST_BYTES})")
            end = _LENGTH.size + length
            if len(self._read) < end:
                break
            found.append(bytes(self._read[_LENGTH.size : end]))
            del self._read[:end]
        return found


def find_driver(name: str) -> str:
    """The path of the program. Raises DriverFailed."""
    path = shutil.which(name)
    if path is not None:
        return path
    if "/" in name:
        raise DriverFailed(f"cannot start the data plane driver {name}: it is no executable file")
    raise DriverFailed(
        f"cannot start the data plane driver {name}: no directory of PATH has it",
        details="mount it into the agent's container, and set FELIX_DATAPLANEDRIVER to its path",
    )


class DriverProcess:
    """``send`` in one thread; ``receive`` is called with what the driver says, in another. Raises DriverFailed."""

    def __init__(self, name: str, receive: Callable[[bytes], object], wake: Callable[[], object]) -> None:
        """``receive`` may raise ValueError: then the driver has failed. ``wake`` is called if it has."""
        self._name, self._receive, self._wake = name, receive, wake
        self._failed = ""
        self._sequence = 0
        self._ended = self._silent = False
        path = find_driver(name)
        theirs, self._to = _pipe()
        self._from, their_end = _pipe()
        nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.pid = spawn([path], os.environ, (nothing, 1, 2, theirs, their_end))
        except OSError as e:
            os.close(self._to)
            os.close(self._from)
            raise DriverFailed(f"cannot start the data plane driver {path}: {e.strerror}") from e
        finally:
            for descriptor in (nothing, theirs, their_end):
                os.close(descriptor)
        os.set_blocking(self._to, False)
        self._reader = threading.Thread(target=self._read, name="driver", daemon=True)
        self._reader.start()

    def send(self, message: bytes, is_stopping: Callable[[], bool]) -> None:
        """The next message; whoever is stopping waits for nothing. Raises DriverFailed."""
        numbered = message + b"\x78" + _varint(self._sequence)  # its field 15
        self._sequence += 1
        left = memoryview(frame(numbered))
        poll = select.poll()
        poll.register(self._to, select.POLLOUT)
        while left and not is_stopping():
            self.require_alive()
            poll.poll(1000 * _LOOK_S)
            try:
                left = left[os.write(self._to, left) :]
            except BlockingIOError:
                continue
            except BrokenPipeError as e:
                self._wait_for_end()
                raise DriverFailed(self._failed or f"{self._shown} does not read any more") from e

    def require_alive(self) -> None:
        """Raises DriverFailed."""
        self._look()
        if self._silent and not self._failed:
            self._wait_for_end()  # it has a moment to say how
            self._failed = self._failed or f"{self._shown} says nothing any more"
        if self._failed:
            raise DriverFailed(self._failed)

    def stop(self) -> None:
        """End it: it reads the end of the messages, then gets SIGTERM, then SIGKILL."""
        os.close(self._to)
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None and not self._ended:
                os.killpg(self.pid, number)
            if self._wait_for_end():
                break
        self._reader.join(_END_S)

    @property
    def _shown(self) -> str:
        return f"the data plane driver {self._name}"

    def _wait_for_end(self) -> bool:
        """Whether it has ended within a while."""
        end = time.monotonic() + _END_S
        while not self._ended and time.monotonic() < end:
            self._look()
            time.sleep(0.01)
        return self._ended

    def _look(self) -> None:
        """In the thread that sends."""
        if self._ended:
            return
        with suppress(ChildProcessError):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._ended = True
                code = os.waitstatus_to_exitcode(status)
                how = f"with status {code}" if code >= 0 else f"by signal {-code}"
                self._failed = self._failed or f"{self._shown} has ended {how}"

    def _read(self) -> None:
        frames = Frames()
        why = ""
        try:
            while data := os.read(self._from, _READ):
                for message in frames.receive(data):
                    self._receive(message)
        except ValueError as e:
            why = f"{self._shown} says what cannot be understood: {e}"
        os.close(self._from)
        if why:
            self._failed = why
        self._silent = True
        self._wake()


def _pipe() -> tuple[int, int]:
    """A pipe's ends, above the child's descriptors and closed in children."""
    found = []
    for low in os.pipe2(os.O_CLOEXEC):
        found.append(fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _FREE))
        os.close(low)
    return found[0], found[1]


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(0x80 | number & 0x7F)
        number >>= 7
    found.append(number)
    return bytes(found)
