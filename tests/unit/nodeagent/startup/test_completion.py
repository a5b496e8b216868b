"""Kubernetes is told of the node's network once it is there, and when it goes."""

import threading

import pytest

from cni_calico.errors import DatastoreError, DatastoreForbidden, DatastoreUnavailable
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.settings import parse_settings
from cni_calico.nodeagent.startup import completion
from cni_calico.nodeagent.startup.completion import announce_network, announce_shutdown
from cni_calico.nodeagent.status import file as status
from tests.fakes.memory_store import MemoryStore
from tests.fakes.notes import Notes


class Kubernetes:
    def __init__(self, failures: int = 0, error: DatastoreError | None = None) -> None:
        self.told: list[bool] = []
        self.failures, self.error = failures, error or DatastoreUnavailable("cannot reach it")

    def set_network_unavailable(self, unavailable, deadline):
        if self.failures:
            self.failures -= 1
            raise self.error
        self.told.append(unavailable)


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(completion, "_LOOK_S", 0.01)
    monkeypatch.setattr(completion, "_RETRY_S", 0.01)
    monkeypatch.setattr(completion, "_FORBIDDEN_S", 0.01)


@pytest.fixture
def waits(monkeypatch):
    """Why the node is not ready, answer by answer; the last one stays."""

    def answer(*whys):
        left = list(whys)
        monkeypatch.setattr(
            completion, "_why_not_ready", lambda context, **_: left.pop(0) if len(left) > 1 else left[0]
        )

    return answer


def context(kubernetes, **environ):
    return Context(parse_settings(environ), MemoryStore(), Notes(), lambda _: True, kubernetes=kubernetes)


def test_it_is_told_once_the_node_is_ready(waits):
    kubernetes = Kubernetes(failures=2)
    waits("the agent has not started", "the CNI server is silent", "")
    made = context(kubernetes)
    announce_network(made, threading.Event())
    assert kubernetes.told == [False]
    assert made.log.said.count("cannot reach it") == 1 and made.troubles == {}


class Pauses(threading.Event):
    """Remembers how long it was waited for, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout)
        return False


def test_a_missing_right_is_named_once_with_the_rule_to_add(waits, monkeypatch):
    monkeypatch.setattr(completion, "_FORBIDDEN_S", 60.0)
    kubernetes, pauses = Kubernetes(3, DatastoreForbidden("cannot set condition: nodes/status is forbidden")), Pauses()
    waits("")
    made = context(kubernetes)
    announce_network(made, pauses)
    assert kubernetes.told == [False] and pauses.waited == [60.0] * 3
    [error, done] = made.log.texts
    assert error.startswith("error: ") and "resources: [nodes/status], verbs: [patch]" in error
    assert done.startswith("info: ")


def test_a_data_plane_that_is_not_started_is_not_waited_for(monkeypatch, tmp_path):
    kubernetes = Kubernetes()
    made = context(kubernetes, CALICO_RUN_DIR=str(tmp_path), CALICO_DISABLE_FELIX="true")
    announce_network(made, threading.Event(), cni_server=False)
    assert kubernetes.told == [False] and not [text for text in made.log.texts if "not ready" in text]


def test_a_node_that_is_never_ready_is_not_lost(waits, monkeypatch):
    kubernetes = Kubernetes()
    monkeypatch.setattr(completion, "PATIENCE_S", 0.05)
    waits("the datastore is out of sync")
    made = context(kubernetes)
    announce_network(made, threading.Event())
    assert kubernetes.told == [False]
    assert "although it is not ready: the datastore is out of sync" in made.log.said[0]


def test_pods_are_kept_off_a_node_that_reaches_no_other(monkeypatch, tmp_path):
    kubernetes = Kubernetes()
    monkeypatch.setattr(completion, "PATIENCE_S", 0.05)
    monkeypatch.setattr(completion, "why_cni_missing", lambda fields, run_dir: "")
    made, stopping = context(kubernetes, CALICO_RUN_DIR=str(tmp_path)), threading.Event()
    status.write_status(str(tmp_path), {"synced": True, "unmet": ["IPPool p needs tunl0"], "bgp_unmet": []})
    waiting = threading.Thread(target=announce_network, args=(made, stopping), daemon=True)
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive() and kubernetes.told == []
    status.write_status(str(tmp_path), {"synced": True, "unmet": []})
    waiting.join(10)
    assert kubernetes.told == [False] and made.log.said == ["Kubernetes was told that this node's network is available"]


def test_a_stop_ends_the_wait(waits):
    kubernetes, stopping = Kubernetes(), threading.Event()
    waits("not yet")
    stopping.set()
    announce_network(context(kubernetes), stopping)
    assert kubernetes.told == []


def test_the_end_is_told(waits):
    kubernetes = Kubernetes()
    announce_shutdown(context(kubernetes))
    assert kubernetes.told == [True]


@pytest.mark.parametrize("tell", [lambda made: announce_network(made, threading.Event()), announce_shutdown])
def test_nothing_to_tell(waits, tell):
    kubernetes = Kubernetes()
    waits("")
    tell(context(kubernetes, CALICO_NETWORKING_BACKEND="none"))  # another's network
    tell(context(None))  # no Kubernetes
    assert kubernetes.told == []
