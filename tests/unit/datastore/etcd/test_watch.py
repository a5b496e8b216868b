"""What a watch on etcd holds while its reader is slow: bounded in commits and in bytes, and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from cni_calico.datastore.etcd.slim_grpc import pb
from cni_calico.datastore.etcd.watch import BACKLOG_BYTES, EtcdWatch
from cni_calico.datastore.interface import RoundTrips
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
