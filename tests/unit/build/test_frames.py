"""The table of frames (tests/golden/protocol): produced and read by the native front as by the Python on both sides."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cni_calico.cni.environment import CALLER_VARIABLES
from cni_calico.plugin.call import client, protocol, shim
from cni_calico.server.connections import read_request
from tests.conftest import ROOT
from tests.fakes.front import Front, answering, compile_judge, judge, python_of, serving

FRAMES = json.loads((ROOT / "tests/golden/protocol/frames.json").read_text())
REQUESTS = [pytest.param(entry, id=entry["what"]) for entry in FRAMES["requests"]]
ANSWERS = [pytest.param(entry, id=entry["what"]) for entry in FRAMES["answers"]]
ANSWER = protocol.frame(protocol.answer_fields(0, b"{}\n"))


@pytest.mark.parametrize("entry", REQUESTS)
def test_the_front_sends_a_request(any_front: Front, entry: dict[str, Any]) -> None:
    environ = {name.encode(): value.encode("latin-1") for name, value in entry["environ"]}
    with serving(any_front, answering(ANSWER)) as seen:
        done = any_front.run(executable=entry["executable"], stdin=entry["stdin"].encode("latin-1"), environ=environ)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"{}\n", b"")
    assert seen.requests == [bytes.fromhex(entry["frame"])]
    assert len(seen.descriptors[0]) == len(entry["descriptors"])


@pytest.mark.parametrize("entry", REQUESTS)
def test_python_sends_it_and_the_server_reads_it(entry: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    frame, stdin = bytes.fromhex(entry["frame"]), entry["stdin"].encode("latin-1")
    names = [name.encode() for name in entry["descriptors"]]
    given = {name: value.encode("latin-1").decode("utf-8", "surrogateescape") for name, value in entry["environ"]}
    variables = [(name, given[name]) for name in client.VARIABLES.split() if name in given]
    fields = protocol.request_fields(entry["executable"], variables, stdin, names)
    assert protocol.frame(fields) == frame
    near, far = socket.socketpair()
    with near, far, open("/dev/null") as null:
        socket.send_fds(near, [frame], [null.fileno()] * len(names))
        request = read_request(far)
        try:
            assert (request.executable, request.stdin) == (entry["executable"], stdin)
            assert request.environ == {name: given[name] for name in CALLER_VARIABLES if name in given}
            assert list(request.descriptors) == names
        finally:
            request.close()


@pytest.mark.parametrize("entry", ANSWERS)
def test_the_front_reads_an_answer(any_front: Front, entry: dict[str, Any]) -> None:
    with serving(any_front, answering(bytes.fromhex(entry["frame"]))) as seen:
        done = any_front.run(stdin=b"the input")
    if "status" in entry:
        assert (done.returncode, done.stdout) == (entry["status"], entry["stdout"].encode("latin-1"))
    else:
        ran = python_of(done)
        assert (ran.arguments, ran.stdin) == ((shim.SERVE_HERE,), b"the input")
    assert done.stderr == b"" and len(seen.requests) == 1


@pytest.mark.parametrize("entry", ANSWERS)
def test_python_reads_it(tmp_path: Path, entry: dict[str, Any]) -> None:
    (tmp_path / "run").mkdir()
    here = Front(tmp_path, (), tmp_path)
    with serving(here, answering(bytes.fromhex(entry["frame"]))):
        found = client.call_server(str(tmp_path / "run" / "cni.sock"), "calico", {}, b"")
    expected = (entry["status"], entry["stdout"].encode("latin-1")) if "status" in entry else None
    assert found == expected


@pytest.mark.parametrize("entry", [e for e in FRAMES["answers"] if e["what"] in ("a result", "an error", "any bytes")])
def test_the_server_produces_it(entry: dict[str, Any]) -> None:
    fields = protocol.answer_fields(entry["status"], entry["stdout"].encode("latin-1"))
    assert protocol.frame(fields).hex() == entry["frame"]


# -- the parsers alone, with an oracle and the sanitizers -------------------------------------------------------------


@pytest.fixture(scope="module")
def judged(header: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    program = compile_judge(header, tmp_path_factory.mktemp("judge") / "judge")
    return lambda letter, records: judge(program, letter, records)


def oracle(data: bytes) -> str:
    """What Python makes of an answer."""
    try:
        version, length = protocol.parse_header(data[: protocol.HEADER_BYTES])
        body = data[protocol.HEADER_BYTES : protocol.HEADER_BYTES + length]
        if len(body) < length:
            raise protocol.Malformed("short")
        status, stdout = protocol.parse_answer(protocol.parse_fields(body))
    except protocol.Malformed:
        return "refused"
    return f"{version} {status} {stdout.hex()}"


def mutated(chance: random.Random, data: bytes) -> bytes:
    """Some bytes of it changed, taken out, put in; numbers that lie near a limit."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(6):
            case 0:
                changed[at:at] = chance.randbytes(chance.randint(1, 5))
            case 1:
                del changed[at : at + chance.randint(1, 5)]
            case 2:
                changed[at : at + 1] = bytes((chance.randrange(256),))
            case 3:
                changed[at : at + 4] = chance.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, len(data))).to_bytes(4, "big")
            case 4:
                del changed[at:]
            case _ if len(changed) >= 8:
                changed[4:8] = max(0, len(changed) - 8 + chance.randint(-2, 2)).to_bytes(4, "big")
    return bytes(changed)


def test_fuzzed_answers_mean_the_same_to_both(judged: Callable[..., list[str]]) -> None:
    chance = random.Random(16)
    corpus = [bytes.fromhex(entry["frame"]) for entry in FRAMES["answers"]]
    frames = [*corpus, *(mutated(chance, chance.choice(corpus)) for _ in range(60_000))]
    found = judged("a", frames)
    expected = [oracle(frame) for frame in frames]
    assert found == expected
    assert 1000 < sum(each != "refused" for each in expected) < 59_000  # neither side of it is rare


QUESTIONS = (
    b'{"cniVersion":"1.0.0"}', b'{"cniVersion": "0.3.1","name":"x"}', b"", b"{}", b'{"cniVersion":"1.1.0"',
    b'"cniVersion"', b'{"cniVersion":"","name":"0.1.0"}', b'{"cniVersion":","}', b'{"cniVersion":"9.9.9"}',
    b'{"cniVersion":1}', b'{"cniVersion":"1.0.0 0.1.0"}', b'{"cniVersion":"0.1.0","cniVersion":"1.0.0"}',
    b'{"cniVersion":\n"1.0.0"}', b'{"a":{"cniVersion":"0.1.0"},"cniVersion":"1.0.0"}', b'{"cniVersion":"1.0.0',
    b'{"cniVersion":"\xff"}',
)  # fmt: skip


def test_fuzzed_questions_for_the_version_mean_the_same_or_are_left_to_python(judged: Callable[..., list[str]]) -> None:
    chance = random.Random(16)
    questions = [*QUESTIONS, *(mutated(chance, chance.choice(QUESTIONS)) for _ in range(20_000))]
    found = judged("v", questions)
    answers = [json.loads(shim.version_answer(question))["cniVersion"] for question in questions]
    clear = [(one, other) for one, other in zip(found, answers, strict=True) if one != "refused"]
    assert [one for one, _ in clear] == [other for _, other in clear]
    assert found[:4] == ["1.0.0", "0.3.1", "1.1.0", "1.1.0"] and found[5:16].count("refused") == 11


def test_patience_is_read_alike(judged: Callable[..., list[str]]) -> None:
    texts = ["75", "0.5", "1", "0", "0.05", "2.125", "10.", ".5", "600"]
    strange = ["", "abc", "1s", "-1", "1,5", "1.5.5", ".", " 1", "0x10", "99999999", "1e3", "inf", "nan"]
    expected = [int(client._patience_s({protocol.PATIENCE_VARIABLE: text}) * 1000) for text in texts]
    expected += [int(protocol.PATIENCE_S * 1000)] * len(strange)
    assert [int(each) for each in judged("p", [text.encode() for text in (*texts, *strange)])] == expected
