"""Packets as large as they may be: interfaces of each size, pods of before."""

from __future__ import annotations

import socket
import threading
from functools import partial
from pathlib import Path

import pytest

from tests.deadlines import until
from tests.netns.encrypted import EncryptedPair, encrypted_pair, opened
from tests.netns.steps import told_steps
from tests.unit.nodeagent.fabric import pool

pytestmark = [pytest.mark.netns, pytest.mark.stock, pytest.mark.slow, pytest.mark.timeout(900)]
BYTES = 300_000


def test_sizes(tmp_path: Path, record_property: pytest.RecordProperty) -> None:
    """One after the other, with pods that were made before encryption was enabled: TCP with full segments arrives, and
    the interface has what fits.
    """
    told = told_steps(record_property, "encryption")
    with told as steps, encrypted_pair(tmp_path, (pool("10.65.0.0/16", "Always"),)) as pair:
        pair.enable()
        pair.until_encrypted()
        stream = pair.stream()
        stream.arrive(10)
        steps.skip(stream)
        switch = pair.lab.switches["0"]
        for mtu in (1500, 9000, 1280):
            for port in ("br0", *(f"p{number}" for number in range(1, 4))):
                if switch.link(port) is not None:
                    switch.do("link", "set", port, "mtu", str(mtu))
            for node in pair.nodes.values():
                node.ns.do("link", "set", "eth0", "mtu", str(mtu))
            until(partial(have_mtu, pair, mtu - 60), f"the interfaces have {mtu - 60}", pause_s=0.1)
            before = stream.readable()
            assert transferred(pair) == BYTES
            stream.arrive(10)
            assert stream.readable() == before
            steps.ended(f"uplinks of {mtu} bytes", stream)


def have_mtu(pair: EncryptedPair, mtu: int) -> bool:
    links = [node.ns.link(pair.devices[name]) for name, node in pair.nodes.items()]
    return [link["mtu"] for link in links if link] == [mtu, mtu]


def transferred(pair: EncryptedPair) -> int:
    """Bytes over TCP from n1's pod to n2's."""
    to = pair.pods["n2"].addresses[0]
    found = [0]
    server, client = (opened(pair.pods[name].ns, socket.AF_INET, socket.SOCK_STREAM) for name in ("n2", "n1"))
    with server, client:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("0.0.0.0", 7790))
        server.listen()
        server.settimeout(60)
        client.settimeout(60)

        def take() -> None:
            connection, _ = server.accept()
            connection.settimeout(60)
            with connection:
                while data := connection.recv(65536):
                    found[0] += len(data)

        thread = threading.Thread(target=take)
        thread.start()
        client.connect((to, 7790))
        client.sendall(bytes(BYTES))
        client.shutdown(socket.SHUT_WR)
        thread.join()
    return found[0]
