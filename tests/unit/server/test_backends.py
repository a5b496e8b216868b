"""Datastores that the server has open: one per configuration, closed when nobody uses them any more."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.errors import DeadlineExceeded, InvalidConfig
from cni_calico.kernel.files import Files
from cni_calico.log import SILENT
from cni_calico.model.access import DatastoreConfig
from cni_calico.model.keys import HandleKey, ResourceList
from cni_calico.server import backends as module
from cni_calico.server.backends import BackendKey, Backends
from tests.contract import etcd_process
from tests.deadlines import SOON, until


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def backends(clock: Clock) -> Iterator[Backends]:
    made = Backends(SILENT, clock=clock)
    yield made
    made.close()


def local(tmp_path: Path, name: str) -> BackendKey:
    return BackendKey(DatastoreConfig("local", path=str(tmp_path / name)), "node1", (0, 0, 0))


def use_once(backends: Backends, key: BackendKey) -> object:
    backend = backends.use(key, Files(), SOON)
    backends.leave(backend)
    return backend


def open_names(backends: Backends) -> list[str]:
    return sorted(Path(backend.config.path).name for backend in backends.open_now())


def test_one_for_each_configuration_and_node(backends: Backends, tmp_path: Path):
    first = use_once(backends, local(tmp_path, "a"))
    assert use_once(backends, local(tmp_path, "a")) is first
    other = BackendKey(local(tmp_path, "a").config, "node2", (0, 0, 0))
    assert use_once(backends, other) is not first
    assert [backend.number for backend in backends.open_now()] == [0, 1]


def test_what_is_not_used_is_closed_but_for_the_last(backends: Backends, clock: Clock, tmp_path: Path):
    for name in ("a", "b", "c"):
        use_once(backends, local(tmp_path, name))
        clock.now += 1
    backends.close_idle()
    assert open_names(backends) == ["a", "b", "c"]
    clock.now += module.IDLE_S - 2.5
    backends.close_idle()
    assert open_names(backends) == ["b", "c"]
    clock.now += 10 * module.IDLE_S
    backends.close_idle()
    assert open_names(backends) == ["c"] and backends.closed == 2
    again = backends.use(local(tmp_path, "a"), Files(), SOON)
    assert again.number == 3, "the numbers in the metrics are not given twice"
    assert again.store.list(ResourceList("IPPool"), Deadline.after(10)).items == []
    backends.leave(again)


def test_what_a_call_uses_stays(backends: Backends, clock: Clock, tmp_path: Path):
    backend = backends.use(local(tmp_path, "a"), Files(), SOON)
    use_once(backends, local(tmp_path, "b"))
    clock.now += 10 * module.IDLE_S
    backends.close_idle()
    assert open_names(backends) == ["a"], "b was used last, but a is in use"
    use_once(backends, local(tmp_path, "b"))
    backends.leave(backend)
    clock.now += module.IDLE_S + 1
    use_once(backends, local(tmp_path, "b"))
    backends.close_idle()
    assert open_names(backends) == ["b"]


def test_their_number_is_bounded(backends: Backends, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "KEPT_MAX", 3)
    held = backends.use(local(tmp_path, "held"), Files(), SOON)
    for i in range(6):
        use_once(backends, local(tmp_path, f"n{i}"))
        backends.close_idle()
    assert len(backends.open_now()) == 3 and "held" in open_names(backends)
    backends.leave(held)


def test_a_configuration_that_cannot_be_opened_leaves_nothing(backends: Backends):
    for _ in range(3):
        with pytest.raises(InvalidConfig):
            backends.use(BackendKey(DatastoreConfig("mysql"), "node1", (0, 0, 0)), Files(), SOON)
    assert backends.open_now() == []


def test_users_and_the_closer_do_not_meet(backends: Backends, clock: Clock, tmp_path: Path):
    """What is handed out works until it is given back, whatever is closed meanwhile."""
    failures: list[BaseException] = []
    done = threading.Event()

    def work(name: str) -> None:
        try:
            for _ in range(5000):
                if backends.closed > 3:
                    return
                backend = backends.use(local(tmp_path, name), Files(), SOON)
                backend.store.list(ResourceList("IPPool"), Deadline.after(10))
                backends.leave(backend)
        except BaseException as e:
            failures.append(e)

    def close() -> None:
        while not done.is_set():
            clock.now += module.IDLE_S
            backends.close_idle()

    closer = threading.Thread(target=close)
    threads = [threading.Thread(target=work, args=(f"s{i % 3}",)) for i in range(6)]
    for thread in (closer, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    closer.join()
    assert not failures and backends.closed > 3


def use_and_watch(backends: Backends, key: BackendKey) -> object:
    """Used once, and everything it starts has been started."""
    backend = use_once(backends, key)
    until(lambda: all(cache._watch is not None for cache in backend.caches.all), "everything is watched")
    return backend


def threads(*beginnings: str) -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith(beginnings)}


def opened(beginning: str) -> int:
    """How many descriptors lead to something whose name begins like that."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{fd}").startswith(beginning)
        except OSError:
            pass  # the one that lists them
    return count


def test_closing_frees_threads_and_descriptors(backends: Backends, clock: Clock, tmp_path: Path):
    use_and_watch(backends, local(tmp_path, "a"))
    before = threads("cache-", "local-")
    backend = backends.use(local(tmp_path, "b"), Files(), SOON)
    backend.store.commit([Write.put(HandleKey("h"), {})], SOON)
    backends.leave(backend)
    use_and_watch(backends, local(tmp_path, "b"))
    assert len(threads("cache-", "local-") - before) == 7, "one for each cache, one that looks at the file"
    assert opened(str(tmp_path / "b")) >= 2
    clock.now += module.IDLE_S + 1
    use_once(backends, local(tmp_path, "a"))
    backends.close_idle()
    assert open_names(backends) == ["a"]
    until(lambda: threads("cache-", "local-") == before, "its threads have ended")
    until(lambda: opened(str(tmp_path / "b")) == 0, "its file is closed")


@pytest.mark.etcd
def test_closing_frees_etcds_watches(backends: Backends, clock: Clock, tmp_path: Path):
    with etcd_process.single() as server:
        key = BackendKey(DatastoreConfig("etcdv3", etcd_endpoints=server.urls), "node1", (0, 0, 0))
        use_and_watch(backends, local(tmp_path, "a"))
        before, sockets = threads("cache-", "etcd-"), opened("socket:")
        use_and_watch(backends, key)
        assert len(threads("cache-", "etcd-") - before) == 12, "a thread and a stream for each cache"
        assert opened("socket:") > sockets
        clock.now += module.IDLE_S + 1
        use_once(backends, local(tmp_path, "a"))
        backends.close_idle()
        assert [backend.config.type for backend in backends.open_now()] == ["local"]
        until(lambda: threads("cache-", "etcd-") == before, "its threads have ended")
        until(lambda: opened("socket:") <= sockets, "its connection is closed")


def test_one_that_takes_its_time_holds_up_nobody_else(backends: Backends, tmp_path: Path, monkeypatch) -> None:
    """And those who ask for the same one wait for it, each until its own deadline."""
    at_it, go_on = threading.Event(), threading.Event()
    opened: list[str] = []

    def open_datastore(config: DatastoreConfig, **more):
        opened.append(Path(config.path).name)
        if config.path.endswith("slow"):
            at_it.set()
            assert go_on.wait(60)
        return original(config, **more)

    original = module.open_datastore
    monkeypatch.setattr(module, "open_datastore", open_datastore)
    slow = threading.Thread(target=use_once, args=(backends, local(tmp_path, "slow")))
    slow.start()
    assert at_it.wait(60)
    use_once(backends, local(tmp_path, "quick"))
    with pytest.raises(DeadlineExceeded, match="another call is still doing it"):
        backends.use(local(tmp_path, "slow"), Files(), Deadline.after(0.05))
    go_on.set()
    slow.join()
    use_once(backends, local(tmp_path, "slow"))
    assert opened == ["slow", "quick"]
