"""YAML of commands' documents: the same text as PyYAML's own ``dump`` of them."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.ctl.output.texts import render_yaml

# what YAML would take for something else, or has to quote, fold or escape
ODD = [
    *("", " ", "yes", "no", "null", "~", "1", "1.5", "0x1f", "1e3", "1_000", "0o7", "012", "1:30", "=", "<<", ":", "?"),
    *("2026-11-28T03:21:16Z", "2026-11-28", "a: b", "- a", "#c", "x #y", "'q'", '"q"', "!x", "&a", "*a", "{a}", "[a]"),
    *("line\nline\n", "line\n  more\n\n", "tab\tx", "\u2028", "\u00e9", "\U0001f600", "\x07", "a" * 200, "word " * 40),
    *("%a", "@a", "`a", "-", "--- x", "...", "\ufeffx", "trailing ", "\n", "\r\n", "a\x85b"),
]
TEXTS = st.sampled_from(ODD) | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.integers() | st.floats() | st.sampled_from([0.0, -0.0, 0, 1, 1.0])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


class WithoutAnchors(yaml.CSafeDumper):
    def ignore_aliases(self, data):
        return True


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_it_is_the_librarys_text(value):
    expected = yaml.dump(value, Dumper=WithoutAnchors, default_flow_style=False, sort_keys=True, allow_unicode=True)
    assert render_yaml(value) == ("null\n" if value is None else expected)


def test_equal_values_of_other_types_stay_apart():
    assert render_yaml([1, True, 1.0, 0.0, -0.0, 0, False]) == "- 1\n- true\n- 1.0\n- 0.0\n- -0.0\n- 0\n- false\n"


def test_the_same_list_twice_is_written_twice():
    shared = ["a"]
    assert render_yaml({"one": shared, "two": shared}) == "one:\n- a\ntwo:\n- a\n"


def test_what_is_no_json_is_refused():
    with pytest.raises(yaml.YAMLError, match="cannot represent"):
        render_yaml({"a": object()})
