"""The selector language against a naive evaluator, and its errors."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.model.selector_forms import (
    Requirement,
    mentions_global,
    normalized,
    read_specially,
    requirements,
    with_prefix,
)
from cni_calico.model.selectors import InvalidSelector, Selector, parse_selector

LABELS = ["a", "b", "zone", "projectcalico.org/name", "in", "not", "has", "starts", "x-y_z.w/v", "0a"]
VALUES = ["", "x", "xy", "yx", "a b", "&&", "}", "it's"]

tests = st.one_of(
    st.tuples(
        st.sampled_from(["==", "!=", "contains", "starts with", "ends with"]),
        st.sampled_from(LABELS),
        st.sampled_from(VALUES),
    ),
    st.tuples(
        st.sampled_from(["in", "not in"]), st.sampled_from(LABELS), st.lists(st.sampled_from(VALUES), max_size=3)
    ),
    st.tuples(st.just("has"), st.sampled_from(LABELS)),
    st.tuples(st.sampled_from(["all", "global"])),
)
trees = st.recursive(
    tests,
    lambda inner: st.one_of(
        st.tuples(st.just("!"), inner),
        st.tuples(st.sampled_from(["&&", "||"]), st.lists(inner, min_size=2, max_size=3)),
    ),
    max_leaves=8,
)
labels = st.dictionaries(st.sampled_from(LABELS), st.sampled_from(VALUES))


def quoted(value):
    return f'"{value}"' if "'" in value else f"'{value}'"


def written(tree, space):
    op = tree[0]
    if op in ("all", "global"):
        return f"{op}({space})"
    if op == "has":
        return f"has({space}{tree[1]}{space})"
    if op == "!":
        return f"!{space}({written(tree[1], space)})"
    if op in ("&&", "||"):
        return f"{space}{op}{space}".join(f"({written(t, space)})" for t in tree[1])
    if op in ("in", "not in"):
        return f"{tree[1]} {op}{space}{{{space}" + f"{space},".join(map(quoted, tree[2])) + f"{space}}}"
    gap = " " if op[0].isalpha() else space
    return f"{tree[1]}{gap}{op}{space}{quoted(tree[2])}"


def naive(tree, labels):
    op, rest = tree[0], tree[1:]
    match op:
        case "all" | "global":
            return True
        case "has":
            return rest[0] in labels
        case "!":
            return not naive(rest[0], labels)
        case "&&":
            return all(naive(t, labels) for t in rest[0])
        case "||":
            return any(naive(t, labels) for t in rest[0])
    present, value = rest[0] in labels, labels.get(rest[0], "")
    match op:
        case "==":
            return present and value == rest[1]
        case "!=":
            return not present or value != rest[1]
        case "in":
            return present and value in rest[1]
        case "not in":
            return not present or value not in rest[1]
        case "contains":
            return present and value.find(rest[1]) >= 0
        case "starts with":
            return present and value[: len(rest[1])] == rest[1]
        case "ends with":
            return present and value[len(value) - len(rest[1]) :] == rest[1] and len(value) >= len(rest[1])
    raise AssertionError(op)


@settings(max_examples=300, deadline=None)
@given(trees, labels, st.sampled_from(["", " ", "\t \n"]))
def test_same_answer_as_the_naive_evaluator(tree, labels, space):
    assert parse_selector(written(tree, space)).matches(labels) is naive(tree, labels)


@settings(max_examples=300, deadline=None)
@given(trees, labels)
def test_normal_form_means_the_same_and_is_its_own(tree, labels):
    selector = parse_selector(written(tree, " "))
    normal = normalized(selector.tree).text
    assert parse_selector(normal).matches(labels) is selector.matches(labels)
    assert normalized(parse_selector(normal).tree).text == normal


@settings(max_examples=300, deadline=None)
@given(trees, labels)
def test_whatever_matches_meets_every_requirement(tree, labels):
    selector = parse_selector(written(tree, " "))
    if selector.matches(labels):
        for requirement in requirements(selector.tree):
            assert requirement.label in labels
            assert requirement.values is None or labels[requirement.label] in requirement.values


@settings(max_examples=300, deadline=None)
@given(trees, labels)
def test_a_prefix_asks_the_same_of_other_labels(tree, labels):
    tree = parse_selector(written(tree, " ")).tree
    prefixed = {f"pcns.{key}": value for key, value in labels.items()}
    asked = with_prefix(tree, "pcns.")
    assert parse_selector(normalized(asked).text).matches(prefixed) is Selector("", tree).matches(labels)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("", "all()"),
        ("b == 'x' && a == 'y' && b == \"x\"", 'a == "y" && b == "x"'),
        ("a in {'x'}", 'a == "x"'),
        ("a in {'y', 'x', 'y'}", 'a in {"x", "y"}'),
        ("!(a == 'x')", 'a != "x"'),
        ("!!has(a)", "has(a)"),
        ("a not in {'x'} && all()", 'a != "x"'),
        ("a == 'x' || all()", "all()"),
        ("(has(c) && has(b)) && has(a)", "has(a) && has(b) && has(c)"),
        ("a == 'say \"x\"'", "a == 'say \"x\"'"),
    ],
)
def test_normal_forms(text, normal):
    assert normalized(parse_selector(text).tree).text == normal


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all()", []),
        ("!has(a)", []),
        ("a == 'x' || b == 'y'", []),
        ("a == 'x' || a == 'y' && has(b)", [Requirement("a", frozenset("xy"))]),
        ("a == 'x' || a contains 'y'", [Requirement("a")]),
        ("has(a) && a in {'x', 'y'} && a in {'y', 'z'}", [Requirement("a", frozenset("y"))]),
        (
            "projectcalico.org/orchestrator == 'k8s' && has(b) && projectcalico.org/namespace=='n' && a in {'x','y'}",
            [
                Requirement("a", frozenset("xy")),
                Requirement("projectcalico.org/namespace", frozenset("n")),
                Requirement("projectcalico.org/orchestrator", frozenset(["k8s"])),
                Requirement("b"),
            ],
        ),
    ],
)
def test_requirements(text, expected):
    assert list(requirements(parse_selector(text).tree)) == expected


def test_all_and_global_are_about_a_label():
    tree = read_specially(parse_selector("all() || !global() && has(a)").tree, "ns")
    assert normalized(tree).text == "has(a) && has(ns) || has(ns)".replace(
        "has(a) && has(ns) ||", "(has(a) && has(ns)) ||"
    )
    assert mentions_global(parse_selector("has(a) && !global()").tree)
    assert not mentions_global(parse_selector("has(a) && !all()").tree)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="ab=!&|(){}'\" ,inhasot", max_size=25))
def test_any_text_parses_or_is_refused(text):
    try:
        assert parse_selector(text).matches({}) in (True, False)
    except InvalidSelector as e:
        assert "at position" in str(e)


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("", {}, True),
        ("  ", {"a": "b"}, True),
        ("!all()", {}, False),
        ("!!all()", {}, True),
        # && binds tighter than ||
        ("all() || all() && !all()", {}, True),
        ("(all() || all()) && !all()", {}, False),
        ("a in {'x',}", {"a": "x"}, True),
        ("a not in {}", {"a": "x"}, True),
        ("has == 'x'", {"has": "x"}, True),
        ("a startswith 'x'", {"a": "xy"}, True),
    ],
)
def test_examples(text, labels, expected):
    assert parse_selector(text).matches(labels) is expected


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("a ==", 4, "expected a quoted text at position 4, got the end"),
        ("a == b", 5, "expected a quoted text"),
        ("a == 'b", 5, "the closing quote"),
        ("a", 1, "expected ==, !=, in"),
        ("a starts 'b'", 2, "starts with"),
        ("(a == 'b'", 9, "expected ')'"),
        ("a == 'b' c", 9, "&&, || or the end"),
        ("a in 'b'", 5, "expected '{'"),
        ("a in {'b' 'c'}", 10, "',' or '}'"),
        ("a == 'b' &&", 11, "expected a label"),
        ("a ? 'b'", 2, "got \"? 'b'\""),
        ("!" * 200 + "all()", 101, "levels of nesting"),
    ],
)
def test_errors_say_where(text, position, expected):
    with pytest.raises(InvalidSelector) as caught:
        parse_selector(text)
    assert f"at position {position}" in str(caught.value)
    assert expected in str(caught.value)


def test_equal_texts_are_parsed_once():
    assert parse_selector("a == 'cached'") is parse_selector("a == 'cached'")


@given(
    st.lists(
        st.sampled_from(["a == '1'", "b in {'1', '2'}", "a == '2' && b != '1'", "!(a == '1')", "has(c)"]), min_size=1
    ),
    st.dictionaries(st.sampled_from("abc"), st.sampled_from("123")),
)
def test_many_alternatives_are_no_other_than_each_by_itself(parts: list[str], labels: dict[str, str]) -> None:
    many = [f"({part})" for part in parts] + [f"d{number} == 'x' && a == '1'" for number in range(20)]
    expected = any(parse_selector(part).matches(labels) for part in many)
    assert parse_selector(" || ".join(many)).matches(labels) == expected
