"""Calls in forked children of a process that has everything imported and nothing open.

Rule: imports take longer than a call, and a process that has used gRPC must not fork; so one process for all tests of
this one (``python -m tests.e2e.forks``) imports gRPC and every module that a call imports late, and uses gRPC never.
From it every user of ``forks_in`` gets a process of its own, in a network namespace, which forks for every call, one
after the other. Requests and answers are pickled.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import IO, Any

from cni_calico.kernel import netns
from cni_calico.slim_grpc import load_grpc
from tests.netns.namespaces import Killed, Namespace

_SIZE = 8
_one_start_at_a_time = threading.Lock()


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

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._one_at_a_time = threading.Lock()

    def call(self, function: Callable[..., Any], *arguments: Any, timeout_s: int = 60) -> Any:
        """The value of a module's function, called in a child; its exception, or Killed."""
        with self._one_at_a_time:
            _send(self._stream, (function, arguments, timeout_s))
            outcome, value = _receive(self._stream)
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


class _Origin:
    """The process that all others come from; it ends with this one."""

    def __init__(self) -> None:
        self.connection, theirs = socket.socketpair()
        self.stream = self.connection.makefile("rwb")
        with theirs:
            argv = [sys.executable, "-m", "tests.e2e.forks", str(theirs.fileno())]
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])

    def fork(self, passed: int, host: str, environ: Mapping[str, str]) -> int:
        """The number of a new process, which serves what comes over the socket ``passed``."""
        socket.send_fds(self.connection, [b"f"], [passed])
        _send(self.stream, (host, dict(environ)))
        return int(_receive(self.stream))


@cache
def _origin(pid: int) -> _Origin:
    """That of this process, which has the number ``pid``."""
    return _Origin()


@contextmanager
def forks_in(host: Namespace, environ: Mapping[str, str] | None = None) -> Iterator[Forks]:
    """A process that forks, in a network namespace."""
    ours, theirs = socket.socketpair()
    with ours, ours.makefile("rwb") as stream:
        with theirs, _one_start_at_a_time:
            pid = _origin(os.getpid()).fork(theirs.fileno(), host.path, {**os.environ, **(environ or {})})
            ended = os.pidfd_open(pid)
        try:
            yield Forks(stream)
        finally:
            ours.shutdown(socket.SHUT_WR)  # whoever else has inherited it
            gone, _, _ = select.select([ended], [], [], 30)
            os.close(ended)
            assert gone, "a process that forks does not end"


MODULES = (
    "datastore.etcd.store datastore.kubernetes.store datastore.local.store ipam.allocator kernel.lock kernel.process "
    "plugin.add plugin.check plugin.delete plugin.gc plugin.ipam.gc plugin.ipam.status plugin.network.observe "
    "plugin.network.setup plugin.network.teardown plugin.pay plugin.status plugin.waits"
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


def _serve(stream: IO[bytes], host: str, environ: Mapping[str, str]) -> None:
    """Until the tests' side ends."""
    os.environ.clear()
    os.environ.update(environ)
    random.seed()  # as in any process that starts
    entered = netns.open_netns(host)
    netns.enter(entered)
    os.close(entered)
    while True:
        try:
            function, arguments, timeout_s = _receive(stream)
        except EOFError:
            return
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            _serve_child(write, function, arguments, timeout_s)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            data = pipe.read()
        _, status = os.waitpid(pid, 0)
        ended = os.WIFSIGNALED(status) or not data
        _send(stream, ("signal", os.waitstatus_to_exitcode(status)) if ended else pickle.loads(data))


def _fork(connection: socket.socket, passed: int, host: str, environ: Mapping[str, str]) -> int:
    """The process that serves what comes over the socket ``passed``."""
    pid = os.fork()
    if pid:
        os.close(passed)
        return pid
    status = 99
    try:
        os.close(connection.fileno())
        with socket.socket(fileno=passed) as own, own.makefile("rwb") as stream:
            _serve(stream, host, environ)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    os.dup2(2, 1)  # what a child prints is for people
    _import_everything()
    running: set[int] = set()
    with connection.makefile("rwb") as stream:
        while True:
            _, passed, _, _ = socket.recv_fds(connection, 1, 1)
            if not passed:
                return
            running = {pid for pid in running if not os.waitpid(pid, os.WNOHANG)[0]}
            pid = _fork(connection, passed[0], *_receive(stream))
            running.add(pid)
            _send(stream, pid)


if __name__ == "__main__":
    main()
