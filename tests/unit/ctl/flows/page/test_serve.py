"""The page's server: what it answers, what the open page is told, and when it is told no more."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPResponse
from typing import Any
from urllib.parse import urlencode

import pytest

from cni_calico.ctl.flows.page import serve
from cni_calico.ctl.flows.page.serve import STREAMS, FlowPage, PageTaken
from cni_calico.ctl.flows.places import HostFlows
from cni_calico.flows import serving
from tests.deadlines import until
from tests.fakes.recorder import ScriptedRecorder, flow, nothing_stored, pod, rule

WEB, DB = pod("shop", "web", "10.65.0.9", 40000), pod("shop", "db-0", "10.65.0.12", 5432)


def numbered(number: int, **other: Any) -> dict[str, Any]:
    return flow({**WEB, "port": number}, DB, rule("egress", "shop", "a", 0), **other)


@pytest.fixture
def flow_page(recorder: ScriptedRecorder) -> Iterator[FlowPage]:
    with FlowPage(HostFlows(recorder.path), "--port 5432", nothing_stored, timeout_s=30) as made:
        yield made


@contextmanager
def asked(page: FlowPage, path: str, **headers: str) -> Iterator[HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", page.access.port, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        yield connection.getresponse()
    finally:
        connection.close()


@contextmanager
def streamed(page: FlowPage, words: str = "", **query: str) -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
    path = f"{page.access.path}flows?{urlencode({'filter': words, **query})}"
    with asked(page, path, Cookie=f"calico-flows={page.access.token}") as answer:
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/event-stream; charset=utf-8")
        yield events(answer)


def events(answer: HTTPResponse) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    for line in answer:
        field, _, value = line.decode().rstrip("\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            yield name, json.loads(value)


def test_the_page(flow_page: FlowPage) -> None:
    path = flow_page.access.path
    with asked(flow_page, f"{path}?token={flow_page.access.token}") as answer:
        assert (answer.status, answer.headers["Location"]) == (303, path)
        cookie = answer.headers["Set-Cookie"].partition(";")[0]
    with asked(flow_page, path, Cookie=cookie) as answer:
        text = answer.read().decode()
        assert answer.status == 200 and '"filter":"--port 5432"' in text and flow_page.access.token not in text
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["Cache-Control"] == "no-store" and answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("", {}, 403),
        ("?token=00", {}, 403),
        ("flows", {}, 403),
        ("other", {"Cookie": "right"}, 404),
        ("flows?since=x", {"Cookie": "right"}, 400),
        ("flows?since=nan", {"Cookie": "right"}, 400),
        ("", {"Cookie": "right", "Host": "evil.example"}, 403),
    ],
)
def test_refused(flow_page: FlowPage, path: str, headers: dict[str, str], status: int) -> None:
    if "Cookie" in headers:
        headers = {**headers, "Cookie": f"calico-flows={flow_page.access.token}"}
    with asked(flow_page, flow_page.access.path + path, **headers) as answer:
        assert answer.status == status and b"html" not in answer.read()


def test_what_was_and_what_is_new(recorder: ScriptedRecorder, flow_page: FlowPage) -> None:
    recorder.flows = [numbered(1), numbered(2)]
    recorder.losses = [{"from": 0, "to": 1, "source": "nflog-denied", "why": "rate", "count": 3}]
    with streamed(flow_page, "--from shop/web --not --port 53") as told:
        assert [next(told)[1]["source"]["port"] for _ in range(2)] == [1, 2]
        name, lost = next(told)
        assert name == "lost" and "3 reports of what was denied" in lost["text"]
        assert next(told) == ("ready", {"node": "worker-1", "goes_on": True})
        recorder.tell(flow(DB, WEB, rule("egress", "shop", "a", 0)), numbered(4))
        name, found = next(told)
        assert (name, found["source"]["port"]) == ("flow", 4) and found["explain"].startswith(
            "calicoctl policy explain"
        )


def test_a_time_that_ends(recorder: ScriptedRecorder, flow_page: FlowPage) -> None:
    recorder.flows = [numbered(1)]
    with streamed(flow_page, "--until 1m") as told:
        assert [name for name, _ in told] == ["flow", "ready"]


def test_words_that_are_no_filter(flow_page: FlowPage) -> None:
    with streamed(flow_page, "--nonsense 'x") as told:
        ((name, said),) = told
    assert name == "wrong" and "filter" in said["error"]


def test_a_flow_that_is_none(recorder: ScriptedRecorder, flow_page: FlowPage) -> None:
    recorder.flows = [{**numbered(1), "source": {"ip": "10.65.0.9", "kind": "pod"}}]
    for _ in range(10):  # more often than there are threads
        with streamed(flow_page) as told:
            assert list(told) == [("gone", {"error": "KeyError: 'namespace'"})]


def test_losses_while_it_goes_on(
    recorder: ScriptedRecorder, flow_page: FlowPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostFlows, "losses_s", 0.0)
    with streamed(flow_page) as told:
        assert next(told)[0] == "ready"
        recorder.lost["nflog-denied"] = 7
        name, said = next(told)
    assert name == "lost" and said["text"].startswith("not recorded: 7 reports of what was denied")


def test_the_recorder_ends_and_comes_back(recorder: ScriptedRecorder, flow_page: FlowPage) -> None:
    with streamed(flow_page) as told:
        assert next(told)[0] == "ready"
        recorder.close()
        assert [name for name, _ in told] == ["gone"]
    with streamed(flow_page) as told:
        ((name, said),) = told
        assert name == "gone" and "No such file" in said["error"]
    recorder.flows = [numbered(1)]
    recorder.open()
    with streamed(flow_page, since="1") as told:
        assert [next(told)[0], next(told)[0]] == ["flow", "ready"]


def test_a_page_that_was_closed_gives_its_place_back(recorder: ScriptedRecorder, flow_page: FlowPage) -> None:
    opened = [streamed(flow_page) for _ in range(STREAMS)]
    for one in opened:
        assert next(one.__enter__())[0] == "ready"
    with streamed(flow_page) as told:
        ((name, said),) = told
        assert name == "gone" and f"{STREAMS} pages are open" in said["error"]
    for one in opened:
        one.__exit__(None, None, None)
    until(lambda: len(recorder.server) == 0, "the recorder has no reader")

    def is_ready() -> bool:
        with streamed(flow_page) as told:
            return next(told)[0] == "ready"

    until(is_ready, "there is a place")


def test_a_slow_page_is_told_what_it_missed(
    recorder: ScriptedRecorder, flow_page: FlowPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "_ROOM", 100_000)
    with streamed(flow_page) as told:
        assert next(told)[0] == "ready"
        large = [numbered(number, text="x" * 50_000) for number in range(400)]
        recorder.tell(*large)  # more than all buffers between the two hold
        until(lambda: recorder.told, "it was told")
        recorder.tell(numbered(1000))
        names, missed, last = list[str](), 0, 0
        while last != 1000:
            name, found = next(told)
            names.append(name)
            if name == "lost":
                assert found["text"] == "this reader was too slow"
                missed = found["missed"]
                recorder.tell(numbered(1000))
            last = found.get("source", {}).get("port", 0)
    assert missed >= 400 - names.count("flow")


def test_what_would_be_decided_now(recorder: ScriptedRecorder) -> None:
    asked_of: list[Mapping[str, str]] = []

    def judge(query: Mapping[str, str]) -> dict[str, Any]:
        asked_of.append(query)
        if query["from"] == "broken":
            raise ValueError("no")
        return {"allowed": True}

    with FlowPage(HostFlows(recorder.path), "", judge, timeout_s=30) as page:
        cookie = f"calico-flows={page.access.token}"
        with asked(page, f"{page.access.path}decision?from=shop%2Fweb&port=1", Cookie=cookie) as answer:
            assert (answer.status, json.load(answer)) == (200, {"allowed": True})
        for _ in range(10):  # more often than there are threads
            with asked(page, f"{page.access.path}decision?from=broken", Cookie=cookie) as answer:
                assert (answer.status, answer.read()) == (500, b"ValueError: no\n")
        with asked(page, f"{page.access.path}decision?from=shop%2Fweb") as answer:
            assert answer.status == 403
    assert asked_of[0] == {"from": "shop/web", "port": "1"} and len(asked_of) == 11


def test_as_a_command(recorder: ScriptedRecorder) -> None:
    recorder.flows = [numbered(1)]
    command = [sys.executable, "-m", "cni_calico.ctl.main", "flows", "--web", "--from", "shop/web"]
    environ = {**os.environ, "CALICO_RUN_DIR": os.path.dirname(recorder.path)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)(/\w+/)\?token=(\w{32})\n", process.stdout.readline())
        assert found
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=30)
        connection.request("GET", f"{found[2]}flows?filter=", headers={"Cookie": f"calico-flows={found[3]}"})
        assert next(events(connection.getresponse()))[1]["source"]["port"] == 1
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130 and process.stdout.read() == ""
        connection.close()


def test_a_port_that_is_taken(recorder: ScriptedRecorder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PageTaken, match=rf"cannot serve the page at 127\.0\.0\.1:{port}: .*in use"):
            FlowPage(HostFlows(recorder.path), "", nothing_stored, port=port)
    assert serve.PageTaken.hint
