"""The door to the API server against a server that misbehaves as told."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from pathlib import Path

import pytest

from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.datastore.kubernetes.throttle import Throttle
from cni_calico.deadline import Deadline
from cni_calico.errors import (
    Compacted,
    CorruptRecord,
    DatastoreDenied,
    DatastoreUnavailable,
    DatastoreUnsupported,
    DeadlineExceeded,
)
from cni_calico.model.access import KubernetesAccess
from cni_calico.model.keys import HandleList, ResourceKey
from tests.deadlines import until
from tests.e2e.etcd.certificates import make_authority
from tests.fakes.scripted_http import Scripted, scripted
from tests.unit.datastore.kubernetes.scripted_api import ENOUGH_S, FORBIDDEN, HANDLE, api_of, get, handle, status

# -- credentials ------------------------------------------------------------------------------------------------------


def kubeconfig(path: Path, server: str, token: str) -> str:
    path.write_text(
        f"apiVersion: v1\nkind: Config\ncurrent-context: x\n"
        f"clusters: [{{name: c, cluster: {{server: '{server}'}}}}]\n"
        f"users: [{{name: u, user: {{token: {token}}}}}]\n"
        f"contexts: [{{name: x, context: {{cluster: c, user: u}}}}]\n"
    )
    return str(path)


def test_credentials_are_read_again_once_after_401(tmp_path: Path) -> None:
    with scripted((401, {"message": "Unauthorized"}), (200, {"a": 1}), *[(401, {"message": "Unauthorized"})] * 2) as s:
        file = tmp_path / "kubeconfig"
        api = KubernetesAPI(KubernetesAccess(kubeconfig=kubeconfig(file, s.url, "old")))
        api.session(Deadline.after(ENOUGH_S))
        kubeconfig(file, s.url, "new")
        assert api.get("/x", Deadline.after(ENOUGH_S), "read x") == {"a": 1}
        with pytest.raises(DatastoreDenied, match="Unauthorized"):
            api.get("/x", Deadline.after(ENOUGH_S), "read x")
        tokens = [headers["authorization"] for _, _, headers, _ in s.requests]
        assert tokens == ["Bearer old", "Bearer new", "Bearer new", "Bearer new"]


def test_a_token_with_a_line_break_is_not_a_header() -> None:
    with scripted((200, {})) as server, pytest.raises(DatastoreUnavailable, match="line break"):
        KubernetesAPI(KubernetesAccess(api_root=server.url, token="a\r\nX: y")).get("/x", Deadline.after(1), "read x")


# -- connections ------------------------------------------------------------------------------------------------------


def test_connections_are_kept_and_a_closed_one_is_noticed() -> None:
    accepted = []
    with scripted(*[(200, {"n": n}) for n in range(9)]) as server:
        api = api_of(server)
        for _ in range(3):
            api.get("/x", Deadline.after(ENOUGH_S), "read x")
        accepted.append(len(server._open))
        for connection in server._open:
            connection.shutdown(socket.SHUT_RDWR)
        api.send(ApiRequest("POST", "/x", "make x", body={}), Deadline.after(ENOUGH_S))
        accepted.append(len(server._open))
    assert accepted == [1, 2]


def read_list(api: KubernetesAPI) -> list[object]:
    items: list[object] = []
    api.items(ApiRequest("GET", "/x", "list x"), Deadline.after(ENOUGH_S), items.append)
    return items


def test_a_watch_takes_the_connection_of_the_list_before_it() -> None:
    with scripted([{"items": [1, 2]}], ["hang"], ["hang"]) as server:
        api = api_of(server)
        assert read_list(api) == [1, 2]
        watches = [api.stream("/x?watch=1", Deadline.after(ENOUGH_S), "watch x")]
        assert len(server._open) == 1
        watches.append(api.stream("/x?watch=1", Deadline.after(ENOUGH_S), "watch x"))  # the first is in use
        assert len(server._open) == 2
        for watch in watches:
            watch.close()


def test_lists_side_by_side_share_a_few_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cni_calico.datastore.kubernetes.api._TURN_S", 60.0)
    with scripted(always=[{"items": [1]}]) as server:
        api, found = api_of(server), []
        threads = [threading.Thread(target=lambda: found.append(read_list(api))) for _ in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [[1]] * 40 and len(server._open) <= 8


def test_slow_lists_hold_nobody_up_for_long() -> None:
    with scripted(*["hang"] * 8, [{"items": [1]}]) as server:
        api = api_of(server)

        def wait() -> None:
            with pytest.raises(DatastoreUnavailable):
                read_list(api)

        slow = [threading.Thread(target=wait) for _ in range(8)]
        for thread in slow:
            thread.start()
        until(lambda: len(server.requests) == 8, "eight lists are asked for")
        assert read_list(api) == [1]
        server.drop()
        for thread in slow:
            thread.join()


@pytest.mark.parametrize("first", [[{"items": [1]}], (200, {"items": [1]}), (404, {"message": "no x"})])
def test_a_kept_connection_that_ends_as_it_is_used_is_replaced_once(first: object) -> None:
    with scripted(first, "close", [{"items": [3]}], "close", "close") as server:
        api = api_of(server)
        if isinstance(first, tuple) and first[0] == 404:
            with pytest.raises(DatastoreUnsupported):
                read_list(api)
        else:
            assert read_list(api) == [1]
        assert read_list(api) == [3]
        with pytest.raises(DatastoreUnavailable, match="closed the connection"):
            read_list(api)
        assert len(server.requests) == 5


@pytest.mark.parametrize("answer", [[b"{,", {"items": []}], [b'{"items": [1'], [{"items": []}, b"more"]])
def test_a_list_that_cannot_be_read_is_not_in_the_way_of_the_next(answer: object) -> None:
    with scripted(answer, [{"items": [2]}]) as server:
        api = api_of(server)
        with pytest.raises(DatastoreUnavailable, match="not a JSON list"):
            read_list(api)
        assert read_list(api) == [2]


def test_a_connection_that_the_server_wants_closed_is_not_kept() -> None:
    text = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nc\r\n{"items":[]}\r\n0\r\n\r\n'
    with scripted(text, text) as server:
        api = api_of(server)
        assert read_list(api) == read_list(api) == []
        assert len(server._open) == 2


def test_threads_do_not_share_a_connection() -> None:
    with scripted(*[(200, {"n": 1})] * 60) as server:
        api = api_of(server)
        errors: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(10):
                    assert api.get("/x", Deadline.after(ENOUGH_S), "read x") == {"n": 1}
            except BaseException as e:
                errors.append(e)

        threads = [threading.Thread(target=work) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors and api.round_trips.reads == 60


@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc No\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}xx",
        b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 20000,
    ],
    ids=range(7),
)
def test_what_is_not_http_is_unavailable(raw: bytes) -> None:
    with scripted(raw, raw) as server, pytest.raises(DatastoreUnavailable):
        get(server)


def test_answers_in_every_framing() -> None:
    chunked = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;x=y\r\n{"a"\r\n3\r\n:1}\r\n0\r\nT: u\r\n\r\n'
    interim = b"HTTP/1.1 100 Continue\r\n\r\n"
    sized = b'HTTP/1.1 200 OK\r\ncontent-length: 7\r\n\r\n{"a":2}'
    with scripted(chunked, interim + sized, (204, b"")) as server:
        api = api_of(server)
        assert api.get("/x", Deadline.after(ENOUGH_S), "read x") == {"a": 1}
        assert api.get("/x", Deadline.after(ENOUGH_S), "read x") == {"a": 2}
        assert api.get("/x", Deadline.after(ENOUGH_S), "read x") == {}
        assert len(server._open) == 1


def test_qps_and_burst() -> None:
    throttle = Throttle(20, 3)
    started = time.monotonic()
    for _ in range(5):
        throttle.wait(Deadline.after(5), "x")
    assert time.monotonic() - started >= 0.09
    with pytest.raises(DeadlineExceeded):
        for _ in range(5):
            throttle.wait(Deadline.after(0.01), "x")


# -- watches ----------------------------------------------------------------------------------------------------------


def changed(kind: str, version: str, **spec: object) -> dict[str, object]:
    return {"type": kind, "object": handle(version, **spec)}


def bookmark(version: str) -> dict[str, object]:
    return {"type": "BOOKMARK", "object": {"kind": "IPAMHandle", "metadata": {"resourceVersion": version}}}


def watch_of(server: Scripted, revision: str = "5") -> object:
    return KubernetesStore(KubernetesAccess(api_root=server.url)).watch(HandleList(), revision)


def started_at(server: Scripted) -> list[str]:
    return [path.partition("resourceVersion=")[2].partition("&")[0] for _, path, _, _ in server.requests]


def test_a_watch_resumes_where_it_was() -> None:
    first = [changed("ADDED", "6"), changed("MODIFIED", "8", block={"10.65.0.0/26": 3}), bookmark("20")]
    with scripted(first, [changed("DELETED", "21"), "hang"]) as server, watch_of(server) as watch:
        events = [event for _ in range(3) for event in watch.next(5)]
        assert [(e.revision, e.value and e.value["block"]["10.65.0.0/26"]) for e in events] == [
            ("6", 1),
            ("8", 3),
            ("21", None),
        ]
        assert started_at(server) == ["5", "20"]
        assert not watch.next(0.05)


def test_a_marked_record_is_told_deleted_once() -> None:
    script = [changed("MODIFIED", "6", deleted=True), changed("DELETED", "7", deleted=True), "hang"]
    with scripted(script) as server, watch_of(server) as watch:
        assert [e.value for e in watch.next(5)] == [None]
        assert not watch.next(0.1)


def test_events_in_pieces_are_put_together() -> None:
    import json

    text = json.dumps(changed("ADDED", "6")).encode() + b"\n" + json.dumps(changed("MODIFIED", "7")).encode() + b"\n"
    with scripted([*(text[i : i + 7] for i in range(0, len(text), 7)), "hang"]) as server, watch_of(server) as watch:
        assert [e.revision for _ in range(2) for e in watch.next(5)] == ["6", "7"]


@pytest.mark.parametrize(
    "step",
    [
        (410, {"code": 410, "message": "too old resource version"}),
        [{"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}],
    ],
    ids=["answer", "event"],
)
def test_what_cannot_be_resumed_is_compacted(step: object) -> None:
    with scripted(step) as server, watch_of(server) as watch, pytest.raises(Compacted, match="too old"):
        watch.next(5)


def test_a_server_that_closes_watches_at_once_is_asked_less_and_less_often() -> None:
    with scripted(*[[]] * 50) as server, watch_of(server) as watch:
        assert not watch.next(1.2)
        assert 2 <= len(server.requests) <= 6


def test_a_server_that_is_gone_is_told_and_found_again() -> None:
    script = ([changed("ADDED", "6")], "close", [changed("MODIFIED", "9"), "hang"])
    with scripted(*script) as server, watch_of(server) as watch:
        assert watch.next(5)
        with pytest.raises(DatastoreUnavailable):
            watch.next(5)
        assert [e.revision for e in watch.next(5)] == ["9"]
        assert started_at(server) == ["5", "6", "6"]


def test_a_refused_watch_is_told() -> None:
    denied = pytest.raises(DatastoreDenied, match=r"cannot watch .*ipamhandles: pods")
    with scripted((403, {"message": FORBIDDEN})) as server, watch_of(server) as watch, denied:
        watch.next(5)


@pytest.mark.parametrize("line", [b"{\n", b"[]\n", b'{"type":"ADDED"}\n'])
def test_an_event_that_cannot_be_read_is_unavailable(line: bytes) -> None:
    with scripted([line, "hang"]) as server, watch_of(server) as watch, pytest.raises(DatastoreUnavailable):
        watch.next(5)


def test_cancel_wakes_a_reader_between_two_attempts() -> None:
    with scripted([]) as server:
        watch = watch_of(server)
        answers: list[object] = []
        reader = threading.Thread(target=lambda: answers.append(watch.next(30)))
        reader.start()
        watch.cancel()
        reader.join(5)
        assert not reader.is_alive() and answers == [()]
        watch.close()
        watch.cancel()


# -- records ----------------------------------------------------------------------------------------------------------


def test_pages_that_expire_while_they_are_read_become_one_list() -> None:
    page = {"metadata": {"resourceVersion": "9", "continue": "abc"}, "items": [handle("3")]}
    whole = {"metadata": {"resourceVersion": "12"}, "items": [handle("3")]}
    with scripted((200, page), status("Expired", 410), (200, whole)) as server:
        listed = KubernetesStore(KubernetesAccess(api_root=server.url)).list(HandleList(), Deadline.after(ENOUGH_S))
        assert listed.revision == "12" and [v.revision for v in listed.items] == ["3"]
        queries = [path.partition("?")[2] for _, path, _, _ in server.requests]
        assert queries == ["limit=500", "limit=500&continue=abc", ""]


def test_a_list_at_an_old_revision_is_compacted() -> None:
    with scripted(status("Expired", 410)) as server, pytest.raises(Compacted):
        store = KubernetesStore(KubernetesAccess(api_root=server.url))
        store.list(HandleList(), Deadline.after(ENOUGH_S), revision="3")


def test_another_record_under_the_name_is_corrupt() -> None:
    with scripted((200, handle("3", handleID="net.ONE"))) as server, pytest.raises(CorruptRecord, match=r"net\.ONE"):
        KubernetesStore(KubernetesAccess(api_root=server.url)).get(HANDLE, Deadline.after(ENOUGH_S))


def test_a_corrupt_record_does_not_take_the_list_down() -> None:
    bad = {**handle("4"), "spec": {"block": 3}}
    told: list[str] = []
    with scripted((200, {"metadata": {"resourceVersion": "9"}, "items": [bad, handle("3")]})) as server:
        store = KubernetesStore(KubernetesAccess(api_root=server.url), corrupt=lambda key, why: told.append(why))
        assert [v.revision for v in store.list(HandleList(), Deadline.after(ENOUGH_S)).items] == ["3"]
    assert len(told) == 1 and "handleID" in told[0]


def test_endpoints_that_no_pod_stands_for() -> None:
    from cni_calico.datastore.interface import Write

    store = KubernetesStore(KubernetesAccess(api_root="http://127.0.0.1:1"))
    key = ResourceKey("WorkloadEndpoint", "node-cni-abc-eth0", "default")
    assert store.get(key, Deadline.after(1)) is None
    with pytest.raises(DatastoreUnsupported, match="an endpoint is a pod's"):
        store.commit([Write.create(key, {"spec": {}})], Deadline.after(1))


def test_an_authority_that_is_replaced_under_a_running_client(tmp_path: Path) -> None:
    """The API server got a certificate of another authority, and the file that names it was replaced."""
    authority, server_key = tmp_path / "ca.crt", {}
    for name in ("old", "new"):
        made = make_authority(tmp_path / name, name)
        server_key[name] = made.issue("server", "apiserver", "serverAuth", "IP:127.0.0.1")
    shutil.copy(tmp_path / "old" / "ca.crt", authority)
    with scripted(always=(200, {}), tls=server_key["old"]) as server:
        api = api_of(server, certificate_authority=str(authority))
        assert api.get("/x", Deadline.after(ENOUGH_S), "read x") == {}
        server.change_certificate(server_key["new"])
        with pytest.raises(DatastoreUnavailable, match="certificate"):
            api.get("/x", Deadline.after(ENOUGH_S), "read x")
        shutil.copy(tmp_path / "new" / "ca.crt", authority)
        assert api.get("/x", Deadline.after(ENOUGH_S), "read x") == {}
        assert len(server.requests) == 2
