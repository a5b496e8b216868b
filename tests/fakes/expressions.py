"""The expressions of nf_tables that a rule of ours becomes, as values."""

from __future__ import annotations

from cni_calico.kernel.filter.nf_tables.attributes import decode_expression
from cni_calico.kernel.filter.nf_tables.expressions import Expression
from cni_calico.kernel.filter.nf_tables.printer import print_rule
from cni_calico.kernel.netlink.wire import list_elements
from cni_calico.netfilter.rules import NftRule


def expressions_of(rule: NftRule, family: str) -> tuple[Expression, ...]:
    """``family``: ip, ip6, inet, arp."""
    return tuple(map(decode_expression, list_elements(print_rule(rule, family).expressions)))
