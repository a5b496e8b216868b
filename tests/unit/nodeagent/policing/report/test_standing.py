"""What the engine says of itself: once for as long as it holds, and counted at most once a second."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Resource
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.policing.gate import POLICE, Gate
from cni_calico.nodeagent.policing.report.standing import RoundResult, StandingReport
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.status.policing import PolicyFigures, Standing
from cni_calico.policy.flushed import GraphFacts
from cni_calico.policy.records import parse_policy
from tests.fakes.memory_store import MemoryStore
from tests.fakes.notes import Notes
from tests.netns.policing.lab import private_settings
from tests.unit.nodeagent.fabric import FELIX


@dataclass
class Reporting:
    """A report at a time that is set, with what it told."""

    directory: Path
    time: float = 1000.0
    counted: int = 0
    told: list[Standing] = field(default_factory=list)
    log: Notes = field(default_factory=Notes)

    def __post_init__(self) -> None:
        context = Context(private_settings(self.directory), MemoryStore(), self.log, lambda _: True)
        plane = ("nftables", "its warning")
        self.report = StandingReport(context, "n1", self.told.append, PolicyFigures(), lambda: self.time, plane)
        self.result = RoundResult(
            POLICE,
            Standing(),
            True,
            "",
            FELIX,
            Goal(FilterSettings()),
            GraphFacts(),
            (),
            {},
            lambda host: (),
            self.count,
        )

    def count(self) -> Mapping[str, Mapping[str, int]]:
        self.counted += 1
        return {}


@pytest.fixture
def reporting(tmp_path: Path) -> Reporting:
    return Reporting(tmp_path)


def test_a_status_is_told_and_logged_when_it_differs(reporting: Reporting) -> None:
    for failing in ("", "no memory", "no memory", ""):
        reporting.report.tell(replace(reporting.result, failing=failing))
    assert [one.failing for one in reporting.told] == ["", "no memory", ""]
    assert reporting.report.standing == reporting.told[-1] and reporting.told[-1].ready
    logged = " ".join(reporting.log.said)
    assert logged.count("no memory") == 1 and logged.count("its warning") == 1 and logged.count("are in force") == 1


def test_what_only_those_need_to_know_whose_policies_are_in_force(reporting: Reporting) -> None:
    guard = Standing(problems=("a tunnel",), unguardable="refused")
    off = replace(
        reporting.result,
        gate=Gate(False, why="no policy"),
        in_force=False,
        guard=guard,
        connections="x",
        waiting=("w",),
    )
    reporting.report.tell(off)
    said = reporting.told[-1]
    assert said.problems == ("a tunnel", "w") and said.unguardable == "refused" and said.ready
    assert said.warnings == ("connections of workloads that are gone may still pass: x",)
    reporting.report.tell(replace(off, failing="the kernel"))
    assert not reporting.told[-1].ready
    reporting.report.tell(replace(off, gate=POLICE))
    assert not reporting.told[-1].unguardable and not reporting.told[-1].ready
    reporting.report.tell(replace(off, gate=POLICE, in_force=True))
    assert "its warning" in reporting.told[-1].warnings


def test_a_warning_about_http_says_what_is_missing_here(reporting: Reporting) -> None:
    """For a policy as it is read; other warnings stay as they are."""
    http = {"action": "Allow", "protocol": "TCP", "http": {"methods": ["GET"]}}
    resource = Resource("GlobalNetworkPolicy", Metadata("web"), {"types": ["Ingress"], "ingress": [http]})
    warnings = (*parse_policy(ResourceKey("GlobalNetworkPolicy", "web"), resource).warnings, "another")
    expected = {"": "because policySyncPathPrefix is not set", "/run/nodeagent": "checked by programs in pods"}
    for prefix, said in expected.items():
        felix = replace(FELIX, policy_sync_prefix=prefix)
        reporting.report.tell(replace(reporting.result, warnings=warnings, felix=felix))
        [about, other] = reporting.told[-1].warnings[:2]
        assert said in about and about.endswith("allow by addresses and ports alone") and other == "another"


def test_what_the_kernel_holds_is_counted_after_transactions_and_once_a_second(reporting: Reporting) -> None:
    for passes_s, transactions, counts in ((0, 1, 1), (2, 1, 1), (0, 2, 2), (0.5, 3, 2), (0.6, 3, 3)):
        reporting.time += passes_s
        reporting.report.figures.transactions = transactions
        reporting.report.tell(reporting.result)
        assert reporting.counted == counts
