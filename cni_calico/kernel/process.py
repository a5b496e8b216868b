"""The only place that starts processes.

Rule: a process gets exactly the given arguments, environment and input, is killed with all its children at the
deadline, and cannot fill our memory. Nothing of the frozen bundle (its libraries' path) reaches it.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from errno import EAGAIN, EPIPE
from select import POLLERR, POLLHUP, POLLIN, POLLOUT, poll

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.errors import DeadlineExceeded, KernelError

START = faults.declare("process.start")
OUTPUT_LIMIT_BYTES = 1024 * 1024
_running: set[int] = set()  # this process's: a fork's copy is emptied
os.register_at_fork(after_in_child=_running.clear)
_TICK_S = 0.01  # the interval of polling, where the kernel (before 5.3) cannot notify us of a process's end


@dataclass(frozen=True, slots=True)
class Completed:
    """``rc`` is the exit status, or minus the signal that ended it."""

    rc: int
    stdout: bytes
    stderr: bytes


def run(
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    env: Mapping[str, str],
    deadline: Deadline,
    limit_bytes: int = OUTPUT_LIMIT_BYTES,
) -> Completed:
    """Run ``argv[0]`` (a path) to its end, in the network namespace of the calling thread.

    Raises KernelError if it cannot be started or writes more than ``limit_bytes``, DeadlineExceeded.
    """
    deadline.require(f"run {argv[0]}")
    child = _ShortProcess(argv, stdin, limit_bytes)
    try:
        child.start(env)
        _running.add(child.pid)
        child.converse(deadline)
        return Completed(child.rc or 0, bytes(child.output[0]), bytes(child.output[1]))
    finally:
        child.close()
        _running.discard(child.pid)


@atexit.register
def _end_all() -> None:
    """At exit, end the processes that daemon threads are still waiting for."""
    for pid in list(_running):
        try:
            os.killpg(pid, signal.SIGKILL)
        except OSError:
            pass


def clean_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without what the frozen executable's loader set for itself; the caller's LD_LIBRARY_PATH is
    restored.
    """
    cleaned = {name: value for name, value in env.items() if not name.startswith(("_PYI_", "_MEIPASS"))}
    original = cleaned.pop("LD_LIBRARY_PATH_ORIG", None)
    if original is not None:
        cleaned["LD_LIBRARY_PATH"] = original
    elif getattr(sys, "frozen", False):
        cleaned.pop("LD_LIBRARY_PATH", None)
    return cleaned


def spawn(argv: Sequence[str], env: Mapping[str, str], descriptors: Sequence[int]) -> int:
    """The number of a new process, the first of its group, that has ``descriptors`` as stdin, stdout and stderr.

    It begins with no signal blocked or ignored. Raises OSError, ValueError (a zero byte in an argument).
    """
    return os.posix_spawn(
        argv[0],
        list(argv),
        clean_environment(env),
        file_actions=[(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(descriptors)],
        setpgroup=0,
        setsigmask=(),
        setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
    )


class _ShortProcess:
    def __init__(self, argv: Sequence[str], stdin: bytes, limit_bytes: int) -> None:
        self.argv = argv
        self.limit_bytes = limit_bytes
        self.input = memoryview(stdin)
        self.output = (bytearray(), bytearray())
        self.pid = 0
        self.rc: int | None = None
        self.fds: dict[int, int] = {}  # our ends of the pipes: descriptor -> the child's descriptor 0, 1 or 2
        self.pidfd = -1

    def start(self, env: Mapping[str, str]) -> None:
        pipes = [os.pipe() for _ in range(3)]  # close-on-exec
        theirs = [pipes[0][0], pipes[1][1], pipes[2][1]]
        ours = [pipes[0][1], pipes[1][0], pipes[2][0]]
        self.fds = {fd: i for i, fd in enumerate(ours)}
        try:
            faults.before(START)
            self.pid = spawn(self.argv, env, theirs)
            faults.after(START)
        except (OSError, ValueError) as e:
            reason = e.strerror if isinstance(e, OSError) and e.strerror else str(e)
            raise KernelError(f"cannot run {self.argv[0]}: {reason}", errno=getattr(e, "errno", 0) or 0) from e
        finally:
            for fd in theirs:
                os.close(fd)
        for fd in ours:
            os.set_blocking(fd, False)
        try:
            self.pidfd = os.pidfd_open(self.pid)
        except OSError:
            pass

    def converse(self, deadline: Deadline) -> None:
        """Feed and drain until the process has ended; pipes that its children keep open do not delay that."""
        poller = poll()
        for fd, number in self.fds.items():
            poller.register(fd, POLLOUT if number == 0 else POLLIN)
        if self.pidfd >= 0:
            poller.register(self.pidfd, POLLIN)
        while self.rc is None:
            left = deadline.remaining_s()
            if left <= 0:
                raise DeadlineExceeded(f"cannot wait for {self.argv[0]}: it did not end in time and was killed")
            for fd, events in poller.poll((left if self.pidfd >= 0 else min(left, _TICK_S)) * 1000):
                if fd != self.pidfd and not self._serve(fd, events):
                    poller.unregister(fd)
                    os.close(fd)
                    del self.fds[fd]
            self._reap(os.WNOHANG)
        for fd, number in self.fds.items():
            if number:
                self._drain(fd, number)

    def _serve(self, fd: int, events: int) -> bool:
        """Returns False if this pipe is done."""
        number = self.fds[fd]
        if number == 0:
            return not events & (POLLERR | POLLHUP) and self._feed(fd)
        return self._drain(fd, number)

    def _feed(self, fd: int) -> bool:
        try:
            self.input = self.input[os.write(fd, self.input[:65536]) :] if self.input else self.input
        except OSError as e:
            if e.errno not in (EAGAIN, EPIPE):
                raise KernelError(f"cannot write to {self.argv[0]}: {e.strerror}", errno=e.errno or 0) from e
            return e.errno == EAGAIN  # a process need not read its input
        return bool(self.input)

    def _drain(self, fd: int, number: int) -> bool:
        buffer = self.output[number - 1]
        while True:
            try:
                data = os.read(fd, 65536)
            except BlockingIOError:
                return True
            if not data:
                return False
            buffer += data
            if len(buffer) > self.limit_bytes:
                raise KernelError(f"cannot run {self.argv[0]}: it wrote more than {self.limit_bytes} bytes")

    def _reap(self, options: int) -> None:
        pid, status = os.waitpid(self.pid, options)
        if pid:
            self.rc = os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Leave no process, zombie or descriptor behind, however it ended."""
        if self.pid and self.rc is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._reap(0)
        for fd in (*self.fds, self.pidfd):
            if fd >= 0:
                os.close(fd)
