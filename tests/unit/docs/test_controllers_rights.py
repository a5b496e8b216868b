"""The controllers' rights in the manifests: each grant with its user, and no other.

That what is not granted is refused, and what is granted suffices, the tests on a real API server show
(tests/e2e/kubernetes/controllers/test_controllers.py, test_load_balancer.py: none of their requests is refused).
"""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import yaml

MANIFESTS = Path(__file__).parents[3] / "manifests"
CRD = "crd.projectcalico.org"
READ, ALL = "get list watch", "get list watch create update delete"
# group and resource: verbs, and who needs them
OF_BOTH = {
    ("", "nodes"): (READ, "controllers.janitor.caches:JanitorCaches"),
    ("", "pods"): (READ, "controllers.janitor.caches:JanitorCaches"),
    ("", "services"): (READ, "controllers.loadbalancer.run:LoadBalancerLoop"),
    ("", "services/status"): ("update", "controllers.loadbalancer.run:ServiceDoor"),
    ("", "events"): ("create", "controllers.loadbalancer.run:ServiceDoor"),
    ("kubevirt.io", "virtualmachines"): ("get", "datastore.kubernetes.identities:why_over"),
    ("kubevirt.io", "virtualmachineinstances"): ("get", "datastore.kubernetes.identities:why_over"),
    ("apps", "statefulsets"): ("get", "datastore.kubernetes.identities:why_over"),
}
LEASES = "coordination.k8s.io"
ONLY = {  # with etcd as the datastore the lease is a key there
    "calico.yaml": {
        ("", "namespaces"): ("get", "datastore.kubernetes.identities:why_over"),
        (LEASES, "leases"): ("create", "datastore.kubernetes.election:KubernetesElection"),
        (LEASES, "leases/calico-janitor"): ("get update", "datastore.kubernetes.election:KubernetesElection"),
        (CRD, "blockaffinities"): (ALL, "ipam.virtual:VirtualAddresses"),
        (CRD, "ipamblocks"): (ALL, "ipam.virtual:VirtualAddresses"),
        (CRD, "ipamhandles"): (ALL, "ipam.virtual:VirtualAddresses"),
        (CRD, "ippools"): ("list watch", "controllers.janitor.caches:JanitorCaches"),
        (CRD, "ipreservations"): ("list", "ipam.allocator:Allocator"),
        (CRD, "bgppeers"): ("get list delete", "ipam.lost.reclaim:Reclaimer"),
        (CRD, "bgpconfigurations"): ("get delete", "ipam.lost.reclaim:Reclaimer"),
        (CRD, "felixconfigurations"): ("get delete", "ipam.lost.reclaim:Reclaimer"),
        (CRD, "clusterinformations"): ("get", "controllers.health:Health"),
        (CRD, "hostendpoints"): (ALL, "controllers.host_endpoints.run:HostEndpointLoop"),
        (CRD, "kubecontrollersconfigurations"): ("get list watch create update", "controllers.run:Controllers"),
        (CRD, "kubecontrollersconfigurations/status"): ("update", "datastore.kubernetes.custom:CustomRecords"),
        ("migration.projectcalico.org", "datastoremigrations"): ("list", "controllers.elsewhere:read_why_refused"),
    },
    "calico-etcd.yaml": {
        ("", "namespaces"): (READ, "controllers.copies.rules:NAMESPACES"),
        ("", "serviceaccounts"): (READ, "controllers.copies.rules:SERVICE_ACCOUNTS"),
        ("networking.k8s.io", "networkpolicies"): (READ, "controllers.copies.rules:POLICIES"),
    },
}


def granted(manifest: str) -> dict[tuple[str, str], set[str]]:
    """Of the ClusterRole and the Role; a right to one object has its name behind the resource's."""
    found: dict[tuple[str, str], set[str]] = {}
    for document in yaml.safe_load_all((MANIFESTS / manifest).read_text()):
        if document["kind"] in ("ClusterRole", "Role") and document["metadata"]["name"] == "calico-kube-controllers":
            for rule in document["rules"]:
                assert "*" not in str(rule)
                names = rule.get("resourceNames", [""])
                keys = [
                    (group, f"{resource}/{name}".rstrip("/"))
                    for group in rule["apiGroups"]
                    for resource in rule["resources"]
                    for name in names
                ]
                for key in keys:
                    assert not found.get(key, set()) & set(rule["verbs"]), f"{key} twice"
                    found.setdefault(key, set()).update(rule["verbs"])
    return found


@pytest.mark.parametrize("manifest", ONLY)
def test_each_grant_has_its_user_and_there_is_no_other(manifest: str) -> None:
    wanted = {**OF_BOTH, **ONLY[manifest]}
    assert granted(manifest) == {key: set(verbs.split()) for key, (verbs, _) in wanted.items()}
    for _, user in wanted.values():
        module, _, name = user.partition(":")
        assert name in vars(importlib.import_module(f"cni_calico.{module}")), user
