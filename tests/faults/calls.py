"""One call of an executable, in a process that can be killed or stopped on its way.

Rule: with a bundle the executable is executed as a runtime does it; without, a fork of this process does what the
executable would, which saves the loading of an interpreter each time.
"""

from __future__ import annotations

import os
import pkgutil
import resource
import select
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import monotonic

import cni_calico
from cni_calico.plugin.call.shim import serve_call
from cni_calico.plugin.commands import serve as serve_plugin
from cni_calico.plugin.ipam.commands import serve as serve_ipam

SERVES = {"calico": serve_plugin, "calico-ipam": serve_ipam}
CALLED = ("cni", "datastore", "ipam", "kernel", "model", "plugin")  # the packages that a call may need
SLICE_S = 1.0
MEGABYTE = 1024 * 1024
PIDS = Path("/sys/fs/cgroup/pids")


def load_modules() -> None:
    """Everything that a call may import, once, for its forks: none of them reads the source directory again."""
    for name in CALLED:
        package = import_module(f"{cni_calico.__name__}.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)


@dataclass
class Running:
    """``answer`` is the read end of its stdout."""

    pid: int
    answer: int

    def finish(self, patience_s: float) -> tuple[int | None, bytes, bool]:
        """Exit status (None: it was killed), stdout, and whether it had to be ended because it took too long.

        It ends when its process does, which may be after the end of its stdout.
        """
        patience, data = Patience(patience_s), b""
        while patience.readable(self.answer):
            part = os.read(self.answer, 65536)
            if not part:
                break
            data += part
        os.close(self.answer)
        handle = os.pidfd_open(self.pid)
        late = not patience.readable(handle)
        os.close(handle)
        if late:
            os.kill(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        return (os.WEXITSTATUS(status) if os.WIFEXITED(status) else None), data, late


class Patience:
    """So many seconds of waiting. Somebody may halt the whole run for as long as he likes: that is not waiting."""

    def __init__(self, seconds: float) -> None:
        self.left_s = seconds

    def readable(self, descriptor: int) -> bool:
        """Whether the descriptor is readable before the patience ends."""
        while True:
            began = monotonic()
            if select.select([descriptor], [], [], max(0.0, min(SLICE_S, self.left_s)))[0]:
                self._spend(began)
                return True
            self._spend(began)
            if self.left_s <= 0:
                return False

    def _spend(self, began: float) -> None:
        self.left_s -= min(monotonic() - began, 2 * SLICE_S)


@dataclass(frozen=True)
class Limits:
    """What a call is short of: so many "descriptors", so many megabytes of "memory" (if it is not executed: beyond what
    it has already), or any other "threads" and processes, in a cgroup that has room for one.
    """

    what: str
    number: int = 0
    group: Path | None = None

    def impose(self) -> None:
        """On this process. Root is above RLIMIT_NPROC, but not above a cgroup's limit."""
        if self.what == "descriptors":
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.number, self.number))
        elif self.what == "memory":
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + self.number * MEGABYTE
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        else:
            assert self.group is not None
            (self.group / "cgroup.procs").write_text("0")

    def words(self) -> list[str]:
        """Before the command line of a call that is executed."""
        if self.what == "descriptors":
            return ["/usr/bin/prlimit", f"--nofile={self.number}:{self.number}"]
        if self.what == "memory":
            return ["/usr/bin/prlimit", f"--as={self.number * MEGABYTE}"]
        return ["/bin/sh", "-c", f'echo 0 > {self.group}/cgroup.procs; exec "$@"', "sh"]


@contextmanager
def lonely_group() -> Iterator[Path | None]:
    """A cgroup whose processes can start no thread and no process; None where there is no such controller."""
    group = PIDS / f"cct-alone-{os.getpid()}"
    try:
        group.mkdir()
        (group / "pids.max").write_text("1")
    except OSError:
        yield None
        return
    try:
        yield group
    finally:
        for line in (group / "cgroup.procs").read_text().split():
            (PIDS / "cgroup.procs").write_text(line)
        group.rmdir()


def begin(
    plugin: str, environ: Mapping[str, str], stdin: bytes, bundle: Path | None, limits: Limits | None = None
) -> Running:
    given = os.memfd_create("stdin")
    os.write(given, stdin)
    os.lseek(given, 0, os.SEEK_SET)
    reading, writing = os.pipe()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    if bundle is not None:
        places = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate((given, writing, null))]
        words = [] if limits is None else limits.words()
        argv = [*words, str(bundle / plugin)] if words else [plugin]
        pid = os.posix_spawn(words[0] if words else bundle / plugin, argv, dict(environ), file_actions=places)
    else:
        pid = os.fork()
        if not pid:
            try:
                for number, fd in enumerate((given, writing, null)):
                    os.dup2(fd, number)
                if limits is not None:
                    limits.impose()
                _serve(plugin, environ, stdin)
            finally:
                os._exit(99)
    for fd in (writing, given, null):
        os.close(fd)
    return Running(pid, reading)


def _serve(plugin: str, environ: Mapping[str, str], stdin: bytes) -> None:
    """Never returns."""
    exit_code, data = serve_call(plugin, lambda: SERVES[plugin], environ, stdin)
    while data:
        data = data[os.write(1, data) :]
    os._exit(exit_code)
