"""Pools and tiers of projectcalico.org/v3 that somebody deletes while they are in use; rights are the manifest's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.errors import NoPool
from cni_calico.ipam.allocator import Allocator
from cni_calico.ipam.assign import AssignRequest
from cni_calico.model.access import NATIVE_GROUP
from cni_calico.model.keys import ResourceKey
from tests.deadlines import soon, until
from tests.e2e.kubernetes.cluster import CONTROLLERS_USER, NATIVE_ROOT, native_cluster
from tests.e2e.kubernetes.cluster import read as kubectl_get
from tests.e2e.kubernetes.programs import controllers
from tests.e2e.kubernetes.roles import rights, used

pytestmark = [pytest.mark.kubernetes, pytest.mark.slow]


def resource(kind: str, name: str, spec: Any, **metadata: Any) -> dict[str, Any]:
    return {"apiVersion": NATIVE_GROUP, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def test_what_is_in_use_goes_last(tmp_path: Path) -> None:
    kube = native_cluster()
    kube.empty(NATIVE_ROOT)
    kube.create_node("n1")
    since = len(kube.audited())
    store = kube.store()

    def put(kind: str, name: str, spec: Any) -> ResourceKey:
        key = ResourceKey(kind, name)
        store.commit([Write.create(key, resource(kind, name, spec))], soon())
        return key

    def condition(kind: str, name: str) -> Any:
        found = kubectl_get(kube, f"{kind}.projectcalico.org", name).get("status", {}).get("conditions", [{}])
        return found[0].get("reason"), found[0].get("message")

    def is_there(kind: str, name: str) -> bool:
        return bool(kube.kubectl("get", f"{kind}.projectcalico.org", name, "--ignore-not-found"))

    first = put("IPPool", "first", {"cidr": "10.65.0.0/24", "blockSize": 30})
    put("Tier", "sec", {"order": 5})
    policy = put("GlobalNetworkPolicy", "p", {"tier": "sec", "selector": "all()", "types": ["Ingress"]})
    named = {"CALICO_API_GROUP": NATIVE_GROUP, "DATASTORE_TYPE": "kubernetes", "ENABLED_CONTROLLERS": "node"}
    with rights(kube, "calico-v3.yaml"), controllers(kube, tmp_path, **named) as process:
        until(lambda: condition("ippools", "first")[0] == "OK", "the pool's condition", 90)
        put("IPPool", "second", {"cidr": "10.65.0.0/25", "blockSize": 30})
        until(lambda: condition("ippools", "second")[0] == "CIDROverlap", "the other pool's", 90)
        assert "True" in kube.kubectl("get", "ippools.projectcalico.org", "first")
        allocator = Allocator(store)
        taken = allocator.assign(AssignRequest("n1", "net.c1", {}, num4=1), Deadline.after(60))
        for kind, name in (("ippools", "first"), ("tiers", "sec")):
            kube.kubectl("delete", f"{kind}.projectcalico.org", name, "--wait=false")
        until(lambda: condition("ippools", "first")[0] == "Terminating", "the pool is going", 90)
        waiting = "Waiting for policies to be removed: 1 GlobalNetworkPolicy"
        until(lambda: condition("tiers", "sec") == ("Terminating", waiting), "the tier is going", 90)
        with pytest.raises(NoPool):
            allocator.assign(AssignRequest("n1", "net.c2", {}, num4=1), Deadline.after(60))
        store.commit([Write.remove(policy)], soon())
        until(lambda: not is_there("tiers", "sec"), "the tier is gone", 90)
        assert is_there("ippools", "first") and store.get(first, soon()) is not None
        allocator.release_handle("net.c1", Deadline.after(60))
        until(lambda: not is_there("ippools", "first"), "the pool is gone", 90)
        until(lambda: condition("ippools", "second")[0] == "OK", "the other pool gives addresses", 90)
        assert process.end() == 0
    assert taken and not used(kube, CONTROLLERS_USER, since)[1]
    assert not kube.request("GET", f"{NATIVE_ROOT}/ipamblocks")["items"]
    store.close()
