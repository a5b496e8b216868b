"""A kubelet's exec: runs a command for who asks through a real API server, over WebSocket (v4.channel.k8s.io).

Rule: written from RFC 6455 and the kubelet's behaviour, and shares no line with the product. Pods are environments.
"""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qs, urlsplit

from tests.conftest import ROOT
from tests.fakes.tcp import TcpFake

_MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Kubelet(TcpFake):
    """``pods``: what runs in each: its environment. ``asked``: (pod, container, command) of each exec."""

    def __init__(self, certificate: Path, key: Path, pods: dict[str, dict[str, str]]) -> None:
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(certificate, key)
        self.pods = pods
        self.asked: list[tuple[str, str, list[str]]] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        try:
            wrapped = self._tls.wrap_socket(connection, server_side=True)
            self.keep(wrapped)
            stream = wrapped.makefile("rb")
            target = stream.readline().split()[1].decode()
            headers = {}
            while line := stream.readline().strip():
                name, _, value = line.decode().partition(":")
                headers[name.lower()] = value.strip()
            self._run(wrapped, stream, target, headers)
        except (OSError, ValueError, IndexError):
            pass

    def _run(self, connection: socket.socket, stream: BinaryIO, target: str, headers: dict[str, str]) -> None:
        pod, command = self.begin(connection, target, headers)
        code = "import sys; from cni_calico.nodeagent.main import main; sys.exit(main())"
        process = subprocess.Popen(
            [sys.executable, "-c", code, *command[1:]],
            env=self.pods[pod],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.processes.append(process)
        threading.Thread(target=self._feed, args=(stream, process), daemon=True).start()
        assert process.stdout is not None and process.stderr is not None
        lock = threading.Lock()
        errors = threading.Thread(target=_pump, args=(process.stderr, connection, 2, lock), daemon=True)
        errors.start()
        _pump(process.stdout, connection, 1, lock)
        errors.join(10)
        status: dict[str, Any] = {"metadata": {}, "status": "Success"}
        if code := process.wait(10):
            status = {"status": "Failure", "message": f"command terminated with exit code {code}"}
        send(connection, 3, json.dumps(status).encode(), lock)
        connection.sendall(b"\x88\x02\x03\xe8")

    def begin(self, connection: socket.socket, target: str, headers: dict[str, str]) -> tuple[str, list[str]]:
        """Returns the pod and the command."""
        url = urlsplit(target)
        _, _, _, pod, container = url.path.split("/")
        command = parse_qs(url.query)["command"]
        self.asked.append((pod, container, command))
        accept = base64.b64encode(hashlib.sha1((headers["sec-websocket-key"] + _MAGIC).encode()).digest()).decode()
        lines = ("HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade")
        lines += (f"Sec-WebSocket-Accept: {accept}", "Sec-WebSocket-Protocol: v4.channel.k8s.io", "", "")
        connection.sendall("\r\n".join(lines).encode())
        return pod, command

    def _feed(self, stream: BinaryIO, process: subprocess.Popen[bytes]) -> None:
        """The command's standard input ends with the connection."""
        assert process.stdin is not None
        try:
            while (data := receive(stream)) is not None:
                process.stdin.write(data)
                process.stdin.flush()
        except (OSError, ValueError, IndexError):
            pass
        try:
            process.stdin.close()
        except OSError:
            pass


def _pump(source: Any, connection: socket.socket, channel: int, lock: threading.Lock) -> None:
    try:
        while data := source.read1(32 << 10):
            send(connection, channel, data, lock)
    except OSError:
        pass


def send(connection: socket.socket, channel: int, data: bytes, lock: threading.Lock) -> None:
    size = len(data) + 1
    head = bytes((0x82, size)) if size < 126 else bytes((0x82, 126)) + size.to_bytes(2, "big")
    with lock:
        connection.sendall(head + bytes((channel,)) + data)


def receive(stream: BinaryIO) -> bytes | None:
    """What is for the standard input; None at the end."""
    first, second = stream.read(2)
    size = second & 0x7F
    if size >= 126:
        size = int.from_bytes(stream.read(2 if size == 126 else 8), "big")
    mask = stream.read(4)
    data = bytes(byte ^ mask[i % 4] for i, byte in enumerate(stream.read(size)))
    if first & 0x0F == 8:
        return None
    return data[1:] if data[:1] == b"\0" else b""
