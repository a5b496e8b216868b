"""Verdicts of the kernel, on packets, against the naive evaluator: random policies, random endpoints, every packet.

Each example changes the tables of the one before, so what is tested is a state that was reached step by step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.policy.wanted import WantedEndpoint
from tests.kernels.features import has
from tests.netns.wire import INTERFACES, PEER, ROUTER, UPLINK, Wire, frame, open_wire
from tests.unit.policy.cluster import ADDRESSES, INVALID, PACKETS, documents_for, graph_of, keys
from tests.unit.policy.naive import Naive

pytestmark = [pytest.mark.netns, pytest.mark.never_excused]

TRIED = [packet for packet in PACKETS if packet["protocol"] != 58]  # no echo has that type in IPv6


@pytest.fixture
def wire() -> Iterator[Wire]:
    with open_wire(FilterSettings()) as made:
        yield made


@pytest.fixture
def legacy_wire() -> Iterator[Wire]:
    with open_wire(FilterSettings(), legacy=True) as made:
        yield made


def owners_of(endpoints: list[WantedEndpoint]) -> dict[Any, WantedEndpoint]:
    """Of an address that several have, one: a host has one route to it."""
    return {ip_address(packed): endpoint for endpoint in endpoints for packed in endpoint.addresses}


def strangers_among(endpoints: Iterable[WantedEndpoint], owned: Collection[Any]) -> dict[Any, str]:
    """Addresses that nobody owns, behind workloads' interfaces that have no endpoint; one of each family."""
    known = {endpoint.interface for endpoint in endpoints}
    unknown = [name for name in INTERFACES if name not in known]
    found: dict[Any, str] = {}
    for version in (4, 6) if unknown else ():
        free = [one for one in map(ip_address, reversed(ADDRESSES)) if one.version == version and one not in owned]
        found.update((address, unknown[0]) for address in free[:1])
    return found


# host endpoints, whose policies concern what is forwarded too, have a test of their own: test_host_verdicts.py
_KEYS = [key for key in keys() if key[0] != "HostEndpoint"]
_clusters = st.fixed_dictionaries({}, optional={key: documents_for(key) for key in _KEYS})


def _judge(wire: Wire, documents: dict[Any, Any]) -> None:
    graph = graph_of(documents)
    graph.flush()
    wanted = graph.wanted()
    wire.apply(wanted)
    assert wire.enforcer.goal.problems == {}
    owners = owners_of(sorted(wanted.endpoints.values(), key=lambda endpoint: str(endpoint.key)))
    strangers = strangers_among(wanted.endpoints.values(), owners)
    routes = {address: endpoint.interface for address, endpoint in owners.items()} | strangers
    wire.route(routes)
    naive, tried, expected = Naive(documents), [], []
    for packet in TRIED + INVALID:
        source, destination = owners.get(packet["source"]), owners.get(packet["destination"])
        incoming = routes.get(packet["source"], UPLINK)
        outgoing = routes.get(packet["destination"], UPLINK)
        if incoming == outgoing:
            continue
        verdicts = [
            naive.verdict((endpoint.key.kind, endpoint.key.namespace, endpoint.key.name), direction, packet)
            for endpoint, direction in ((source, "egress"), (destination, "ingress"))
            if endpoint is not None
        ]
        is_unknown = packet["source"] in strangers or packet["destination"] in strangers
        tried.append((incoming, outgoing, packet))
        expected.append(all(verdicts) and not is_unknown and not (verdicts and packet.get("invalid", False)))
    found = wire.arrivals(tried)
    wrong = [
        (incoming, outgoing, packet, f"arrived: {there}")
        for (incoming, outgoing, packet), there, should in zip(tried, found, expected, strict=True)
        if there is not should
    ]
    assert wrong == []


def check_verdicts(wire: Wire, states: int = 15 if has("machine") else 60) -> None:
    """The same examples each time, whatever the packet filter and the kernel."""
    limits = settings(max_examples=states, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    limits(given(documents=_clusters)(_judge))(wire)


def test_no_packet_answers_another() -> None:
    """Connection tracking would let an answer through whatever the policies say."""
    sent = {tuple(p[field] for field in ("source", "sport", "destination", "dport", "protocol")) for p in TRIED}
    answers = {(p["destination"], p["dport"], p["source"], p["sport"], p["protocol"]) for p in TRIED if p["sport"]}
    assert sent and answers and not sent & answers
    assert {p["icmp"][0] for p in TRIED if p["protocol"] == 1} == {8}  # its answer has type 0


def test_only_packets_of_the_test_count(wire: Wire) -> None:
    """A host reports its multicast groups about a second after an interface came up, and the report ends in ff02::2: it
    was taken for packet 2.
    """
    head = bytes.fromhex((PEER + ROUTER).replace(":", ""))
    groups = bytes.fromhex("8f0000000000000104000000ff020000000000000000000000000002")
    report = bytes.fromhex("600000000024000100000000000000000000000000000000ff020000000000000000000000000016")
    hop_by_hop = bytes.fromhex("3a00050200000100")
    packet = next(each for each in TRIED if each["source"].version == 4 and each["protocol"] == 6)
    tried = frame(packet, 7)
    error = bytes.fromhex("450000500000400040010000c00002010a0000010301000000000000") + tried[14:]
    for said in (b"\x86\xdd" + report + hop_by_hop + groups, b"\x08\0" + error):
        wire.inner["cali1"].send(head + said)
    wire.inner["cali1"].send(head + tried[12:])
    assert wire.seen()["cali1"] == {7}


@pytest.mark.stock
def test_verdicts(wire: Wire) -> None:
    check_verdicts(wire)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_verdicts_for_long(wire: Wire) -> None:
    check_verdicts(wire, 500)


@pytest.mark.stock
def test_verdicts_of_iptables(legacy_wire: Wire) -> None:
    check_verdicts(legacy_wire)
