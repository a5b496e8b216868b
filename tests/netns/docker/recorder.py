"""Stands between dockerd and the driver, and writes down what dockerd asks: ``python -m tests.netns.docker.recorder``.

Rule: a call goes on as it came; one whose name is in the file of refusals is answered with an error instead. A line of
the log is JSON: the call's name, dockerd's body (null if it was empty), seconds that the driver took.

    python -m tests.netns.docker.recorder FROM TO LOG REFUSALS    FROM, TO: directories of sockets
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

NAMES = ("calico", "calico-ipam")
REFUSED = {"Err": "refused here", "Error": "refused here"}


def read_message(connection: socket.socket) -> tuple[bytes, bytes, bytes]:
    """(all of it, head, body). Bodies have a length, or none; dockerd sends some in chunks."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += _more(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    lower = head.lower()
    if b"transfer-encoding: chunked" in lower:
        while not data.endswith(b"0\r\n\r\n"):
            data += _more(connection)
        return data, head, _unchunked(data.partition(b"\r\n\r\n")[2])
    length = next((int(line[15:]) for line in lower.split(b"\r\n") if line.startswith(b"content-length:")), 0)
    while len(body) < length:
        more = _more(connection)
        data, body = data + more, body + more
    return data, head, body


def _more(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 16)
    if not data:
        raise EOFError
    return data


def _unchunked(data: bytes) -> bytes:
    found = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        found, data = found + data[: int(size, 16)], data[int(size, 16) + 2 :]
    return found


class Recorder:
    def __init__(self, to: Path, log: Path, refusals: Path) -> None:
        self._to, self._log, self._refusals = to, log, refusals
        self._guard = threading.Lock()

    def serve(self, listener: socket.socket, name: str) -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self._answer, args=(connection, name), daemon=True).start()

    def _answer(self, connection: socket.socket, name: str) -> None:
        with connection:
            try:
                data, head, body = read_message(connection)
            except EOFError:
                return
            call = head.split(b" ")[1].decode().removeprefix("/")
            began = time.monotonic()
            if self._refusals.exists() and call in self._refusals.read_text().split():
                text = json.dumps(REFUSED).encode()
                answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(text), text)
            else:
                answer = self._forward(data, name)
            line = json.dumps([call, json.loads(body) if body else None, time.monotonic() - began])
            with self._guard, open(self._log, "a") as log:
                log.write(line + "\n")
            connection.sendall(answer)

    def _forward(self, data: bytes, name: str) -> bytes:
        with socket.socket(socket.AF_UNIX) as driver:
            driver.connect(str(self._to / f"{name}.sock"))
            driver.sendall(data)
            return b"".join(iter(lambda: driver.recv(1 << 16), b""))


def main(listen: str, to: str, log: str, refusals: str) -> None:
    recorder = Recorder(Path(to), Path(log), Path(refusals))
    threads = []
    for name in NAMES:
        path = f"{listen}/{name}.sock"
        made = socket.socket(socket.AF_UNIX)
        made.bind(path)
        os.chmod(path, 0o600)
        made.listen(64)
        threads.append(threading.Thread(target=recorder.serve, args=(made, name), daemon=True))
    for thread in threads:
        thread.start()
    Path(log).touch()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
