"""Asking a recorder: one that looks for long, ends in between, or is not there."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cni_calico.deadline import Deadline
from cni_calico.flows.client import RecorderSilent, RecorderSlow, ask
from cni_calico.flows.query import FlowQuery
from tests.fakes.recorder import address, flow, rule

FLOW = flow(address("10.0.0.1"), address("10.0.0.2", 80), rule("egress", "shop", "web", 0))
END: dict[str, Any] = {"end": True, "node": "worker-1", "lost": []}
Recorder = Callable[..., str]


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[Recorder]:
    """A recorder that answers one question with these documents; the path of its socket."""
    threads: list[threading.Thread] = []
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()

        def answer(documents: tuple[dict[str, Any], ...], gone: threading.Event) -> None:
            connection, _ = listening.accept()
            with connection, connection.makefile("rb") as lines:
                lines.readline()
                connection.sendall(b"".join(json.dumps(one).encode() + b"\n" for one in documents))
                gone.wait()

        def start(*documents: dict[str, Any], stays: threading.Event | None = None) -> str:
            gone = stays or threading.Event()
            if stays is None:
                gone.set()
            threads.append(threading.Thread(target=answer, args=(documents, gone)))
            threads[-1].start()
            return str(tmp_path / "s")

        yield start
        for thread in threads:
            thread.join()


def test_signs_of_life_are_no_answer(answering: Recorder) -> None:
    path = answering({}, FLOW, {}, END)
    assert list(ask(path, FlowQuery(), Deadline.after(10))) == [FLOW, END]


def test_an_answer_without_its_end_is_none(answering: Recorder) -> None:
    with pytest.raises(RecorderSilent, match="ended before"):
        list(ask(answering(FLOW), FlowQuery(), Deadline.after(10)))
    assert list(ask(answering(FLOW), FlowQuery(status=True), Deadline.after(10))) == [FLOW]


def test_who_has_little_time_is_told_so(answering: Recorder) -> None:
    """Whether the recorder says nothing, or that it is still looking."""
    stays = threading.Event()
    try:
        with pytest.raises(RecorderSlow):
            list(ask(answering(stays=stays), FlowQuery(), Deadline.after(0.1)))
        with pytest.raises(RecorderSlow):
            list(ask(answering({}, FLOW, {}, stays=stays), FlowQuery(), Deadline.after(0), whole=True))
    finally:
        stays.set()


def test_none_is_there(tmp_path: Path) -> None:
    with pytest.raises(RecorderSilent):
        list(ask(str(tmp_path / "s"), FlowQuery(), Deadline.after(1)))
