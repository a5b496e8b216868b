"""Connections as a rehearsal judges them: as the pure engine decides, at both ends, in both families."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.kernel.netlink.ended import TrackedConnection
from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.rehearsal.connections import ConnectionJudge, judge_recorded, judge_tracked
from cni_calico.nodeagent.rehearsal.found import Rehearsed
from cni_calico.policy.decode import decode_record, reduce_record
from cni_calico.policy.explain import Packet, decide
from cni_calico.policy.graph import Graph
from cni_calico.policy.wanted import Wanted
from tests.unit.nodeagent.fabric import workload

OWN = ip_address("192.0.2.1").packed
PODS = {"a": "10.65.0.1", "b": "10.65.0.2", "c": "10.65.0.3"}
ELSEWHERE = ("10.65.0.9", "203.0.113.5", "192.0.2.1")
PROTOCOLS = {"tcp": 6, "udp": 17, "icmp": 1}


def wanted(*rules: dict[str, Any]) -> Wanted:
    graph = Graph(lambda endpoint: True, lambda host: True)
    for name, address in PODS.items():
        graph.put(
            ResourceKey("WorkloadEndpoint", f"n1-k8s-{name}-eth0", "default"),
            workload(name, f"cali{name}", f"{address}/32"),
        )
    for key, spec in (
        (ResourceKey("Tier", "default"), {"order": 1000000, "defaultAction": "Deny"}),
        (ResourceKey("Profile", "kns.default"), {"ingress": [{"action": "Allow"}], "egress": [{"action": "Allow"}]}),
        (
            ResourceKey("GlobalNetworkPolicy", "p"),
            {"selector": "all()", "types": ["Ingress", "Egress"], "ingress": list(rules), "egress": list(rules)},
        ),
    ):
        document = {
            "apiVersion": "projectcalico.org/v3",
            "kind": key.kind,
            "metadata": {"name": key.name},
            "spec": spec,
        }
        record, _ = decode_record(key, document)
        assert record is not None
        graph.put(key, reduce_record(key, record))
    graph.flush()
    return graph.wanted()


ADDRESSES = st.sampled_from((*PODS.values(), *ELSEWHERE))
RULES = st.lists(
    st.builds(
        lambda action, protocol, port, net: {
            "action": action,
            "protocol": protocol,
            **({"destination": {"ports": [port]}} if protocol != "ICMP" else {}),
            "source": {"nets": [net]},
        },
        st.sampled_from(("Allow", "Deny")),
        st.sampled_from(("TCP", "UDP", "ICMP")),
        st.sampled_from((80, 443)),
        st.sampled_from(("10.65.0.0/31", "10.65.0.0/24", "0.0.0.0/1")),
    ),
    max_size=4,
)
CONNECTIONS = st.lists(
    st.tuples(ADDRESSES, ADDRESSES, st.sampled_from(sorted(PROTOCOLS)), st.sampled_from((80, 443))), max_size=12
)


def tracked(source: str, destination: str, protocol: str, port: int) -> TrackedConnection:
    if protocol == "icmp":
        port = 8 << 8
    ends = ip_address(source).packed + ip_address(destination).packed
    key = ends + bytes((PROTOCOLS[protocol],)) + (40000).to_bytes(2, "big") + port.to_bytes(2, "big")
    return TrackedConnection(key, ip_address(destination).packed, port, 1, 1, 1, 1, 0.0, 0.0, b"")


def is_denied(state: Wanted, source: str, destination: str, protocol: str, port: int) -> bool | None:
    """None: no workload of this node has part in it."""
    packet = Packet(ip_address(source), ip_address(destination), PROTOCOLS[protocol], 40000, port)
    at = {str(ip_address(address)): key for key, one in state.endpoints.items() for address in one.addresses}
    verdicts = []
    if source in at:
        verdicts.append(decide(state, at[source], "egress", packet).verdict)
    if destination in at and ip_address(source).packed != OWN:
        verdicts.append(decide(state, at[destination], "ingress", packet).verdict)
    return "Deny" in verdicts if verdicts else None


@given(RULES, CONNECTIONS)
def test_as_the_pure_engine_decides(rules: list[dict[str, Any]], connections: list[tuple[str, str, str, int]]) -> None:
    state, found = wanted(*rules), Rehearsed()
    judge = ConnectionJudge(state, [OWN])
    denied = list(judge_tracked(judge, [tracked(*one) for one in connections], found))
    verdicts = [is_denied(state, *one) for one in connections]
    assert found.judged == sum(verdict is not None for verdict in verdicts)
    assert len(denied) == sum(verdict is True for verdict in verdicts)
    recorded = [
        {
            "verdict": "allowed",
            "connections": 3,
            "protocol": protocol,
            "source": {"ip": source},
            "destination": {"ip": destination, **({} if protocol == "icmp" else {"port": port})},
            **({"icmp": {"type": 8, "code": 0}} if protocol == "icmp" else {}),
        }
        for source, destination, protocol, port in connections
    ]
    again = list(judge_recorded(judge, recorded, found))
    assert [ends for ends, _ in again] == [ends for ends, _ in denied]
    assert all(count == 3 for _, count in again)


def test_what_cannot_be_judged_is_counted() -> None:
    found = Rehearsed()
    documents: list[dict[str, Any]] = [
        {"verdict": "denied", "source": {}, "destination": {}},
        {
            "verdict": "allowed",
            "connections": 4,
            "protocol": "tcp",
            "source": {"ip": "203.0.113.0/24"},
            "destination": {"ip": "10.65.0.1", "port": 80},
        },
        {
            "verdict": "allowed",
            "connections": 5,
            "protocol": "tcp",
            "source": {"kind": "network", "namespace": "", "name": "203.0.113.0/24", "ip": "203.0.113.0"},
            "destination": {"ip": "10.65.0.1", "port": 80},
        },
        {"lost": 7, "why": "more than 10000 different ones"},
    ]
    assert list(judge_recorded(ConnectionJudge(wanted(), [OWN]), documents, found)) == []
    assert found.uncertain == [
        "9 recorded connections: their addresses were recorded as a network, or not at all",
        "7 recorded connections: the recorder lost them, or there are too many different ones",
    ]
