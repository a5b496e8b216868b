"""What flows are counted by: names, sides, and the policy that decided, as the collector has them."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest

from cni_calico.flows.deciders import END, REFUSED, Decider
from cni_calico.flows.export.keys import (
    NO_MATCH,
    EndType,
    ExportedService,
    ExportKey,
    FlowAction,
    FlowEnd,
    HitKind,
    KeyMaker,
    PolicyHit,
    ReportingSide,
    hit_of,
    hits_of,
    network_of,
)
from cni_calico.flows.names import EndName
from cni_calico.flows.network_sets import NetworkSetName
from cni_calico.flows.records import DENIED, FlowRecord
from cni_calico.flows.services import ServiceName

WEB, DB, ELSEWHERE = bytes((10, 65, 0, 9)), bytes((10, 65, 0, 7)), bytes((192, 0, 2, 7))
OUT, IN, IN_DENIED, OUT_DENIED, UNKNOWN, SPOOFED = 1000, 1001, 1002, 1003, 1004, 1
DECIDERS = {
    OUT: Decider("Profile", "", "kns.shop", "", False, 0, "Allow"),
    IN: Decider("NetworkPolicy", "shop", "db", "default", True, 2, "Allow"),
    IN_DENIED: Decider("NetworkPolicy", "shop", "db", "default", True, END, "Deny"),
    OUT_DENIED: Decider("GlobalNetworkPolicy", "", "no-egress", "security", False, 1, "Deny"),
}
NAMES = {1: EndName("pod", "shop", "web-7d9-x2k4"), 2: EndName("pod", "shop", "db-0"), 3: EndName("workload", "", "c1")}
SHARED = {"web-7d9-x2k4": "web-7d9-*"}
WEB_END, DB_END = FlowEnd(EndType.WORKLOAD, "shop", "web-7d9-*"), FlowEnd(EndType.WORKLOAD, "shop", "db-0")


def record(**changed: Any) -> FlowRecord:
    made = FlowRecord(1, 2, WEB, DB, DB, 40000, 5432, 5432, 6, 0, OUT, IN, 0, 0, 0, 0, 0, 0, 0, 1, 2)
    return made._replace(**changed)


def keys(**changed: Any) -> tuple[ExportKey, ...]:
    maker = KeyMaker(DECIDERS.get, NAMES.get, lambda name: SHARED.get(name.name, name.name))
    return maker.keys(record(**changed))


def test_both_sides_of_an_allowed_connection() -> None:
    source, destination = keys()
    assert source == ExportKey(WEB_END, DB_END, 5432, "tcp", ReportingSide.SOURCE, FlowAction.ALLOW, source.hits)
    assert source.hits == (PolicyHit(HitKind.PROFILE, "", "kns.shop", "", FlowAction.ALLOW, 0),)
    assert destination == source._replace(reporter=ReportingSide.DESTINATION, hits=destination.hits)
    assert destination.hits == (PolicyHit(HitKind.CALICO, "shop", "db", "default", FlowAction.ALLOW, 2),)


def test_what_would_decide_with_the_staged_policies() -> None:
    def pending(_: FlowRecord, ingress: bool) -> tuple[Decider, list[dict[str, Any]]] | None:
        passed = {"tier": "platform", "kind": "StagedGlobalNetworkPolicy", "namespace": "", "name": "teams", "rule": 3}
        return (replace(DECIDERS[IN_DENIED], kind="StagedNetworkPolicy"), [passed]) if ingress else None

    maker = KeyMaker(DECIDERS.get, NAMES.get, lambda name: name.name, pending=pending)
    source, destination = maker.keys(record())
    assert source.pending == () and destination.hits == keys()[1].hits
    assert destination.pending == (
        PolicyHit(HitKind.STAGED_GLOBAL, "", "teams", "platform", FlowAction.PASS, 3),
        PolicyHit(
            HitKind.END_OF_TIER,
            "",
            "",
            "default",
            FlowAction.DENY,
            -1,
            PolicyHit(HitKind.STAGED, "shop", "db", "default", None, 0),
        ),
    )


def test_a_denied_one_is_allowed_by_the_side_before() -> None:
    source, destination = keys(flags=DENIED, ingress=0, denied_by=IN_DENIED)
    assert (source.reporter, source.action) == (ReportingSide.SOURCE, FlowAction.ALLOW)
    assert (destination.reporter, destination.action) == (ReportingSide.DESTINATION, FlowAction.DENY)
    trigger = PolicyHit(HitKind.CALICO, "shop", "db", "default", None, 0)
    assert destination.hits == (PolicyHit(HitKind.END_OF_TIER, "", "", "default", FlowAction.DENY, -1, trigger),)


def test_what_is_denied_on_the_way_out_reaches_nobody() -> None:
    [source] = keys(flags=DENIED, egress=0, ingress=0, denied_by=OUT_DENIED)
    assert (source.reporter, source.action) == (ReportingSide.SOURCE, FlowAction.DENY)
    assert source.hits == (PolicyHit(HitKind.GLOBAL, "", "no-egress", "security", FlowAction.DENY, 1),)


HOST = bytes((192, 168, 0, 1))
HOST_END = FlowEnd(EndType.HOST, "-", "worker-1")


def host_keys(**changed: Any) -> tuple[ExportKey, ...]:
    def host_of(address: bytes) -> str:
        return "worker-1" if address == HOST else ""

    maker = KeyMaker(DECIDERS.get, NAMES.get, lambda name: SHARED.get(name.name, name.name), host_of=host_of)
    return maker.keys(record(**changed))


def test_what_the_host_decides_about_itself() -> None:
    """It is named by its node on both sides of what its host endpoint has decided about, and in nothing else."""
    to_host = {"destination": HOST, "destination_end": 0}
    source, destination = host_keys(**to_host)
    assert [one.destination for one in (source, destination)] == [HOST_END, HOST_END]
    assert (source.source, destination.reporter) == (WEB_END, ReportingSide.DESTINATION)
    assert destination.hits == (PolicyHit(HitKind.CALICO, "shop", "db", "default", FlowAction.ALLOW, 2),)
    source, destination = host_keys(**to_host, flags=DENIED, ingress=0, denied_by=IN_DENIED)
    assert (source.action, destination.action, destination.destination) == (FlowAction.ALLOW, FlowAction.DENY, HOST_END)
    from_host = {"source": HOST, "source_end": 0}
    [source] = host_keys(**from_host, destination=ELSEWHERE, destination_end=0, ingress=0)
    assert (source.source, source.reporter, source.destination.name) == (HOST_END, ReportingSide.SOURCE, "pub")
    [workload] = host_keys(**to_host, ingress=0)  # nobody decided at the host
    assert workload.destination == FlowEnd(EndType.NETWORK, "-", "pvt")
    [workload] = host_keys(**from_host, egress=0)
    assert workload.source == FlowEnd(EndType.NETWORK, "-", "pvt")
    assert host_keys(**to_host, egress=0, ingress=0, flags=DENIED, denied_by=SPOOFED) == ()
    assert host_keys(source=ELSEWHERE, source_end=0, destination=DB, destination_end=0) == ()  # it only passes


def test_another_nodes_side_is_told_by_that_node() -> None:
    """Where its workloads have names they are named, and the host may have decided about them in passing."""
    maker = KeyMaker(DECIDERS.get, NAMES.get, lambda name: SHARED.get(name.name, name.name), is_here=WEB.__eq__)
    [source] = maker.keys(record())
    assert (source.reporter, source.destination) == (ReportingSide.SOURCE, DB_END)
    assert maker.keys(record(flags=DENIED, egress=0, ingress=0, denied_by=IN_DENIED)) == ()


def test_other_ends_are_private_or_public() -> None:
    [source] = keys(ingress=0, destination=ELSEWHERE, destination_end=0)
    assert source.destination == FlowEnd(EndType.NETWORK, "-", "pub")
    [destination] = keys(egress=0, source_end=0)
    assert destination.source == FlowEnd(EndType.NETWORK, "-", "pvt")
    [unnamed] = keys(egress=0, source_end=0, destination_end=3)
    assert unnamed.destination == FlowEnd(EndType.WORKLOAD, "-", "c1")


def test_an_address_in_a_network_set_has_its_name() -> None:
    """As the other end's namespace sees it; a workload is never a set."""

    def set_of(address: bytes, namespace: str) -> NetworkSetName | None:
        return NetworkSetName(namespace, "partners", {}) if address == ELSEWHERE else None

    maker = KeyMaker(DECIDERS.get, NAMES.get, lambda name: name.name, set_of=set_of)
    [source] = maker.keys(record(ingress=0, destination=ELSEWHERE, destination_end=0))
    assert source.destination == FlowEnd(EndType.NETWORK_SET, "shop", "partners")
    [destination] = maker.keys(record(egress=0, source=ELSEWHERE, source_end=0, destination_end=3))
    assert destination.source == FlowEnd(EndType.NETWORK_SET, "-", "partners")
    [workload] = maker.keys(record(ingress=0, destination=ELSEWHERE, destination_end=3))
    assert workload.destination.type == EndType.WORKLOAD


def test_the_service_to_which_it_was_sent() -> None:
    """Also of one that was counted before it was known; its port is the one that was asked."""
    sent = {bytes((10, 96, 0, 1)): ServiceName("shop", "db", "pg"), bytes((10, 96, 0, 2)): ServiceName("shop", "d", "")}
    maker = KeyMaker(DECIDERS.get, NAMES.get, lambda name: name.name, service_of=lambda one: sent.get(one.asked))
    assert {one.service for one in maker.keys(record())} == {None}
    [source, destination] = maker.keys(record(asked=bytes((10, 96, 0, 1)), asked_port=443))
    assert source.service == destination.service == ExportedService("shop", "db", "pg", 443)
    assert {one.service for one in maker.keys(record(asked=bytes((10, 96, 0, 2))))} == {
        ExportedService("shop", "d", "-", 5432)
    }


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("10.0.0.0", "pvt"),
        ("172.15.255.255", "pub"),
        ("172.16.0.0", "pvt"),
        ("172.31.255.255", "pvt"),
        ("172.32.0.0", "pub"),
        ("192.168.1.1", "pvt"),
        ("127.0.0.1", "pub"),
        ("fd00::1", "pub"),
    ],
)
def test_private_networks(address: str, name: str) -> None:
    assert network_of(ip_address(address).packed).name == name


@pytest.mark.parametrize(
    ("number", "dport", "protocol", "port"),
    [(6, 80, "tcp", 80), (17, 53, "udp", 53), (132, 7, "sctp", 7), (1, 0x0800, "icmp", 0), (58, 0x8000, "icmp6", 0),
     (47, 0, "47", 0)],
)  # fmt: skip
def test_protocols(number: int, dport: int, protocol: str, port: int) -> None:
    assert [(key.protocol, key.port) for key in keys(protocol=number, dport=dport)] == [(protocol, port)] * 2


@pytest.mark.parametrize("denied_by", [SPOOFED, UNKNOWN])
def test_what_no_policy_decided_has_no_key(denied_by: int) -> None:
    assert keys(flags=DENIED, egress=0, ingress=0, denied_by=denied_by) == ()


def test_a_decision_of_the_host_is_not_a_workloads() -> None:
    assert keys(source_end=0, destination_end=0) == ()
    assert keys(egress=UNKNOWN, ingress=0) == ()


@pytest.mark.parametrize(
    ("decider", "hit"),
    [
        (replace(DECIDERS[OUT], name="", index=END, action="Deny"),
         PolicyHit(HitKind.PROFILE, "", NO_MATCH, "", FlowAction.DENY, 0)),
        (replace(DECIDERS[IN], kind="KubernetesNetworkPolicy"),
         PolicyHit(HitKind.KUBERNETES, "shop", "db", "default", FlowAction.ALLOW, 2)),
        (replace(DECIDERS[IN], kind="KubernetesClusterNetworkPolicy", namespace=""),
         PolicyHit(HitKind.CLUSTER, "", "db", "default", FlowAction.ALLOW, 2)),
        (replace(DECIDERS[IN_DENIED], index=REFUSED),
         PolicyHit(HitKind.CALICO, "shop", "db", "default", FlowAction.DENY, -1)),
        (replace(DECIDERS[IN], kind="SomethingNew"), None),
        (replace(DECIDERS[IN_DENIED], kind="SomethingNew"), None),
    ],
)  # fmt: skip
def test_hits(decider: Decider, hit: PolicyHit | None) -> None:
    assert hit_of(decider) == hit


def test_tiers_that_passed_it_on_come_before() -> None:
    passed = [
        {"tier": "platform", "kind": "GlobalNetworkPolicy", "namespace": "", "name": "teams", "rule": 3, "said": ""},
        {"tier": "security", "endOfTier": True, "said": ""},
        {"tier": "other", "kind": "SomethingNew", "namespace": "", "name": "x", "rule": 0, "said": ""},
    ]

    def passed_by(_: FlowRecord, decider: Decider) -> list[dict[str, Any]] | None:
        return passed if decider.ingress else None

    maker = KeyMaker(DECIDERS.get, NAMES.get, lambda name: name.name, passed_by)
    source, destination = maker.keys(record())
    assert len(source.hits) == 1
    assert destination.hits == (
        PolicyHit(HitKind.GLOBAL, "", "teams", "platform", FlowAction.PASS, 3),
        PolicyHit(HitKind.END_OF_TIER, "", "", "security", FlowAction.PASS, -1),
        PolicyHit(HitKind.CALICO, "shop", "db", "default", FlowAction.ALLOW, 2),
    )
    assert hits_of(replace(DECIDERS[IN], kind="SomethingNew"), passed) == ()


def test_a_name_that_changes_is_used_once_it_is_forgotten() -> None:
    shared = dict(SHARED)
    maker = KeyMaker(DECIDERS.get, NAMES.get, lambda name: shared.get(name.name, name.name))
    assert maker.keys(record())[0].source.name == "web-7d9-*"
    shared["web-7d9-x2k4"] = "other-*"
    maker.forget()
    assert maker.keys(record())[0].source.name == "other-*"


def test_a_number_that_becomes_known_is_used() -> None:
    deciders = {OUT: DECIDERS[OUT]}
    maker = KeyMaker(deciders.get, NAMES.get, lambda name: name.name)
    assert len(maker.keys(record())) == 1
    deciders[IN] = DECIDERS[IN]
    assert len(maker.keys(record())) == 2
