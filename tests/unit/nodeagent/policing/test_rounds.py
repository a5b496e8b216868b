"""Rounds that fail: what waits for them, what does not, and when they are tried again."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from errno import ENOENT
from pathlib import Path

import pytest

from cni_calico.kernel.netlink.filter_events import Happened
from cni_calico.log import Log
from cni_calico.model.keys import BGP_DEFAULT, ResourceKey
from cni_calico.model.resources import Metadata, Resource
from cni_calico.netfilter.tables import AddRules
from cni_calico.nodeagent.policing.feed.changes import FedRecord, Refusal
from cni_calico.nodeagent.policing.rounds import Rounds
from cni_calico.nodeagent.policing.schedule import RETRY_FIRST_S
from cni_calico.nodeagent.policing.tables.touched import FILTER
from cni_calico.nodeagent.status.policing import PolicyFigures, Standing
from cni_calico.policy.decode import reduce_record
from cni_calico.policy.hosts import HostRecord
from tests.unit.nodeagent.fabric import FELIX, INTERFACES, workload
from tests.unit.nodeagent.policing.host import (
    POLICY,
    WORKLOAD,
    Host,
    host_record,
    policed,
    status_files,
)


def test_what_upstream_left_may_go_where_nothing_is_policed_though_the_kernel_cannot_be_read(tmp_path: Path) -> None:
    for enforcement in ("Enabled", "Disabled"):  # without a policy
        host = Host(tmp_path, enforcement=enforcement)
        host.rounds().once()
        assert host.told[-1].upstream_goes and host.told[-1].failing and not host.told[-1].ready


def test_a_policy_that_cannot_be_read_is_one(tmp_path: Path) -> None:
    host = Host(tmp_path)
    rounds = host.rounds()
    rounds.receive({POLICY: Refusal("no")})
    rounds.once()
    assert not host.told[-1].upstream_goes
    host.kernel.broken = False
    rounds.once()
    assert host.told[-1].in_force and host.kernel.tables
    rounds.receive({POLICY: None})
    rounds.once()
    assert not host.told[-1].in_force and not policed(host)
    rounds.receive({POLICY: Refusal("no")})
    rounds.once()
    assert host.told[-1].in_force and host.kernel.tables


def _policy(selector: str) -> Resource:
    spec = {"tier": "default", "selector": selector, "types": ["Ingress"]}
    return Resource("GlobalNetworkPolicy", Metadata(POLICY.name), spec)


OPEN = ("projectcalico-default-allow",)
OFF = "1 policies (GlobalNetworkPolicy deny), because FELIX_POLICYENFORCEMENT is Disabled"
CLOSED = "HostEndpoint eth0, which denies what no policy or profile allows"
GOVERNED = "what GlobalNetworkPolicy deny says about HostEndpoint eth0"


@pytest.mark.parametrize(
    ("host", "selector", "lost"),
    [
        (host_record("n1"), "role == 'x'", (OFF, CLOSED)),
        (host_record("n1", OPEN), "role == 'x'", (OFF,)),
        (host_record("n1", OPEN, role="x"), "role == 'x'", (OFF, GOVERNED)),
        (host_record("n1", OPEN), "all()", (OFF, GOVERNED)),
        (host_record("n2", role="x"), "all()", (OFF,)),
    ],
)
def test_what_only_upstream_enforces_on_hosts_is_told(
    tmp_path: Path, host: HostRecord, selector: str, lost: tuple[str, ...]
) -> None:
    for enforcement in ("Disabled", "Enabled"):
        told = Host(tmp_path, kubernetes=True, enforcement=enforcement)
        told.kernel.broken = False
        rounds = told.rounds()
        rounds.receive({ResourceKey("HostEndpoint", "eth0"): host, POLICY: _policy(selector)})
        rounds.calculate()
        rounds.once()
        assert told.told[-1].lost == (lost if enforcement == "Disabled" else ())


def test_a_host_endpoint_is_a_reason_to_enforce(tmp_path: Path) -> None:
    told = Host(tmp_path)
    told.kernel.broken = False
    rounds = told.rounds()
    for host, is_policed in ((host_record("n2"), False), (host_record("n1"), True), (None, False)):
        rounds.receive({ResourceKey("HostEndpoint", "eth0"): host})
        rounds.calculate()
        rounds.once()
        assert told.told[-1].in_force is is_policed
        assert bool(told.kernel.tables and "host-in" in told.kernel.tables[FILTER[4]].chains) is is_policed


def test_a_host_without_a_policy_alarms_nobody(tmp_path: Path) -> None:
    """Until policies that were in force go: that is a warning."""
    log = tmp_path / "log"
    host = Host(tmp_path)
    host.kernel.broken = False
    rounds = host.rounds(log=Log("info", str(log), stderr=False))
    rounds.once()
    said = "no policy is enforced on this node: there is no policy"
    assert host.told[-1].ready and f" {said}\n" in log.read_text() and "[WARNING]" not in log.read_text()
    rounds.receive({POLICY: Refusal("no")})
    rounds.once()
    assert host.told[-1].in_force
    rounds.receive({POLICY: None})
    rounds.once()
    assert re.search(rf"\[WARNING\]\[\d+\] {said}\n", log.read_text())


@pytest.mark.parametrize(("name", "alarms"), [("calico-check-n1-1-a", False), ("calico-checked", True)])
def test_the_end_of_a_check_of_the_cluster_alarms_nobody(tmp_path: Path, name: str, alarms: bool) -> None:
    """It makes a policy and removes it, on every host that is set up."""
    log, policy = tmp_path / "log", ResourceKey("GlobalNetworkPolicy", name)
    host = Host(tmp_path)
    host.kernel.broken = False
    rounds = host.rounds(log=Log("info", str(log), stderr=False))
    for record, is_policed in ((_policy("all()"), True), (None, False)):
        rounds.receive({policy: record})
        rounds.once()
        assert host.told[-1].in_force is is_policed
    assert ("[WARNING]" in log.read_text()) is alarms
    assert log.read_text().count("there is no policy\n") == 1


def test_policies_that_are_switched_off_are_told(tmp_path: Path) -> None:
    told = Host(tmp_path, enforcement="Disabled")
    rounds = told.rounds()
    rounds.receive({ResourceKey("NetworkPolicy", f"p{i}", "a"): Refusal("no") for i in range(7)})
    rounds.once()
    assert told.told[-1].lost == (
        "7 policies (NetworkPolicy a/p0, NetworkPolicy a/p1, NetworkPolicy a/p2, NetworkPolicy a/p3, NetworkPolicy a/p4"
        " and 2 more), because FELIX_POLICYENFORCEMENT is Disabled",
    )


def test_a_failure_is_waited_after(tmp_path: Path) -> None:
    host = Host(tmp_path)
    rounds = host.rounds()
    rounds.receive({POLICY: Refusal("no")})
    assert not rounds.waits_to_retry and rounds.pause().seconds == 0
    rounds.once()
    assert rounds.waits_to_retry and rounds.pause().seconds > RETRY_FIRST_S / 2
    host.time += 2 * RETRY_FIRST_S
    assert not rounds.waits_to_retry
    host.kernel.broken = False
    rounds.once()
    assert not rounds.waits_to_retry and round(rounds.pause().seconds) == 90


def test_what_is_not_read_yet_keeps_nothing_back(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.kernel.broken = False
    rounds = host.rounds()
    rounds.receive({POLICY: Refusal("no")})
    rounds.once((), "EndpointSlice not read yet")
    assert host.told[-1].in_force and host.told[-1].failing == "EndpointSlice not read yet"
    assert not rounds.waits_to_retry
    rounds.once()
    assert host.told[-1].failing == ""


# -- Kubernetes with another datastore --------------------------------------------------------------------------------


def profile(name: str) -> dict[ResourceKey, FedRecord]:
    return {ResourceKey("Profile", name): Resource("Profile", Metadata(name), {})}


def test_the_gate_opens_once_every_profile_that_workloads_here_name_is_there(tmp_path: Path) -> None:
    host = Host(tmp_path, kubernetes=True)
    host.kernel.broken = False
    rounds = host.rounds()
    endpoint = replace(workload("a", "calia", "10.65.0.1/32"), profiles=("kns.b", "ksa.b.default"))
    rounds.receive({WORKLOAD: endpoint})

    def decided() -> Standing:
        rounds.calculate()
        rounds.once()
        return host.told[-1]

    assert not decided().ready and "kns.b, ksa.b.default" in host.told[-1].sentence
    rounds.receive(profile("kns.a"))  # another namespace's, which was enough once
    assert not decided().in_force and not policed(host)
    rounds.receive(profile("kns.b"))
    said = decided()
    assert not said.in_force and not said.ready and "(ksa.b.default)" in said.sentence
    rounds.receive(profile("ksa.b.default"))
    assert decided().in_force and policed(host)
    rounds.receive({ResourceKey("Profile", "kns.b"): None})  # later it is policy, and drops
    assert decided().in_force


# -- status files -----------------------------------------------------------------------------------------------------


def test_status_files_where_nothing_is_policed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is to come that an ADD could wait for; where the node is only not ready, something is."""
    monkeypatch.setattr("cni_calico.nodeagent.policing.feed.interfaces.read_interfaces", lambda deadline: INTERFACES)
    for host, there in ((Host(tmp_path / "off", enforcement="Disabled"), True), (Host(tmp_path / "host"), True)):
        host.kernel.broken = False
        _with_endpoint(host)
        assert bool(status_files(host)) is there
    waits = Host(tmp_path / "waits", kubernetes=True)
    waits.kernel.broken = False
    _with_endpoint(waits)
    assert not status_files(waits)


def test_removed_status_files_are_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cni_calico.nodeagent.policing.feed.interfaces.read_interfaces", lambda deadline: INTERFACES)
    host = Host(tmp_path / "host")
    host.kernel.broken = False
    rounds = _with_endpoint(host)
    (written,) = status_files(host)
    content = written.read_bytes()
    written.unlink()
    rounds.once()
    assert written.read_bytes() == content
    shutil.rmtree(host.directory)
    rounds.once()
    assert written.read_bytes() == content


def _with_endpoint(host: Host) -> Rounds:
    rounds = host.rounds()
    rounds.receive({WORKLOAD: workload("a", "calia", "10.65.0.1/32")})
    rounds.calculate()
    rounds.once()
    return rounds


# -- figures ----------------------------------------------------------------------------------------------------------


def test_figures(tmp_path: Path) -> None:
    host, figures = Host(tmp_path), PolicyFigures()
    rounds = host.rounds(figures)
    rounds.receive(
        {POLICY: Refusal("no"), ResourceKey("Tier", "default"): Resource("Tier", Metadata("default"), {})}, 990.0
    )
    rounds.once()
    assert figures.failures == 1 and figures.change.count == 0
    host.kernel.broken = False
    host.time += 1.0
    rounds.once()
    assert figures.change.count == figures.apply.count == 1 and figures.change.last_s[0] == 11.0
    assert figures.records == {"Tier": 1, "Profile": 0, "HostEndpoint": 0, "Policy": 1}
    table = host.kernel.tables[FILTER[4]]
    assert figures.in_kernel["4"]["chains"] == len(table.chains) > 0
    rounds.once()
    assert figures.change.count == 1


def test_the_first_policy_after_hours_without_one_has_not_waited_for_hours(tmp_path: Path) -> None:
    """The records that came at the start wait for nothing, and those that were read before the rest for the rest."""
    host, figures = Host(tmp_path), PolicyFigures()
    host.kernel.broken = False
    rounds = host.rounds(figures)
    tier = {ResourceKey("Tier", "default"): Resource("Tier", Metadata("default"), {})}
    rounds.receive(tier)
    rounds.wait_for("the datastore does not answer")
    rounds.once()
    assert figures.change.count == 0
    host.time += 7200.0
    rounds.receive({POLICY: Refusal("no")}, host.time)
    host.time += 0.5
    rounds.once()
    assert figures.change.count == 1 and figures.change.last_s[0] == 0.5
    other = host.rounds(late := PolicyFigures())
    other.receive({**tier, POLICY: Refusal("no")})
    host.time += 600.0
    other.wait_for("")
    host.time += 0.25
    other.once()
    assert late.change.count == 1 and late.change.last_s[0] == 0.25


def test_the_kernels_content_is_counted_once_a_second(tmp_path: Path) -> None:
    """It takes as long as there are chains, and each change would pay for it."""
    host, figures = Host(tmp_path), PolicyFigures()
    host.kernel.broken = False
    rounds = host.rounds(figures)
    rounds.receive({POLICY: Refusal("no")})
    rounds.calculate()
    rounds.once()
    before = figures.in_kernel["4"]["chains"]
    rounds.receive({WORKLOAD: workload("a", "calia", "10.65.0.1/32")})
    for passes_s, grows in ((0.0, False), (0.9, False), (0.2, True)):
        host.time += passes_s
        rounds.calculate()
        rounds.once()
        assert (figures.in_kernel["4"]["chains"] > before) == grows


def test_calculation_and_workloads_are_counted_where_they_are_known(tmp_path: Path) -> None:
    host, figures = Host(tmp_path), PolicyFigures()
    host.kernel.broken = False
    rounds = host.rounds(figures)
    rounds.receive({})
    rounds.calculate()
    assert figures.calculation.count == 0
    rounds.receive({WORKLOAD: workload("a", "calia", "10.65.0.1/32")})
    rounds.receive({ResourceKey("Tier", "default"): Resource("Tier", Metadata("default"), {})})
    host.time += 100  # not spent on calculating
    rounds.calculate()
    rounds.calculate()
    assert (figures.calculation.count, figures.calculation.total_s) == (1, 0.0)
    rounds.once()
    assert figures.workload_endpoints is None
    rounds.once(everybody=True)
    assert figures.workload_endpoints == 1
    rounds.receive({WORKLOAD: None})
    rounds.once(everybody=True)
    assert figures.workload_endpoints == 0


# -- listings that are needed later -----------------------------------------------------------------------------------


def selecting(action: str) -> Resource:
    """A rule about others' labels, then everybody is allowed."""
    rules = [{"action": action, "source": {"selector": "app == 'other'"}}, {"action": "Allow"}]
    return Resource("GlobalNetworkPolicy", Metadata("x"), {"selector": "all()", "types": ["Ingress"], "ingress": rules})


def test_what_a_spared_policy_needs_is_read_before_it_is_in_force(tmp_path: Path) -> None:
    """Above the budget its rules look nothing up; a file says that it was in force before."""
    host = Host(tmp_path)
    host.kernel.broken = False
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "spared-policies.json").write_text('[["GlobalNetworkPolicy", "", "x", 99]]')
    rounds = host.rounds()
    rounds.configure(replace(FELIX, policy_rule_budget=1, endpoint_status_prefix=str(tmp_path)))
    rounds.receive({WORKLOAD: workload("a", "calia", "10.65.0.1/32")})
    rounds.receive(
        {
            ResourceKey("GlobalNetworkPolicy", "x"): reduce_record(
                ResourceKey("GlobalNetworkPolicy", "x"), selecting("Deny")
            )
        }
    )
    rounds.calculate()
    assert not rounds.intake.facts.needs.endpoints
    rounds.once()
    assert rounds.intake.facts.needs.endpoints and not policed(host)
    rounds.once()
    assert len(host.kernel.tables[FILTER[4]].chains["pi-gnp/x"].rules) == 2


def test_a_rule_that_could_open_without_a_listing_denies_until_it_is_read(tmp_path: Path) -> None:
    """It is named; a rule that only allows less without it is in force, and so is everything else."""
    host = Host(tmp_path)
    host.kernel.broken = False
    rounds = host.rounds()
    deny, allow = ResourceKey("GlobalNetworkPolicy", "no"), ResourceKey("GlobalNetworkPolicy", "yes")
    rounds.receive({WORKLOAD: workload("a", "calia", "10.65.0.1/32")})
    rounds.receive({deny: reduce_record(deny, selecting("Deny")), allow: reduce_record(allow, selecting("Allow"))})

    def rules_of(name: str) -> int:
        return len(host.kernel.tables[FILTER[4]].chains[f"pi-gnp/{name}"].rules)

    rounds.calculate()
    rounds.once((), "WorkloadEndpoint not read yet", frozenset({"WorkloadEndpoint"}))
    (problem,) = host.told[-1].problems
    assert problem == "GlobalNetworkPolicy no: its rules need what is not known: WorkloadEndpoint not read yet"
    assert (rules_of("no"), rules_of("yes")) == (1, 2) and host.told[-1].in_force
    rounds.once()
    assert not host.told[-1].problems and (rules_of("no"), rules_of("yes")) == (2, 2)


def test_what_policies_depend_on_is_tried_again_soon(tmp_path: Path) -> None:
    """Two refusals in a row may be somebody else's doing: a missing stage is not left out until the next comparison."""
    host = Host(tmp_path)
    host.kernel.broken = False
    rounds = host.rounds()
    rounds.receive({POLICY: Refusal("no")})
    rounds.once()
    assert host.told[-1].in_force
    host.kernel.flush_ruleset()
    host.kernel.refuse = lambda o: ENOENT if isinstance(o, AddRules) and o.chain == "from-workloads" else 0
    rounds.notice(Happened(touched_by={"nft"}))
    rounds.once()
    assert "from-workloads" in host.told[-1].failing and rounds.waits_to_retry
    host.kernel.refuse = lambda operation: 0
    host.time += 2 * RETRY_FIRST_S
    rounds.once()
    assert not host.told[-1].failing and "from-workloads" in host.kernel.tables[FILTER[4]].chains


def test_services_networks_that_can_be_read_again_are_no_problem(tmp_path: Path) -> None:
    rounds = Host(tmp_path).rounds()
    spec = {"serviceClusterIPs": [{"cidr": "10.96.0.0/12"}]}
    rounds.receive({BGP_DEFAULT: Resource("BGPConfiguration", Metadata("default"), spec)})
    rounds.receive({BGP_DEFAULT: Refusal("it is no object")})
    rounds.calculate()
    assert BGP_DEFAULT in rounds.intake.facts.problems and rounds.intake.service_networks
    rounds.receive({BGP_DEFAULT: Resource("BGPConfiguration", Metadata("default"), spec)})
    rounds.calculate()
    assert not rounds.intake.facts.problems
