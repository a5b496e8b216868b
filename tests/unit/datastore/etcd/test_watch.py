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


def event_of(name: str, revision: int) -> Any:
    event = pb.Event(type=pb.Event.PUT)
    event.kv.key, event.kv.value, event.kv.mod_revision = etcd_path(HandleKey(name)).encode(), b"{}", revision
    return event


class Parts:
    """A member that sends its answers in parts; the first stream is lost in the middle of a commit."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.ended = threading.Event()

    def watch(self, requests: Iterator[Any], metadata: object) -> Parts:
        self.asked.append(next(requests).create_request)
        self.ended = threading.Event()
        return self

    def __iter__(self) -> Iterator[Any]:
        header = pb.ResponseHeader(revision=4)
        yield pb.WatchResponse(created=True, header=header)
        if len(self.asked) == 1:
            events = [event_of("a", 2), event_of("b", 3)]
            yield pb.WatchResponse(header=header, fragment=True, events=events)
            yield pb.WatchResponse(header=header, fragment=True, events=[event_of("c", 3)])
            return
        for fragment, name, revision in ((True, "b", 3), (True, "c", 3), (True, "d", 3), (True, "e", 4)):
            yield pb.WatchResponse(header=header, fragment=fragment, events=[event_of(name, revision)])
        yield pb.WatchResponse(header=header, events=[event_of("f", 4)])
        self.ended.wait(60)

    def cancel(self) -> None:
        self.ended.set()


def test_a_commit_that_comes_in_parts_is_handed_on_whole() -> None:
    member = Parts()
    link = SimpleNamespace(watch=member.watch, endpoint="m")
    cluster = SimpleNamespace(
        link=lambda doing, deadline: link, metadata=lambda link, s: (), round_trips=RoundTrips(), fail=lambda *_: None
    )
    with EtcdWatch(cluster, HandleList(), 1, lambda key, why: None) as watch:
        seen = [[event.key.handle_id for event in watch.next(20)] for _ in range(3)]
    assert seen == [["a"], ["b", "c", "d"], ["e", "f"]]
    assert [(asked.start_revision, asked.fragment) for asked in member.asked] == [(2, True), (3, True)]


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
