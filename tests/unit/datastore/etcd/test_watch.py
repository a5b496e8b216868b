"""What a watch on etcd holds while its reader is slow: bounded in commits and in bytes, and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cni_calico.datastore.etcd.cluster import EtcdCluster
from cni_calico.datastore.etcd.config import EtcdConfig
from cni_calico.datastore.etcd.messages import pb
from cni_calico.datastore.etcd.watch import BACKLOG_BYTES, EtcdWatch
from cni_calico.datastore.interface import RoundTrips
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreUnavailable, InternalError
from cni_calico.model.keys import HandleKey, HandleList, etcd_path
from tests.deadlines import until

COMMITS = 60
VALUE = b'{"x":"' + b"y" * 200_000 + b'"}'


class Stream:
    """A member's answers; how many were taken."""

    def __init__(self) -> None:
        self.taken = 0
        self.ended = threading.Event()

    def __iter__(self) -> Iterator[Any]:
        yield pb.WatchResponse(created=True, header=pb.ResponseHeader(revision=1))
        for n in range(COMMITS):
            event = pb.Event(type=pb.Event.PUT)
            event.kv.key, event.kv.value = etcd_path(HandleKey(f"h{n}")).encode(), VALUE
            event.kv.mod_revision = n + 2
            self.taken += 1
            yield pb.WatchResponse(header=pb.ResponseHeader(revision=n + 2), events=[event])
        self.ended.wait(60)

    def cancel(self) -> None:
        self.ended.set()


def test_the_backlog_is_bounded_in_bytes() -> None:
    stream = Stream()
    link = SimpleNamespace(watch=lambda requests, metadata: stream, endpoint="m")
    cluster = SimpleNamespace(
        link=lambda doing, deadline: link, metadata=lambda link, s: (), round_trips=RoundTrips(), fail=lambda *_: None
    )
    most = BACKLOG_BYTES // len(VALUE)
    with EtcdWatch(cluster, HandleList(), 1, lambda key, why: None) as watch:
        until(lambda: stream.taken > most, "the backlog is full")
        assert stream.taken == most + 1, "one waits at the door"
        seen = []
        while len(seen) < COMMITS:
            seen += [event.key for event in watch.next(20)]
            assert stream.taken <= len(seen) + most + 1
    assert seen == [HandleKey(f"h{n}") for n in range(COMMITS)]


def no_thread(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_host_short_of_threads_asks_no_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC starts one for its first call on a channel."""
    cluster = EtcdCluster(EtcdConfig(endpoints=("http://127.0.0.1:1",)))
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(DatastoreUnavailable, match=r"127\.0\.0\.1:1 \(this host is short of threads\)"):
        cluster.link("read", Deadline.after(5))
    cluster.close()


def test_a_watch_whose_thread_dies_says_so() -> None:
    def link(doing: str, deadline: Deadline) -> None:
        raise RuntimeError("something else")

    watch = EtcdWatch(SimpleNamespace(link=link), HandleList(), 1, lambda key, why: None)
    with watch, pytest.raises(InternalError, match="cannot watch /calico/ipam/v2/handle/: RuntimeError: something"):
        until(lambda: watch.next(1), "the watch ends")
