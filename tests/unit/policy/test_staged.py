"""Staged policies in the place of enforced ones: whatever order records come in, and whatever they say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.errors import CorruptRecord
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Resource
from cni_calico.policy.staged import StagedOverlay, StagedPolicy, read_staged

SPEC = {"selector": "app == 'db'", "types": ["Ingress"], "order": 10}
DB = ResourceKey("NetworkPolicy", "db", "shop")


def staged(kind: str = "StagedNetworkPolicy", namespace: str = "shop", **spec: Any) -> StagedPolicy | None:
    key = ResourceKey(kind, "db", namespace)
    return read_staged(key, {"metadata": {"name": "db", "namespace": namespace}, "spec": spec})


def test_what_each_kind_and_action_stands_for() -> None:
    for action in ({}, {"stagedAction": "Set"}, {"stagedAction": "Learn"}):
        found = staged(**SPEC, **action)
        assert found is not None and found.enforced == DB and found.path == "shop/db"
        assert isinstance(found.record, Resource) and found.record.spec == SPEC and found.record.kind == "NetworkPolicy"
    everywhere = staged("StagedGlobalNetworkPolicy", "", **SPEC)
    assert everywhere is not None and everywhere.enforced == ResourceKey("GlobalNetworkPolicy", "db")
    assert staged(**SPEC, stagedAction="Ignore") is None
    gone = staged(stagedAction="Delete")
    assert gone is not None and (gone.enforced, gone.record) == (DB, None)


def test_a_policy_of_kubernetes_stands_for_what_is_made_of_it() -> None:
    kind, spec = "StagedKubernetesNetworkPolicy", {"podSelector": {"matchLabels": {"app": "db"}}}
    found = staged(kind, **spec)
    assert found is not None and found.enforced == ResourceKey("KubernetesNetworkPolicy", "db", "shop")
    assert isinstance(found.record, Resource) and "app == 'db'" in found.record.spec["selector"]
    key, document = ResourceKey(kind, "db", "shop"), {"metadata": {"name": "db", "namespace": "shop"}, "spec": spec}
    stored = read_staged(key, document, stored=True)
    assert stored is not None and stored.enforced == ResourceKey("NetworkPolicy", "knp.default.db", "shop")


@pytest.mark.parametrize("spec", [{"stagedAction": "Explode"}, {"stagedAction": ["Set"]}])
def test_what_cannot_be_read_is_said(spec: dict[str, Any]) -> None:
    with pytest.raises(CorruptRecord, match="stagedAction must be one of"):
        staged(**spec)


KEYS = [DB, ResourceKey("NetworkPolicy", "web", "shop")]
STAGED = [ResourceKey(kind, name, "shop") for kind in ("StagedNetworkPolicy", "Other") for name in ("db", "web")]
RECORDS = st.none() | st.integers(0, 9).map(str)
PUTS = st.tuples(st.just("put"), st.sampled_from(KEYS), RECORDS, st.just(KEYS[0]))
STAGES = st.tuples(
    st.sampled_from(("stage", "delete", "unstage")), st.sampled_from(STAGED), RECORDS, st.sampled_from(KEYS)
)


@given(st.lists(PUTS | STAGES, max_size=30))
def test_the_graph_has_what_stands_there(changes: list[tuple[str, ResourceKey, Any, ResourceKey]]) -> None:
    """Also if two staged policies stand for one: the first counts."""
    overlay, graph = StagedOverlay(), dict[ResourceKey, Any]()
    enforced, standing = dict[ResourceKey, Any](), dict[ResourceKey, StagedPolicy]()
    for what, key, record, stands_for in changes:
        if what == "put":
            enforced[key] = record
            found = overlay.put(key, record)
        else:
            one = None if what == "unstage" else StagedPolicy(key, stands_for, None if what == "delete" else record)
            standing.pop(key, None)
            if one is not None:
                standing[key] = one
            found = overlay.stage(key, one, enforced.get)
        graph.update(found)
        for at in KEYS:
            its = sorted((one for one in standing.values() if one.enforced == at), key=lambda one: str(one.key))
            assert graph.get(at) == (its[0].record if its else enforced.get(at))
            assert [one for one in overlay.staged.values() if one.enforced == at] == its[:1]
        assert set(overlay.known()) == set(standing)
