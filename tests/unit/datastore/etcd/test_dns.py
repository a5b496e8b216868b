"""SRV records from a name server that is well, and from one that is not: a list or a told failure, nothing else."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import dns.message
import dns.rcode
import dns.rrset
import pytest

from cni_calico.datastore.etcd import dns as looked_up
from cni_calico.datastore.etcd.config import EtcdEndpoint
from cni_calico.errors import DatastoreUnavailable
from tests.deadlines import soon

PLAIN, TLS = "_etcd-client._tcp.example.org.", "_etcd-client-ssl._tcp.example.org."
Answer = Callable[[bytes], bytes]


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer], None]]:
    """A name server on a port of its own; what it answers to each query."""
    servers = []

    def start(answer: Answer) -> None:
        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                query, udp = self.request
                udp.sendto(answer(query), self.client_address)

        server = socketserver.UDPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        (tmp_path / "resolv.conf").write_text("nameserver 127.0.0.1\nsearch a.example\noptions timeout:1\n")
        monkeypatch.setattr(looked_up, "RESOLV_CONF", str(tmp_path / "resolv.conf"))
        monkeypatch.setattr(looked_up, "PORT", server.server_address[1])

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def records(table: dict[str, list[str]]) -> Answer:
    def answer(query: bytes) -> bytes:
        asked = dns.message.from_wire(query)
        name = asked.question[0].name
        reply = dns.message.make_response(asked, recursion_available=True)
        if found := table.get(name.to_text()):
            reply.answer.append(dns.rrset.from_text_list(name, 60, "IN", "SRV", found))
        else:
            reply.set_rcode(dns.rcode.NXDOMAIN)
        return reply.to_wire()

    return answer


def test_the_best_come_first_those_with_tls_before_all(serve: Callable[[Answer], None]) -> None:
    serve(
        records(
            {
                PLAIN: ["20 1 2379 c.", "10 1 2379 b.", "10 9 2380 a.example.", "0 0 1 ."],
                TLS: ["99 1 443 t."],
            }
        )
    )
    assert looked_up.discover_endpoints("example.org", soon()) == [
        EtcdEndpoint("t", 443, True),
        EtcdEndpoint("a.example", 2380, False),
        EtcdEndpoint("b", 2379, False),
        EtcdEndpoint("c", 2379, False),
    ]


def test_a_name_that_is_unknown(serve: Callable[[Answer], None]) -> None:
    serve(records({}))
    with pytest.raises(DatastoreUnavailable, match=r"neither _etcd-client-ssl\._tcp\.example\.org nor"):
        looked_up.discover_endpoints("example.org", soon())


def failing(query: bytes) -> bytes:
    reply = dns.message.make_response(dns.message.from_wire(query))
    reply.set_rcode(dns.rcode.SERVFAIL)
    return reply.to_wire()


def cut(query: bytes) -> bytes:
    return records({TLS: ["1 1 443 t."]})(query)[:-3]


def pointing_to_itself(query: bytes) -> bytes:
    return query[:2] + b"\x81\x80\0\0\0\1\0\0\0\0" + b"\xc0\x0c\0\x21\0\1\0\0\0\x3c\0\x08\0\1\0\2\x09\x4b\xc0\x0c"


@pytest.mark.parametrize("answer", [failing, cut, pointing_to_itself, lambda query: b"", lambda query: b"\xff" * 600])
def test_a_server_that_answers_nonsense(serve: Callable[[Answer], None], answer: Answer) -> None:
    serve(answer)
    with pytest.raises(DatastoreUnavailable, match=r"cannot look up _etcd-client-ssl\._tcp\.example\.org: ."):
        looked_up.discover_endpoints("example.org", soon())


@pytest.mark.parametrize("name", ["a..b", "x" * 64 + ".org", "a." * 200 + "org"])
def test_what_is_no_domain(serve: Callable[[Answer], None], name: str) -> None:
    serve(records({}))
    with pytest.raises(DatastoreUnavailable, match="cannot look up"):
        looked_up.discover_endpoints(name, soon())


def test_without_resolv_conf_the_local_server_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(looked_up, "RESOLV_CONF", str(tmp_path / "none"))
    assert [str(server) for server in looked_up.make_resolver().nameservers] == ["127.0.0.1"]
    (tmp_path / "none").write_text("# nameserver 9.9.9.9\nsearch a b\nnameserver 10.0.0.1\nnameserver fd00::1\n")
    assert [str(server) for server in looked_up.make_resolver().nameservers] == ["10.0.0.1", "fd00::1"]
