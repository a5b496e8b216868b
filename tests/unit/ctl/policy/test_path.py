"""What ``policy explain`` says about hosts, against the path of a packet written down independently, with the naive
evaluator: random host endpoints and policies of all four stages.
"""

from __future__ import annotations

from ipaddress import ip_address, ip_interface
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cni_calico.ctl.policy.host_records import TrafficEnd, host_records
from cni_calico.ctl.policy.hosts import gates, judge
from cni_calico.ctl.policy.interfaces import node_hosts
from cni_calico.ctl.policy.records import PolicyRecords
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Node
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.policy.explain import decide
from cni_calico.policy.failsafe import FailsafePort
from cni_calico.policy.wanted import WantedEndpoint
from tests.netns.host_path import HERE, HostPath
from tests.unit.policy.cluster import NODE, PACKETS, UPLINK, as_packet, document, documents_for, keys, record_of
from tests.unit.policy.naive import Naive

OWN = frozenset(map(ip_address, ("192.0.2.1", "fd00::2")))
INBOUND, OUTBOUND = (6, 80), (17, 53)
FELIX = FelixSettings(failsafe_inbound=(FailsafePort(*INBOUND),), failsafe_outbound=(FailsafePort(*OUTBOUND),))
HOST = Node(
    Metadata(NODE),
    ipv4=ip_interface("192.0.2.1/24"),
    interfaces=({"name": UPLINK, "addresses": sorted(map(str, OWN))},),
)
_KINDS = ("HostEndpoint", "GlobalNetworkPolicy", "Profile")
_WORKLOADS = [("WorkloadEndpoint", "a", name) for name in ("l1", "l3")]
_OPEN = [{"action": "Allow"}]
_STAGES: dict[str, dict[str, Any]] = {
    "p": {"preDNAT": True, "types": ["Ingress"], "egress": []},
    "q": {"doNotTrack": True},
    "r": {"types": ["Egress"]},
}
_DENY_443 = {"action": "Deny", "protocol": "TCP", "destination": {"ports": [443]}}
_AROUND = {  # rules before and behind the random ones, so that more is decided
    ("p", "ingress"): ({"action": "Deny", "protocol": "UDP"}, {"action": "Allow", "protocol": "TCP"}),
    ("q", "ingress"): (_DENY_443, {"action": "Allow", "protocol": "ICMP"}),
    ("q", "egress"): (_DENY_443, {"action": "Allow", "protocol": "ICMP"}),  # but not answers from port 80
    ("r", "egress"): (_DENY_443, {"action": "Allow"}),
}


def with_all_stages(drawn_with: tuple[dict[Any, Any], bool]) -> dict[Any, Any]:
    """With policies of three stages that apply to all hosts; workloads are open unless a policy says otherwise. Half of
    the time there is no host endpoint but the one for all interfaces.
    """
    documents, has_others = drawn_with
    made = {**documents, ("Profile", "", "own"): document({"ingress": _OPEN, "egress": _OPEN})}
    for key in _WORKLOADS:
        made[key] = {**made[key], "spec": {**made[key]["spec"], "profiles": ["own"]}}
    if not has_others:
        del made["HostEndpoint", "", "h"]
    for name, stage in _STAGES.items():
        drawn = documents["GlobalNetworkPolicy", "", name]["spec"]
        spec = {field: drawn[field] for field in ("tier", "order", "ingress", "egress") if field in drawn}
        spec |= {"selector": "!has(projectcalico.org/namespace)", "applyOnForward": True, **stage}
        for direction in ("ingress", "egress"):
            if (name, direction) in _AROUND:
                before, behind = _AROUND[name, direction]
                spec[direction] = [before, *spec[direction], behind]
        made["GlobalNetworkPolicy", "", name] = document(spec)
    return made


_clusters = st.tuples(
    st.fixed_dictionaries({key: documents_for(key) for key in [k for k in keys() if k[0] in _KINDS] + _WORKLOADS}),
    st.booleans(),
).map(with_all_stages)


def holders_of(endpoints: list[WantedEndpoint]) -> dict[Any, WantedEndpoint]:
    return {ip_address(packed): endpoint for endpoint in endpoints for packed in endpoint.addresses}


def end_of(address: Any, owner: WantedEndpoint | None) -> TrafficEnd:
    if owner is not None:
        return TrafficEnd("a workload", (address,), owner.key, NODE)
    return TrafficEnd("host", (address,), None, NODE) if address in OWN else TrafficEnd("outside", (address,))


@settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
@given(documents=_clusters)
def test_the_path_of_a_packet(documents: dict[Any, Any]) -> None:
    records = PolicyRecords(
        records={
            ResourceKey(kind, name, space): record_of((kind, space, name), document)
            for (kind, space, name), document in documents.items()
        },
        nodes={NODE: HOST},
    )
    own = [key for key, record in records.endpoints.items() if record.node == NODE]
    graph = records.graph([*own, *(key for key in records.records if key.kind == "HostEndpoint")])
    wanted = graph.wanted()
    owners = holders_of(sorted(wanted.endpoints.values(), key=lambda endpoint: str(endpoint.key)))
    owners = {address: endpoint for address, endpoint in owners.items() if address not in OWN}
    views = {NODE: node_hosts(host_records(records), NODE, HOST, FELIX)}
    addresses = {packet[end] for packet in PACKETS for end in ("source", "destination")}
    path = HostPath(
        Naive(documents),
        NODE,
        {UPLINK: OWN},
        dict.fromkeys(addresses, UPLINK) | {address: owner.interface for address, owner in owners.items()},
        {address: (owner.key.kind, owner.key.namespace, owner.key.name) for address, owner in owners.items()},
        frozenset({INBOUND}),
        frozenset({OUTBOUND}),
    )
    wrong = []
    for raw in PACKETS:
        source, destination = (end_of(raw[end], owners.get(raw[end])) for end in ("source", "destination"))
        if not (source.node or destination.node) or (source.is_host and destination.is_host):
            continue
        outgoing, expected = path.passes_out(raw) if source.is_host else path.passes_in(raw)
        if path.routes[raw["source"]] == outgoing != HERE and not source.is_host:
            continue
        packet = as_packet(raw)
        verdicts = [
            verdict.passes for verdict in judge(wanted, gates(views, source, destination, packet, ""), packet, views)
        ]
        for end, direction in ((source, "egress"), (destination, "ingress")):
            if end.key is not None and not source.is_host:
                verdicts.append(decide(wanted, end.key, direction, packet).verdict == "Allow")
        if all(verdicts) is not expected:
            wrong.append((raw, expected, verdicts))
    assert wrong == []
