"""A question through the pipe: what comes back, and how it ends."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.flows.client import QueryFailed, RecorderSilent
from cni_calico.flows.pipe import pipe_flows
from tests.deadlines import until
from tests.fakes.recorder import ScriptedRecorder, address, flow, rule


@pytest.fixture
def piped_recorder(tmp_path: Path) -> Iterator[ScriptedRecorder]:
    made = ScriptedRecorder(str(tmp_path))
    yield made
    made.close()


def piped(tmp_path: Path, question: bytes) -> list[dict[str, object]]:
    asked, told = os.pipe(), os.pipe()
    try:
        os.write(asked[1], question)
        if not question.endswith(b"\n"):
            os.close(asked[1])
        assert pipe_flows(str(tmp_path), asked[0], told[1]) == 0
    finally:
        os.close(told[1])
    with open(told[0], "rb") as lines:
        return list(map(json.loads, lines))


def test_an_answer(piped_recorder: ScriptedRecorder, tmp_path: Path) -> None:
    piped_recorder.flows = [flow(address("10.0.0.1"), address("10.0.0.2", 80), rule("egress", "a", "b", 0))]
    found = piped(tmp_path, b'{"last": 5}\n')
    assert found[0]["protocol"] == "tcp" and found[1]["end"]
    assert piped(tmp_path, b'{"last": 5}') == []  # who has gone before the end of the line


@pytest.mark.parametrize("question", [b"{}x\n", b'{"unknown": 1}\n', b"x" * 70_000])
def test_a_bad_question(question: bytes, tmp_path: Path) -> None:
    (tmp_path / "asked").write_bytes(question)
    with (tmp_path / "asked").open("rb") as asked, pytest.raises(QueryFailed):
        pipe_flows(str(tmp_path), asked.fileno(), 1)


def test_no_recorder(tmp_path: Path) -> None:
    (tmp_path / "asked").write_bytes(b"{}\n")
    with (tmp_path / "asked").open("rb") as asked, pytest.raises(RecorderSilent, match="No such file"):
        pipe_flows(str(tmp_path), asked.fileno(), 1)


def test_it_ends_with_whoever_asks(piped_recorder: ScriptedRecorder, tmp_path: Path) -> None:
    asked, told = os.pipe(), os.pipe()
    os.write(asked[1], b'{"follow": true}\n')
    piping = threading.Thread(target=pipe_flows, args=(str(tmp_path), asked[0], told[1]))
    piping.start()
    until(lambda: len(piped_recorder.server) == 1, "it asks")
    os.close(asked[1])
    piping.join(20)
    assert not piping.is_alive()
    until(lambda: len(piped_recorder.server) == 0, "the recorder has no reader")
    for fd in (asked[0], *told):
        os.close(fd)
