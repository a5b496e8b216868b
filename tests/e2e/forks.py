"""Calls in forked children of a process that has everything imported and nothing open.

Rule: imports take longer than a call, and a process that has used gRPC must not fork; so a process of its own imports
gRPC and every module that a call imports late, uses gRPC never, and forks for every call. ``python -m tests.e2e.forks``
reads pickled requests on stdin and answers on stdout, one after the other.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from cni_calico.slim_grpc import load_grpc
from tests.netns.namespaces import Killed, Namespace

_SIZE = 8


def _send(stream: IO[bytes], value: object) -> None:
    data = pickle.dumps(value)
    stream.write(len(data).to_bytes(_SIZE, "big") + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    head = stream.read(_SIZE)
    if len(head) < _SIZE:
        raise EOFError
    return pickle.loads(stream.read(int.from_bytes(head, "big")))


class Forks:
    """The process, from the tests' side; one call at a time, and other threads' calls wait."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._one_at_a_time = threading.Lock()

    def call(self, function: Callable[..., Any], *arguments: Any, timeout_s: int = 60) -> Any:
        """The value of a module's function, called in a child; its exception, or Killed."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with self._one_at_a_time:
            _send(self.process.stdin, (function, arguments, timeout_s))
            outcome, value = _receive(self.process.stdout)
        if outcome == "signal":
            raise Killed(f"signal {value}")
        if outcome == "error":
            raise value
        return value


@dataclass(frozen=True)
class Forking:
    """Calls in children of this very process, which has used no gRPC."""

    host: Namespace

    def call(self, function: Callable[..., Any], *arguments: Any, timeout_s: int = 60) -> Any:
        return self.host.call(function, *arguments, timeout_s=timeout_s)


@contextmanager
def forks_in(host: Namespace, environ: Mapping[str, str] | None = None) -> Iterator[Forks]:
    """A process that forks, in a network namespace."""
    argv = ["nsenter", f"--net={host.path}", sys.executable, "-m", "tests.e2e.forks"]
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, **(environ or {})}
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield Forks(process)
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


MODULES = (
    "datastore.etcd.store datastore.local.store ipam.allocator kernel.lock kernel.process plugin.add plugin.check "
    "plugin.delete plugin.gc plugin.ipam.gc plugin.ipam.status plugin.network.observe plugin.network.setup "
    "plugin.network.teardown plugin.pay plugin.status plugin.waits"
)


def _import_everything() -> None:
    for name in MODULES.split():
        importlib.import_module(f"cni_calico.{name}")
    importlib.import_module("tests.e2e.host")
    load_grpc()
    gc.collect()
    gc.freeze()  # children write to fewer pages that they share with us


def _serve_child(pipe: int, function: Callable[..., Any], arguments: tuple[Any, ...], timeout_s: int) -> None:
    """Never returns."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(timeout_s)
        try:
            outcome: tuple[str, Any] = ("value", function(*arguments))
        except Exception as e:
            e.add_note("".join(traceback.format_exception(e)))
            outcome = ("error", e)
        with os.fdopen(pipe, "wb") as stream:
            pickle.dump(outcome, stream)
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(99)


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a child prints is not an answer
    _import_everything()
    while True:
        try:
            function, arguments, timeout_s = _receive(sys.stdin.buffer)
        except EOFError:
            return
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            _serve_child(write, function, arguments, timeout_s)
        os.close(write)
        with os.fdopen(read, "rb") as stream:
            data = stream.read()
        _, status = os.waitpid(pid, 0)
        ended = os.WIFSIGNALED(status) or not data
        _send(answers, ("signal", os.waitstatus_to_exitcode(status)) if ended else pickle.loads(data))


if __name__ == "__main__":
    main()
