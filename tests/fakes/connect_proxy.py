"""An HTTP proxy on loopback that can CONNECT and nothing else; where to is decided by who makes it, not by who asks."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tests.fakes.tcp import Forwarder


class ConnectProxy(Forwarder):
    """``asked``: the authority of every CONNECT; ``logins``: its Proxy-Authorization; ``status`` is the answer."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.asked: list[str] = []
        self.logins: list[str] = []
        self.status = "200 Connection established"
        super().__init__(target)

    def serve(self, connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            data = connection.recv(4096)
            if not data:
                return
            head += data
        first, *fields = head.decode().split("\r\n")
        method, authority, _ = first.split(" ")
        assert method == "CONNECT", first
        self.asked.append(authority)
        self.logins.append(next((f.partition(": ")[2] for f in fields if f.startswith("Proxy-Authorization:")), ""))
        connection.sendall(f"HTTP/1.1 {self.status}\r\n\r\n".encode())
        if self.status.startswith("200"):
            super().serve(connection)
        else:
            self.done(connection)


@contextmanager
def connect_proxy(target: tuple[str, int]) -> Iterator[ConnectProxy]:
    """A proxy that leads to ``target`` whatever it is asked for."""
    made = ConnectProxy(target)
    try:
        yield made
    finally:
        made.close()
