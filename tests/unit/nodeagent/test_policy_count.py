"""NetworkPolicies of Kubernetes are counted, not read."""

import threading
from dataclasses import replace
from functools import partial

import pytest

from cni_calico.datastore.kubernetes_api import KubernetesAPI
from cni_calico.datastore.kubernetes_objects import count_objects
from cni_calico.deadline import Deadline
from cni_calico.model.settings import KubernetesAccess
from cni_calico.nodeagent import policy_count
from cni_calico.nodeagent.keepers import Keeper
from cni_calico.nodeagent.kubernetes_node import ApiNode
from tests.fakes.scripted_http import scripted
from tests.netns.namespaces import until
from tests.unit.nodeagent.test_keepers import context

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
    monkeypatch.setattr(policy_count, "Keeper", partial(Keeper, _retry_s=0.01))
    counted, stopping = [], threading.Event()
    three = {"metadata": {"remainingItemCount": 2}, "items": [{}]}
    with scripted(FORBIDDEN, FORBIDDEN, always=(200, three)) as server:
        told = replace(context(), kubernetes=ApiNode(api_of(server), "n1"))
        policy_count.start_counting(told, counted.append, stopping)
        until(lambda: counted, "a count", 20)
        stopping.set()
    assert counted[0] == 3
    assert len([text for text in told.log.texts if "networkpolicies is forbidden" in text]) == 1


def test_without_kubernetes_nothing_is_counted():
    threads = threading.active_count()
    policy_count.start_counting(context(), pytest.fail, threading.Event())
    assert threading.active_count() == threads
