"""The short way and the long way make the same of every list, and refuse the same."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.model.documents.fields import Wrong
from cni_calico.policy.packed_nets import parse_packed_nets
from cni_calico.policy.records import packed
from cni_calico.policy.rules import parse_nets

ODD = [
    *("", "/", "10.0.0.1/", "10.0.0.1/33", "10.0.0.1/08", "10.0.0.1/+8", "10.0.0.01", "10.0.0", "10.0.0.1/255.0.0.0"),
    *("::1%x", "10.0.0.1 ", "10.0.0.1/8/8", "١٠.0.0.1", "10.0.0.1\0", "\udc80", "fd00::/64", "::ffff:1.2.3.4/120"),
    *(7, None, ["10.0.0.1"]),
]
NETS = st.builds(
    lambda value, length: f"{value >> 24}.{value >> 16 & 255}.{value >> 8 & 255}.{value & 255}{length}",
    st.integers(0, 2**32 - 1),
    st.one_of(st.just(""), st.integers(0, 34).map(lambda length: f"/{length}")),
)


def outcome(parse: Any, raw: Any) -> Any:
    try:
        return parse(raw, "spec.nets")
    except Wrong as e:
        return str(e)


@given(
    st.one_of(st.lists(st.one_of(NETS, NETS, st.sampled_from(ODD)), max_size=6), st.none(), st.sampled_from(["x", {}]))
)
def test_the_same_as_one_by_one(raw: Any) -> None:
    assert outcome(parse_packed_nets, raw) == outcome(lambda *given: packed(parse_nets(*given)), raw)


@given(st.sampled_from(ODD))
def test_odd_ones(item: Any) -> None:
    assert outcome(parse_packed_nets, [item]) == outcome(lambda *given: packed(parse_nets(*given)), [item])
