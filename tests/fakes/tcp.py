"""What fakes that speak TCP share: connections served in threads of their own, and a way that can be cut."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable


def on_loopback(port: int = 0) -> socket.socket:
    return socket.create_server(("127.0.0.1", port), backlog=128)


class TcpFake(ABC):
    """Listens, and serves each connection in a thread of its own. ``listen`` makes the socket, again after ``open``."""

    def __init__(self, listen: Callable[[], socket.socket] | None = None) -> None:
        self.port = 0
        self._listen = listen or (lambda: on_loopback(self.port))  # the same port again
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self.open()

    def open(self) -> None:
        self._listener = self._listen()
        name = self._listener.getsockname()
        self.port = int(name[1]) if isinstance(name, tuple) else 0
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._accept, args=(self._listener,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Refuse new connections and end those there are; a second time does nothing."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.shutdown(socket.SHUT_RDWR)  # wakes accept
            self._thread.join(10)
            listener.close()
        self.drop()

    def keep(self, connection: socket.socket) -> None:
        """Let ``drop`` end this connection, too."""
        with self._lock:
            self._open.add(connection)

    def drop(self) -> None:
        """End all connections."""
        with self._lock:
            while self._open:
                end_connection(self._open.pop())

    def done(self, connection: socket.socket) -> None:
        """End one connection."""
        with self._lock:
            self._open.discard(connection)
        end_connection(connection)

    @abstractmethod
    def serve(self, connection: socket.socket) -> None:
        """Called in a thread of its own; the connection stays open until ``done`` or ``drop``."""

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.keep(connection)
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()


def end_connection(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it has ended by itself
    connection.close()


class Forwarder(TcpFake):
    """Leads to ``target``. ``close`` cuts the way, ``open`` mends it; ``swallow``: the target's answers are dropped."""

    def __init__(self, target: tuple[str, int], listen: Callable[[], socket.socket] | None = None) -> None:
        self.swallow = False
        self._target = target
        super().__init__(listen)

    def serve(self, connection: socket.socket) -> None:
        try:
            outside = socket.create_connection(self._target)
        except OSError:
            self.done(connection)
            return
        self.forward(connection, outside)

    def forward(self, inside: socket.socket, outside: socket.socket) -> None:
        """Copy in both directions until both have ended."""
        self.keep(outside)
        back = threading.Thread(target=self._copy, args=(outside, inside), kwargs={"is_answer": True}, daemon=True)
        back.start()
        self._copy(inside, outside, is_answer=False)
        back.join()
        self.done(inside)
        self.done(outside)

    def _copy(self, source: socket.socket, target: socket.socket, *, is_answer: bool) -> None:
        try:
            while data := source.recv(65536):
                if not (is_answer and self.swallow):
                    target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it was cut
