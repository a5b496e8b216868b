"""What stages of host endpoints decide about recorded connections, against what ``policy explain`` says."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from cni_calico.ctl.policy.host_records import TrafficEnd
from cni_calico.ctl.policy.hosts import gates, judge
from cni_calico.ctl.policy.interfaces import NodeHosts
from cni_calico.errors import KernelError
from cni_calico.flows.deciders import Decider
from cni_calico.flows.host_parameters import HostParameters, parse_parameters, render_parameters
from cni_calico.flows.judging.allowance import Allowance
from cni_calico.flows.judging.encoding import StagedName, render_staged, render_whole
from cni_calico.flows.judging.host_sides import HostSides, JudgedConnection, NotJudged
from cni_calico.flows.judging.known import KnownRules
from cni_calico.flows.judging.staged import StagedFlows
from cni_calico.flows.records import COUNTED, FlowRecord
from cni_calico.kernel.ways import Way
from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.policy.explain import Decision, Packet
from cni_calico.policy.failsafe import FailsafePort
from cni_calico.policy.hosts import HostRecord
from cni_calico.policy.records import Labelled
from cni_calico.policy.wanted import (
    PolicyId,
    Wanted,
    WantedEndpoint,
    WantedHost,
    WantedHostClass,
    WantedPolicy,
    WantedRule,
    WantedTier,
)
from tests.unit.flows.judging.test_agreement import ALLOW_80
from tests.unit.flows.judging.test_staged import read
from tests.unit.policy.judge.test_bounds import wanted_with
from tests.unit.policy.judge.test_oracle import HOST, POD, packets, plain, worlds

NODE, OTHER_HOST, EVERYWHERE = "n1", ResourceKey("HostEndpoint", "other"), ResourceKey("HostEndpoint", "all")
PORTS = HostParameters((FailsafePort(6, 1), FailsafePort(17, 2, ip_network("10.0.0.0/31"))), (FailsafePort(6, 2),))
PLACES = st.sampled_from(("workload", "host", "elsewhere"))
# with source port 0 it is not known
DIFFERENT = packets().filter(lambda p: p.source != p.destination and (p.source_port or p.protocol not in (6, 17, 132)))
BOTH_PLACES = st.tuples(PLACES, PLACES).filter(lambda places: places != ("elsewhere", "elsewhere"))


class Ways:
    """``here``: addresses of this host; all others are beyond eth0."""

    version = 0.0

    def __init__(self, *here: bytes) -> None:
        self.here, self.fails = here, False

    def addresses(self) -> dict[bytes, str]:
        return dict.fromkeys(self.here, "eth0")

    def of(self, packed: bytes) -> Way | None:
        if self.fails:
            raise KernelError("cannot look up")
        return Way("eth0", packed in self.here)


def known(wanted: Wanted) -> KnownRules:
    found = KnownRules()
    for data in render_whole(wanted):
        message = read(data)
        found.receive(message.kind, message.changes, 0.0)
    return found


def connection(packet: Packet, asked: bool = True) -> JudgedConnection:
    point = (packet.destination_port, packet.source_port) if packet.protocol in (6, 17, 132) else (0, 0)
    if packet.protocol in (1, 58) and (packet.protocol == 1) == (packet.source.version == 4):
        point = packet.icmp
    to = packet.destination.packed if asked else None
    return JudgedConnection(packet.source.packed, packet.destination.packed, packet.protocol, *point, to, point[0])


def placed(wanted: Wanted, packet: Packet, places: tuple[str, str], *hosts: WantedHost) -> tuple[Wanted, Ways]:
    ends = {
        POD._replace(name=f"pod{n}"): WantedEndpoint(POD._replace(name=f"pod{n}"), "", "c", (address.packed,))
        for n, (place, address) in enumerate(zip(places, (packet.source, packet.destination), strict=True))
        if place == "workload"
    }
    here = [a.packed for p, a in zip(places, (packet.source, packet.destination), strict=True) if p == "host"]
    return replace(wanted, endpoints=ends, hosts={host.key: host for host in hosts}), Ways(*here)


def expected(wanted: Wanted, packet: Packet, places: tuple[str, str]) -> dict[bool, Decision | None]:
    """By direction (ingress: True), of those that decide."""
    records = {key: HostRecord(NODE, host.interface, Labelled(frozenset(), ())) for key, host in wanted.hosts.items()}
    felix = FelixSettings(failsafe_inbound=PORTS.inbound, failsafe_outbound=PORTS.outbound)
    main = (packet.source, packet.destination)
    views = {NODE: NodeHosts(records, felix, main, dict.fromkeys(main, "eth0"))}
    ends = [
        TrafficEnd("", (address,), POD if place == "workload" else None, "" if place == "elsewhere" else NODE)
        for place, address in zip(places, main, strict=True)
    ]
    found: dict[bool, Decision | None] = {}
    for verdict in judge(wanted, gates(views, *ends, packet, ""), packet, views):
        if verdict.decision is not None:
            found.setdefault(verdict.gate.direction == "ingress", plain(verdict.decision))
    return found


@settings(max_examples=60, deadline=None, phases=(Phase.generate,))
@given(DIFFERENT, BOTH_PLACES, worlds(), worlds(), st.booleans())
def test_as_explain_says(packet: Packet, places: tuple[str, str], one: Wanted, other: Wanted, named: bool) -> None:
    """Two interfaces' host endpoints, or that of all interfaces, before and after."""
    hosts = (WantedHost(HOST, "eth0", "h"), WantedHost(OTHER_HOST, "eth1", "h"), WantedHost(EVERYWHERE, "*", "h"))
    before, ways = placed(one, packet, places, *(hosts if named else hosts[2:]))
    after, _ = placed(other, packet, places, *hosts[1:])
    sides, _ = HostSides(ways, lambda: PORTS).find(known(before), known(after), connection(packet))
    for wanted, judged in ((before, [side.was for side in sides]), (after, [side.would for side in sides])):
        said = {
            side.ingress: plain(by.judged.decision)
            for side, by in zip(sides, judged, strict=True)
            if by.judged.decision is not None
        }
        assert said == expected(wanted, packet, places)


def test_what_is_not_known_is_not_judged() -> None:
    """Where it was sent, before translation; routes; failsafe ports; the port of the source."""
    packet = Packet(ip_address("10.9.0.1"), ip_address("10.0.0.1"), 6, 4000, 80)
    wanted, ways = placed(wanted_with(), packet, ("elsewhere", "workload"))
    sides = HostSides(ways, lambda: PORTS)
    assert sides.find(known(wanted), known(wanted), connection(packet)) == ([], True)
    tiers = wanted.classes["c"].ingress
    host_class = WantedHostClass("h", before_nat=tiers)
    closed = replace(wanted, host_classes={"h": host_class}, hosts={HOST: WantedHost(HOST, "eth0", "h")})
    rules = known(wanted), known(closed)
    found, _ = sides.find(*rules, connection(packet))
    assert [side.would.judged.decision is not None for side in found] == [True]
    with pytest.raises(NotJudged, match="where it was sent"):
        sides.find(*rules, connection(packet, asked=False))
    with pytest.raises(NotJudged, match="failsafe"):
        HostSides(ways, lambda: None).find(*rules, connection(packet))
    ways.fails = True
    with pytest.raises(NotJudged, match="cannot look up"):
        sides.find(*rules, connection(packet))


def test_parameters_are_the_agents() -> None:
    some = replace(PORTS, excluded=("kube-ipvs0", "/^x/"))
    assert parse_parameters(render_parameters(some)) == some


EDGE = PolicyId("GlobalNetworkPolicy", "edge")


@pytest.mark.parametrize("reach", ["forward", "before_nat"])
def test_pending_hits_are_those_of_a_host_endpoint_that_would_deny(reach: str) -> None:
    """For whoever exports: what would decide about the destination's side; nothing where that is not known."""
    packet = Packet(ip_address("10.9.0.1"), ip_address("10.0.0.1"), 6, 4000, 80)
    now, ways = placed(wanted_with(ALLOW_80), packet, ("elsewhere", "workload"))
    denies = WantedPolicy(EDGE, "default", (WantedRule("Deny"),), None)
    stage = {"forward": "forward_ingress", "before_nat": "before_nat"}[reach]
    tiers = (WantedTier("default", (EDGE,), "Pass"),)
    host_classes = {"h": WantedHostClass("h", **{stage: tiers})}
    hosts = {HOST: WantedHost(HOST, "eth0", "h")}
    would = replace(now, policies={**now.policies, EDGE: denies}, host_classes=host_classes, hosts=hosts)
    flows = StagedFlows(known(now), Allowance(lambda: 100.0, lambda: 0.0), hosts=HostSides(ways, lambda: PORTS))
    for data in render_staged(render_whole(would), [StagedName(EDGE, "StagedGlobalNetworkPolicy", "edge")]):
        flows.receive(read(data), 0.0)
    ends = packet.source.packed, packet.destination.packed
    record = FlowRecord(0, 0, *ends, ends[1], 4000, 80, 80, 6, COUNTED, 0, 300, 0, 0, 0, *([0] * 4), 0, 1)
    expected = Decider("StagedGlobalNetworkPolicy", "", "edge", "default", True, 0, "Deny")
    assert flows.pending(record, True) == (expected, [])
    is_known = reach == "forward"
    assert (flows.pending(record._replace(flags=0), True) is not None) == is_known  # where it was sent is not known yet
    ways.fails = True
    assert flows.pending(record, True) is None
