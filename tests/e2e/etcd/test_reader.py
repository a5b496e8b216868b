"""Reading a little: without gRPC's library where that is possible, and as the store reads where it is not."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack

import pytest

from cni_calico.datastore.etcd import http2, light, reads
from cni_calico.datastore.etcd.config import EtcdConfig
from cni_calico.datastore.etcd.messages import pb
from cni_calico.datastore.etcd.reader import EtcdReader
from cni_calico.datastore.interface import Reading, Versioned, Write
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, CorruptRecord, DatastoreUnavailable
from cni_calico.model.keys import HandleKey, HandleList, etcd_path
from tests.conftest import ROOT
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


@pytest.fixture
def patient(monkeypatch) -> None:
    """A busy machine is no reason to leave the short way."""
    monkeypatch.setattr(light, "CONNECT_S", 5.0)
    monkeypatch.setattr(light, "ANSWER_S", 60.0)


def reader_of(undo: ExitStack, config: EtcdConfig) -> EtcdReader:
    made = EtcdReader(config)
    undo.callback(made.close)
    return made


def require_short(undo: ExitStack, config: EtcdConfig, writer: EtcdConfig | None = None) -> None:
    """A reader finds what is there, and nothing, by the short way."""
    store = opened(undo, writer or config)
    empty_etcd(store)
    store.commit([Write.put(ONE, {"n": 1})], Deadline.after(60))
    reader = reader_of(undo, config)
    assert reader.get(ONE, Deadline.after(60)) == store.get(ONE, Deadline.after(60))
    assert reader.get(TWO, Deadline.after(60)) is None
    assert reader.list(HandleList(), Deadline.after(60)) == store.list(HandleList(), Deadline.after(60))
    assert reader._store is None, "it needed gRPC"


# -- where the short way leads to an answer ----------------------------------------------------------------------------


@pytest.mark.parametrize("dead", [None, refusing, black_hole])
def test_without_tls(undo, patient, plain, dead) -> None:
    others = () if dead is None else (dead(undo) if dead is black_hole else dead(),)
    require_short(undo, EtcdConfig((*others, plain)), EtcdConfig((plain,)))


def test_names_and_ipv6(undo, patient, plain) -> None:
    require_short(undo, EtcdConfig((plain.replace("127.0.0.1", "localhost"),)))
    with etcd_process.single("::1") as server:
        port = server.urls[0].rpartition(":")[2]
        for url in (f"http://[::1]:{port}", f"[::1]:{port}/"):
            require_short(undo, EtcdConfig((url,)))


def test_a_client_certificate(undo, patient, authority, tls_server) -> None:
    port = tls_server.urls[0].rpartition(":")[2]
    for url in (tls_server.urls[0], f"https://localhost:{port}", f"127.0.0.1:{port}"):
        require_short(undo, tls_config(authority, (url,)))


def test_a_proxy_of_etcds_own(undo, patient, plain) -> None:
    with etcd_process.grpc_proxy(plain) as url:
        require_short(undo, EtcdConfig((url,)), EtcdConfig((plain,)))


@pytest.mark.parametrize("known_by", ["password", "certificate"])
def test_users(undo, patient, authority, secured_etcd, known_by) -> None:
    server, config = secured_etcd
    if known_by == "password":
        require_short(undo, with_login(config, "calico", "pa55-w0rd"))
    else:
        require_short(undo, tls_config(authority, server.urls, "calico-cn"))


def test_long_lists_come_in_pages_of_one_moment(undo, patient, within_a_minute, plain, monkeypatch) -> None:
    monkeypatch.setattr(reads, "PAGE", 7)
    store, reader = opened(undo, EtcdConfig((plain,))), reader_of(undo, EtcdConfig((plain,)))
    empty_etcd(store)
    store.commit([Write.put(HandleKey(f"net.{i:03}"), {"n": 1}) for i in range(50)], within_a_minute)
    pages = []
    real = reader.ask

    def ask(span, doing, deadline):
        page = real(span, doing, deadline)
        pages.append(len(page.records))
        store.commit([Write.put(HandleKey("net.049"), {"n": 2}), Write.remove(HandleKey("net.048"))], within_a_minute)
        return page

    monkeypatch.setattr(reader, "ask", ask)
    listing = reader.list(HandleList(), within_a_minute)
    assert pages == [7] * 7 + [1]
    assert [(v.key, v.value) for v in listing.items] == [(HandleKey(f"net.{i:03}"), {"n": 1}) for i in range(50)]
    assert reader._store is None


def test_an_answer_of_many_frames(undo, patient, within_a_minute, plain) -> None:
    """Larger than the windows that HTTP/2 begins with."""
    store = opened(undo, EtcdConfig((plain,)))
    empty_etcd(store)
    texts = {f"net.{i}": "x" * 500_000 for i in range(6)}
    for name, text in texts.items():
        store.commit([Write.put(HandleKey(name), {"text": text})], within_a_minute)
    reader = reader_of(undo, EtcdConfig((plain,)))
    assert 40 * http2.FIRST_WINDOW < 6 * 500_000
    for _ in range(2):
        listing = reader.list(HandleList(), within_a_minute)
        assert {v.key.handle_id: v.value["text"] for v in listing.items} == texts
    assert reader._store is None


def test_corrupt_records_are_named(undo, patient, within_a_minute, plain) -> None:
    store, reader = opened(undo, EtcdConfig((plain,))), reader_of(undo, EtcdConfig((plain,)))
    empty_etcd(store)
    store.commit([Write.put(TWO, {"n": 1})], within_a_minute)
    put = pb.RequestOp(request_put=pb.PutRequest(key=etcd_path(ONE).encode(), value=b"{broken"))
    store.cluster.write("Txn", pb.TxnRequest(success=[put]), "spoil", within_a_minute)
    told = []
    reader.corrupt = lambda key, why: told.append(key)
    assert [v.key for v in reader.list(HandleList(), within_a_minute).items] == [TWO]
    assert told == [ONE]
    with pytest.raises(CorruptRecord, match=r"net\.one"):
        reader.get(ONE, within_a_minute)
    assert reader._store is None


@pytest.mark.parametrize("command", [["get", "nodes"], ["get", "ippools", "-o", "yaml"], ["ipam", "show"]])
def test_a_short_command_imports_no_grpc(plain, command) -> None:
    program = (
        "import sys; from cni_calico.ctl.main import run; from cni_calico.datastore.etcd import light; "
        "light.CONNECT_S = light.ANSWER_S = 60.0; "
        f"status = run({command!r}, {{'DATASTORE_TYPE': 'etcdv3', 'ETCD_ENDPOINTS': {plain!r}}}); "
        "sys.exit(status or bool({'grpc', 'google.protobuf', 'ssl', 'dns'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# -- where it does not -------------------------------------------------------------------------------------------------


def test_what_is_wrong_is_told_as_the_store_tells_it(undo, authority, secured_etcd, tls_server, tmp_path) -> None:
    server, secured = secured_etcd
    good = tls_config(authority, tls_server.urls)
    stranger = make_authority(tmp_path / "other", "other-ca")
    cases = {
        "refused": EtcdConfig((refusing(), refusing())),
        "silent": EtcdConfig((silent_endpoint(undo),)),
        "dropped": EtcdConfig((black_hole(undo),)),
        "plain to a TLS port": EtcdConfig((good.endpoints[0].replace("https", "http"),)),
        "no client certificate": EtcdConfig(good.endpoints, ca_file=good.ca_file),
        "unknown CA": EtcdConfig(
            good.endpoints, key_file=good.key_file, cert_file=good.cert_file, ca_file=str(stranger.certificate)
        ),
        "missing file": EtcdConfig(good.endpoints, ca_file=str(tmp_path / "missing.crt")),
        "no certificate in a file": EtcdConfig(good.endpoints, ca_file=good.key_file),
        "wrong password": with_login(secured, "calico", "wr0ng-w0rd"),
        "a certificate of nobody": secured,
        "no permission": tls_config(authority, server.urls, "other-cn"),
    }
    for name, config in cases.items():
        told = []
        for made in (opened(undo, config), reader_of(undo, config)):
            with pytest.raises(CalicoError) as caught:
                made.list(HandleList(), Deadline.after(60))
            # the reason in brackets is gRPC's, which may word the same failure differently the next time
            told.append((type(caught.value), str(caught.value).partition(" (")[0], caught.value.details))
        assert told[0] == told[1], name


def test_a_server_with_another_name_is_refused(undo, within_a_minute, authority) -> None:
    arguments = tls_arguments(authority, "DNS:etcd.elsewhere")
    with etcd_process.single(arguments=arguments, scheme="https") as server, pytest.raises(DatastoreUnavailable):
        reader_of(undo, tls_config(authority, server.urls)).get(ONE, within_a_minute)


def test_a_login_where_none_is_needed(undo, within_a_minute, plain) -> None:
    reader = reader_of(undo, EtcdConfig((plain,), username="calico", password="pa55-w0rd"))
    store = opened(undo, EtcdConfig((plain,)))
    assert reader.list(HandleList(), within_a_minute) == store.list(HandleList(), within_a_minute)


def test_a_member_without_the_others(undo, within_a_minute, tmp_path) -> None:
    """It takes connections, and has nothing to say that all have agreed on."""
    client, peer, other_client, other_peer = etcd_process.free_ports(4)
    members = [
        etcd_process.Member(name, f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}", tmp_path)
        for name, ports in {"one": (client, peer), "two": (other_client, other_peer)}.items()
    ]
    with etcd_process.Cluster(members, tmp_path) as cluster:
        config = EtcdConfig(cluster.urls[:1])
        members[1].stop()
        reader = reader_of(undo, config)
        with pytest.raises(DatastoreUnavailable):
            reader.list(HandleList(), within_a_minute)


def test_a_connection_that_breaks_within_a_list(undo, patient, within_a_minute, plain, monkeypatch) -> None:
    """gRPC reads the rest, as of the same moment."""
    monkeypatch.setattr(reads, "PAGE", 7)
    way = forwarder_to(plain)
    undo.callback(way.close)
    store, reader = opened(undo, EtcdConfig((plain,))), reader_of(undo, EtcdConfig((way.url,)))
    empty_etcd(store)
    store.commit([Write.put(HandleKey(f"net.{i:03}"), {"n": 1}) for i in range(20)], within_a_minute)

    def break_it(found: Versioned) -> Versioned:
        store.commit([Write.remove(HandleKey("net.019"))], within_a_minute)
        way.drop()
        return found

    listing = reader.list(HandleList(), within_a_minute, reading=Reading(each=break_it))
    assert len(listing.items) == 20
    assert reader._store is not None, "nothing broke"


def test_it_writes_and_watches_as_the_store_does(undo, within_a_minute, plain) -> None:
    reader = reader_of(undo, EtcdConfig((plain,)))
    empty_etcd(opened(undo, EtcdConfig((plain,))))
    revision = reader.list(HandleList(), within_a_minute).revision
    with reader.watch(HandleList(), revision) as watch:
        reader.commit([Write.create(ONE, {"n": 1})], within_a_minute)
        [event] = watch.next(60)
    assert (event.key, event.value) == (ONE, {"n": 1})
    assert reader.get(ONE, within_a_minute).value == {"n": 1}
    assert reader.get_many([TWO, ONE], within_a_minute)[1].value == {"n": 1}


def test_a_closed_one_is_unavailable(undo, within_a_minute, plain) -> None:
    reader = reader_of(undo, EtcdConfig((plain,)))
    reader.get(ONE, within_a_minute)
    reader.close()
    with pytest.raises(DatastoreUnavailable, match="closed"):
        reader.get(ONE, within_a_minute)
