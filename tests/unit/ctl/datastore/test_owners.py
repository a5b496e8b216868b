"""Owners of what goes into another datastore."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.ctl.datastore.owners import in_order_of_owners, owners_of, with_owners
from cni_calico.model.keys import ResourceKey


def tier(name: str) -> ResourceKey:
    return ResourceKey("Tier", name)


def reference(name: str, **more: Any) -> dict[str, Any]:
    return {"apiVersion": "projectcalico.org/v3", "kind": "Tier", "name": name, "uid": "old", **more}


def owned_by(*references: Any) -> dict[str, Any]:
    return {"metadata": {"name": "x", "ownerReferences": list(references)}, "spec": {}}


@given(st.dictionaries(st.integers(0, 6), st.lists(st.integers(0, 6), max_size=3), max_size=7))
def test_every_record_comes_once_and_after_its_owners_unless_they_own_one_another(graph: dict[int, list[int]]) -> None:
    records = {tier(f"{i}"): owned_by(*(reference(f"{owner}") for owner in owners)) for i, owners in graph.items()}
    portions = list(in_order_of_owners(records))
    assert [key for portion in portions for key in portion] == list(dict.fromkeys(key for p in portions for key in p))
    assert {key for portion in portions for key in portion} == set(records)
    done: set[ResourceKey] = set()
    for portion in portions[:-1]:
        for key, document in portion.items():
            assert not (set(owners_of(key, document)) & set(records)) - done
        done |= set(portion)


def test_a_long_row_of_owners_takes_a_portion_each_and_no_record_is_looked_at_twice() -> None:
    looked: list[str] = []

    class Looked(dict[str, Any]):
        def get(self, name: str, default: Any = None) -> Any:
            looked.append(name)
            return super().get(name, default)

    records = {tier(f"{i}"): Looked(owned_by(reference(f"{i + 1}"))) for i in range(300)}
    assert [[*portion] for portion in in_order_of_owners(records)] == [[tier(f"{i}")] for i in reversed(range(300))]
    assert len(looked) == 300


def test_an_owner_of_calicos_gets_its_present_uid_or_is_lost() -> None:
    others = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "theirs"}
    document, lost = with_owners(tier("x"), owned_by(reference("a"), reference("b"), others), {tier("a"): "new"})
    assert document["metadata"]["ownerReferences"] == [reference("a", uid="new"), others]
    assert lost == [tier("b")]


def test_a_resource_that_is_owned_by_nobody_stays_as_it_is() -> None:
    for document in ({}, {"metadata": None}, owned_by(), owned_by("x"), {"metadata": {"ownerReferences": 7}}):
        assert with_owners(tier("x"), document, {})[1] == []


def test_the_last_owner_leaves_nothing_behind() -> None:
    document, lost = with_owners(tier("x"), owned_by(reference("a")), {})
    assert document == {"metadata": {"name": "x"}, "spec": {}} and lost == [tier("a")]


def test_an_owner_in_a_namespace_is_in_that_of_what_it_owns() -> None:
    key = ResourceKey("NetworkSet", "s", "ns")
    assert owners_of(key, owned_by(reference("p", kind="NetworkPolicy"), reference("t"))) == [
        ResourceKey("NetworkPolicy", "p", "ns"),
        tier("t"),
    ]
