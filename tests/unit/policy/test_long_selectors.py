"""A long selector in steps is the same selector, and no step of it is long."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.model import selectors
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Resource
from cni_calico.model.selector_forms import normal_form, parse_tree
from cni_calico.model.selectors import InvalidSelector, Selector, holds, parse_selector
from cni_calico.policy import long_selectors, sources
from cni_calico.policy.long_selectors import LONG, normalizing, parsing_tree
from cni_calico.policy.records import PolicyRecord, parsing_policy
from cni_calico.policy.sources import peer_selecting, peer_selector
from cni_calico.policy.steps import Steps, StepsResult, finish

leaves = st.sampled_from(
    [
        "all()",
        "global()",
        "has(a)",
        "a == 'x'",
        "b != 'y'",
        "a in {'x', 'y'}",
        "b not in {}",
        "a starts with 'x'",
        "b contains 'z'",
    ]
)
texts = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map(" || ".join),
        st.lists(inner, min_size=1, max_size=4).map(" && ".join),
        inner.map(lambda text: f"!({text})"),
        inner.map(lambda text: f"( {text} )"),
    ),
    max_leaves=30,
)
wrong = st.builds(
    lambda text, at, some: text[:at] + some + text[at:], texts, st.integers(0, 40), st.sampled_from("(!)|x'")
)
label_values = st.dictionaries(st.sampled_from("ab"), st.sampled_from(["x", "y", "xz", ""]))


@pytest.fixture(autouse=True)
def _everything_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (long_selectors, sources):
        monkeypatch.setattr(module, "LONG", 0)
    for name in ("_TOKENS", "_TERMS"):
        monkeypatch.setattr(long_selectors, name, 1)


def outcome(read: object) -> object:
    try:
        return read() if callable(read) else None
    except InvalidSelector as e:
        return str(e)


@given(texts | wrong)
def test_steps_lead_where_one_step_leads(text: str) -> None:
    assert outcome(lambda: finish(parsing_tree(text))) == outcome(lambda: parse_tree(text))


@given(texts)
def test_a_normal_form_in_steps(text: str) -> None:
    tree = parse_tree(text)
    found = finish(normalizing(tree))
    assert found.tree == normal_form(tree) and normal_form(parse_tree(found.text)) == found.tree


@given(texts, texts, texts, st.sampled_from(["", "n"]))
def test_what_a_peer_selects(selector: str, excluded: str, spaces: str, namespace: str) -> None:
    found = finish(peer_selecting(selector, excluded, spaces, ("s",), selector, namespace))
    expected = peer_selector(selector, excluded, spaces, ("s",), selector, namespace)
    assert found is not None and expected is not None and (found.text, found.tree) == (expected.text, expected.tree)


@given(texts, label_values)
def test_many_terms_match_as_few_do(text: str, labels: Mapping[str, str]) -> None:
    expected = Selector(text, parse_tree(text)).matches(labels)
    assert holds(parse_tree(text), labels) == expected
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(selectors, "_MANY", 0)
        assert Selector(text, parse_tree(text)).matches(labels) == expected


def counted(steps: Steps[StepsResult]) -> tuple[int, StepsResult]:
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as e:
            return count, e.value
        count += 1


@pytest.mark.parametrize("form", ["{}", "!({})", "(({}))", "z == 'z' && ({})", "({0}) && !({0})"])
@pytest.mark.parametrize("field", ["selector", "namespaceSelector", "notSelector"])
def test_a_policy_with_thousands_of_terms_takes_many_steps(
    monkeypatch: pytest.MonkeyPatch, form: str, field: str
) -> None:
    monkeypatch.undo()
    text = form.format(" || ".join(f"(a{i} == 'x' && b != 'y')" for i in range(2000)))
    assert len(text) > LONG
    spec = {"selector": "all()", "ingress": [{"action": "Allow", "source": {"selector": "all()", field: text}}]}
    parse_selector.cache_clear()
    steps, record = counted(
        parsing_policy(ResourceKey("NetworkPolicy", "p", "n"), Resource("NetworkPolicy", Metadata("p"), spec))
    )
    assert steps > 100 and isinstance(record, PolicyRecord)
    assert parse_selector.cache_info().currsize <= 2  # the long one is not kept
