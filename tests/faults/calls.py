"""One call of an executable, in a process that can be killed or stopped on its way.

Rule: with a bundle the executable is executed as a runtime does it; without, a fork of this process does what the
executable would, which saves the loading of an interpreter each time.
"""

from __future__ import annotations

import os
import pkgutil
import select
import signal
from collections.abc import Mapping
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


def begin(plugin: str, environ: Mapping[str, str], stdin: bytes, bundle: Path | None) -> Running:
    given = os.memfd_create("stdin")
    os.write(given, stdin)
    os.lseek(given, 0, os.SEEK_SET)
    reading, writing = os.pipe()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    if bundle is not None:
        places = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate((given, writing, null))]
        pid = os.posix_spawn(bundle / plugin, [plugin], dict(environ), file_actions=places)
    else:
        pid = os.fork()
        if not pid:
            try:
                for number, fd in enumerate((given, writing, null)):
                    os.dup2(fd, number)
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
