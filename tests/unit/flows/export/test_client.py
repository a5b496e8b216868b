"""The stream to a collector: against one that behaves as upstream's, over TLS, with restarts and repetitions."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cni_calico.backoff import Backoff
from cni_calico.flows.export import client as module
from cni_calico.flows.export.channels import open_local, open_server
from cni_calico.flows.export.client import CollectorClient, NotExported
from cni_calico.flows.export.intervals import ExportedFlow
from cni_calico.flows.export.keys import EndType, ExportKey, FlowAction, FlowEnd, HitKind, PolicyHit, ReportingSide
from cni_calico.flows.export.messages import decode_update
from cni_calico.flows.export.outbox import UNANSWERED
from cni_calico.flows.export.wanted import Target
from cni_calico.log import SILENT, Log
from tests.deadlines import until
from tests.e2e.etcd.certificates import Authority, make_authority
from tests.fakes.goldmane import FakeCollector

HIT = PolicyHit(HitKind.CALICO, "shop", "db", "default", FlowAction.ALLOW, 0)
SOURCE = FlowEnd(EndType.WORKLOAD, "shop", "web-7d9-*")


def flow(number: int, time: int = 1000) -> ExportedFlow:
    destination = FlowEnd(EndType.WORKLOAD, "shop", f"db-{number}")
    key = ExportKey(SOURCE, destination, 5432, "tcp", ReportingSide.DESTINATION, FlowAction.ALLOW, (HIT,))
    return ExportedFlow(key, time, (), (), 1, 1, 60, 60, 1, 1, 0)


def flows(count: int, time: int = 1000) -> list[ExportedFlow]:
    return [flow(number, time) for number in range(count)]


@contextmanager
def running(open_channel: Callable[[Any], Any], log: Log = SILENT, **more: Any) -> Iterator[CollectorClient]:
    client = CollectorClient("goldmane", open_channel, log, pauses=Backoff(0.02, 0.05), **more)
    thread = threading.Thread(target=client.run)
    thread.start()
    try:
        yield client
    finally:
        client.stop()
        thread.join(20)
        assert not thread.is_alive()


def plain(port: int) -> Callable[[Any], Any]:
    return lambda grpc: open_server(grpc, Target(f"127.0.0.1:{port}"))


def interrupt(client: CollectorClient) -> None:
    stream = client._stream
    assert stream is not None
    stream.call.cancel()


def wait_received(client: CollectorClient, count: int) -> None:
    until(lambda: client.outbox.received == count and not len(client.outbox), f"{count} are acknowledged")


def test_each_update_arrives_once(collector: FakeCollector) -> None:
    with running(plain(collector.port)) as client:
        client.offer(flows(700))
        wait_received(client, 700)
        assert client.connected and not client.trouble and client.outbox.lost == 0
    assert [decode_update(data).Key.dest_name for data in collector.updates] == [f"db-{n}" for n in range(700)]
    assert len(collector.peers) == 1 and collector.repeated == 0


def test_so_many_may_be_without_receipt_and_no_more(collector: FakeCollector) -> None:
    collector.answering.clear()
    with running(plain(collector.port)) as client:
        client.offer(flows(UNANSWERED + 50))
        until(lambda: client.outbox.unanswered == UNANSWERED, "the limit is reached")
        assert len(client.outbox) == UNANSWERED + 50 and client.outbox.received == 0
        collector.answering.set()
        wait_received(client, UNANSWERED + 50)


def test_an_update_that_no_message_can_hold_is_lost_and_stops_no_other(collector: FakeCollector) -> None:
    strange = flow(1)._replace(source_labels=("a=\ud800",))
    large = flow(2)._replace(bytes_in=1 << 63)
    with running(plain(collector.port)) as client:
        client.offer([flow(0), strange, large, flow(3)])
        wait_received(client, 2)
        assert client.outbox.lost == 2
    assert [decode_update(data).Key.dest_name for data in collector.updates] == ["db-0", "db-3"]
    assert len(collector.peers) == 1


def test_an_interrupted_stream_sends_again_only_what_has_no_receipt(collector: FakeCollector) -> None:
    with running(plain(collector.port)) as client:
        client.offer(flows(20))
        wait_received(client, 20)
        collector.answering.clear()
        client.offer(flows(5, time=1015))
        until(lambda: len(collector.updates) == 21, "one more has arrived")
        interrupt(client)
        collector.answering.set()
        wait_received(client, 25)
    seen = [decode_update(data) for data in collector.updates]
    assert sum(one.start_time == 1000 for one in seen) == 20
    assert {one.Key.dest_name for one in seen if one.start_time == 1015} == {f"db-{n}" for n in range(5)}
    assert len(collector.peers) == 2


def test_a_collector_that_starts_again_gets_the_last_minutes(collector: FakeCollector) -> None:
    again = None
    with running(plain(collector.port)) as client:
        client.offer(flows(20))
        wait_received(client, 20)
        collector.stop()
        until(lambda: "refused" in client.trouble.lower(), "it is refused")
        client.offer(flows(3, time=1015))
        again = FakeCollector(collector.port)
        try:
            wait_received(client, 43)
            assert again.connections == Counter({f"db-{n}": 2 if n < 3 else 1 for n in range(20)})
            assert again.repeated == 0
        finally:
            again.stop()


def test_a_collector_that_was_away_for_long_counts_as_new(collector: FakeCollector) -> None:
    now = [0.0]
    away = threading.Event()

    def channel(grpc: Any) -> Any:
        if away.is_set():
            raise NotExported("away")
        return plain(collector.port)(grpc)

    with running(channel, clock=lambda: now[0]) as client:
        client.offer(flows(4))
        wait_received(client, 4)
        away.set()
        interrupt(client)
        until(lambda: client.trouble == "away", "it is away")
        now[0] += module.NEW_AFTER_S + 1
        away.clear()
        wait_received(client, 8)
    assert len(collector.peers) == 2 and collector.repeated == 0


def test_a_stream_without_answers_is_given_up(collector: FakeCollector) -> None:
    now = [0.0]
    collector.answering.clear()
    with running(plain(collector.port), clock=lambda: now[0]) as client:
        client.offer(flows(2))
        until(lambda: len(collector.updates) >= 1, "one has arrived")
        client.tend()
        assert client.connected and len(collector.peers) == 1
        now[0] += module.STALLED_S + 1
        client.tend()
        until(lambda: len(collector.peers) > 1, "another stream is tried")
        collector.answering.set()
        wait_received(client, 2)


# -- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def goldmane_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return make_authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def tls_files(goldmane_authority: Authority) -> dict[str, Path]:
    certificate, key = goldmane_authority.issue("server", "goldmane", "serverAuth", "DNS:localhost")
    mine, my_key = goldmane_authority.issue("client", "felix", "clientAuth")
    return {
        "server": certificate,
        "server-key": key,
        "certificate": mine,
        "key": my_key,
        "authority": goldmane_authority.certificate,
    }


def target(port: int, files: dict[str, Path], host: str = "localhost", **others: str) -> Target:
    named = {name: str(files[name]) for name in ("authority", "certificate", "key")} | others
    return Target(f"{host}:{port}", **named)


@pytest.fixture
def secure_collector(tls_files: dict[str, Path]) -> Iterator[FakeCollector]:
    found = FakeCollector(tls=(tls_files["server"], tls_files["server-key"], tls_files["authority"]))
    yield found
    found.stop()


def test_both_sides_show_certificates(secure_collector: FakeCollector, tls_files: dict[str, Path]) -> None:
    with running(lambda grpc: open_server(grpc, target(secure_collector.port, tls_files))) as client:
        client.offer(flows(10))
        wait_received(client, 10)
    assert len(secure_collector.updates) == 10


def refused(given: Target) -> str:
    """Why nothing is sent."""
    with running(lambda grpc: open_server(grpc, given)) as client:
        client.offer(flows(1))
        until(lambda: client.trouble, "there is a reason")
        assert client.outbox.received == 0 and len(client.outbox) == 1
        return client.trouble


def test_a_name_that_is_not_in_the_certificate_is_refused(
    secure_collector: FakeCollector, tls_files: dict[str, Path]
) -> None:
    assert "cannot reach goldmane" in refused(target(secure_collector.port, tls_files, host="127.0.0.1"))
    assert not secure_collector.updates


def test_a_server_of_another_authority_is_refused(
    secure_collector: FakeCollector, tls_files: dict[str, Path], tmp_path: Path
) -> None:
    other = make_authority(tmp_path / "other", "another-ca")
    assert "cannot reach goldmane" in refused(
        target(secure_collector.port, tls_files, authority=str(other.certificate))
    )
    assert not secure_collector.updates


def test_without_tls_a_server_with_tls_gets_nothing(secure_collector: FakeCollector) -> None:
    assert refused(Target(f"localhost:{secure_collector.port}"))
    assert not secure_collector.updates


@pytest.mark.parametrize(
    ("others", "why"),
    [
        ({"key": ""}, "TyphaKeyFile is not set; set all three"),
        ({"key": "", "certificate": ""}, "TyphaCertFile and TyphaKeyFile are not set"),
        ({"authority": ""}, "TyphaCAFile is not set"),
        ({"authority": "/nowhere"}, "cannot read /nowhere: No such file"),
    ],
)
def test_incomplete_files_are_refused_before_anything_is_sent(
    collector: FakeCollector, tls_files: dict[str, Path], others: dict[str, str], why: str
) -> None:
    assert why in refused(target(collector.port, tls_files, **others))
    assert not collector.peers


def test_a_key_of_another_certificate_is_refused(collector: FakeCollector, tls_files: dict[str, Path]) -> None:
    assert "do not belong together" in refused(target(collector.port, tls_files, key=str(tls_files["server-key"])))
    assert not collector.peers


def test_a_renewed_certificate_is_used(tls_files: dict[str, Path], tmp_path: Path) -> None:
    """What was refused goes on once the tls_files are right."""
    key = tmp_path / "key"
    key.write_bytes(tls_files["server-key"].read_bytes())
    server = FakeCollector(tls=(tls_files["server"], tls_files["server-key"], tls_files["authority"]))
    try:
        with running(lambda grpc: open_server(grpc, target(server.port, tls_files, key=str(key)))) as client:
            client.offer(flows(1))
            until(lambda: "do not belong together" in client.trouble, "it is refused")
            key.write_bytes(tls_files["key"].read_bytes())
            wait_received(client, 1)
            assert not client.trouble
    finally:
        server.stop()


def test_a_local_socket_must_be_one(tmp_path: Path) -> None:
    path = tmp_path / "flows.sock"
    path.write_text("not a socket")
    with pytest.raises(NotExported, match="not a socket"):
        open_local(None, str(path))
