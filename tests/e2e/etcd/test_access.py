"""Getting at etcd: endpoints that are dead, TLS, users, discovery, certificates that change."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from pathlib import Path

import grpc
import pytest

from cni_calico import faults
from cni_calico.datastore.etcd import dns as etcd_dns
from cni_calico.datastore.etcd.messages import pb
from cni_calico.datastore.etcd.store import EtcdConfig, EtcdStore
from cni_calico.datastore.interface import Reading, Versioned, Write
from cni_calico.deadline import Deadline
from cni_calico.errors import (
    Compacted,
    CorruptRecord,
    DatastoreDenied,
    DatastoreUnavailable,
    DatastoreUnsupported,
    DeadlineExceeded,
    OutcomeUnknown,
)
from cni_calico.model.keys import HandleKey, HandleList, etcd_path
from tests.contract import etcd_process
from tests.contract.backends import empty_etcd
from tests.e2e.etcd.certificates import make_authority
from tests.e2e.etcd.servers import (
    black_hole,
    forwarder_to,
    opened,
    refusing,
    silent_endpoint,
    tls_arguments,
    tls_config,
    with_login,
)

pytestmark = [
    pytest.mark.etcd,
    pytest.mark.skipif(etcd_process.etcd_binary() is None, reason="no etcd: run tests/setup/build-go-tools.sh"),
]

ONE, TWO = HandleKey("net.one"), HandleKey("net.two")


def took(began: float) -> float:
    return time.monotonic() - began


# -- endpoints ---------------------------------------------------------------------------------------------------------


def test_refused_connections_fail_at_once_and_name_the_endpoints(undo, within_a_minute) -> None:
    urls = (refusing(), refusing())
    store = opened(undo, EtcdConfig(urls))
    for call in (
        lambda: store.get(ONE, within_a_minute),
        lambda: store.list(HandleList(), within_a_minute),
        lambda: store.commit([Write.create(ONE, {})], within_a_minute),
    ):
        began = time.monotonic()
        with pytest.raises(DatastoreUnavailable, match="refused") as caught:
            call()
        assert not isinstance(caught.value, OutcomeUnknown)
        assert all(url in str(caught.value) for url in urls)
        assert took(began) < 5


@pytest.mark.parametrize("kind", [black_hole, silent_endpoint])
def test_three_endpoints_that_never_answer(undo, within_a_minute, kind) -> None:
    urls = tuple(kind(undo) for _ in range(3))
    store = opened(undo, EtcdConfig(urls))
    began = time.monotonic()
    with pytest.raises(DatastoreUnavailable, match="no answer") as caught:
        store.commit([Write.create(ONE, {})], within_a_minute)
    assert not isinstance(caught.value, OutcomeUnknown), "nothing can have been sent"
    assert all(url in str(caught.value) for url in urls)
    assert took(began) < 5
    began = time.monotonic()
    with pytest.raises((DatastoreUnavailable, DeadlineExceeded)):
        store.get(ONE, Deadline.after(0.3))
    assert took(began) < 2
    began = time.monotonic()
    failures: list[bool] = []

    def read() -> None:
        try:
            store.get(ONE, within_a_minute)
        except DatastoreUnavailable:
            failures.append(True)

    threads = [threading.Thread(target=read) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failures) == 16
    assert took(began) < 5, "threads must not wait for one another's attempts"


@pytest.mark.parametrize("kind", [black_hole, silent_endpoint])
def test_a_dead_endpoint_costs_one_bounded_attempt(undo, within_a_minute, plain, kind) -> None:
    store = opened(undo, EtcdConfig((kind(undo), refusing(), plain)))
    began = time.monotonic()
    store.commit([Write.put(ONE, {"n": 1})], within_a_minute)
    assert took(began) < 3
    began = time.monotonic()
    for _ in range(20):
        assert store.get(ONE, within_a_minute).value == {"n": 1}
    assert took(began) < 3


def test_host_names_and_ipv6(undo, within_a_minute) -> None:
    with etcd_process.single("::1") as server:
        port = server.urls[0].rpartition(":")[2]
        for url in (f"http://[::1]:{port}", f"[::1]:{port}/", f"http://localhost:{port}"):
            opened(undo, EtcdConfig((url,))).commit([Write.put(ONE, {"u": url})], within_a_minute)


def test_not_an_etcd(undo, within_a_minute) -> None:
    from concurrent.futures import ThreadPoolExecutor

    other = grpc.server(ThreadPoolExecutor(2))
    port = other.add_insecure_port("127.0.0.1:0")
    other.start()
    undo.callback(lambda: other.stop(None).wait())
    with pytest.raises(DatastoreUnsupported, match=f"127.0.0.1:{port}"):
        opened(undo, EtcdConfig((f"http://127.0.0.1:{port}",))).get(ONE, within_a_minute)


# -- TLS ---------------------------------------------------------------------------------------------------------------


def test_tls_with_a_client_certificate(undo, within_a_minute, authority, tls_server) -> None:
    port = tls_server.urls[0].rpartition(":")[2]
    for url in (tls_server.urls[0], f"https://localhost:{port}", f"127.0.0.1:{port}"):
        store = opened(undo, tls_config(authority, (url,)))
        store.commit([Write.put(ONE, {"u": url})], within_a_minute)
        assert store.get(ONE, within_a_minute).value == {"u": url}


def test_tls_over_ipv6(undo, within_a_minute, authority) -> None:
    with etcd_process.single("::1", tls_arguments(authority), "https") as server:
        opened(undo, tls_config(authority, server.urls)).commit([Write.put(ONE, {})], within_a_minute)


def test_tls_refusals_are_clear_and_quick(undo, within_a_minute, authority, tls_server, tmp_path) -> None:
    good = tls_config(authority, tls_server.urls)
    stranger = make_authority(tmp_path / "other", "other-ca")
    cert, key = stranger.issue("client", "client", "clientAuth")
    cases = {
        "unknown CA": EtcdConfig(good.endpoints, key_file=good.key_file, cert_file=good.cert_file,
                                 ca_file=str(stranger.certificate)),
        "no client certificate": EtcdConfig(good.endpoints, ca_file=good.ca_file),
        "a stranger's certificate": EtcdConfig(good.endpoints, key_file=str(key), cert_file=str(cert),
                                               ca_file=good.ca_file),
        "plain to a TLS port": EtcdConfig((good.endpoints[0].replace("https", "http"),)),
    }  # fmt: skip
    for name, config in cases.items():
        began = time.monotonic()
        with pytest.raises(DatastoreUnavailable) as caught:
            opened(undo, config).commit([Write.put(ONE, {})], within_a_minute)
        assert not isinstance(caught.value, OutcomeUnknown), name
        assert "127.0.0.1" in str(caught.value) and took(began) < 5, name
        assert "BEGIN" not in str(caught.value)


def test_a_server_with_another_name_is_refused(undo, within_a_minute, authority) -> None:
    arguments = tls_arguments(authority, "DNS:etcd.elsewhere")
    with etcd_process.single(arguments=arguments, scheme="https") as server, pytest.raises(DatastoreUnavailable):
        opened(undo, tls_config(authority, server.urls)).get(ONE, within_a_minute)


def test_missing_files_are_named(undo, within_a_minute, tmp_path) -> None:
    config = EtcdConfig(("https://127.0.0.1:1",), ca_file=str(tmp_path / "missing.crt"))
    with pytest.raises(DatastoreUnavailable, match=r"missing\.crt"):
        opened(undo, config).get(ONE, within_a_minute)


def test_certificates_are_read_again_when_they_change(
    undo, within_a_minute, authority, tls_server, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("cni_calico.datastore.etcd.cluster.FILES_S", 0.0)
    stranger = make_authority(tmp_path / "other", "other-ca")
    cert, key = (tmp_path / name for name in ("client.crt", "client.key"))

    def install(pair: tuple[Path, Path]) -> None:
        for source, target in zip(pair, (cert, key), strict=True):
            fresh = target.with_suffix(".new")
            fresh.write_bytes(source.read_bytes())
            fresh.rename(target)

    install(stranger.issue("client", "client", "clientAuth"))
    config = EtcdConfig(tls_server.urls, key_file=str(key), cert_file=str(cert), ca_file=str(authority.certificate))
    store = opened(undo, config)
    with pytest.raises(DatastoreUnavailable):
        store.get(ONE, within_a_minute)
    install(authority.issue("renewed", "client", "clientAuth"))
    store.commit([Write.put(ONE, {"n": 1})], within_a_minute)
    first = store._cluster._link
    assert store.get(ONE, within_a_minute) is not None and store._cluster._link is first
    install(authority.issue("renewed", "client", "clientAuth"))
    assert store.get(ONE, within_a_minute) is not None and store._cluster._link is not first


# -- users -------------------------------------------------------------------------------------------------------------


def test_user_and_password_survive_expired_tokens(undo, within_a_minute, secured_etcd) -> None:
    _, config = secured_etcd
    store = opened(undo, with_login(config, "calico", "pa55-w0rd"))
    store.commit([Write.put(ONE, {"n": 1})], within_a_minute)
    store._cluster._token = "expired.1"
    assert store.get(ONE, within_a_minute).value == {"n": 1}
    store._cluster._token = "expired.1"
    store.commit([Write.put(ONE, {"n": 2})], within_a_minute)
    revision = store.list(HandleList(), within_a_minute).revision
    with store.watch(HandleList(), revision) as watch:
        store._cluster._token = "expired.1"
        store.commit([Write.put(ONE, {"n": 3})], within_a_minute)
        assert watch.next(20)[0].value == {"n": 3}
    store._cluster._token = "expired.1"
    with store.watch(HandleList(), revision) as watch:
        assert watch.next(20)[0].value == {"n": 3}


def test_a_watch_that_is_given_up_leaves_the_link_alone(undo, within_a_minute, secured_etcd) -> None:
    """Others watch on it too, and calls go over it."""
    _, config = secured_etcd
    store = opened(undo, with_login(config, "calico", "pa55-w0rd"))
    revision = store.list(HandleList(), within_a_minute).revision
    link = store._cluster._link
    before = set(threading.enumerate())
    for n in range(20):
        with store.watch(HandleList(), revision) as watch:
            store.commit([Write.put(ONE, {"n": n})], within_a_minute)
            assert watch.next(20)
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
    assert store._cluster._link is link and not link.broken


def test_logs_in_again_after_the_server_was_restarted(undo, within_a_minute, secured_etcd) -> None:
    server, config = secured_etcd
    store = opened(undo, with_login(config, "calico", "pa55-w0rd"))
    store.commit([Write.put(ONE, {"n": 1})], within_a_minute)
    [member] = server.members
    member.stop()
    with pytest.raises(DatastoreUnavailable):
        store.get(ONE, within_a_minute)
    member.start(server.initial, "existing")
    member.wait_serving()
    assert store.get(ONE, within_a_minute).value == {"n": 1}


def test_users_known_by_their_certificate(undo, within_a_minute, authority, secured_etcd) -> None:
    server, _ = secured_etcd
    opened(undo, tls_config(authority, server.urls, "calico-cn")).commit([Write.put(TWO, {"n": 1})], within_a_minute)


def test_refused_users_are_told_without_their_password(undo, within_a_minute, authority, secured_etcd) -> None:
    server, config = secured_etcd
    for name, refused in {
        "wrong password": with_login(config, "calico", "wr0ng-w0rd"),
        "unknown user": with_login(config, "nobody", "wr0ng-w0rd"),
        "no permission": tls_config(authority, server.urls, "other-cn"),
        "certificate of nobody": config,
    }.items():
        store = opened(undo, refused)
        for call in (lambda s: s.get(ONE, within_a_minute), lambda s: s.commit([Write.put(ONE, {})], within_a_minute)):
            with pytest.raises(DatastoreDenied) as caught:
                call(store)
            assert "wr0ng" not in str(caught.value) + repr(caught.value) + repr(refused), name
    denied = opened(undo, tls_config(authority, server.urls, "other-cn"))
    with denied.watch(HandleList(), 1) as watch, pytest.raises(DatastoreDenied):
        watch.next(20)


def test_a_login_where_none_is_needed(undo, within_a_minute, plain) -> None:
    store = opened(undo, EtcdConfig((plain,), username="calico", password="pa55-w0rd"))
    for n in range(3):
        store.commit([Write.put(ONE, {"n": n})], within_a_minute)
    assert store.round_trips.by_operation["Authenticate"] == 1


# -- discovery ---------------------------------------------------------------------------------------------------------


class NameServer(threading.Thread):
    """Answers SRV queries from a table, over UDP and TCP."""

    def __init__(self, table: dict[str, list[tuple[int, int, int, str]]], *, truncate: bool = False) -> None:
        super().__init__(daemon=True)
        self.table = table
        self.truncate = truncate
        self.udp, self.tcp = socket.socket(type=socket.SOCK_DGRAM), socket.socket()
        [self.port] = etcd_process.free_ports(1)
        self.tcp.bind(("127.0.0.1", self.port))
        self.udp.bind(("127.0.0.1", self.port))
        self.tcp.listen()
        self.start()
        threading.Thread(target=self.serve_tcp, daemon=True).start()

    def answer(self, query: bytes) -> bytes:
        at, labels = 12, []
        while query[at]:
            labels.append(query[at + 1 : at + 1 + query[at]].decode())
            at += 1 + query[at]
        records = self.table.get(".".join(labels), [])
        body = b""
        for priority, weight, port, target in records:
            name = b"".join(bytes([len(x)]) + x.encode() for x in target.split(".")) + b"\0"
            data = struct.pack("!3H", priority, weight, port) + name
            body += b"\xc0\x0c" + struct.pack("!HHIH", 33, 1, 60, len(data)) + data
        flags = 0x8180 if records else 0x8183
        return query[:2] + struct.pack("!5H", flags, 1, len(records), 0, 0) + query[12 : at + 5] + body

    def run(self) -> None:
        while True:
            try:
                query, sender = self.udp.recvfrom(512)
            except OSError:
                return
            answer = self.answer(query)
            if self.truncate:
                answer = answer[:2] + b"\x83\x80\0\1\0\0\0\0\0\0" + query[12:]
            self.udp.sendto(answer, sender)

    def serve_tcp(self) -> None:
        while True:
            try:
                connection, _ = self.tcp.accept()
            except OSError:
                return
            with connection:
                query = connection.recv(512)[2:]
                answer = self.answer(query)
                connection.sendall(struct.pack("!H", len(answer)) + answer)

    def close(self) -> None:
        for s in (self.udp, self.tcp):
            s.shutdown(socket.SHUT_RDWR) if s is self.tcp else None
            s.close()


@pytest.fixture
def name_server(undo, tmp_path, monkeypatch):
    def start(table, **options) -> NameServer:
        server = NameServer(table, **options)
        undo.callback(server.close)
        conf = tmp_path / "resolv.conf"
        conf.write_text("search example\nnameserver 127.0.0.1\n")
        monkeypatch.setattr(etcd_dns, "RESOLV_CONF", str(conf))
        monkeypatch.setattr(etcd_dns, "PORT", server.port)
        return server

    return start


@pytest.mark.parametrize("truncate", [False, True])
def test_discovery_finds_the_cluster(undo, within_a_minute, plain, name_server, truncate) -> None:
    port = int(plain.rpartition(":")[2])
    dead = etcd_process.free_ports(1)[0]
    table = {"_etcd-client._tcp.cluster.example": [(10, 1, dead, "127.0.0.1"), (1, 1, port, "localhost")]}
    name_server(table, truncate=truncate)
    store = opened(undo, EtcdConfig(discovery_srv="cluster.example"))
    store.commit([Write.put(ONE, {"n": 1})], within_a_minute)
    assert store.identity == "etcdv3:srv:cluster.example"


def test_discovery_with_tls(undo, within_a_minute, authority, tls_server, name_server) -> None:
    port = int(tls_server.urls[0].rpartition(":")[2])
    name_server({"_etcd-client-ssl._tcp.cluster.example": [(1, 1, port, "localhost")]})
    good = tls_config(authority, ())
    config = EtcdConfig((), "cluster.example", good.key_file, good.cert_file, good.ca_file)
    opened(undo, config).commit([Write.put(ONE, {})], within_a_minute)


def test_discovery_that_finds_nothing(undo, within_a_minute, name_server, monkeypatch) -> None:
    name_server({})
    store = opened(undo, EtcdConfig(discovery_srv="cluster.example"))
    with pytest.raises(DatastoreUnavailable, match=r"_etcd-client-ssl\._tcp\.cluster\.example"):
        store.get(ONE, within_a_minute)
    monkeypatch.setattr(etcd_dns, "PORT", etcd_process.free_ports(1)[0])
    began = time.monotonic()
    with pytest.raises(DatastoreUnavailable, match="cannot look up"):
        opened(undo, EtcdConfig(discovery_srv="cluster.example")).get(ONE, within_a_minute)
    assert took(began) < 5


# -- what is particular to etcd as a store -----------------------------------------------------------------------------


@pytest.fixture
def etcd_store(undo, plain) -> EtcdStore:
    made = opened(undo, EtcdConfig((plain,)))
    empty_etcd(made)
    return made


def test_corrupt_records_are_named_and_kept(etcd_store, within_a_minute) -> None:
    [one, _] = etcd_store.commit([Write.create(ONE, {"n": 1}), Write.create(TWO, {"n": 2})], within_a_minute).stored
    put = pb.RequestOp(request_put=pb.PutRequest(key=etcd_path(ONE).encode(), value=b'{"n": '))
    revision = etcd_store.list(HandleList(), within_a_minute).revision
    etcd_store._cluster.write("Txn", pb.TxnRequest(success=[put]), "spoil", within_a_minute)
    heard: list = []
    etcd_store.corrupt = lambda key, why: heard.append(key)
    for write in (Write.create(ONE, {}), Write.update(one, {}), Write.put(ONE, {}), Write.delete(one)):
        with pytest.raises(CorruptRecord, match=r"handle/net\.one"):
            etcd_store.commit([write, Write.update(etcd_store.get(TWO, within_a_minute), {"n": 3})], within_a_minute)
    with pytest.raises(CorruptRecord):
        etcd_store.get(ONE, within_a_minute)
    assert [v.value for v in etcd_store.list(HandleList(), within_a_minute).items] == [{"n": 2}] and heard == [ONE]
    with etcd_store.watch(HandleList(), revision) as watch:
        assert [(e.key, e.value) for e in watch.next(20)] == [(ONE, None)]
    etcd_store.commit([Write.remove(ONE)], within_a_minute)
    assert etcd_store.get(ONE, within_a_minute) is None


def test_compaction_is_told(etcd_store, within_a_minute) -> None:
    first = etcd_store.commit([Write.put(ONE, {"n": 1})], within_a_minute).revision
    last = etcd_store.commit([Write.put(ONE, {"n": 2})], within_a_minute).revision
    etcd_store._cluster.read("Compact", pb.CompactionRequest(revision=last, physical=True), "compact", within_a_minute)
    with pytest.raises(Compacted):
        etcd_store.list(HandleList(), within_a_minute, revision=first)
    for revision in (first - 1, last + 1000):
        with etcd_store.watch(HandleList(), revision) as watch, pytest.raises(Compacted):
            watch.next(20)
    assert etcd_store.list(HandleList(), within_a_minute, revision=last).items[0].value == {"n": 2}


def test_long_lists_come_in_pages_of_one_moment(etcd_store, within_a_minute, monkeypatch) -> None:
    monkeypatch.setattr("cni_calico.datastore.etcd.store.PAGE", 7)
    for start in (0, 25):
        etcd_store.commit(
            [Write.put(HandleKey(f"net.{i:03}"), {"n": 1}) for i in range(start, start + 25)], within_a_minute
        )
    other = EtcdStore(etcd_store._cluster._config)
    real = etcd_store._cluster.read
    pages: list = []

    def read(name, request, *arguments, **options):
        answer = real(name, request, *arguments, **options)
        pages.append(len(answer.kvs))
        other.commit([Write.put(HandleKey("net.049"), {"n": 2}), Write.remove(HandleKey("net.048"))], within_a_minute)
        return answer

    monkeypatch.setattr(etcd_store._cluster, "read", read)
    listing = etcd_store.list(HandleList(), within_a_minute)
    other.close()
    assert pages == [7] * 7 + [1]
    assert [v.value for v in listing.items] == [{"n": 1}] * 50
    assert {v.key for v in listing.items} == {HandleKey(f"net.{i:03}") for i in range(50)}


def test_a_connection_that_breaks_within_a_list(undo, within_a_minute, plain, monkeypatch) -> None:
    """The rest is read on another connection, as of the same moment."""
    monkeypatch.setattr("cni_calico.datastore.etcd.store.PAGE", 7)
    way = forwarder_to(plain)
    undo.callback(way.close)
    store, other = opened(undo, EtcdConfig((way.url,))), opened(undo, EtcdConfig((plain,)))
    empty_etcd(other)
    other.commit([Write.put(HandleKey(f"net.{i:03}"), {"n": 1}) for i in range(20)], within_a_minute)
    ended: set[socket.socket] = set()

    def break_it(found: Versioned) -> Versioned:
        ended.update(way._open)
        other.commit([Write.remove(HandleKey("net.019"))], within_a_minute)
        way.drop()
        return found

    listing = store.list(HandleList(), within_a_minute, reading=Reading(each=break_it))
    assert len(listing.items) == 20
    assert len(ended) >= 4, "each page came on a connection, with two ends, of its own"


def test_a_proxy_of_etcds_own(undo, within_a_minute, plain) -> None:
    with etcd_process.grpc_proxy(plain) as url:
        store, direct = opened(undo, EtcdConfig((url,))), opened(undo, EtcdConfig((plain,)))
        empty_etcd(direct)
        store.commit([Write.put(ONE, {"n": 1})], within_a_minute)
        assert store.get(ONE, within_a_minute) == direct.get(ONE, within_a_minute)
        assert store.list(HandleList(), within_a_minute) == direct.list(HandleList(), within_a_minute)


def test_faults(etcd_store, within_a_minute, undo) -> None:
    undo.callback(faults.install, None)
    faults.install(faults.FaultPlan("etcd.commit:before:1:fail,etcd.commit:after:1:fail,etcd.read:before:2:fail"))
    with pytest.raises(DatastoreUnavailable) as caught:
        etcd_store.commit([Write.create(ONE, {"n": 1})], within_a_minute)
    assert not isinstance(caught.value, OutcomeUnknown) and etcd_store.get(ONE, within_a_minute) is None
    with pytest.raises(DatastoreUnavailable):
        etcd_store.get(ONE, within_a_minute)
    with pytest.raises(OutcomeUnknown):
        etcd_store.commit([Write.create(ONE, {"n": 2})], within_a_minute)
    assert etcd_store.get(ONE, within_a_minute).value == {"n": 2}


def test_too_large_a_record_is_refused(etcd_store, within_a_minute) -> None:
    with pytest.raises(Exception, match="too large") as caught:
        etcd_store.commit([Write.create(ONE, {"x": "y" * 2_000_000})], within_a_minute)
    assert not isinstance(caught.value, OutcomeUnknown)
    assert etcd_store.get(ONE, within_a_minute) is None


def test_a_forked_child_is_told(etcd_store, within_a_minute) -> None:
    etcd_store.get(ONE, within_a_minute)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            etcd_store.get(ONE, within_a_minute)
        except DatastoreUnavailable:
            etcd_store.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert etcd_store.get(ONE, within_a_minute) is None


def test_a_closed_store_is_unavailable(etcd_store, within_a_minute) -> None:
    etcd_store.get(ONE, within_a_minute)
    etcd_store.close()
    with pytest.raises(DatastoreUnavailable, match="closed"):
        etcd_store.get(ONE, within_a_minute)


def test_a_write_whose_answer_is_lost_is_unknown(undo, within_a_minute, plain, monkeypatch) -> None:
    """The member takes the write and never answers: a proxy that swallows what comes back."""
    monkeypatch.setattr("cni_calico.datastore.etcd.cluster.WRITE_S", 0.5)
    proxy = forwarder_to(plain)
    undo.callback(proxy.close)
    store = opened(undo, EtcdConfig((proxy.url, plain)))
    empty_etcd(store)
    assert store.get(ONE, within_a_minute) is None
    proxy.swallow = True
    with pytest.raises(OutcomeUnknown, match=proxy.url):
        store.commit([Write.create(ONE, {"n": 1})], within_a_minute)
    assert store.get(ONE, within_a_minute).value == {"n": 1}, "it was applied, and another endpoint says so"
