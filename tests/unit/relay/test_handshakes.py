"""Handshakes in several threads: each client gets its own outcome, whatever the others send."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cni_calico.relay.client import Client, Gone
from cni_calico.relay.handshakes import Handshakes
from cni_calico.relay.parts import server_context
from tests.deadlines import until

CLIENTS, GARBAGE, SILENT = 12, 3, 2


@pytest.fixture
def pairs() -> Iterator[ExitStack]:
    """What ends with the test: connected sockets, threads."""
    with ExitStack() as stack:
        yield stack


def connected(pairs: ExitStack, server: ssl.SSLContext, number: int) -> tuple[Client, socket.socket]:
    ours, theirs = socket.socketpair()
    pairs.callback(theirs.close)
    ours.setblocking(False)
    client = Client(server.wrap_socket(ours, server_side=True, do_handshake_on_connect=False), f"10.0.0.{number}", 0.0)
    pairs.callback(client.close)
    return client, theirs


@pytest.mark.parametrize("processors", [1, 2, 4, 64])
def test_each_gets_its_own_outcome(certificates: Path, pairs: ExitStack, processors: int) -> None:
    server = server_context(
        str(certificates / "server.crt"), str(certificates / "server.key"), str(certificates / "ca.crt"),
        wants_certificates=True,
    )  # fmt: skip
    theirs = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
    theirs.load_cert_chain(certificates / "client.crt", certificates / "client.key")
    handshakes = Handshakes(processors)
    pairs.callback(handshakes.close)
    waiting: list[Client] = []
    for number in range(CLIENTS):
        client, far = connected(pairs, server, number)
        waiting.append(client)

        def shake(far: socket.socket = far) -> None:
            pairs.callback(theirs.wrap_socket(far, server_hostname="127.0.0.1").close)

        thread = threading.Thread(target=shake, daemon=True)
        thread.start()
        pairs.callback(thread.join, 60)
    spoiled, silent = [], []
    for number in range(GARBAGE):
        client, far = connected(pairs, server, number)
        far.sendall(b"GET / HTTP/1.1\r\n\r\n")
        spoiled.append(client)
    silent = [connected(pairs, server, number)[0] for number in range(SILENT)]
    done: list[Client] = []

    def turn() -> bool:
        handshakes.go_on([*waiting, *spoiled, *silent])
        for client in [*waiting]:
            if client.shake_hands():
                waiting.remove(client)
                done.append(client)
        for client in [*spoiled]:
            with pytest.raises(Gone, match="the TLS handshake failed"):
                client.shake_hands()
            spoiled.remove(client)
        return not waiting

    until(turn, "all handshakes")
    assert len(done) == CLIENTS and not spoiled
    for client in done:
        certificate = client.socket.getpeercert()
        assert certificate and certificate["subject"] == ((("commonName", "typha-client"),),)
    assert not any(client.shake_hands() for client in silent)


def test_an_outcome_is_asked_for_once(certificates: Path, pairs: ExitStack) -> None:
    server = server_context(str(certificates / "server.crt"), str(certificates / "server.key"))
    client, far = connected(pairs, server, 1)
    far.sendall(b"not TLS at all")
    client.shake_hands_ahead()
    for _ in range(2):  # the first is what was kept, the second the socket's own
        with pytest.raises(Gone, match="the TLS handshake failed"):
            client.shake_hands()
