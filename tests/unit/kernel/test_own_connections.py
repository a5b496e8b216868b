"""The kernel probes this process's idle connections, and no other sockets are touched."""

import os
import socket
import struct

import pytest

from cni_calico.kernel.own_connections import probe_now, probe_when_idle, read_own_connections


def keepalive(one):
    return (
        one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE),
    )


def test_connections_only():
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket() as idle:
        default = keepalive(idle)
        with socket.create_connection(listening.getsockname()) as client, listening.accept()[0] as server:
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            assert probe_when_idle(1) >= 2
            assert keepalive(client) == keepalive(server) == (1, 1)
            assert keepalive(listening) == keepalive(idle) == default and not client.getblocking()
            client.send(b"x")
            assert server.recv(1) == b"x"
            probe_when_idle(0)
            assert keepalive(client) == keepalive(server) == (1, 20), "a peer that is gone is still found out"
            unanswered = [client.getsockopt(socket.IPPROTO_TCP, o) for o in (socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)]
            assert unanswered == [5, 3], "what its library asked for"


def segments_sent(one):
    return struct.unpack_from("I", one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), 136)[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="kernel: only root may")
def test_each_connection_is_probed_at_once():
    """Also one on which something was said a moment ago; what is said on it before and after arrives."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
        listening.accept()[0] as server,
    ):
        server.send(b"x")
        assert client.recv(1) == b"x"
        before = segments_sent(client)
        assert probe_now() >= 2
        assert segments_sent(client) > before
        client.send(b"y")
        server.send(b"z")
        assert server.recv(2) == b"y" and client.recv(2) == b"z"


def test_without_connections_nothing_happens():
    with socket.socketpair()[0], socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.connect(("127.0.0.1", 9))
        before = datagrams.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        probe_when_idle(1)
        probe_now()
        assert datagrams.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == before


def test_the_ends_of_connections():
    """What gRPC opens are IPv6 sockets, also for IPv4."""
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket(socket.AF_INET6) as client:
        client.connect((f"::ffff:{listening.getsockname()[0]}", listening.getsockname()[1]))
        with listening.accept()[0]:
            own, there = client.getsockname()[1], listening.getsockname()[1]
            here = bytes((127, 0, 0, 1))
            found = read_own_connections()
            assert {(here, own, here, there), (here, there, here, own)} <= found
            assert all(ports[3] for ports in found), "what only listens is no connection"
        client.send(b"x")


def test_where_no_descriptor_is_left_there_are_none(monkeypatch):
    def fail(_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("os.listdir", fail)
    assert not probe_when_idle(1) and not probe_now() and not read_own_connections()
