"""The door to the API server against a server that misbehaves as told."""

from __future__ import annotations

import shutil
import socket
import threading
import time
from pathlib import Path

import pytest

from cni_calico import faults
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest, backoff_s
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.datastore.kubernetes.throttle import Throttle
from cni_calico.deadline import Deadline
from cni_calico.errors import (
    Compacted,
    CorruptRecord,
    DatastoreDenied,
    DatastoreError,
    DatastoreForbidden,
    DatastoreUnavailable,
    DatastoreUnsupported,
    DeadlineExceeded,
    OutcomeUnknown,
    RecordRefused,
)
from cni_calico.model.access import KubernetesAccess
from cni_calico.model.keys import HandleKey, HandleList, ResourceKey
from tests.e2e.etcd.certificates import make_authority
from tests.fakes.scripted_http import Scripted, scripted

ENOUGH_S = 5.0
NOW = {"retry-after": "0"}
HANDLE = HandleKey("net.one")
FORBIDDEN = 'pods "x" is forbidden: User "u" cannot get resource "pods" in API group ""'


def handle(version: str, count: int = 1, **spec: object) -> dict[str, object]:
    return {
        "apiVersion": "crd.projectcalico.org/v1",
        "kind": "IPAMHandle",
        "metadata": {"name": "net.one", "uid": "u-1", "resourceVersion": version},
        "spec": {"handleID": "net.one", "block": {"10.65.0.0/26": count}, "deleted": False, **spec},
    }


def status(reason: str, code: int, **details: str) -> tuple[int, dict[str, object]]:
    return code, {"kind": "Status", "reason": reason, "message": f"{reason} told", "details": details}


def api_of(server: Scripted, **access: object) -> KubernetesAPI:
    return KubernetesAPI(KubernetesAccess(api_root=server.url, token="t", **access))


def get(server: Scripted, seconds: float = ENOUGH_S) -> object:
    return api_of(server).get("/x", Deadline.after(seconds), "read x")


def post(server: Scripted, seconds: float = ENOUGH_S) -> object:
    return api_of(server).send(ApiRequest("POST", "/x", "make x", body={"a": 1}), Deadline.after(seconds)).document


# -- what answers mean ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (403, "Forbidden", DatastoreForbidden),
        (410, "Expired", Compacted),
        (400, "BadRequest", RecordRefused),
        (422, "Invalid", RecordRefused),
        (413, "TooLarge", RecordRefused),
        (405, "MethodNotAllowed", DatastoreError),
    ],
)
def test_refusals_carry_the_servers_sentence(code: int, reason: str, error: type[DatastoreError]) -> None:
    with scripted(status(reason, code)) as server, pytest.raises(error, match=f"^cannot make x: {reason} told") as e:
        post(server)
    assert type(e.value) is error


def test_absent_and_unknown_type_are_told_apart() -> None:
    with scripted(status("NotFound", 404, name="x"), (404, b"404 page not found\n")) as server:
        assert get(server) is None
        with pytest.raises(DatastoreUnsupported, match="does not know /x"):
            get(server)


def test_an_answer_that_is_no_json_is_unavailable() -> None:
    with scripted((200, b"<html>"), (200, b"[1]")) as server:
        for _ in range(2):
            with pytest.raises(DatastoreUnavailable, match="not a JSON object"):
                get(server)


# -- repetition -------------------------------------------------------------------------------------------------------


def test_overload_is_waited_out() -> None:
    busy = (429, {"message": "slow down"}, NOW)
    with scripted(busy, busy, (200, {"a": 1}), busy, (201, {"b": 2})) as server:
        assert get(server) == {"a": 1}
        assert post(server) == {"b": 2}


def test_overload_that_lasts_longer_than_the_deadline_is_told_in_time() -> None:
    with scripted((429, {"message": "slow down"}, {"retry-after": "60"})) as server:
        started = time.monotonic()
        with pytest.raises(DatastoreUnavailable, match="slow down"):
            get(server, 2)
        assert time.monotonic() - started < 20


def test_reads_survive_server_errors_and_lost_connections() -> None:
    with scripted((500, {"message": "etcd leader changed"}), "close", (200, {"a": 1})) as server:
        assert get(server) == {"a": 1}


def test_server_errors_that_stay_end() -> None:
    with scripted(*[(503, {"message": "no"}, NOW)] * 5) as server:
        with pytest.raises(DatastoreUnavailable, match="cannot read x: no"):
            get(server)
        assert len(server.requests) == 5


@pytest.mark.parametrize("step", ["close", (500, {"message": "time-out"}), (504, {"message": "time-out"})])
def test_a_write_whose_answer_is_lost_is_not_repeated(step: object) -> None:
    with scripted(step, (201, {})) as server:
        with pytest.raises(OutcomeUnknown):
            post(server)
        assert len(server.requests) == 1


def test_a_write_on_a_server_that_hangs_ends_at_the_deadline() -> None:
    with scripted("hang") as server, pytest.raises(OutcomeUnknown, match=r"no answer in time|no time left"):
        post(server, 0.2)


def test_a_read_on_a_server_that_hangs_ends_at_the_deadline() -> None:
    with scripted("hang") as server, pytest.raises(DeadlineExceeded, match="no answer in time"):
        get(server, 0.2)


def test_a_refused_connection_is_told_at_once() -> None:
    with scripted() as server:
        pass
    started = time.monotonic()
    with pytest.raises(
        DatastoreUnavailable, match=r"cannot make x: no connection to 127.0.0.1:\d+: Connection refused"
    ):
        post(server)
    assert time.monotonic() - started < 4


def test_a_conflict_after_a_server_error_may_be_our_own_write() -> None:
    """500 with Retry-After is repeated; what then stands in the way may be what the first attempt wrote."""
    steps = [(500, {"message": "time-out"}, NOW), status("AlreadyExists", 409), (200, handle("7"))]
    with scripted(*steps) as server:
        store = KubernetesStore(KubernetesAccess(api_root=server.url))
        from cni_calico.datastore.interface import Write

        with pytest.raises(OutcomeUnknown):
            store.commit([Write.create(HANDLE, {"block": {}, "deleted": False})], Deadline.after(ENOUGH_S))


WRITES = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@pytest.mark.parametrize("method", WRITES)
@pytest.mark.parametrize(("when", "error", "seen"), [("before", DatastoreUnavailable, 0), ("after", OutcomeUnknown, 1)])
def test_injected_faults_mean_what_real_ones_mean(method: str, when: str, error: type[Exception], seen: int) -> None:
    with scripted((201, {})) as server:
        faults.install(faults.FaultPlan(f"kubernetes.{WRITES[method]}:{when}:1:fail"))
        try:
            with pytest.raises(DatastoreUnavailable) as e:
                api_of(server).send(ApiRequest(method, "/x", "write x", body={"a": 1}), Deadline.after(ENOUGH_S))
        finally:
            faults.install(None)
        assert type(e.value) is error and len(server.requests) == seen


@pytest.mark.parametrize("point", ["kubernetes.read", "kubernetes.watch"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_read_that_fails_is_unavailable(point: str, when: str) -> None:
    steps = [(200, {}), (200, {})] if point == "kubernetes.read" else [[b"{}"]]
    with scripted(*steps) as server:
        api = api_of(server)
        faults.install(lambda at, moment: _fail_at(point, when, at, moment))
        try:
            with pytest.raises(DatastoreUnavailable):
                if point == "kubernetes.read":
                    api.get("/x", Deadline.after(ENOUGH_S), "read x")
                else:
                    api.stream("/x?watch=1", Deadline.after(ENOUGH_S), "watch x").close()
        finally:
            faults.install(None)


def _fail_at(point: str, when: str, at: str, moment: str) -> None:
    if (at, moment) == (point, when):
        raise faults.Injected(point, when)


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


def test_backoff_grows_to_a_limit_with_jitter() -> None:
    assert [backoff_s(n, random=lambda _: b"\0") for n in (0, 1, 5, 60)] == [0.1, 0.2, 3.2, 5.0]
    assert all(2.5 <= backoff_s(9) <= 5 for _ in range(50))
    assert len({backoff_s(9) for _ in range(50)}) > 1


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
