"""``calicoctl flows``: what the forms of a page do not go together with, and the words that a page is given."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.ctl.command_line.arguments import parse_arguments
from cni_calico.ctl.command_line.flow_arguments import page_words, parse_filters
from cni_calico.ctl.main import run
from cni_calico.errors import InvalidConfig


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
