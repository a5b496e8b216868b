"""An HTTP proxy on loopback that can CONNECT and nothing else; where to is decided by who makes it, not by who asks."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class ConnectProxy:
    """``asked``: the authority of every CONNECT; ``logins``: its Proxy-Authorization; ``status`` is the answer."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.asked: list[str] = []
        self.logins: list[str] = []
        self.status = "200 Connection established"
        self._target = target
        self._open: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                inside, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(inside)
            threading.Thread(target=self._serve, args=(inside,), daemon=True).start()

    def _serve(self, inside: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            data = inside.recv(4096)
            if not data:
                return
            head += data
        first, *fields = head.decode().split("\r\n")
        method, authority, _ = first.split(" ")
        assert method == "CONNECT", first
        self.asked.append(authority)
        self.logins.append(next((f.partition(": ")[2] for f in fields if f.startswith("Proxy-Authorization:")), ""))
        inside.sendall(f"HTTP/1.1 {self.status}\r\n\r\n".encode())
        if not self.status.startswith("200"):
            inside.close()
            return
        outside = socket.create_connection(self._target)
        self._open.append(outside)
        threading.Thread(target=_copy, args=(outside, inside), daemon=True).start()
        _copy(inside, outside)


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


@contextmanager
def connect_proxy(target: tuple[str, int]) -> Iterator[ConnectProxy]:
    """A proxy that leads to ``target`` whatever it is asked for."""
    made = ConnectProxy(target)
    try:
        yield made
    finally:
        made.close()
