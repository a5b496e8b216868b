"""Selectors of workloads, against what Calico's selectors select."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.ctl.policy.workload_selectors import StableLabels, shortest_selector, stable_labels
from cni_calico.model.selectors import parse_selector

NAMES = st.sampled_from(("app", "k8s-app", "tier", "version", "x/y", "z"))
VALUES = st.sampled_from(("", "a", "b", "it's", 'a "b"'))
LABELS = st.dictionaries(NAMES, VALUES, max_size=5).map(stable_labels)


@given(LABELS, st.sets(LABELS, max_size=6))
def test_only_the_workload_is_selected(wanted: StableLabels, others: set[StableLabels]) -> None:
    selector = parse_selector(shortest_selector(wanted, others))
    assert selector.matches(dict(wanted))
    assert not any(selector.matches(dict(one)) for one in others if one != wanted)


def test_the_best_known_label_is_enough() -> None:
    web = stable_labels({"app": "web", "version": "2", "pod-template-hash": "7d9", "projectcalico.org/namespace": "a"})
    assert web == {("app", "web"), ("version", "2")}
    assert shortest_selector(web, [stable_labels({"app": "db"})]) == "app == 'web'"
    canary = stable_labels({"app": "web", "version": "3"})
    assert shortest_selector(web, [canary]) == "version == '2'"
    assert shortest_selector(stable_labels({"app": "web"}), [web, canary]) == "app == 'web' && !has(version)"
    assert shortest_selector(frozenset(), []) == "all()"


def test_what_an_owner_gives_each_pod_tells_no_workloads_apart() -> None:
    its_own = ["pod-template-hash", "controller-revision-hash"]
    its_own += ["statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index"]
    assert stable_labels({"app": "db", **{name: f"db-{n}" for n, name in enumerate(its_own)}}) == {("app", "db")}


def test_labels_that_no_selector_can_name_are_left_out() -> None:
    assert stable_labels({"a b": "c", "app": "x\n", "k": "'\"", "ok": "it's"}) == {("ok", "it's")}
