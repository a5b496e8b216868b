"""Policies that older versions stored as "default.NAME" get their names; no other is touched."""

from __future__ import annotations

import json

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.datastore.local.store import LocalStore
from cni_calico.deadline import Deadline
from cni_calico.model.keys import parse_path

HEAD = "/calico/resources/v3/projectcalico.org/"
DONE = "Policy name migration complete, migrated {} policies.\n"


def policy(kind, name, tier=None, namespace="", **spec):
    plural = {"NetworkPolicy": "networkpolicies", "GlobalNetworkPolicy": "globalnetworkpolicies"}
    plural |= {"StagedGlobalNetworkPolicy": "stagedglobalnetworkpolicies", "Tier": "tiers"}
    where = f"{HEAD}{plural[kind]}/{namespace + '/' if namespace else ''}{name}"
    metadata = {"name": name, "uid": f"uid-{name}", "labels": {"team": "net"}}
    if namespace:
        metadata["namespace"] = namespace
    spec = {"selector": "all()", "types": ["Ingress"], **({"tier": tier} if tier is not None else {}), **spec}
    return where, {"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": metadata, "spec": spec}


OLD = dict(
    [
        policy("GlobalNetworkPolicy", "default.web", order=5),
        policy("NetworkPolicy", "default.db", "default", "shop"),
        policy("StagedGlobalNetworkPolicy", "default.later", ""),
    ]
)
OTHERS = dict(
    [
        policy("GlobalNetworkPolicy", "web.default.x"),
        policy("GlobalNetworkPolicy", "default.of-another-tier", "security"),
        policy("NetworkPolicy", "knp.default.web", "default", "shop"),
        policy("GlobalNetworkPolicy", "default."),
    ]
)


def stored(calicoctl):
    store = LocalStore(calicoctl.path)
    try:
        from cni_calico.model.keys import EverythingList, etcd_path

        items = store.list(EverythingList(), Deadline.after(10)).items
        return {etcd_path(item.key): item.value for item in items if "policies/" in etcd_path(item.key)}
    finally:
        store.close()


def test_they_are_renamed_and_nothing_else_changes(cluster):
    cluster.write(OLD | OTHERS)
    assert cluster.ok("datastore", "migrate-policy-names") == DONE.format(3)
    wanted = dict(OTHERS)
    for path, document in OLD.items():
        name = document["metadata"]["name"].removeprefix("default.")
        metadata = document["metadata"] | {"name": name}
        wanted[path.replace("/default.", "/")] = document | {"metadata": metadata}
    assert stored(cluster) == wanted
    assert cluster.ok("datastore", "migrate-policy-names") == DONE.format(0)
    assert stored(cluster) == wanted
    assert json.loads(cluster.ok("get", "gnp", "web", "-o", "json"))["spec"]["order"] == 5


def test_a_name_that_is_taken(cluster):
    taken = dict([policy("GlobalNetworkPolicy", "web", order=1)])
    cluster.write(OLD | taken)
    result = cluster("datastore", "migrate-policy-names")
    assert (result.code, result.out) == (1, DONE.format(2))
    assert result.err == "GlobalNetworkPolicy(default.web) keeps its name: GlobalNetworkPolicy(web) exists\n"
    after = stored(cluster)
    for path, document in taken.items():
        assert after[path] == document
    assert f"{HEAD}globalnetworkpolicies/default.web" in after


@pytest.mark.parametrize("what", ["changed", "removed"])
def test_a_policy_that_somebody_else_writes_meanwhile(cluster, monkeypatch, what):
    path, document = policy("GlobalNetworkPolicy", "default.web")
    newer = document | {"spec": document["spec"] | {"order": 9}}
    cluster.write({path: document})
    commit, interrupted = LocalStore.commit, []

    def slow(self, writes, deadline):
        if len(writes) == 2 and not interrupted:
            interrupted.append(True)
            key = parse_path(path)
            commit(self, [Write.put(key, newer) if what == "changed" else Write.remove(key)], deadline)
        return commit(self, writes, deadline)

    monkeypatch.setattr(LocalStore, "commit", slow)
    assert cluster.ok("datastore", "migrate-policy-names") == DONE.format(1 if what == "changed" else 0)
    after = stored(cluster)
    assert interrupted and path not in after
    assert [value["spec"].get("order") for value in after.values()] == ([9] if what == "changed" else [])
