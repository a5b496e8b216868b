"""One call of an executable, in a process that can be killed or stopped on its way.

Rule: with a bundle the executable is executed as a runtime does it; without, a fork of this process does what the
executable would, which saves the loading of an interpreter each time.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cni_calico.plugin.call.shim import serve_call
from cni_calico.plugin.commands import serve as serve_plugin
from cni_calico.plugin.ipam.commands import serve as serve_ipam

SERVES = {"calico": serve_plugin, "calico-ipam": serve_ipam}


@dataclass
class Running:
    """``answer`` is the read end of its stdout."""

    pid: int
    answer: int

    def finish(self, patience_s: float) -> tuple[int | None, bytes, bool]:
        """Exit status (None: it was killed), stdout, and whether it had to be ended because it took too long."""
        until, data, late = time.monotonic() + patience_s, b"", False
        while True:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.answer], [], [], left)[0]:
                os.kill(self.pid, signal.SIGKILL)
                late = True
                break
            part = os.read(self.answer, 65536)
            if not part:
                break
            data += part
        os.close(self.answer)
        _, status = os.waitpid(self.pid, 0)
        return (os.WEXITSTATUS(status) if os.WIFEXITED(status) else None), data, late


def begin(plugin: str, environ: Mapping[str, str], stdin: bytes, bundle: Path | None) -> Running:
    given = os.memfd_create("stdin", 0)
    os.write(given, stdin)
    os.lseek(given, 0, os.SEEK_SET)
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            null = os.open(os.devnull, os.O_RDWR)
            for fd, number in ((given, 0), (writing, 1), (null, 2)):
                os.dup2(fd, number)
            if bundle is not None:
                os.execve(bundle / plugin, [plugin], dict(environ))
            _serve(plugin, environ, stdin)
        finally:
            os._exit(99)
    os.close(writing)
    os.close(given)
    return Running(pid, reading)


def _serve(plugin: str, environ: Mapping[str, str], stdin: bytes) -> None:
    """Never returns."""
    exit_code, data = serve_call(plugin, lambda: SERVES[plugin], environ, stdin)
    while data:
        data = data[os.write(1, data) :]
    os._exit(exit_code)
