"""What is reported of packets to, from and through a host with host endpoints: each decision of each stage once, with
the rule that the naive evaluator names, and nothing that was not asked. (tests/netns/flows/test_decisions.py has the
same for workloads alone.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from cni_calico.flows.deciders import FIXED
from cni_calico.flows.packets import key_of, parts_of, source_of
from cni_calico.nodeagent.policing.tables.numbers import Recording, RuleNumbers
from tests.deadlines import until
from tests.netns.flows.test_decisions import Listener, records_of, what_decided
from tests.netns.host_path import HostPath, tracked
from tests.netns.test_host_verdicts import OWN, SETTINGS, HostWire, host_clusters, judge, open_hosts
from tests.netns.test_verdicts import TRIED
from tests.netns.wire import UPLINK, frame
from tests.unit.policy.cluster import INVALID, NODE

pytestmark = [pytest.mark.netns, pytest.mark.never_excused, pytest.mark.timeout(900)]

Reported = tuple[bool, bytes, int, int, object]
"""Whether it was let through; source, protocol and source port; the rule, or the number of a reason."""


class DecidingPath(HostPath):
    """Notes who decides. What a doNotTrack policy lets through has no connection, and is only counted."""

    @property
    def decisions(self) -> list[tuple[str, bool, object]]:
        found: list[tuple[str, bool, object]] = self.__dict__.setdefault("noted", [])
        return found

    def passes_in(self, packet: dict[str, Any]) -> tuple[str, bool]:
        self.decisions.clear()
        return super().passes_in(packet)

    def passes_out(self, packet: dict[str, Any]) -> tuple[str, bool]:
        self.decisions.clear()
        return super().passes_out(packet)

    def decided(self, interface: str, stage: str, direction: str, packet: dict[str, Any]) -> bool | None:
        verdict = super().decided(interface, stage, direction, packet)
        if verdict is not None:
            invalid = packet.get("invalid") and stage != "raw"
            rule = FIXED["invalid"] if invalid else (direction, *self.naive.decided_by)
            self.decisions.append((stage, verdict, rule))
        return verdict

    def workload(self, address: Any, direction: str, packet: dict[str, Any]) -> bool:
        verdict = super().workload(address, direction, packet)
        invalid, stranger = packet.get("invalid"), self.workloads[address] is None
        rule: object = (direction, *self.naive.decided_by)
        if stranger or invalid:
            rule = FIXED["no endpoint" if stranger else "invalid"]
        self.decisions.append(("workload", verdict, rule))
        return verdict

    def connection(self, packet: dict[str, Any]) -> bytes:
        """The key of the packet's connection, as far as its last decision tells: what decides before translation sees
        where it was sent.
        """
        stages = [stage for stage, *_ in self.decisions[: len(self.take_all())]]
        if stages and stages[-1] not in ("raw", "beforeNat"):
            by = self.outgoing if packet["source"] in self.own[UPLINK] else self.incoming
            packet = tracked(packet, by, untracked=stages[0] == "raw")
        return key_of(frame(packet, 0)[14:]) or b""

    def take_all(self) -> list[bool]:
        """Verdicts, up to the one that drops it."""
        verdicts = [verdict for _, verdict, _ in self.decisions]
        return verdicts[: verdicts.index(False) + 1] if False in verdicts else verdicts

    def take(self) -> list[tuple[bool, object]]:
        """What is reported of the packet whose path was worked out last."""
        found: list[tuple[bool, object]] = []
        for stage, verdict, rule in self.decisions:
            if not verdict or stage != "raw":
                found.append((verdict, rule))
            if not verdict:
                break
        return found


def check(
    hosts: HostWire,
    listener: Listener,
    documents: dict[Any, Any],
    packets: Sequence[dict[str, Any]] = (*TRIED, *INVALID),
) -> None:
    """Records are compared where they can be told: of several connections that one source port begins at once, and
    about which is decided before translation and after it, only the rules are.
    """
    listener.forget()
    listener.take()
    expected, deciding = Counter[Reported](), dict[bytes, set[tuple[bool, object]]]()
    early: dict[bytes, set[bytes]] = {}  # by source: what was let through before translation

    def note(path: HostPath, packet: dict[str, Any]) -> None:
        assert isinstance(path, DecidingPath)
        port = packet["sport"] if packet["protocol"] in (6, 17) else 0
        if ("beforeNat", True) in [one[:2] for one in path.decisions]:
            sent = key_of(frame(packet, 0)[14:]) or b""
            early.setdefault(source_of(sent), set()).add(sent)
        for verdict, rule in path.take():
            deciding.setdefault(path.connection(packet), set()).add((verdict, rule))
            expected[verdict, packet["source"].packed, packet["protocol"], port, rule] += 1

    judge(hosts, documents, DecidingPath, note, packets)
    found, reports = Counter[Reported](), list[tuple[bool, bytes, int]]()

    def all_reported() -> bool:
        for allowed, (number, data) in listener.take():
            reports.append((allowed, key_of(data) or b"", number))
            source, _, protocol, sport, _ = parts_of(reports[-1][1])
            rule = what_decided(number, listener.deciders)
            found[allowed, source, protocol, sport if protocol in (6, 17) else 0, rule] += 1
        return found.total() >= expected.total()

    until(all_reported, "every decision is reported", timeout_s=20)
    assert found == expected, (found - expected, expected - found)
    told = {key for key in deciding if len(early.get(source_of(key), ())) < 2}
    records = records_of(
        [one for one in reports if len(early.get(source_of(one[1]), ())) < 2],
        listener.deciders,
    )
    assert records == {key: deciding[key] for key in told}


@pytest.fixture
def host_reports(tmp_path: Path) -> Iterator[tuple[HostWire, Listener]]:
    yield from reporting_hosts(tmp_path, legacy=False)


@pytest.fixture
def legacy_host_reports(tmp_path: Path) -> Iterator[tuple[HostWire, Listener]]:
    yield from reporting_hosts(tmp_path, legacy=True)


def reporting_hosts(tmp_path: Path, *, legacy: bool) -> Iterator[tuple[HostWire, Listener]]:
    numbers = RuleNumbers()
    filtering = replace(SETTINGS, recording=Recording(numbers, by_iptables=legacy))
    with open_hosts(tmp_path, legacy=legacy, filtering=filtering) as hosts:
        listener = Listener(hosts.wire, numbers)
        yield hosts, listener
        listener.close()


def run(host_reports: tuple[HostWire, Listener], states: int) -> None:
    limits = settings(
        max_examples=states,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    limits(given(documents=host_clusters)(lambda documents: check(*host_reports, documents)))()


def test_what_is_reported_about_hosts(host_reports: tuple[HostWire, Listener]) -> None:
    run(host_reports, 8)


def test_what_iptables_reports_about_hosts(legacy_host_reports: tuple[HostWire, Listener]) -> None:
    run(legacy_host_reports, 2)


def host_policy(name: str, **spec: Any) -> dict[Any, Any]:
    rule = {"action": "Allow", "protocol": "TCP"}
    rules = {"selector": "all()", "types": ["Ingress"], "ingress": [rule], **spec}
    return {("GlobalNetworkPolicy", "", name): {"metadata": {"name": name}, "spec": rules}}


@pytest.mark.parametrize("of_workload", ["Allow", "Deny", None])
def test_what_is_decided_before_and_after_translation_is_one_connection(
    host_reports: tuple[HostWire, Listener], of_workload: str | None
) -> None:
    host = {"metadata": {"name": "h", "labels": {"host": "1"}}, "spec": {"node": NODE, "interfaceName": UPLINK}}
    documents = {("HostEndpoint", "", "h"): host}
    documents |= host_policy("early", selector="has(host)", preDNAT=True, applyOnForward=True)
    if of_workload:
        spec = {"interfaceName": "cali1", "node": NODE, "ipNetworks": ["10.0.0.1/32", "fd00::1/128"], "profiles": []}
        documents["WorkloadEndpoint", "a", "l1"] = {
            "metadata": {"name": "l1", "namespace": "a", "labels": {}},
            "spec": spec,
        }
        documents |= host_policy("late", ingress=[{"action": of_workload}], selector="!has(host)")
    tried, seen = [], set()
    for packet in (*TRIED, *INVALID):
        source = packet["source"], packet["protocol"], packet["sport"]
        if packet["destination"] in OWN.values() and packet["protocol"] == 6 and source not in seen:
            tried.append(packet)
            seen.add(source)
    check(*host_reports, documents, tried)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_what_iptables_reports_about_hosts_for_long(legacy_host_reports: tuple[HostWire, Listener]) -> None:
    run(legacy_host_reports, 50)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_what_is_reported_about_hosts_for_long(host_reports: tuple[HostWire, Listener]) -> None:
    run(host_reports, 200)
