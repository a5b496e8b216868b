"""One screen about the cluster, and the exit status that sums it up."""

import json
import threading

import pytest

from cni_calico.ctl.cluster.status import find_unready
from tests.unit.ctl.conftest import pool

READY = {"type": "Ready", "status": "True"}
NO_NETWORK = {"type": "NetworkUnavailable", "status": "True", "message": "calico-node is not ready"}
INFORMATION = "/calico/resources/v3/projectcalico.org/clusterinformations/default"


def node(name, *conditions):
    return {"metadata": {"name": name}, "status": {"conditions": list(conditions)}}


def agent(name, status="True"):
    return {"spec": {"nodeName": name}, "status": {"conditions": [{"type": "Ready", "status": status}]}}


@pytest.mark.parametrize(
    ("one", "agents", "why"),
    [
        (node("a", READY), [agent("a")], ""),
        (node("a", READY), [], ""),  # calico-node may run outside of pods
        (node("a", READY), [agent("b")], "no calico-node pod"),
        (node("a", READY), [agent("a", "False")], "its calico-node pod is not ready"),
        (node("a", READY, NO_NETWORK), [agent("a")], "no network: calico-node is not ready"),
        (node("a", {**READY, "status": "Unknown", "message": "stopped posting"}), [agent("a")], "stopped posting"),
        (node("a"), [agent("a")], "its kubelet does not report"),
    ],
)
def test_why_a_node_is_not_ready(one, agents, why):
    assert find_unready([one], agents) == {"a": why}


def test_a_cluster_that_is_well(calicoctl):
    calicoctl.apply(pool("a", "10.1.0.0/16"))
    out = calicoctl.ok("cluster", "status")
    assert any(line.split() == ["a", "10.1.0.0/16", "0", "0%"] for line in out.splitlines())
    assert "Addresses: 0 problems, 0 to be released" in out


def test_what_is_not_well(calicoctl, cluster):
    assert "there is no IP pool" not in cluster("cluster", "status").err
    locked = cluster.stored(INFORMATION)
    locked["spec"]["datastoreReady"] = False
    cluster.write({INFORMATION: locked})
    assert "the datastore is locked (calicoctl datastore migrate unlock)" in cluster.fails("cluster", "status")


def test_a_pool_that_is_nearly_full(cluster):
    usage = json.loads(cluster.ok("ipam", "show", "-o", "json"))
    (busy, *_) = [p for p in usage["pools"] if p["used"]]
    out = cluster("cluster", "status").out
    assert any(line.split()[:3] == [busy["name"], busy["cidr"], str(busy["used"])] for line in out.splitlines())


def test_pools_that_overlap_are_named(calicoctl):
    """An API server took the second one; calicoctl would have refused it."""
    calicoctl.apply(pool("wide", "10.0.0.0/8"))
    calicoctl.apply(pool("elsewhere", "192.168.0.0/16"))
    path = "/calico/resources/v3/projectcalico.org/ippools/"
    made = calicoctl.stored(path + "wide")
    made["metadata"] = {**made["metadata"], "name": "narrow", "creationTimestamp": "2040-01-01T00:00:00Z"}
    made["spec"] = {**made["spec"], "cidr": "10.1.0.0/16", "blockSize": 28}
    calicoctl.write({path + "narrow": made})
    said = "IPPool narrow (10.1.0.0/16) overlaps wide (10.0.0.0/8): it gives no addresses"
    assert said in calicoctl.fails("cluster", "status")
    document = json.loads(calicoctl("cluster", "status", "-o", "json").out)
    overlaps = {each["name"]: each["overlaps"] for each in document["pools"]}
    assert overlaps == {"wide": ["narrow"], "narrow": ["wide"], "elsewhere": []}
    everything = calicoctl("get", "ippool", "-o", "wide")
    assert f"Warning: {said}\n" in everything.err and "IPPool wide (10.0.0.0/8) overlaps narrow" in everything.err
    assert "narrow" in everything.out and everything.code == 0
    assert calicoctl("get", "ippool", "narrow", "-o", "wide").err == f"Warning: {said}\n"
    assert calicoctl("get", "ippool", "elsewhere", "-o", "wide").err == ""
    assert calicoctl("get", "node", "-o", "wide").err.count("overlaps") == 0
    calicoctl.write({path + "narrow": {**made, "spec": {**made["spec"], "disabled": True}}})
    calicoctl.ok("cluster", "status")


def test_waiting_until_it_is_well(calicoctl):
    calicoctl.apply(pool("a", "10.1.0.0/16"))
    calicoctl.ok("delete", "ippool", "a")
    assert "there is no IP pool that can be used" in calicoctl.fails("cluster", "status")
    assert "there is no IP pool" in calicoctl.fails("cluster", "status", "--wait", "--timeout=3")
    document = calicoctl.stored("/calico/resources/v3/projectcalico.org/tiers/default")
    path = "/calico/resources/v3/projectcalico.org/ippools/a"
    made = {**document, "kind": "IPPool", "metadata": {**document["metadata"], "name": "a"}}
    made["spec"] = {"cidr": "10.1.0.0/16", "blockSize": 26}
    later = threading.Timer(1.0, lambda: calicoctl.write({path: made}))
    later.start()
    try:
        assert "10.1.0.0/16" in calicoctl.ok("cluster", "status", "--wait", "--timeout=60")
    finally:
        later.join()
