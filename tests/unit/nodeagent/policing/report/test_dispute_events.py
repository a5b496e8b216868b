"""Events about interfaces that several pods name: each is written once, also after an absence of the API server."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreDenied, DatastoreUnavailable
from cni_calico.log import SILENT
from cni_calico.nodeagent.policing.report import dispute_events
from cni_calico.nodeagent.policing.report.dispute_events import DisputeEvents
from cni_calico.policy.endpoints import Dispute
from tests.deadlines import until
from tests.fakes.notes import Notes

BOTH = Dispute("cali1", ("a/p", "b/p"), pods=(("a", "p"), ("b", "p")))


@dataclass
class ApiServer:
    """Pods that exist have the UID "uid-<namespace>"; ``failures`` come first."""

    gone: tuple[str, ...] = ()
    failures: list[Exception] = field(default_factory=list)
    written: list[tuple[str, Any]] = field(default_factory=list)

    def get(self, path: str, deadline: Deadline, doing: str) -> dict[str, Any] | None:
        if self.failures:
            raise self.failures.pop(0)
        space = path.split("/")[4]
        return None if space in self.gone else {"metadata": {"uid": f"uid-{space}"}}

    def send(self, request: ApiRequest, deadline: Deadline) -> None:
        self.written.append((f"{request.method} {request.path}", request.body))


def told(api: ApiServer) -> list[str]:
    return sorted(body["involvedObject"]["uid"] for _, body in api.written)


def events(api: ApiServer) -> DisputeEvents:
    store: Any = SimpleNamespace(api=api)
    return DisputeEvents(store, SILENT)


def test_both_pods_are_told_once() -> None:
    api = ApiServer()
    teller = events(api)
    for _ in range(3):
        teller.tell([BOTH])
    until(lambda: told(api) == ["uid-a", "uid-b"], "both are told")
    assert api.written[0][0] == "POST /api/v1/namespaces/a/events"
    assert api.written[0][1]["message"] == str(BOTH) and api.written[0][1]["reason"] == "CalicoInterfaceDisputed"
    until(lambda: teller._thread is None, "nobody waits for more")
    teller.tell([])
    teller.tell([BOTH])
    until(lambda: len(api.written) == 4, "it began again")


def test_an_api_server_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispute_events, "_FIRST_S", 0.001)
    api = ApiServer(gone=("b",), failures=[DatastoreUnavailable("no")] * 3)
    teller = events(api)
    teller.tell([BOTH])
    until(lambda: told(api) == ["uid-a"] and teller._thread is None, "who exists is told")


def test_without_the_right_nothing_is_tried_again() -> None:
    api = Denying(failures=[])
    teller = events(api)
    teller.tell([BOTH])
    until(lambda: teller._thread is None, "it has given up")
    teller.tell([BOTH])
    assert teller._thread is None and not api.written


def test_outside_kubernetes_nobody_is_told() -> None:
    teller = DisputeEvents(None, SILENT)
    teller.tell([BOTH])
    assert teller._thread is None


def test_a_role_that_may_not_read_pods() -> None:
    """Beside etcd: the Event is written all the same."""
    api = ApiServer(failures=[DatastoreDenied("no")])
    events(api).tell([BOTH])
    until(lambda: told(api) == ["", "uid-b"], "both are told")


class Denying(ApiServer):
    def send(self, request: ApiRequest, deadline: Deadline) -> None:
        raise DatastoreDenied("no right to create Events")


def test_the_same_denial_is_said_at_most_each_ten_minutes() -> None:
    log, time = Notes(), [0.0]
    teller = DisputeEvents(cast(Any, SimpleNamespace(api=Denying())), log, lambda: time[0])
    for after_s, said in ((0, 1), (599, 1), (2, 2), (1, 2)):
        time[0] += after_s
        teller.tell([BOTH])
        until(lambda: teller._thread is None, "it has given up")
        teller.tell([])
        assert len(log.said) == said
