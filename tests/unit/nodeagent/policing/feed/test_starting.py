"""Which large policies wait for the first round's end: of the costliest namespaces, first of those that were not in
force; of tenants only, and none while little is there.
"""

from __future__ import annotations

from typing import Any

from cni_calico.datastore.interface import Versioned
from cni_calico.model.keys import ResourceKey
from cni_calico.netfilter.tables import UNRECOGNISED, UNRECOGNISED_STANDING
from cni_calico.nodeagent.policing.feed.changes import Undecoded
from cni_calico.nodeagent.policing.feed.starting import START_SELECTORS, describe_later, select_later
from cni_calico.nodeagent.policing.tables.naming import policy_chain
from cni_calico.policy.wanted import PolicyId


def large(namespace: str, selectors: int, name: str = "p") -> tuple[ResourceKey, Undecoded]:
    key = ResourceKey("NetworkPolicy" if namespace else "GlobalNetworkPolicy", name, namespace)
    rules: list[Any] = [{"source": {"selector": f"a == 'b{i}'"}} for i in range(selectors)]
    return key, Undecoded(Versioned(key, {"spec": {"ingress": rules}}, 1), selectors, 0)


def unasked() -> frozenset[str]:
    raise AssertionError("the kernel was asked")


def names(later: Any) -> list[str]:
    return sorted(key.namespace for key in later)


def test_what_fits_is_taken_and_nobody_is_asked() -> None:
    assert not select_later(dict([large("a", START_SELECTORS // 2), large("b", START_SELECTORS // 2)]), unasked)
    assert not select_later({}, unasked)


def test_the_costliest_namespaces_wait() -> None:
    third = START_SELECTORS // 3
    some = dict([large("a", third + 2), large("b", third), large("c", third + 1)])
    assert names(select_later(some, frozenset)) == ["a"]
    twice = dict([large("a", third), large("a", third, "q"), large("b", third + 2), large("c", third + 1)])
    assert names(select_later(twice, frozenset)) == ["a", "a"]


def test_what_was_in_force_goes_first() -> None:
    third = START_SELECTORS // 3
    some = dict([large("a", third + 2), large("b", third), large("c", third + 1)])
    chains = {policy_chain(PolicyId("NetworkPolicy", "p", namespace), ingress=True) for namespace in "ac"}
    assert names(select_later(some, lambda: chains)) == ["b"]


def test_nothing_waits_where_no_policy_can_keep_its_rules() -> None:
    some = dict([large("a", 2 * START_SELECTORS), large("b", 1)])
    assert names(select_later(some, lambda: {UNRECOGNISED_STANDING})) == ["a"]
    assert not select_later(some, lambda: {UNRECOGNISED})


def test_what_no_tenant_writes_never_waits() -> None:
    some = dict([large("", 2 * START_SELECTORS), large("", 2 * START_SELECTORS, "q"), large("a", 1)])
    assert not select_later(some, unasked)


def test_each_namespace_is_named() -> None:
    keys = [large("b", 1)[0], large("a", 1)[0], large("a", 1, "q")[0]]
    assert describe_later(keys) == (
        "2 large policies of namespace a are still being made ready (NetworkPolicy p, NetworkPolicy q): what they "
        "govern is denied until then, unless an earlier run had them in force",
        "1 large policies of namespace b are still being made ready (NetworkPolicy p): what they govern is denied "
        "until then, unless an earlier run had them in force",
    )
