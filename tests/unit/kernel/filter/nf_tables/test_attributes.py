"""Expressions as netlink attributes: what is kept of them."""

from __future__ import annotations

from cni_calico.kernel.filter.nf_tables.attributes import decode_expression, encode_expression, forget_cached
from cni_calico.kernel.netlink.wire import list_elements
from cni_calico.netfilter.rules import jump


def test_little_is_kept_of_chains_whose_names_do_not_come_again() -> None:
    forget_cached()
    for number in range(10_000):
        (element,) = list_elements(encode_expression(jump(f"host-in-h-{number:024x}")))
        assert decode_expression(element) == jump(f"host-in-h-{number:024x}")
    kept = encode_expression.cache_info().currsize, decode_expression.cache_info().currsize
    forget_cached()
    assert max(kept) <= 2048


def test_what_a_thousand_policies_have_is_kept() -> None:
    forget_cached()
    for _ in range(2):
        for number in range(1500):
            encode_expression(jump(f"pi-gnp/default.p{number}"))
    hits = encode_expression.cache_info().hits
    forget_cached()
    assert hits == 1500
