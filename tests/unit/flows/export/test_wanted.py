"""The agent's file about the export is read as it was written, and nothing else is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.flows.export.wanted import ExportedEnd, Target, parse_export, render_export

TEXTS = st.text(max_size=10)
TARGETS = st.builds(Target, TEXTS, TEXTS, TEXTS, TEXTS, st.floats(1, 3600), st.booleans(), TEXTS)
ENDS = st.dictionaries(
    st.tuples(TEXTS, TEXTS), st.builds(ExportedEnd, TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=3)), max_size=4
)


@given(TARGETS, ENDS)
def test_it_is_read_as_it_was_written(target: Target, ends: dict[tuple[str, str], ExportedEnd]) -> None:
    assert parse_export(render_export(target, ends.items())) == (target, ends)


WHOLE = json.loads(render_export(Target("goldmane:7443"), [(("shop", "web"), ExportedEnd("web-*", {"a": "b"}))]))


def test_an_older_agent_says_nothing_of_the_host() -> None:
    older = {name: value for name, value in WHOLE.items() if name != "host"}
    assert parse_export(json.dumps(older).encode())[0] == Target("goldmane:7443")


@pytest.mark.parametrize(
    "changed",
    [{"tls": ["a"]}, {"interval": "often"}, {"interval": None}, {"ends": [["shop"]]}, {"ends": 3},
     {"ends": [["a", "b", "c", ["d"]]]}],
)  # fmt: skip
def test_what_is_not_the_agents_is_refused(changed: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        parse_export(json.dumps(WHOLE | changed).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"3", b"{}", b"\xff", render_export(Target(""), ())[:-3]])
def test_a_torn_file_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        parse_export(data)
