"""Rules as tests write them: tests and actions one after the other."""

from __future__ import annotations

from cni_calico.netfilter.rules import NftRule, RuleAction, RuleTest


def rule(*parts: RuleTest | RuleAction, comment: str = "") -> NftRule:
    """The tests come first."""
    tests = tuple(part for part in parts if isinstance(part, RuleTest))
    actions = tuple(part for part in parts if isinstance(part, RuleAction))
    assert (*tests, *actions) == parts
    return NftRule(tests, actions, comment)
