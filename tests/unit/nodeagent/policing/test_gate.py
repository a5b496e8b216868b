"""Nobody is cut off by the update: when a node polices, and when it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cni_calico.nodeagent.policing.gate import GateFacts, decide

HOST = GateFacts(
    enabled=True,
    has_kubernetes=False,
    is_kubernetes_datastore=False,
    has_namespace_profile=False,
    policies=0,
    is_policing=False,
)
ETCD_UNDER_KUBERNETES = replace(HOST, has_kubernetes=True)
KUBERNETES = replace(ETCD_UNDER_KUBERNETES, is_kubernetes_datastore=True)


@pytest.mark.parametrize(
    ("facts", "police", "ready", "upstream_goes"),
    [
        (HOST, False, True, True),
        (replace(HOST, is_policing=True), False, True, True),  # the last policy went
        (replace(HOST, policies=1), True, True, False),
        (replace(HOST, policies=1, enabled=False), False, True, True),
        (ETCD_UNDER_KUBERNETES, False, False, False),
        (replace(ETCD_UNDER_KUBERNETES, policies=9), False, False, False),
        (replace(ETCD_UNDER_KUBERNETES, has_namespace_profile=True), True, True, False),
        (replace(ETCD_UNDER_KUBERNETES, has_namespace_profile=True, missing_profiles=("kns.b",)), False, False, False),
        (replace(ETCD_UNDER_KUBERNETES, is_policing=True, missing_profiles=("kns.b",)), True, True, False),
        (replace(KUBERNETES, missing_profiles=("kns.b",)), True, True, False),
        (replace(HOST, policies=1, missing_profiles=("net",)), True, True, False),
        (replace(ETCD_UNDER_KUBERNETES, is_policing=True), True, True, False),  # it was seen by an earlier run
        (KUBERNETES, True, True, False),
        (replace(KUBERNETES, enabled=False), False, True, True),
        (replace(KUBERNETES, held="why"), False, False, False),
        (replace(HOST, policies=1, held="why"), False, False, False),
        (
            replace(KUBERNETES, held="why", is_policing=True),
            True,
            True,
            False,
        ),  # ours are there: upstream's protect no more
        (replace(KUBERNETES, held="why", enabled=False), False, True, True),
    ],
)
def test_decide(facts: GateFacts, police: bool, ready: bool, upstream_goes: bool) -> None:
    gate = decide(facts)
    assert (gate.police, gate.ready, gate.upstream_goes) == (police, ready, upstream_goes)
    assert bool(gate.why) is not police


def test_what_is_missing_is_named() -> None:
    missing = ("kns.a", "kns.b", "kns.c", "kns.d", "kns.e", "ksa.a.b", "ksa.a.c")
    facts = replace(ETCD_UNDER_KUBERNETES, has_namespace_profile=True, missing_profiles=missing)
    why = decide(facts).why
    assert "kns.a, kns.b, kns.c, kns.d, kns.e and 2 more" in why and "calico-kube-controllers" in why
