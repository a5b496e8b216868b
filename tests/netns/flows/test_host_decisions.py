"""What is reported of packets to, from and through a host with host endpoints: each decision of each stage once, with
the rule that the naive evaluator names, and nothing that was not asked. (tests/netns/flows/test_decisions.py has the
same for workloads alone.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from cni_calico.flows.deciders import FIXED
from cni_calico.flows.packets import key_of, parts_of
from cni_calico.nodeagent.policing.tables.numbers import Recording, RuleNumbers
from tests.deadlines import until
from tests.netns.flows.test_decisions import Listener
from tests.netns.host_path import HostPath
from tests.netns.test_host_verdicts import SETTINGS, HostWire, host_clusters, judge, open_hosts

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

    def take(self) -> list[tuple[bool, object]]:
        """What is reported of the packet whose path was worked out last."""
        found: list[tuple[bool, object]] = []
        for stage, verdict, rule in self.decisions:
            if not verdict or stage != "raw":
                found.append((verdict, rule))
            if not verdict:
                break
        return found


def check(hosts: HostWire, listener: Listener, documents: dict[Any, Any]) -> None:
    listener.forget()
    listener.take()
    expected = Counter[Reported]()

    def note(path: HostPath, packet: dict[str, Any]) -> None:
        assert isinstance(path, DecidingPath)
        port = packet["sport"] if packet["protocol"] in (6, 17) else 0
        for verdict, rule in path.take():
            expected[verdict, packet["source"].packed, packet["protocol"], port, rule] += 1

    judge(hosts, documents, DecidingPath, note)
    found = Counter[Reported]()

    def all_reported() -> bool:
        for allowed, (number, data) in listener.take():
            source, _, protocol, sport, _ = parts_of(key_of(data) or b"")
            decider = listener.deciders.get(number)
            rule: object = number
            if decider is not None:
                policy = decider.kind, decider.namespace, decider.name
                rule = "ingress" if decider.ingress else "egress", policy, decider.index
            found[allowed, source, protocol, sport if protocol in (6, 17) else 0, rule] += 1
        return found.total() >= expected.total()

    until(all_reported, "every decision is reported", timeout_s=20)
    assert found == expected, (found - expected, expected - found)


@pytest.fixture
def host_reports(tmp_path: Path) -> Iterator[tuple[HostWire, Listener]]:
    numbers = RuleNumbers()
    with open_hosts(tmp_path, filtering=replace(SETTINGS, recording=Recording(numbers))) as hosts:
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


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_what_is_reported_about_hosts_for_long(host_reports: tuple[HostWire, Listener]) -> None:
    run(host_reports, 200)
