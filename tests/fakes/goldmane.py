"""A collector of flow logs: answers each update with an empty receipt, and does not take one twice from a peer.

Behaves as upstream's does: what has the same key and the same start and end from the same address and port is a
repetition; from another port it is counted again; what it has is gone when it ends.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from cni_calico.flows.export.messages import METHOD, decode_update

RECEIPT = b""


class FakeCollector:
    """``tls``: certificate, key and authority; None: plain. ``answering``: receipts wait until it is set."""

    def __init__(self, port: int = 0, tls: tuple[Path, Path, Path] | None = None) -> None:
        self.updates: list[bytes] = []
        self.connections: Counter[str] = Counter()  # started, by destination's name
        self.repeated = 0
        self.peers: list[str] = []
        self.answering = threading.Event()
        self.answering.set()
        self._seen: set[tuple[Any, ...]] = set()
        self._ending = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(8))
        service, _, method = METHOD.strip("/").partition("/")
        handler = grpc.stream_stream_rpc_method_handler(self._connect)
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, {method: handler})])
        address = f"127.0.0.1:{port}"
        if tls is None:
            self.port = self._server.add_insecure_port(address)
        else:
            certificate, key, authority = (path.read_bytes() for path in tls)
            shown = grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
            self.port = self._server.add_secure_port(address, shown)
        self._server.start()

    def stop(self) -> None:
        self._ending.set()
        self.answering.set()
        self._server.stop(0).wait()

    def _connect(self, updates: Iterator[bytes], context: Any) -> Iterator[bytes]:
        self.peers.append(context.peer())
        for data in updates:
            self._receive(data, context.peer())
            self.answering.wait()
            if self._ending.is_set():
                return
            yield RECEIPT

    def _receive(self, data: bytes, peer: str) -> None:
        flow = decode_update(data)
        what = peer, flow.Key.SerializeToString(deterministic=True), flow.start_time, flow.end_time
        if what in self._seen:
            self.repeated += 1
            return
        self._seen.add(what)
        self.updates.append(data)
        self.connections[flow.Key.dest_name] += flow.num_connections_started
