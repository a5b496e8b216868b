"""Which fields of a record would differ."""

from __future__ import annotations

from cni_calico.nodeagent.rehearsal.records import differing


def test_the_paths_of_what_differs() -> None:
    before = {"metadata": {"name": "a", "resourceVersion": "1", "labels": {"x": "1"}}, "spec": {"a": 1, "b": [1, 2]}}
    after = {"metadata": {"name": "a", "resourceVersion": "2", "labels": {"x": "2"}}, "spec": {"b": [2, 1], "c": 1}}
    assert list(differing(before, after)) == ["metadata.labels.x", "spec.a", "spec.b", "spec.c"]
    assert list(differing(before, dict(before))) == []
