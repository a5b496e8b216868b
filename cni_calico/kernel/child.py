"""Long-running child processes: started, watched and ended by their owner. Rule: only the owner decides; nothing is
restarted here. A child has its own process group and none of the frozen bundle's environment; its output goes where the
owner says, and so does its input, if it has one. ``adopt`` takes over a process that outlived its owner.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from threading import Lock

from cni_calico import faults
from cni_calico.errors import KernelError
from cni_calico.kernel.process import spawn

START = faults.declare("child.start")
SIGNAL = faults.declare("child.signal")


_KILLED_S = 5.0  # a killed process that sleeps in the kernel may take a while to end
_TICK_S = 0.05  # the interval of polling, where the kernel (before 5.3) cannot notify us of a process's end


class Child:
    """A running process. Safe to use from several threads until it is closed."""

    def __init__(self, name: str, pid: int, *, ours: bool) -> None:
        self.name = name
        self.pid = pid
        self.ours = ours  # an adopted process cannot be reaped: its exit status stays unknown
        self.rc: int | None = None
        self._reaping = Lock()
        try:
            self.pidfd = os.pidfd_open(pid)
        except OSError:
            self.pidfd = -1

    @classmethod
    def start(
        cls, argv: Sequence[str], *, env: Mapping[str, str], output_fd: int, input_fd: int | None = None
    ) -> Child:
        """Start ``argv[0]`` (a path) in the network namespace of the calling thread. ``input_fd``: None for no input.
        Raises KernelError.
        """
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        child = None
        try:
            faults.before(START)
            pid = spawn(argv, env, (null if input_fd is None else input_fd, output_fd, output_fd))
            child = cls(os.path.basename(argv[0]), pid, ours=True)
            faults.after(START)
        except (OSError, ValueError) as e:
            if child is not None:
                child.stop(0.0)
                child.close()
            raise KernelError(f"cannot start {argv[0]}: {e}", errno=getattr(e, "errno", 0) or 0) from e
        finally:
            os.close(null)
        return child

    @classmethod
    def adopt(cls, name: str, pid: int, *, argument: str) -> Child | None:
        """The process ``pid`` if it is the expected one (it has ``argument`` on its command line), else None."""
        child = cls(name, pid, ours=False)
        if argument.encode() in child.arguments():
            return child
        child.close()
        return None

    def arguments(self) -> list[bytes]:
        """The command line; [] once the process has ended."""
        try:
            with open(f"/proc/{self.pid}/cmdline", "rb") as f:
                return f.read().split(b"\0")
        except OSError:
            return []

    def ended(self, timeout_s: float) -> bool:
        """Whether the process has ended, waiting up to ``timeout_s`` for it."""
        end = time.monotonic() + timeout_s
        while not self._poll():
            left = end - time.monotonic()
            if left <= 0:
                return False
            if self.pidfd >= 0:
                select.select([self.pidfd], [], [], left)
            else:
                time.sleep(min(left, _TICK_S))
        return True

    def _poll(self) -> bool:
        with self._reaping:
            if self.rc is None and self.ours:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.rc = os.waitstatus_to_exitcode(status) if pid else None
            elif self.rc is None and not self.arguments():  # gone, or a zombie of another parent
                self.rc = 0
            return self.rc is not None

    def send(self, number: int) -> None:
        """Send a signal; a process that has ended is success. Raises KernelError."""
        if self._poll():
            return
        try:
            faults.before(SIGNAL)
            os.kill(
                self.pid, number
            )  # the PID is our own child's until it is reaped; an adopted one's was checked a moment ago
            faults.after(SIGNAL)
        except ProcessLookupError:
            return
        except OSError as e:
            raise KernelError(f"cannot signal {self.name} ({self.pid}): {e.strerror}", errno=e.errno or 0) from e

    def stop(self, grace_s: float) -> int:
        """End the process, gently first. Returns its exit status, or minus the signal that ended it; 0 for an adopted
        one.
        """
        self.send(signal.SIGTERM)
        if not self.ended(grace_s):
            self.send(signal.SIGKILL)
            self.ended(_KILLED_S)
        return self.rc or 0

    def close(self) -> None:
        """Stop watching the process and leave it running."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
