"""What a node says when it begins to police."""

from __future__ import annotations

from dataclasses import replace

from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.policing.report.announce import describe_policing
from cni_calico.policy.wanted import PolicyId, WantedClass, WantedEndpoint, WantedTier

DENY = PolicyId("NetworkPolicy", "deny", "shop")
WATCH = PolicyId("GlobalNetworkPolicy", "watch")
KNS = PolicyId("Profile", "kns.shop")
OPEN = WantedClass("open", (), (), (KNS,))
CLOSED = WantedClass(
    "closed", (WantedTier("first", (WATCH,), "Pass"), WantedTier("default", (DENY, WATCH), "Deny")), (), (KNS,)
)


def endpoint(name: str, group: WantedClass) -> WantedEndpoint:
    key = ResourceKey("WorkloadEndpoint", f"n1-k8s-{name}-eth0", "shop")
    return WantedEndpoint(key, f"cali{name}", group.id, (), workload=f"shop/{name}")


def test_one_line_for_those_that_share_their_policies() -> None:
    endpoints = [endpoint("b", OPEN), endpoint("db", CLOSED), endpoint("a", OPEN)]
    assert describe_policing("n1", endpoints, {"open": OPEN, "closed": CLOSED}) == [
        "this node enforces policies from now on, for 3 workloads; details: calicoctl policy show --all --node n1",
        "shop/a, shop/b: ingress: profile kns.shop; egress: profile kns.shop",
        "shop/db: ingress: tier first (GlobalNetworkPolicy watch; the rest continues), then tier default "
        "(NetworkPolicy shop/deny, GlobalNetworkPolicy watch; the rest denied), then profile kns.shop; "
        "egress: profile kns.shop",
    ]


def test_a_large_node_is_cut_short() -> None:
    groups = {f"g{i}": replace(OPEN, id=f"g{i}", profiles=()) for i in range(60)}
    endpoints = [endpoint(f"p{i}x{j}", group) for i, group in enumerate(groups.values()) for j in range(12)]
    lines = describe_policing("n1", endpoints, groups)
    assert len(lines) == 52 and lines[-1] == "and 10 more groups of workloads"
    assert "and 2 more: ingress: no profile" in lines[1]
