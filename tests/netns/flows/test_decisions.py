"""What rules report of the packets that they decide about, on a real kernel: the rule that the naive evaluator names.

Each example changes the tables of the one before, as in test_verdicts.py.
"""

from __future__ import annotations

import select
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from cni_calico.deadline import Deadline
from cni_calico.flows import accounting
from cni_calico.flows import arrivals as arriving
from cni_calico.flows.arrivals import Arrivals
from cni_calico.flows.deciders import ALLOWED_GROUP, DENIED_GROUP, FIXED, Decider
from cni_calico.flows.live import LiveFlows
from cni_calico.flows.losses import ALLOWED, DENIED, OVERRUN
from cni_calico.flows.packets import key_of, parts_of
from cni_calico.flows.untranslated import UntranslatedDecisions
from cni_calico.kernel.filter.nf_tables import printer
from cni_calico.kernel.filter.nf_tables.counters import read_counters
from cni_calico.kernel.filter.nf_tables.filter import NfTables
from cni_calico.kernel.netlink.decisions import DecisionReports, ReportedDecision
from cni_calico.kernel.netlink.nfnetlink import CTNETLINK, Nfnetlink, general
from cni_calico.log import SILENT
from cni_calico.netfilter.rules import KNOWN_BEFORE, KNOWN_BY_STATE, KNOWN_BY_STATUS
from cni_calico.netfilter.tables import NftSet
from cni_calico.nodeagent.policing.enforce.enforcer import Enforcer
from cni_calico.nodeagent.policing.tables import goal as goals
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.numbers import MAPS, Recording, RuleNumbers
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.touched import FILTER
from cni_calico.policy.wanted import Wanted
from tests.deadlines import until
from tests.fakes.stepped_recorder import paired
from tests.kernels.features import has
from tests.netns.test_verdicts import TRIED, _clusters, owners_of, strangers_among
from tests.netns.wire import UPLINK, Wire, entered, frame, open_wire
from tests.unit.flows.test_live import Kept
from tests.unit.policy.cluster import INVALID, NODE, graph_of
from tests.unit.policy.naive import Naive

pytestmark = [pytest.mark.netns, pytest.mark.never_excused, pytest.mark.stock]

ROOM = 1 << 20


class Listener:
    """``numbers``: those of the rules, by what decided."""

    def __init__(self, wire: Wire, numbers: RuleNumbers) -> None:
        self.wire, self.numbers = wire, numbers
        self.deciders: dict[int, Decider] = {}
        with entered(wire.host):
            deadline = Deadline.after(10)
            self.reports = [DecisionReports(group, ROOM, deadline) for group in (ALLOWED_GROUP, DENIED_GROUP)]
            self.netlink = Nfnetlink()

    def close(self) -> None:
        for one in (*self.reports, self.netlink):
            one.close()

    def forget(self) -> None:
        """All connections."""
        self.netlink.request(CTNETLINK << 8 | 2, 0, general(""), "flush", Deadline.after(10))

    def take(self) -> list[tuple[bool, ReportedDecision]]:
        """(whether it was let through, what was reported) since the last time."""
        self.deciders |= dict(self.numbers.take_new())
        return [(one is self.reports[0], decision) for one in self.reports for decision in one.take(10_000)]


Reported = tuple[bool, tuple[bytes, bytes, int, int, int], object]


def expected_of(documents: dict[Any, Any], wire: Wire) -> tuple[list[Any], Counter[Reported]]:
    """The packets to be sent, and what has to be reported of them."""
    graph = graph_of(documents)
    graph.flush()
    wanted = graph.wanted()
    wire.apply(wanted)
    owners = owners_of(sorted(wanted.endpoints.values(), key=lambda endpoint: str(endpoint.key)))
    strangers = strangers_among(wanted.endpoints.values(), owners)
    routes = {address: endpoint.interface for address, endpoint in owners.items()} | strangers
    wire.route(routes)
    naive, tried, expected = Naive(documents), [], Counter[Reported]()
    for packet in TRIED + INVALID:
        incoming = routes.get(packet["source"], UPLINK)
        outgoing = routes.get(packet["destination"], UPLINK)
        if incoming == outgoing:
            continue
        tried.append((incoming, outgoing, packet))
        key = parts_of(key_of(frame(packet, 0)[14:]) or b"")
        for direction, side in (("egress", "source"), ("ingress", "destination")):
            endpoint = owners.get(packet[side])
            if packet[side] in strangers:
                expected[False, key, FIXED["no endpoint"]] += 1
                break
            if endpoint is None:
                continue
            if packet.get("invalid"):
                expected[False, key, FIXED["invalid"]] += 1
                break
            name = endpoint.key.kind, endpoint.key.namespace, endpoint.key.name
            allowed = naive.verdict(name, direction, packet)
            expected[allowed, key, (direction, *naive.decided_by)] += 1
            if not allowed:
                break
    return tried, expected


def _compare(told_by_nftables: Listener, documents: dict[Any, Any]) -> None:
    told_by_nftables.forget()
    tried, expected = expected_of(documents, told_by_nftables.wire)
    arrived = told_by_nftables.wire.arrivals(tried)
    assert any(arrived) or not any(allowed for allowed, _, _ in expected)
    found, reports = Counter[Reported](), list[tuple[bool, bytes, int]]()

    def all_reported() -> bool:
        for allowed, (number, packet) in told_by_nftables.take():
            reports.append((allowed, key_of(packet) or b"", number))
            found[allowed, parts_of(key_of(packet) or b""), what_decided(number, told_by_nftables.deciders)] += 1
        return found.total() >= expected.total()

    until(all_reported, "every decision is reported")
    assert found == expected
    assert [one.lost for one in told_by_nftables.reports] == [one.strange for one in told_by_nftables.reports] == [0, 0]
    deciding: dict[Any, set[tuple[bool, object]]] = {}
    for allowed, parts, what in expected:
        deciding.setdefault(parts, set()).add((allowed, what))
    records = records_of(reports, told_by_nftables.deciders)
    assert {parts_of(key): sides for key, sides in records.items()} == deciding


def records_of(
    reports: list[tuple[bool, bytes, int]], deciders: dict[int, Decider]
) -> dict[bytes, set[tuple[bool, object]]]:
    """What the recorder makes of reports: of each connection one record, here with what decided, and whether it let
    through. Several records are one here only if different rules have denied packets that look alike.
    """
    kept = Kept()
    live = LiveFlows(kept, deciders.get, lambda address: 0)
    untranslated = UntranslatedDecisions(live, deciders.get)
    read_at_once = sorted(reports, key=lambda report: not report[0])  # what is let through first, as the recorder does
    for allowed, key, number, also in paired(read_at_once):
        untranslated.decide(key, number, 1_000_000, allowed=allowed, also=also)
    untranslated.release(all_of_them=True)
    found: dict[bytes, set[tuple[bool, object]]] = {}
    denials: dict[bytes, list[int]] = {}
    for record in kept.records[1:]:
        assert record is not None
        denied_by = denials.setdefault(record.key, [])
        assert record.denied == bool(record.denied_by) and (not denied_by or record.denied_by not in (0, *denied_by))
        denied_by.append(record.denied_by)
        sides = ("egress", record.egress), ("ingress", record.ingress)
        sides += ("egress", record.host_out), ("ingress", record.host_in)
        for way, number in sides:
            assert not number or what_decided(number, deciders)[0] == way, "each side's rule is in its place"
        rules = {(number != record.denied_by, what_decided(number, deciders)) for number in record.numbers()}
        found.setdefault(record.key, set()).update(rules)
    return found


def what_decided(number: int, deciders: dict[int, Decider]) -> Any:
    """As the naive evaluator names it, or the number of a reason."""
    decider = deciders.get(number)
    if decider is None:
        return number
    policy = decider.kind, decider.namespace, decider.name
    return "ingress" if decider.ingress else "egress", policy, decider.index


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture
def told_by_nftables() -> Iterator[Listener]:
    numbers = RuleNumbers()
    with open_wire(FilterSettings(recording=Recording(numbers))) as wire:
        made = Listener(wire, numbers)
        yield made
        made.close()


@pytest.fixture
def told_by_iptables() -> Iterator[Listener]:
    numbers = RuleNumbers()
    with open_wire(FilterSettings(recording=Recording(numbers, by_iptables=True)), legacy=True) as wire:
        made = Listener(wire, numbers)
        yield made
        made.close()


def test_what_iptables_reports(told_by_iptables: Listener) -> None:
    check_reports(told_by_iptables, 2 if has("machine") else 10)


def test_what_is_reported(told_by_nftables: Listener) -> None:
    check_reports(told_by_nftables, 4 if has("machine") else 25)


def check_reports(told_by_nftables: Listener, states: int) -> None:
    examples = settings(
        max_examples=states,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate) if has("machine") else tuple(Phase),  # there shrinking has no end
    )

    @examples
    @given(documents=_clusters)
    def compare(documents: dict[Any, Any]) -> None:
        _compare(told_by_nftables, documents)

    compare()


ALL = {"selector": "all()", "types": ["Ingress"], "ingress": [{"action": "Allow"}]}
OPEN = {
    ("WorkloadEndpoint", "a", "l1"): {
        "metadata": {"name": "l1", "namespace": "a", "labels": {}},
        "spec": {"interfaceName": "cali1", "node": NODE, "ipNetworks": ["10.0.0.1/32"], "profiles": []},
    },
    ("GlobalNetworkPolicy", "", "open"): {"metadata": {"name": "open"}, "spec": ALL},
}
UDP = {
    "source": ip_address("10.0.1.1"),
    "destination": ip_address("10.0.0.1"),
    "protocol": 17,
    "sport": 40000,
    "dport": 53,
    "icmp": (0, 0),
}


def put_open(wire: Wire) -> None:
    graph = graph_of(OPEN)
    graph.flush()
    wire.apply(graph.wanted())
    wire.route({ip_address("10.0.0.1"): "cali1"})


def test_a_connection_that_is_not_answered_is_reported_once(told_by_nftables: Listener) -> None:
    put_open(told_by_nftables.wire)
    assert told_by_nftables.wire.arrivals([(UPLINK, "cali1", UDP)] * 5) == [True] * 5
    found: list[tuple[bool, ReportedDecision]] = []

    def reported(count: int) -> bool:
        found.extend(told_by_nftables.take())
        return len(found) >= count

    until(lambda: reported(1), "a report")
    told_by_nftables.forget()
    assert told_by_nftables.wire.arrivals([(UPLINK, "cali1", UDP)] * 3) == [True] * 3
    until(lambda: reported(2), "another one")
    assert [allowed for allowed, _ in found] == [True, True]


def test_what_has_no_connection_passes_as_without_recording() -> None:
    """Where nothing drops what connection tracking calls invalid, it has no entry whose status could be looked at."""
    packet = {**UDP, "protocol": 6, "invalid": True}
    arrived = {}
    for recording in (None, Recording(RuleNumbers())):
        with open_wire(FilterSettings(drop_invalid=False, recording=recording)) as wire:
            put_open(wire)
            wire.host.set_sysctl("netfilter/nf_conntrack_tcp_loose", "0")  # or it would begin a connection
            arrived[recording is not None] = wire.arrivals([(UPLINK, "cali1", packet)])
    assert arrived == {False: [True], True: [True]}


def test_what_does_not_fit_is_counted_exactly() -> None:
    """The kernel drops reports for which a reader who does not read has no room, and numbers them."""
    sent = 1500
    with open_wire(FilterSettings(recording=Recording(RuleNumbers()))) as wire:
        put_open(wire)
        with entered(wire.host):
            reports = DecisionReports(DENIED_GROUP, 1, Deadline.after(10))
        packets = [(UPLINK, "cali1", {**UDP, "protocol": 6, "invalid": True, "sport": 1000 + i}) for i in range(sent)]
        assert not any(wire.arrivals(packets))
        read = 0

        def counted() -> int:
            """What the rule itself has counted."""
            with entered(wire.host), Nfnetlink() as netlink:
                chains = wire.enforcer.held[FILTER[4]].chains
                (name,) = (name for name in chains if name.startswith("to-") and name != "to-workloads")
                return read_counters(netlink, FILTER[4], name, Deadline.after(10))["invalid"]

        def all_known() -> bool:
            nonlocal read
            if not reports.lost:  # else the last ones would never be out of the kernel, which sends several at once
                wire.arrivals(packets[:1])  # its number tells how many were lost before it
            read += len(reports.take(10_000))
            print(f"{read} read, {reports.lost} lost, {counted()} counted")
            return reports.lost > 0 and read + reports.lost == counted()

        until(all_known, "every report is read or counted")
        assert counted() > sent
        reports.close()


def test_what_rules_have_counted_is_what_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    """In both families and kinds, also where a reader has no room; what is in no count is found."""
    monkeypatch.setattr(accounting, "_EVERY_S", 0.0)
    monkeypatch.setattr(accounting, "_SHARE", 0.0)
    numbers = RuleNumbers()
    with open_wire(FilterSettings(recording=Recording(numbers))) as wire:
        put_open(wire)
        with entered(wire.host):
            arrivals = Arrivals(time.monotonic)
            deciders: dict[int, Decider] = {}
            found = accounting.RuleAccounting(arrivals, deciders.get, SILENT, time.monotonic)

        def compare(times: int) -> None:
            """Several times, each after what has come was read."""
            last = found.readings + times

            def compared() -> bool:
                arrivals.take()
                found.go_on()
                return found.readings >= last

            with entered(wire.host):
                until(compared, "it is compared")

        sports = iter(range(1000, 60000))

        def send(count: int) -> None:
            allowed = [(UPLINK, "cali1", {**UDP, "sport": next(sports)}) for _ in range(count)]
            denied = [(UPLINK, "cali1", {**UDP, "protocol": 6, "invalid": True, "sport": i}) for i in range(1000, 1050)]
            assert wire.arrivals([*allowed, *denied]) == [True] * count + [False] * 50

        compare(2)
        assert found.unaccounted == 0
        send(100)
        compare(3)
        assert found.unaccounted == 0 and arrivals.totals == {ALLOWED: 100, DENIED: 50}
        deciders.update(numbers.take_new())
        assert found.denied_packets() == [], "what is invalid is no policy's"
        number = next(one for one, decider in deciders.items() if arrivals.numbers[one])
        arrivals.numbers[number] -= 3  # as if they had never arrived

        def told() -> int:
            """What arrives while it compares may stand for what is missing, so first nothing does."""
            for _ in range(50):
                with entered(wire.host):
                    arrivals.take()
                    found.go_on()
                select.select((), (), (), 0.01)
            send(1)  # its number says that none of those before it was lost
            return found.unaccounted or 0

        assert until(told, "it is told") == 3
        send(100)
        compare(1)
        assert found.unaccounted == 3, "and only once"
        found.close()
        arrivals.close()


@pytest.mark.parametrize("later", [False, True])
def test_what_a_stopped_reader_lost_is_counted_without_a_later_report(
    later: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last reports of a flood are those that were lost, so no number tells of them: the rules' counters do. What
    comes later changes nothing, and is not counted twice.
    """
    monkeypatch.setattr(accounting, "_EVERY_S", 0.0)
    monkeypatch.setattr(accounting, "_SHARE", 0.0)
    monkeypatch.setattr(arriving, "_ROOMS", {**arriving._ROOMS, ALLOWED: 1, DENIED: 1})  # the least that there is
    with open_wire(FilterSettings(recording=Recording(RuleNumbers()))) as wire:
        put_open(wire)
        with entered(wire.host):
            arrivals = Arrivals(time.monotonic)
            found = accounting.RuleAccounting(arrivals, {}.get, SILENT, time.monotonic)

        def go_on() -> None:
            with entered(wire.host):
                arrivals.take()
                found.go_on()

        def send(sports: range) -> None:
            allowed = [(UPLINK, "cali1", {**UDP, "sport": sport}) for sport in sports]
            denied = [(UPLINK, "cali1", {**UDP, "protocol": 6, "invalid": True, "sport": sport}) for sport in sports]
            assert wire.arrivals([*allowed, *denied]) == [True] * len(sports) + [False] * len(sports)

        until(lambda: go_on() or found.readings, "the rules' counters are read")
        for sports in (range(1000, 1100), range(1100, 1200), range(1200, 1300)):
            send(sports)  # to a reader that is stopped
        given_up = time.monotonic() + 0.3  # read before the kernel has, what waits there for others tells of the rest
        until(lambda: time.monotonic() >= given_up, "none waits in the kernel for others to come")
        known = arrivals.unread()
        go_on()
        assert arrivals.unread() == known and all(one.has_dropped for one in arrivals._reports.values())

        def all_known(sent: int) -> bool:
            go_on()
            lost, recorded = arrivals.unread(), arrivals.recorded()
            return {source: recorded[source] + lost[source] for source in lost} == {ALLOWED: sent, DENIED: sent}

        until(lambda: all_known(300), "what was recorded and what was lost is what the rules have counted")
        lost = arrivals.unread()
        assert all(lost.values()) and found.unaccounted in (None, 0)
        if later:
            send(range(2000, 2001))
            until(lambda: all_known(301), "one more was recorded")
            assert arrivals.unread() == lost, "nothing is counted twice"
        last = found.readings + 2
        until(lambda: go_on() or found.readings >= last, "it is compared again")
        assert found.unaccounted == 0 and arrivals.unread() == lost
        told = {loss.source: (loss.why, loss.count) for loss in arrivals.new_losses(time.time())}
        assert told == {source: (OVERRUN, count) for source, count in lost.items()}
        found.close()
        arrivals.close()


def test_recording_can_be_switched_while_packets_pass(told_by_nftables: Listener) -> None:
    put_open(told_by_nftables.wire)
    goal, recording = told_by_nftables.wire.enforcer.goal, told_by_nftables.wire.enforcer.goal.settings.recording
    without: list[bool] = []
    for wanted in (None, Recording(told_by_nftables.numbers, allowed=False), recording):
        goal.configure(replace(goal.settings, recording=wanted))
        told_by_nftables.wire.bring_about()
        assert told_by_nftables.wire.arrivals([(UPLINK, "cali1", UDP)]) == [True]
        held = told_by_nftables.wire.enforcer.held[FILTER[4]]
        without.append(KNOWN_BY_STATUS in held.sets)
        with entered(told_by_nftables.wire.host):
            told_by_nftables.wire.enforcer.doubt()
        told_by_nftables.wire.bring_about()
        assert told_by_nftables.wire.enforcer.figures.found_changed == 0
    assert without == [False, False, True]


def test_maps_of_an_earlier_version_are_replaced(monkeypatch: pytest.MonkeyPatch, stack: ExitStack) -> None:
    """Those had other names, and no size."""
    names = dict(zip((KNOWN_BY_STATE, KNOWN_BY_STATUS), KNOWN_BEFORE, strict=True))
    former = {NftSet(names[spec.name], spec.key, verdicts=True): verdicts for spec, verdicts in MAPS.items()}
    wanted = FilterSettings(recording=Recording(RuleNumbers()))
    with monkeypatch.context() as earlier:
        earlier.setattr(goals, "MAPS", former)
        earlier.setattr(printer, "KNOWN_BY_STATE", KNOWN_BEFORE[0])
        earlier.setattr(printer, "KNOWN_BY_STATUS", KNOWN_BEFORE[1])
        printer.forget_cached()
        wire = stack.enter_context(open_wire(wanted))
        put_open(wire)
    printer.forget_cached()
    assert set(KNOWN_BEFORE) < wire.enforcer.held[FILTER[4]].sets.keys()
    with entered(wire.host):
        kernel = stack.enter_context(NfTables())
    wire.enforcer, wanted_there = Enforcer(kernel, Goal(wanted), SILENT), wire.wanted
    wire.wanted = Wanted()
    wire.apply(wanted_there)
    sets = wire.enforcer.held[FILTER[4]].sets
    assert not sets.keys() & set(KNOWN_BEFORE) and {spec.name: spec for spec in MAPS}.items() < sets.items()
    assert wire.arrivals([(UPLINK, "cali1", UDP)] * 3) == [True] * 3
    with entered(wire.host):
        wire.enforcer.doubt()
    wire.bring_about()
    assert wire.enforcer.figures.found_changed == 0
