"""What comes in reaches the graph and whoever listens, in order; what cannot be read keeps its last valid version."""

from __future__ import annotations

from pathlib import Path

import pytest

from cni_calico.kernel.files import Files
from cni_calico.log import SILENT
from cni_calico.model.keys import BGP_DEFAULT, ResourceKey
from cni_calico.model.resources import Metadata, Resource
from cni_calico.nodeagent.policing.feed.changes import Refusal
from cni_calico.nodeagent.policing.feed.intake import Intake
from cni_calico.nodeagent.policing.feed.spared import Spared
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.status.policing import Durations
from cni_calico.nodeagent.view.last_valid import LastValid
from cni_calico.policy.graph import Graph
from cni_calico.policy.nodes import GraphRecord

TIER, POLICY = ResourceKey("Tier", "default", ""), ResourceKey("GlobalNetworkPolicy", "p", "")
PROFILE = ResourceKey("Profile", "kns.default", "")


class Received:
    """An intake with what its listener was told."""

    def __init__(self, directory: Path) -> None:
        self.told: list[tuple[ResourceKey, GraphRecord | None]] = []
        self.graph = Graph(lambda _: True, lambda _: True)
        kept, spared = LastValid(Files(), SILENT, str(directory)), Spared(Files(), SILENT, str(directory))
        listeners = [lambda key, record: self.told.append((key, record))]
        self.intake = Intake("n", self.graph, Goal(FilterSettings()), kept, spared, listeners)


@pytest.fixture
def received(tmp_path: Path) -> Received:
    return Received(tmp_path)


def resource(kind: str, name: str, spec: dict[str, object]) -> Resource:
    return Resource(kind, Metadata(name), spec)


def test_versions_before_a_refusal_come_first(received: Received) -> None:
    first, second = (resource("Tier", "default", {"order": order}) for order in (1, 2))
    received.intake.receive({TIER: Refusal("no", (first, second))})
    assert received.told == [(TIER, first), (TIER, second)]
    assert received.graph.problems == {TIER: "no"} and received.intake.count()["Tier"] == 1
    received.intake.receive({TIER: None})
    assert received.told[-1] == (TIER, None)
    assert not received.graph.problems and received.intake.count()["Tier"] == 0


def test_a_policy_that_cannot_be_read_exists(received: Received) -> None:
    received.intake.receive({POLICY: Refusal("no")})
    assert received.intake.policies == {POLICY} and received.intake.count()["Policy"] == 1
    assert received.told == []
    received.intake.receive({POLICY: None})
    assert not received.intake.policies


def test_what_the_gate_and_the_rules_ask_for(received: Received) -> None:
    intake = received.intake
    assert not intake.has_namespace_profile and intake.service_networks == ()
    intake.receive({PROFILE: resource("Profile", "kns.default", {})})
    spec: dict[str, object] = {"serviceClusterIPs": [{"cidr": "10.96.0.0/12"}]}
    intake.receive({BGP_DEFAULT: resource("BGPConfiguration", "default", spec)})
    assert intake.has_namespace_profile and [str(one) for one in intake.service_networks] == ["10.96.0.0/12"]
    intake.receive({BGP_DEFAULT: Refusal("no")})
    assert intake.service_networks
    intake.receive({BGP_DEFAULT: None})
    assert intake.service_networks == ()


def test_needs_of_other_nodes_follow_the_policies_in_force(received: Received) -> None:
    intake = received.intake
    intake.receive({TIER: resource("Tier", "default", {"order": 1})})
    rule = {"action": "Allow", "source": {"selector": "has(a)"}}
    intake.receive({POLICY: resource("GlobalNetworkPolicy", "p", {"selector": "all()", "ingress": [rule]})})
    intake.flush({}, Durations())
    assert not intake.facts.needs.endpoints  # it applies to nobody here
    host = {"node": "n", "interfaceName": "eth0"}
    intake.receive({ResourceKey("HostEndpoint", "h", ""): resource("HostEndpoint", "h", host)})
    intake.flush({}, Durations())
    assert intake.facts.needs.endpoints and not intake.facts.needs.services
    intake.receive({POLICY: None})
    intake.flush({}, Durations())
    assert not intake.facts.needs.endpoints
