"""What the tests of SCTP in Kubernetes' suite Netpol ask, in a kernel that has SCTP: there are three.

Rule: the suite itself needs kubelets (tests/lab/test_netpol.py), which a machine of tests/kernels is too slow for; so
these are the same policies, as Kubernetes' own records, and who reaches whom afterwards, by associations.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cni_calico.model.kubernetes.policies import read_stored_network_policy
from tests.netns.policing.lab import Lab, lab
from tests.netns.policing.sctp import listening, reaches

pytestmark = [pytest.mark.slow, pytest.mark.netns, pytest.mark.never_excused, pytest.mark.kernel("sctp")]

PODS = ("xa", "xb", "ya", "yb", "za")  # namespace and name
ALL = {(source, destination) for source in PODS for destination in PODS if source != destination}
FROM_Y = {"namespaceSelector": {"matchLabels": {"ns": "y"}}}
POD_A = {"podSelector": {"matchLabels": {"pod": "a"}}}
# name -> (the policy in namespace x, the port that is tried, which connections are denied)
TESTS: dict[str, tuple[dict[str, Any], int, set[tuple[str, str]]]] = {
    "should support a 'default-deny-ingress' policy": (
        {"podSelector": {}, "policyTypes": ["Ingress"]},
        80,
        {(source, destination) for source, destination in ALL if destination.startswith("x")},
    ),
    "should enforce policy based on Ports": (
        {
            **POD_A,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [FROM_Y], "ports": [{"port": 81, "protocol": "SCTP"}]}],
        },
        81,
        {("xb", "xa"), ("za", "xa")},
    ),
    "should enforce policy to allow traffic only from a pod in a different namespace based on PodSelector and "
    "NamespaceSelector": (
        {**POD_A, "policyTypes": ["Ingress"], "ingress": [{"from": [{**FROM_Y, **POD_A}]}]},
        80,
        {("xb", "xa"), ("yb", "xa"), ("za", "xa")},
    ),
}


@pytest.fixture
def netpol_pods(tmp_path: Path) -> Iterator[Lab]:
    with lab(tmp_path) as made:
        made.put("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})
        for namespace in "xyz":
            made.put_profile(f"kns.{namespace}", **{"pcns.ns": namespace})
        for number, name in enumerate(PODS, 1):
            made.add(name, f"10.65.0.{number}", namespace_name=name[0], pod=name[1])
        yield made


@pytest.mark.parametrize("mode", ["Auto", "Disabled"])
@pytest.mark.parametrize("test", TESTS)
def test_who_reaches_whom(netpol_pods: Lab, test: str, mode: str) -> None:
    spec, port, denied = TESTS[test]
    policy = {"metadata": {"name": "tested", "namespace": "x", "uid": "uid-tested"}, "spec": spec}
    # as upstream's controller stores it
    converted = read_stored_network_policy(policy)
    assert not converted.left_out
    netpol_pods.put_document(converted.key, dict(converted.document))
    netpol_pods.start(FELIX_NFTABLESMODE=mode)
    netpol_pods.until_in_force(policies=1)
    with ExitStack() as stack:
        for name in PODS:
            stack.enter_context(listening(netpol_pods, name, port))
        assert {pair for pair in ALL if not reaches(netpol_pods, *pair, port)} == denied
