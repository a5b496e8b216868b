"""The kernel probes this process's idle connections, and no other sockets are touched."""

import socket

from cni_calico.kernel.own_connections import probe_when_idle


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


def test_without_connections_nothing_happens():
    with socket.socketpair()[0], socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        datagrams.connect(("127.0.0.1", 9))
        before = datagrams.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        probe_when_idle(1)
        assert datagrams.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == before
