"""The server over real TLS sockets: who gets in, what a slow or hostile client can do, and what others notice of it."""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from cni_calico.daemon.stopping import Stopping
from cni_calico.datastore.http import Connection, render_head
from cni_calico.datastore.http import Server as Address
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.relayed.served import CUT_OFF_PATH, SERVED_IN
from cni_calico.deadline import Deadline
from cni_calico.log import Log
from cni_calico.model.access import API_GROUP, KubernetesAccess
from cni_calico.relay.admission import TokenReviews
from cni_calico.relay.connections import Limits, Listening
from cni_calico.relay.cut_off import CutOff
from cni_calico.relay.parts import server_context
from cni_calico.relay.server import RelayServer
from cni_calico.relay.serving import Offered
from cni_calico.relay.snapshots import RenderedLists
from cni_calico.relay.tokens import Accepted
from cni_calico.relay.watch_cache import WatchCache
from tests.deadlines import until
from tests.fakes.scripted_http import Scripted

USER = "system:serviceaccount:kube-system:calico-node"
NODES, SERVICES = "/api/v1/nodes", "/api/v1/services"


def node(number: int, version: int, size: int = 10) -> dict[str, Any]:
    return {"metadata": {"name": f"n{number}", "resourceVersion": str(version), "labels": {"l": "x" * size}}}


class Running:
    """A server without followers: the test says what happens."""

    def __init__(self, certificates: Path, reviews: Any, limits: Limits) -> None:
        self.certificates = certificates
        wake_fd = os.eventfd(0, os.EFD_NONBLOCK)

        def wake() -> None:
            os.eventfd_write(wake_fd, 1)

        self.cache = WatchCache(wake, lambda path, since, until: self.cache.no_older(path, since))
        for path in SERVED_IN[API_GROUP]:
            listed = self.cache.begin_list(path)
            if path == NODES:
                listed.receive(node(1, 90))
            listed.finish(100)
        listener = socket.create_server(("127.0.0.1", 0), backlog=200)
        self.port = int(listener.getsockname()[1])
        names = ("server.crt", "server.key", "ca.crt")
        tls = server_context(*(str(certificates / name) for name in names), wants_certificates=True)
        scripted = KubernetesAPI(KubernetesAccess(api_root=reviews.url if reviews else "http://127.0.0.1:1"))
        self.cut_off = CutOff(limits.cut_off_s)
        self.reviews = TokenReviews(scripted, Accepted(frozenset({USER})), wake)
        self.server = RelayServer(
            Offered(self.cache, RenderedLists(self.cache, wake), self.reviews, self.cut_off),
            Listening(listener, tls, ("typha-client", ""), limits),
            wake_fd,
            Log("error"),
        )
        self.stopping = Stopping()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while not self.stopping.is_set():
            self.server.step()

    def context(self, name: str = "client") -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.certificates / "ca.crt"))
        if name:
            context.load_cert_chain(self.certificates / f"{name}.crt", self.certificates / f"{name}.key")
        return context

    def connect(self, path: str, *, name: str = "client", token: str = "") -> tuple[Connection, int, dict[str, str]]:
        """A connection that has asked for ``path``, with the status and headers of its answer."""
        address = Address("127.0.0.1", self.port, tls=self.context(name))
        connection = Connection(address, Deadline.after(10))
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection.send(render_head(address, "GET", path, headers, 0), b"", Deadline.after(10))
        status, found = connection.read_head(Deadline.after(10))
        return connection, status, found

    def ask(self, path: str, *, name: str = "client", token: str = "") -> tuple[int, Any]:
        connection, status, headers = self.connect(path, name=name, token=token)
        body = connection.read_body(status, headers, Deadline.after(10))
        connection.close()
        return status, json.loads(body)

    def stop(self) -> None:
        self.stopping.set()
        self.thread.join(10)
        self.server.connections.close()


@contextmanager
def running(certificates: Path, reviews: Any = None, **limits: Any) -> Iterator[Running]:
    found = Running(certificates, reviews, Limits(**{"gather_s": 0.01, "bookmark_s": 0.2, **limits}))
    try:
        yield found
    finally:
        found.stop()


def events(connection: Connection) -> Iterator[Any]:
    for piece in connection.chunks(lambda: Deadline.after(10), None):
        for line in filter(None, piece.split(b"\n")):
            yield json.loads(line)


def test_a_certificate_with_the_right_name_gets_a_list_and_what_follows(certificates: Path) -> None:
    with running(certificates) as relay:
        status, listed = relay.ask(NODES)
        assert (status, listed["kind"], listed["metadata"]["resourceVersion"]) == (200, "NodeList", "100")
        assert [item["metadata"]["name"] for item in listed["items"]] == ["n1"]
        connection, status, _ = relay.connect(f"{NODES}?watch=1&resourceVersion=100")
        assert status == 200
        relay.cache.apply(NODES, "ADDED", node(2, 101))
        relay.cache.apply(NODES, "DELETED", node(1, 102))
        found = events(connection)
        first, second = next(found), next(found)
        assert (first["type"], first["object"]["metadata"]["name"], first["object"]["kind"]) == ("ADDED", "n2", "Node")
        assert (second["type"], second["object"]["metadata"]["resourceVersion"]) == ("DELETED", "102")
        connection.close()


def test_a_watch_tells_how_far_the_relay_is(certificates: Path) -> None:
    with running(certificates) as relay:
        connection, _, _ = relay.connect(f"{NODES}?watch=1&resourceVersion=100&allowWatchBookmarks=true")
        relay.cache.apply(NODES, "BOOKMARK", {"metadata": {"resourceVersion": "150"}})
        found = next(event for event in events(connection) if event["object"]["metadata"]["resourceVersion"] == "150")
        assert (found["type"], found["object"]["kind"]) == ("BOOKMARK", "Node")
        connection.close()


def test_a_relay_that_is_cut_off_vouches_for_nothing_and_serves_nobody(certificates: Path) -> None:
    with running(certificates, cut_off_s=0.0) as relay:
        places = f"from=/api/v1/nodes@100&from={SERVICES}@100"
        connection, _, _ = relay.connect(f"/relay/v1/watch?{places}")
        found = events(connection)
        assert {next(found)["path"] for _ in range(2)} == {NODES, SERVICES}
        relay.cut_off.tell(NODES, "it is gone")
        told = [event for event in islice(found, 12) if event["path"] != NODES]  # some bookmarks from before
        assert {event["path"] for event in told} == {SERVICES, CUT_OFF_PATH}
        why = "cut off from the API server: cannot follow /api/v1/nodes for 0 s: it is gone"
        assert {event["object"]["message"] for event in told if event["path"] == CUT_OFF_PATH} == {why}
        relay.cache.apply(SERVICES, "ADDED", {"metadata": {"name": "s", "resourceVersion": "101"}, "spec": {}})
        assert next(event for event in found if event["type"] == "ADDED")["path"] == SERVICES
        for path in (NODES, f"{SERVICES}?watch=1&resourceVersion=100", "/relay/v1/ready"):
            status, document = relay.ask(path)
            assert status == 503
            assert why in document["message"]
        relay.cut_off.tell(NODES, "")
        assert next(event for event in found if event["path"] == CUT_OFF_PATH and not event["object"]["message"])
        assert next(event for event in found if event["path"] == NODES)["type"] == "BOOKMARK"
        assert relay.server.streaming == 1
        connection.close()
        assert relay.ask(NODES)[0] == 200


def test_a_watch_that_cannot_be_told_ends_while_the_relay_is_cut_off(certificates: Path) -> None:
    with running(certificates, cut_off_s=0.0) as relay:
        connection, _, _ = relay.connect(f"{NODES}?watch=1&resourceVersion=100&allowWatchBookmarks=true")
        relay.cut_off.tell(SERVICES, "it is gone")
        assert all(event["type"] == "BOOKMARK" for event in events(connection))
        connection.close()
        assert relay.server.numbers.dropped["cut off"] == 1


def test_others_are_not_admitted(certificates: Path) -> None:
    answer = {"status": {"authenticated": True, "user": {"username": "system:serviceaccount:default:default"}}}
    with running(certificates) as relay:
        status, document = relay.ask(NODES, name="")
        assert (status, document["reason"]) == (401, "Unauthorized")
        status, document = relay.ask(NODES, name="other")  # of the right authority, but named typha-other
        assert status == 401
    reviews = Scripted([], always=(201, answer))
    with running(certificates, reviews) as relay:
        status, document = relay.ask(NODES, name="", token="t")
        assert status == 401
        assert "system:serviceaccount:default:default may not use this relay" in document["message"]
    reviews.close()


def test_a_token_is_reviewed_once(certificates: Path) -> None:
    answer = {"status": {"authenticated": True, "user": {"username": USER}}}
    reviews = Scripted([(201, answer)])
    with running(certificates, reviews) as relay:
        for _ in range(3):
            assert relay.ask(NODES, name="", token="secret")[0] == 200
        assert len(reviews.requests) == 1
        assert json.loads(reviews.requests[0][3])["spec"] == {"token": "secret"}
    reviews.close()


def test_a_past_that_nobody_remembers_is_gone(certificates: Path) -> None:
    with running(certificates) as relay:
        status, document = relay.ask(f"{NODES}?watch=1&resourceVersion=50")
        assert (status, document["reason"]) == (410, "Expired")
        assert document["details"]["causes"] == [{"reason": "Expired", "field": NODES}]


def test_a_version_that_is_not_reached_is_waited_for(certificates: Path) -> None:
    with running(certificates) as relay:
        status, document = relay.ask(f"{NODES}?resourceVersion=200")
        assert (status, document["reason"]) == (504, "Timeout")
        assert "Too large resource version: 200, current: 100" in document["message"]


def test_upstreams_felix_is_told_apart_and_dropped(certificates: Path) -> None:
    with running(certificates) as relay:
        plain = socket.create_connection(("127.0.0.1", relay.port))
        plain.sendall(b"\x3f\xff\x81\x03\x01\x01\x08envelope")  # gob without TLS
        plain.settimeout(10)
        with pytest.raises(OSError):
            while plain.recv(100):
                continue
            raise ConnectionError
        wrapped = relay.context().wrap_socket(
            socket.create_connection(("127.0.0.1", relay.port)), server_hostname="127.0.0.1"
        )
        wrapped.sendall(b"\x3f\xff\x81\x03\x01\x01\x08envelope")
        assert b"Typha's own protocol is not supported" in wrapped.recv(4096)
        until(lambda: relay.server.numbers.dropped.get("handshake") == 1)
        assert relay.ask(NODES)[0] == 200


def test_connections_that_ask_for_nothing_end_and_keep_nobody_out(certificates: Path) -> None:
    with running(certificates, unknown=10, handshake_s=0.5) as relay:
        idle = [socket.create_connection(("127.0.0.1", relay.port)) for _ in range(40)]
        until(lambda: relay.server.numbers.accepted == 40)
        assert len(relay.server.connections.unknown) <= 10
        assert relay.ask(NODES)[0] == 200
        until(lambda: not relay.server.connections.unknown)
        for each in idle:
            each.close()


def test_no_more_connections_than_the_limit(certificates: Path) -> None:
    with running(certificates, connections=3) as relay:
        watches = [relay.connect(f"{NODES}?watch=1&resourceVersion=100")[0] for _ in range(3)]
        until(lambda: relay.server.streaming == 3)
        with pytest.raises(OSError):
            relay.connect(NODES)
        watches.pop().close()
        until(lambda: relay.server.streaming == 2)
        assert relay.ask(NODES)[0] == 200
        for each in watches:
            each.close()


def test_a_client_that_does_not_read_is_dropped_and_delays_nobody(certificates: Path) -> None:
    with running(certificates, behind_bytes=2_000_000) as relay:
        slow, _, _ = relay.connect(f"{NODES}?watch=1&resourceVersion=100")
        quick, _, _ = relay.connect(f"{NODES}?watch=1&resourceVersion=100")
        until(lambda: relay.server.streaming == 2)
        found = events(quick)
        for number in range(400):
            large = {**node(1, 101 + number), "spec": {"podCIDRs": [f"10.0.{number % 200}.0/24"] * 1500}}
            relay.cache.apply(NODES, "MODIFIED", large)
            while next(found)["object"]["metadata"]["resourceVersion"] != str(101 + number):
                continue
        until(lambda: relay.server.numbers.dropped.get("behind") == 1)
        assert relay.server.streaming == 1
        slow.close()
        quick.close()


def test_what_is_asked_in_pieces_is_answered_and_a_head_without_end_is_not(certificates: Path) -> None:
    with running(certificates) as relay:
        wrapped = relay.context().wrap_socket(
            socket.create_connection(("127.0.0.1", relay.port)), server_hostname="127.0.0.1"
        )
        for byte in b"GET /api/v1/nodes HTTP/1.1\r\nHost: x\r\n\r\n":
            wrapped.sendall(bytes([byte]))
        assert wrapped.recv(100).startswith(b"HTTP/1.1 200 OK")
        wrapped.close()
        wrapped = relay.context().wrap_socket(
            socket.create_connection(("127.0.0.1", relay.port)), server_hostname="127.0.0.1"
        )
        wrapped.sendall(b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 10_000)
        assert b" 431 " in wrapped.recv(4096)
        wrapped.close()


def test_a_watch_ends_after_its_time(certificates: Path) -> None:
    with running(certificates) as relay:
        connection, _, _ = relay.connect(f"{NODES}?watch=1&resourceVersion=100&timeoutSeconds=1")
        assert list(events(connection)) == []
        connection.close()
        until(lambda: relay.server.streaming == 0)


def test_strangers_of_one_address_push_out_nobody_of_another(certificates: Path) -> None:
    """They may open as many connections as they like: theirs are dropped."""
    with running(certificates, unknown=20, handshake_s=60.0) as relay:
        patient = socket.create_connection(("127.0.0.1", relay.port), source_address=("127.0.0.2", 0))
        until(lambda: len(relay.server.connections.unknown) == 1)
        flood = [
            socket.create_connection(("127.0.0.1", relay.port), source_address=("127.6.6.6", 0)) for _ in range(60)
        ]
        until(lambda: relay.server.numbers.accepted == 61)
        assert len(relay.server.connections.unknown) <= 20
        wrapped = relay.context().wrap_socket(patient, server_hostname="127.0.0.1")
        wrapped.sendall(b"GET /api/v1/nodes HTTP/1.1\r\nHost: x\r\n\r\n")
        assert wrapped.recv(100).startswith(b"HTTP/1.1 200 OK")
        wrapped.close()
        for each in flood:
            each.close()
        until(lambda: not relay.server.connections.all)
        assert not relay.server.connections._unknown_of


def test_a_watch_ends_when_its_token_is_no_longer_accepted(certificates: Path) -> None:
    allowed = (201, {"status": {"authenticated": True, "user": {"username": USER}}})
    reviews = Scripted([], always=allowed)
    with running(certificates, reviews, watch_review_s=0.5) as relay:
        by_token, status, _ = relay.connect(f"{NODES}?watch=1&resourceVersion=100", name="", token="secret")
        by_certificate, _, _ = relay.connect(f"{NODES}?watch=1&resourceVersion=100")
        assert status == 200
        until(lambda: relay.server.streaming == 2)
        until(lambda: len(reviews.requests) >= 3)  # again and again
        assert relay.server.streaming == 2
        reviews.always = "close"  # the API server does not answer
        asked = len(reviews.requests)
        until(lambda: len(reviews.requests) > asked and relay.reviews.failed != "")
        assert relay.server.streaming == 2
        assert relay.ask(NODES, name="", token="secret")[0] == 200
        reviews.always = (201, {"status": {"authenticated": False}})
        assert list(events(by_token)) == []
        until(lambda: relay.server.streaming == 1)
        assert relay.server.numbers.dropped["revoked"] == 1
        by_token.close()
        by_certificate.close()
    reviews.close()
