"""Policies of Kubernetes' own are counted, not read."""

import threading
from dataclasses import replace

import pytest

from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.objects import count_objects
from cni_calico.deadline import Deadline
from cni_calico.model.access import KubernetesAccess
from cni_calico.nodeagent.context.kubernetes import ApiNode
from cni_calico.nodeagent.dataplane import policy_count
from tests.deadlines import until
from tests.fakes.scripted_http import scripted
from tests.unit.daemon.test_keeper import context

FORBIDDEN = (403, {"message": "networkpolicies is forbidden"})


def api_of(server):
    return KubernetesAPI(KubernetesAccess(api_root=server.url))


@pytest.mark.parametrize(
    ("document", "count"),
    [
        ({"metadata": {}, "items": []}, 0),
        ({"metadata": {"resourceVersion": "5"}, "items": None}, 0),
        ({"metadata": {}, "items": [{}]}, 1),
        ({"metadata": {"continue": "x", "remainingItemCount": 41}, "items": [{}]}, 42),
    ],
)
def test_one_is_asked_for_and_the_rest_is_a_number(document, count):
    with scripted((200, document)) as server:
        assert count_objects(api_of(server), policy_count.POLICIES, Deadline.after(5), "count") == count
        [(method, path, _, _)] = server.requests
        assert (method, path) == ("GET", "/apis/networking.k8s.io/v1/networkpolicies?limit=1")


def test_a_count_that_fails_is_told_once_and_the_next_one_counts(monkeypatch):
    monkeypatch.setattr("cni_calico.daemon.keeper.RETRY_S", 0.01)
    counted, stopping = [], threading.Event()
    three = {"metadata": {"remainingItemCount": 2}, "items": [{}]}
    with scripted(FORBIDDEN, FORBIDDEN, (200, three), always=(404, {})) as server:
        told = replace(context(), kubernetes=ApiNode(api_of(server), "n1"))
        policy_count.start_counting(told, lambda *counts: counted.append(counts), stopping)
        until(lambda: counted, "a count", 20)
        stopping.set()
    assert counted[0] == (3, 0)
    assert len([text for text in told.log.texts if "networkpolicies is forbidden" in text]) == 1


GROUP = "policy.networking.k8s.io"
VERSIONS = {"versions": [{"groupVersion": f"{GROUP}/v1alpha2"}, {"groupVersion": f"{GROUP}/v1alpha1"}]}


def counted_of(*steps, first=1):
    one = {"metadata": {"remainingItemCount": first - 1}, "items": [{}]}
    with scripted((200, one), *steps) as server:
        count = policy_count.PolicyCount(api_of(server))
        count.refresh(Deadline.after(5))
        return count.total, [path for _, path, _, _ in server.requests[1:]]


def test_where_there_are_no_cluster_wide_ones_that_is_all():
    assert counted_of((404, {"message": "404 page not found"}), first=3) == (3, [f"/apis/{GROUP}"])


def test_each_cluster_wide_kind_counts_in_one_version():
    new = {"resources": [{"name": "clusternetworkpolicies"}, {"name": "clusternetworkpolicies/status"}]}
    names = ("adminnetworkpolicies", "baselineadminnetworkpolicies", "clusternetworkpolicies", "others")
    old = {"resources": [{"name": name} for name in names]}
    two, none = {"metadata": {"remainingItemCount": 1}, "items": [{}]}, {"metadata": {}, "items": []}
    total, paths = counted_of((200, VERSIONS), (200, new), (200, two), (200, old), (200, two), (200, none))
    assert total == 1 + 2 + 2
    assert paths == [
        f"/apis/{GROUP}",
        f"/apis/{GROUP}/v1alpha2",
        f"/apis/{GROUP}/v1alpha2/clusternetworkpolicies?limit=1",
        f"/apis/{GROUP}/v1alpha1",
        f"/apis/{GROUP}/v1alpha1/adminnetworkpolicies?limit=1",
        f"/apis/{GROUP}/v1alpha1/baselineadminnetworkpolicies?limit=1",
    ]


def test_those_that_are_not_read_are_counted_by_themselves():
    one, two = {"metadata": {}, "items": [{}]}, {"metadata": {"remainingItemCount": 1}, "items": [{}]}
    names = ("adminnetworkpolicies", "baselineadminnetworkpolicies", "clusternetworkpolicies")
    listed = {"resources": [{"name": name} for name in names]}
    versions = {"versions": VERSIONS["versions"][1:]}
    with scripted((200, one), (200, versions), (200, listed), (200, two), (200, one), (200, two)) as server:
        count = policy_count.PolicyCount(api_of(server))
        count.refresh(Deadline.after(5))
    assert (count.unread, count.total) == (3, 6)
    [warning] = policy_count.render_unread(count.unread)
    assert warning.startswith("3 AdminNetworkPolicies or") and "NOT ENFORCED" in warning
    assert policy_count.render_unread(0) == ()


def test_those_in_namespaces_are_told_where_the_others_may_not_be_counted():
    told, counted, stopping = replace(context(), kubernetes=None), [], threading.Event()
    one = {"metadata": {}, "items": [{}]}
    forbidden = (403, {"message": "adminnetworkpolicies is forbidden"})
    listed = {"resources": [{"name": "adminnetworkpolicies"}]}
    versions = {"versions": VERSIONS["versions"][1:]}
    with scripted((200, one), (200, versions), (200, listed), forbidden) as server:
        told = replace(told, kubernetes=ApiNode(api_of(server), "n1"))
        policy_count.start_counting(told, lambda *counts: counted.append(counts), stopping)
        until(lambda: counted, "a count", 20)
        until(lambda: told.log.texts, "what is wrong is told", 20)
        stopping.set()
    assert counted == [(1, 0)]
    assert "adminnetworkpolicies is forbidden" in told.log.texts[0]


def test_without_kubernetes_nothing_is_counted():
    threads = threading.active_count()
    policy_count.start_counting(context(), pytest.fail, threading.Event())
    assert threading.active_count() == threads
