"""``calico-node -flows-pipe``: a reader of this node's recorder for somebody who is not on this node.

Rule: one line in, the recorder's lines out, nothing else. It ends with whoever asks, with the recorder, and when
nothing more can be written.
"""

from __future__ import annotations

import os
import selectors
import socket

from cni_calico.directories import FLOW_SOCKET
from cni_calico.flows.client import QueryFailed, RecorderSilent
from cni_calico.flows.query import QueryRefused, parse_query

_LINE, _PIECE = 64 << 10, 64 << 10


def pipe_flows(run_dir: str, asked: int, told: int) -> int:
    """``asked``, ``told``: file descriptors. Returns the exit status. Raises RecorderSilent, QueryFailed,
    BrokenPipeError.
    """
    path = f"{run_dir}/{FLOW_SOCKET}"
    try:
        line = _read_line(asked)
        if line is None:
            return 0
        parse_query(line)
    except QueryRefused as e:
        raise QueryFailed(f"cannot read flows: {e}") from e
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        try:
            connection.connect(path)
            connection.sendall(line + b"\n")
        except OSError as e:
            raise RecorderSilent(f"cannot read flows from {path}: {e.strerror or e}") from e
        return _copy(connection, asked, told)


def _read_line(asked: int) -> bytes | None:
    """None if nobody asks anything."""
    got = b""
    while b"\n" not in got:
        data = os.read(asked, _PIECE)
        if not data:
            return None
        got += data
        if len(got) > _LINE:
            raise QueryRefused(f"a request has at most {_LINE} bytes")
    return got.partition(b"\n")[0]


def _copy(connection: socket.socket, asked: int, told: int) -> int:
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(asked, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if asked in ready and not os.read(asked, _PIECE):
                return 0
            if connection in ready:
                data = connection.recv(_PIECE)
                if not data:
                    return 0
                _write(told, data)


def _write(told: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(told, view) :]
