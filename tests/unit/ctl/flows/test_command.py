"""``calicoctl flows``: what the forms of a page do not go together with, and the words that a page is given."""

from __future__ import annotations

import json
import socket
import threading
from argparse import Namespace
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.ctl.command_line.arguments import parse_arguments
from cni_calico.ctl.command_line.flow_arguments import page_words, parse_filters
from cni_calico.ctl.main import run
from cni_calico.directories import FLOW_SOCKET
from cni_calico.errors import InvalidConfig
from tests.fakes.recorder import address, flow, rule


def line(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode() + b"\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--web --html f", "--html and --web do not go together: give one of them"),
        ("--web -o json", "a page is no document"),
        ("--web -f", "a page goes on by itself"),
        ("--html f -f", "a file does not go on: take --web"),
        ("--web --expectations f", "a page is another file"),
        ("-f --expectations f", "the file is written when all flows are known"),
        ("--web -v", "each flow of a page has its command"),
        ("--web --aggregate", "take --html for that"),
        ("--web --fail-if-denied", "take --html for that"),
        ("--web 70000", "expected a port"),
        ("--web x", "expected a port"),
        ("--web --since yesterday", "expected a duration"),
        ("--web --not", "there is no filter after --not"),
    ],
)
def test_what_does_not_fit(words: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["flows", *words.split()], {"CALICO_RUN_DIR": str(tmp_path)}) == 1
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--web"], ["--html", "page.html"]])
def test_without_a_recorder(words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["flows", *words], {"CALICO_RUN_DIR": str(tmp_path)}) == 1
    assert "FELIX_FLOWS" in capsys.readouterr().err and not Path("page.html").exists()


PLAIN = flow(address("10.0.0.1"), address("10.0.0.2", 80), rule("egress", "shop", "web", 0))
END: dict[str, Any] = {"end": True, "node": "worker-1", "lost": [], "kept": {"flows": None, "sums": None}}

LOSS = {"from": 1.0, "to": 2.0, "count": 1, "source": "nflog-denied", "why": "full"}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"nonsense\n", "no JSON"),
        (b"\xff\n", "no JSON"),
        (b"[" * 200_000 + b"\n", "no JSON"),
        (b'["verdict"]\n', "no JSON object"),
        (b'{"flow": 1}\n', "'source' is missing"),
        (line({**PLAIN, "decided": 5}), "what it says is no flow"),
        (line({**PLAIN, "verdict": "denied", "decided": {}}), "what it says is no flow"),
        (line({**PLAIN, "decided": [{}]}), "'said' is missing"),
        (line({**PLAIN, "destination": "10.0.0.2"}), "what it says is no flow"),
        (line({**PLAIN, "connections": "1"}), "what it says is no flow"),
        (line({**PLAIN, "start": 1}), "what it says is no flow"),
        (line({**PLAIN, "icmp": [8]}), "what it says is no flow"),
        (line({**PLAIN, "icmp": None}), "what it says is no flow"),
        (line({**PLAIN, "source": {**address("10.0.0.1"), "labels": {"a": 1}}}), "labels are no texts"),
        (line({**PLAIN, "nodes": [3]}), "nodes are no texts"),
        (line({**PLAIN, "destination": {**address("10.0.0.2"), "asked": {"ip": "10.0.0.3"}}}), "'port' is missing"),
        (line({**PLAIN, "source": {"ip": "10.0.0.1"}}), "'kind' is missing"),
        (line({"lost": []}), "no number"),
        (line({"note": 1}), "a note is no text"),
        (line({**END, "lost": [1]}), "what it says is no loss"),
        (line({**END, "lost": [{**LOSS, "from": "1"}]}), "no time or number"),
        (line({**END, "lost": [{**LOSS, "source": []}]}), "what it has lost is no text"),
        (line({**END, "lost": None}), "no end of an answer"),
        (line({**END, "kept": [1]}), "no end of an answer"),
        (line({**END, "kept": {"flows": 1e300}}), "no time"),
        (line({**END, "kept": {"flows": "1", "sums": 1}}), "no time"),
        (line({**END, "kept": [["flows", 1]]}), "no end of an answer"),
        (line({**END, "node": 4}), "a node is no text"),
        (line({**END, "unanswered": [["worker-2", "why"]]}), "no end of an answer"),
        (line({**END, "unanswered": 4}), "no end of an answer"),
    ],
)
@pytest.mark.parametrize("form", ["table -v", "json", "wide"])
def test_a_recorder_that_answers_otherwise(
    answer: bytes, says: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told, with what to do, in each form of output."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / FLOW_SOCKET))
        listening.listen()
        answering = threading.Thread(target=answer_once, args=(listening, answer + line(END)))
        answering.start()
        words = ["flows", "--since", "2h", "-o", *form.split()]
        assert run(words, {"CALICO_RUN_DIR": str(tmp_path)}) == 1
        answering.join()
    said = capsys.readouterr().err
    assert says in said and "the recorder may be of another version" in said


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"", "the recorder ended before its answer did"),
        (b"[]\n", "no JSON object"),
        (line({"lost": 5}), "what the recorder says is no status"),
        (line({"lost": {"destroy": "many"}}), "what the recorder says is no status"),
        (line({}), "the recorder ended before its answer did"),
    ],
)
def test_a_status_of_another_form(answer: bytes, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page asks for it first."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / FLOW_SOCKET))
        listening.listen()
        answering = threading.Thread(target=answer_once, args=(listening, answer))
        answering.start()
        assert run(["flows", "--web", "--since", "2h"], {"CALICO_RUN_DIR": str(tmp_path)}) == 1
        answering.join()
    assert says in capsys.readouterr().err


def answer_once(listening: socket.socket, answer: bytes) -> None:
    connection, _ = listening.accept()
    with connection, suppress(BrokenPipeError, ConnectionResetError):
        connection.recv(4096)
        connection.sendall(answer)


def flows(*words: str) -> Namespace:
    return parse_arguments(["flows", *words], "calicoctl")


def test_the_page_has_the_words_of_the_command_line() -> None:
    given_words = flows(
        "-n", "shop", "--not", "--port", "53", "--from", "it's", "--last", "5", "--since", "5m", "--web"
    )
    words = page_words(given_words)
    assert words == "--namespace shop --not --port 53 --from 'it'\"'\"'s' --last 5 --since 5m"
    found = parse_filters(words)
    assert found.filters == given_words.filters and (found.last, found.since, found.until) == (5, "5m", "")
    assert page_words(flows("--web")) == "" and flows("--web", "--port", "80").web == 0


@given(st.lists(st.tuples(st.sampled_from(["--from", "--namespace", "--tier"]), st.text(st.characters(codec="utf-8")))))
def test_any_word_comes_back(chosen: list[tuple[str, str]]) -> None:
    clean = [(option, text) for option, text in chosen if not {"\0", "/"} & {*text} and text.strip()]
    asked = flows(*(f"{option}={text}" for option, text in clean))
    assert parse_filters(page_words(asked)).filters == asked.filters


@pytest.mark.parametrize("text", ["--from 'a", "--nonsense x", "-f", "--html x", "word", "--last x", "--help"])
def test_what_is_no_filter(text: str) -> None:
    with pytest.raises(InvalidConfig):
        parse_filters(text)
