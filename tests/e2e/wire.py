"""A wire between a server under test and its datastore that can be cut, in a network namespace.

Rule: the test stands on both sides of it: what it changes past the wire is what others do during the outage.
``python -m tests.e2e.wire PORT TARGET_PORT`` carries connections on loopback and obeys a word a line on stdin: "cut"
(connections end, new ones are refused), "freeze" (nothing passes, nothing is said), "mend".
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.netns.namespaces import Namespace

HOST = "127.0.0.1"


class Wire:
    """The process, from the test's side."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def cut(self) -> None:
        self._say("cut")

    def freeze(self) -> None:
        self._say("freeze")

    def mend(self) -> None:
        self._say("mend")

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == word + "\n"


@contextmanager
def wire_in(host: Namespace, port: int, target_port: int) -> Iterator[Wire]:
    argv = ["nsenter", f"--net={host.path}", sys.executable, "-m", "tests.e2e.wire", str(port), str(target_port)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        assert process.stdout.readline() == "mend\n"
        yield Wire(process)
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


class _Carrier:
    """What runs in the namespace: one thread, one poll."""

    def __init__(self, port: int, target_port: int) -> None:
        self._port = port
        self._target = (HOST, target_port)
        self._listener: socket.socket | None = None
        self._peers: dict[socket.socket, socket.socket] = {}

    def mend(self) -> None:
        if self._listener is None:
            self._listener = socket.create_server((HOST, self._port))
        print("mend", flush=True)

    def run(self) -> None:
        self.mend()
        frozen = False
        while True:
            ready = [] if frozen else [*self._peers, *([self._listener] if self._listener else [])]
            readable, _, _ = select.select([sys.stdin, *ready], [], [])
            if sys.stdin in readable:
                word = sys.stdin.readline().strip()
                if not word:
                    return
                frozen = word == "freeze"
                self._obey(word)
                continue
            for ended in readable:
                if ended is self._listener:
                    self._accept()
                elif ended in self._peers:
                    self._carry(ended)

    def _obey(self, word: str) -> None:
        if word == "mend":
            self.mend()
            return
        if word == "cut":
            if self._listener is not None:
                self._listener.close()
                self._listener = None
            for end in list(self._peers):
                self._drop(end)
        print(word, flush=True)

    def _accept(self) -> None:
        assert self._listener is not None
        near, _ = self._listener.accept()
        try:
            far = socket.create_connection(self._target)
        except OSError:
            near.close()
            return
        self._peers[near], self._peers[far] = far, near

    def _carry(self, end: socket.socket) -> None:
        try:
            data = end.recv(65536)
            if data:
                self._peers[end].sendall(data)
                return
        except OSError:
            pass
        self._drop(end)

    def _drop(self, end: socket.socket) -> None:
        other = self._peers.pop(end, None)
        end.close()
        if other is not None:
            self._peers.pop(other, None)
            other.close()


if __name__ == "__main__":
    _Carrier(int(sys.argv[1]), int(sys.argv[2])).run()
