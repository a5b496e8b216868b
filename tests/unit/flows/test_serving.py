"""The recorder's socket: readers who are slow, many, or send nonsense; nobody is waited for."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cni_calico.flows import serving
from cni_calico.flows.query import STAGED, Condition, FlowQuery, render_query
from cni_calico.flows.serving import FlowServer
from tests.deadlines import until

END = {"end": True, "lost": []}


def flow(port: int, text: str = "") -> dict[str, Any]:
    ends = {"source": {"ip": "10.0.0.1"}, "destination": {"ip": "10.0.0.2", "port": port}}
    return {
        **ends,
        "start": f"1970-01-01T00:00:{port:02}+00:00",
        "verdict": "allowed",
        "protocol": "tcp",
        "decided": [],
        "text": text,
    }


class Source:
    """Ports 1 to 5, with something empty in between; without end for who asks from the beginning."""

    def documents(self, query: FlowQuery) -> Iterator[dict[str, Any]]:
        for port in count(1) if query.since == 0 else range(1, 6):
            yield flow(port % 60)
            yield {}
        while query.until == 0:
            yield {}  # looking for more

    def refusal(self, query: FlowQuery) -> str:
        return "nobody judges here" if query.asks_staged else ""

    def status(self) -> dict[str, Any]:
        return {"live": 3}

    def ending(self, since: float | None, until: float | None) -> dict[str, Any]:
        return END if since is None else {**END, "since": since}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def flow_clock() -> Clock:
    return Clock()


@pytest.fixture
def flow_server(tmp_path: Path, flow_clock: Clock) -> Iterator[FlowServer]:
    made = FlowServer(str(tmp_path / "s.sock"), Source(), flow_clock)
    yield made
    made.close()


def connect(flow_server: FlowServer, sends: bytes = b"") -> socket.socket:
    opened = socket.socket(socket.AF_UNIX)
    opened.settimeout(10)
    opened.connect(flow_server.path)
    opened.sendall(sends)
    flow_server.wait(0)
    return opened


def answer(flow_server: FlowServer, sends: bytes) -> list[dict[str, Any]]:
    with connect(flow_server, sends) as opened:
        until(lambda: flow_server.wait(0) or len(flow_server) == 0, "the reader has all")
        data = b""
        while piece := opened.recv(65536):
            data += piece
    return [json.loads(line) for line in data.splitlines()]


def test_the_oldest_come_first_and_an_end(flow_server: FlowServer) -> None:
    found = answer(flow_server, render_query(FlowQuery()))
    assert [one["destination"]["port"] for one in found[:-1]] == [1, 2, 3, 4, 5] and found[-1] == END
    assert answer(flow_server, render_query(FlowQuery(status=True))) == [{"live": 3}]
    assert answer(flow_server, render_query(FlowQuery(last=5)))[-1] == {**END, "since": 1}, "losses since the oldest"
    assert answer(flow_server, render_query(FlowQuery(last=6)))[-1] == END, "there may be none older"
    assert oct(os.stat(flow_server.path).st_mode)[-3:] == "600"


@pytest.mark.parametrize("sent", [b"\n", b"nonsense\n", b'{"x": 1}\n', b"\xff\n", b"a" * (64 << 10)])
def test_nonsense_is_answered_with_an_error(flow_server: FlowServer, sent: bytes) -> None:
    (found,) = answer(flow_server, sent)
    assert set(found) == {"error"}


def test_what_nobody_works_out_here_is_refused_and_not_answered_with_nothing(flow_server: FlowServer) -> None:
    staged = Condition(STAGED, ("changed",))
    for query in (FlowQuery(staged=True), FlowQuery((staged,), last=3), FlowQuery((staged,), follow=True)):
        assert answer(flow_server, render_query(query)) == [{"error": "nobody judges here"}]


def test_who_follows_gets_what_there_is_and_what_is_new(flow_server: FlowServer) -> None:
    with connect(flow_server, render_query(FlowQuery(follow=True))) as opened:
        until(
            lambda: flow_server.wait(0) or (flow_server.followed and opened.recv(1 << 16).count(b"\n") == 5),
            "what there is",
        )
        flow_server.tell(flow(9))
        flow_server.wait(0)
        assert json.loads(opened.recv(1 << 16)) == flow(9)


def test_nothing_is_kept_of_what_is_answered(flow_server: FlowServer) -> None:
    with connect(flow_server, render_query(FlowQuery(since=0))) as opened:
        got = bytearray()
        until(
            lambda: flow_server.wait(0) or got.extend(opened.recv(1 << 16)) or got.count(b"\n") > 10_000, "more flows"
        )
        for _ in range(100):
            flow_server.wait(0)
        (reader,) = flow_server._readers
        assert len(reader.out) < 2 << 20, "it waits for the reader"


def test_who_waits_for_long_hears_that_the_recorder_lives(flow_server: FlowServer, flow_clock: Clock) -> None:
    with connect(flow_server, render_query(FlowQuery(until=0))) as opened:
        opened.setblocking(False)
        got = bytearray()

        def receive() -> bytes:
            flow_server.wait(0)
            with suppress(BlockingIOError):
                got.extend(opened.recv(1 << 16))
            return got

        until(lambda: receive().count(b"\n") == 5, "what there is")
        for _ in range(3):
            flow_clock.now += 1
            flow_server.wait(0)
        assert receive().splitlines()[5:] == [b"{}"] * 3


def test_who_is_slow_misses_some_and_is_told_so(flow_server: FlowServer, flow_clock: Clock) -> None:
    with connect(flow_server, render_query(FlowQuery(follow=True))) as opened:
        until(
            lambda: flow_server.wait(0) or (flow_server.followed and opened.recv(1 << 16).count(b"\n") == 5),
            "what there is",
        )
        for i in range(60):
            flow_server.tell(flow(i, "x" * 50_000))
            flow_server.wait(0)
        opened.setblocking(False)
        lines = bytearray()

        def take() -> None:
            """All that is on its way."""
            with suppress(BlockingIOError):
                while True:
                    flow_server.wait(0)
                    lines.extend(opened.recv(1 << 20))

        take()
        flow_server.tell(flow(99))
        take()
        found = [json.loads(line) for line in lines.splitlines()]
        lost = [one["lost"] for one in found if "lost" in one]
        assert len(lost) == 1 and len(found) - 1 + lost[0] == 61 and found[-1] == flow(99)
        for i in range(60):
            flow_server.tell(flow(i, "x" * 50_000))
        flow_server.wait(0)
        flow_clock.now += 11
        flow_server.wait(0)
        assert len(flow_server) == 0  # cut off


def test_who_asks_for_nothing_has_no_place_for_long(flow_server: FlowServer, flow_clock: Clock) -> None:
    following = render_query(FlowQuery(follow=True))
    with connect(flow_server), connect(flow_server, b'{"last": '), connect(flow_server, following) as reader:
        until(lambda: flow_server.wait(0) or reader.recv(1 << 16).count(b"\n") == 5, "what there is")
        flow_clock.now += 9
        flow_server.wait(0)
        assert len(flow_server) == 3
        flow_clock.now += 2
        flow_server.wait(0)
        assert len(flow_server) == 1 and flow_server.followed  # which has been answered


def test_one_more_than_there_may_be_is_told_so(flow_server: FlowServer) -> None:
    readers = [connect(flow_server) for _ in range(serving.READERS)]
    assert len(flow_server) == serving.READERS
    with connect(flow_server) as another:
        assert b"readers already" in another.recv(1000)
    readers.pop().close()
    flow_server.wait(0)
    assert len(flow_server) == serving.READERS - 1
    for each in readers:
        each.close()
