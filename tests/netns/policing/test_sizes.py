"""More than anybody has: many policies, tiers and members, a long selector. In force, and packets go by them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.model.keys import ResourceKey
from tests.deadlines import until
from tests.netns.policing.lab import Lab, lab

pytestmark = [
    pytest.mark.netns,
    pytest.mark.unrecorded("the naive evaluator would read 100,000 networks and thousands of policies for each packet"),
]

PATIENCE_S = 120.0


@pytest.fixture
def ipv4_lab(tmp_path: Path) -> Iterator[Lab]:
    """Two workloads that may talk."""
    with lab(tmp_path) as made:
        made.put("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})
        made.put_profile("kns.default")
        made.add("a", "10.65.0.1", app="a")
        made.add("b", "10.65.0.2", app="b")
        yield made


def put_all(node: Lab, records: Iterable[tuple[str, str, dict[str, Any], dict[str, str]]]) -> None:
    """(kind, name, spec, labels)."""
    writes = []
    for kind, name, spec, labels in records:
        metadata = {"name": name, "uid": f"uid-{kind}-{name}", "labels": labels}
        body = {"kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec}
        writes.append(Write.put(ResourceKey(kind, name), body))
    for at in range(0, len(writes), 50):
        node.write(writes[at : at + 50])


def udp(action: str, *ports: int, **more: Any) -> dict[str, Any]:
    return {"action": action, "protocol": "UDP", "destination": {"ports": list(ports)}, **more}


def ingress(tier: str, order: int, *rules: dict[str, Any], selector: str = "app == 'b'") -> dict[str, Any]:
    return {"tier": tier, "order": order, "selector": selector, "types": ["Ingress"], "ingress": list(rules)}


def in_force(node: Lab, policies: int) -> None:
    def reached() -> bool:
        said = node.standing()
        return bool(said.get("in_force")) and said["counts"]["policies"] == policies and not said["failing"]

    try:
        until(reached, f"{policies} policies in force", PATIENCE_S)
    except AssertionError as e:
        raise AssertionError(f"{e}: {node.standing()}\n{node.log()}") from None
    assert node.standing()["problems"] == []


def test_a_thousand_tiers_that_pass_on(ipv4_lab: Lab) -> None:
    """More than the kernel follows chains: each has a rule that passes on, and the last one decides."""
    count = 1000
    put_all(ipv4_lab, (("Tier", f"t{i}", {"order": i, "defaultAction": "Deny"}, {}) for i in range(count)))
    names = ((f"t{i}", ingress(f"t{i}", 1, udp("Deny", 1000 + i), udp("Pass", 80, 81))) for i in range(count))
    put_all(ipv4_lab, (("GlobalNetworkPolicy", f"{name}.p", spec, {}) for name, spec in names))
    put_all(ipv4_lab, [("GlobalNetworkPolicy", "last", ingress("default", 1, udp("Allow", 80)), {})])
    ipv4_lab.start(FELIX_IPV6SUPPORT="false")
    in_force(ipv4_lab, count + 1)
    assert ipv4_lab.passes("a", "b", 80)
    assert (
        not ipv4_lab.passes("a", "b", 81) and not ipv4_lab.passes("a", "b", 1999) and not ipv4_lab.passes("a", "b", 9)
    )
    ipv4_lab.put("GlobalNetworkPolicy", "t500.p", ingress("t500", 1, udp("Deny", 80)))
    ipv4_lab.until_passes("a", "b", 80, False)


@pytest.mark.slow
def test_ten_thousand_policies_of_one_workload(ipv4_lab: Lab) -> None:
    count = 10000
    specs = ((f"p{i}", ingress("default", i, udp("Allow", 20000 + i))) for i in range(count))
    put_all(ipv4_lab, (("GlobalNetworkPolicy", name, spec, {}) for name, spec in specs))
    ipv4_lab.start(FELIX_IPV6SUPPORT="false")
    in_force(ipv4_lab, count)
    assert ipv4_lab.passes("a", "b", 20000) and ipv4_lab.passes("a", "b", 20000 + count - 1)
    assert not ipv4_lab.passes("a", "b", 20000 + count)
    ipv4_lab.put("GlobalNetworkPolicy", "p9999", ingress("default", 9999, udp("Allow", 80)))
    ipv4_lab.until_passes("a", "b", 80)
    assert not ipv4_lab.passes("a", "b", 20000 + count - 1)


def test_a_set_of_a_hundred_thousand(ipv4_lab: Lab) -> None:
    """Networks that nothing can be saved by joining, and one of them is the sender's."""
    own = int(ip_address("10.65.0.1"))
    base = int(ip_address("172.16.0.0"))
    nets = [f"{ip_address(base + 8 * i)}/30" for i in range(99999)] + [f"{ip_address(own)}/32"]
    sets = (
        ("GlobalNetworkSet", f"s{i}", {"nets": nets[i * 10000 : (i + 1) * 10000]}, {"kind": "many"}) for i in range(10)
    )
    put_all(ipv4_lab, sets)
    rule = udp("Allow", 80, source={"selector": "kind == 'many'"})
    put_all(ipv4_lab, [("GlobalNetworkPolicy", "from-many", ingress("default", 1, rule), {})])
    ipv4_lab.start(FELIX_IPV6SUPPORT="false")
    in_force(ipv4_lab, 1)
    assert ipv4_lab.passes("a", "b", 80) and not ipv4_lab.passes("a", "b", 81)
    ipv4_lab.remove("GlobalNetworkSet", "s9")
    until(lambda: not ipv4_lab.passes("a", "b", 80), "its network is gone", PATIENCE_S)


def test_a_selector_of_four_kilobytes(ipv4_lab: Lab) -> None:
    wrong = " || ".join(f"app == 'x{i:04}'" for i in range(240))
    selector = f"({wrong}) || app == 'b'"
    assert len(selector) > 4096
    rule = udp("Allow", 80, source={"selector": selector.replace("'b'", "'a'")})
    put_all(ipv4_lab, [("GlobalNetworkPolicy", "long", ingress("default", 1, rule, selector=selector), {})])
    ipv4_lab.start()
    in_force(ipv4_lab, 1)
    assert ipv4_lab.passes("a", "b", 80) and not ipv4_lab.passes("a", "b", 81)


def test_one_policy_of_more_than_a_megabyte(ipv4_lab: Lab) -> None:
    """Lists of networks and ports, a note, and rules, more than anybody writes by hand; every one of them counts."""
    base = int(ip_address("172.16.0.0"))
    nets = [f"{ip_address(base + 8 * i)}/30" for i in range(30000)]
    odd = list(range(10001, 60000, 2))
    rules = [
        udp("Deny", 1, source={"nets": nets}, metadata={"annotations": {"note": "long " * 20000}}),
        {"action": "Deny", "protocol": "UDP", "destination": {"ports": odd}},
        *(udp("Deny", 60000 + i, source={"selector": "app == 'a'"}) for i in range(2000)),
        udp("Deny", 2, source={"nets": [*nets, "10.65.0.1/32"]}),
        {"action": "Allow", "protocol": "UDP"},
    ]
    policy = ingress("default", 1, *rules)
    assert len(json.dumps(policy)) > 1 << 20
    put_all(ipv4_lab, [("GlobalNetworkPolicy", "huge", policy, {})])
    ipv4_lab.start(FELIX_IPV6SUPPORT="false")
    in_force(ipv4_lab, 1)
    ports = (1, 2, 10000, 10001, 35000, 35001, 59999, 60000, 61999, 62000)
    passing = {port for port in ports if ipv4_lab.passes("a", "b", port)}
    assert passing == {1, 10000, 35000, 62000}
    ipv4_lab.put("GlobalNetworkPolicy", "huge", ingress("default", 1, udp("Deny", 1)))
    ipv4_lab.until_passes("a", "b", 10000, False)
