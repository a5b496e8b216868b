"""kubectl's JSONPath dialect: every answer here is kubectl's own (see tests/e2e/kubernetes/store/test_jsonpath.py)."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.ctl.output.jsonpath import render_jsonpath, select_values
from cni_calico.errors import InvalidConfig
from tests.unit.ctl.output.jsonpaths import CASES, LIST


@pytest.mark.parametrize(("template", "wanted"), CASES)
def test_answers(template, wanted):
    assert render_jsonpath(template, LIST) == wanted


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{.items[*].metadata.name", "a brace is not closed"),
        ("{range .items[*]}{.x}", "a {range} has no {end}"),
        ("{end}", "{range PATH} and {end} belong together"),
        ("{range}", "{range PATH} and {end} belong together"),
        ("{.items[}", "cannot use JSONPath '.items['"),
        ("{.items[?(@.x=}", "cannot use JSONPath"),
    ],
)
def test_what_is_none(template, said):
    with pytest.raises(InvalidConfig, match="cannot use JSONPath") as raised:
        render_jsonpath(template, LIST)
    assert said in str(raised.value)


def test_a_path_without_braces_is_one():
    assert render_jsonpath(".items[0].metadata.name", LIST) == "a"


NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)


@given(st.lists(NAMES, min_size=1, max_size=4), st.integers())
def test_any_field_is_found_by_its_escaped_name(path, value):
    document = value
    for name in reversed(path):
        document = {name: document}
    text = "".join("." + "".join(c if c.isalnum() and c.isascii() else f"\\{c}" for c in name) for name in path)
    assert select_values(text, document) == [value]


@given(st.text(max_size=40))
def test_any_text_is_an_answer_or_an_error_of_ours(template):
    try:
        assert isinstance(render_jsonpath(template, json.loads(json.dumps(LIST))), str)
    except InvalidConfig:
        pass
