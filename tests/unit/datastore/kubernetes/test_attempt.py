"""The attempts of a request: what an answer means, and what is tried again."""

from __future__ import annotations

import time

import pytest

from cni_calico import faults
from cni_calico.datastore.kubernetes.attempt import ApiRequest, backoff_s
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.deadline import Deadline
from cni_calico.errors import (
    Compacted,
    DatastoreError,
    DatastoreForbidden,
    DatastoreUnavailable,
    DatastoreUnsupported,
    DeadlineExceeded,
    OutcomeUnknown,
    RecordRefused,
)
from cni_calico.model.access import KubernetesAccess
from tests.fakes.scripted_http import scripted
from tests.unit.datastore.kubernetes.scripted_api import (
    ENOUGH_S,
    HANDLE,
    NOW,
    api_of,
    get,
    handle,
    post,
    status,
)

WRITES = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


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


def test_backoff_grows_to_a_limit_with_jitter() -> None:
    assert [backoff_s(n, random=lambda _: b"\0") for n in (0, 1, 5, 60)] == [0.1, 0.2, 3.2, 5.0]
    assert all(2.5 <= backoff_s(9) <= 5 for _ in range(50))
    assert len({backoff_s(9) for _ in range(50)}) > 1
