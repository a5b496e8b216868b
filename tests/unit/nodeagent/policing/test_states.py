"""Each state with each outcome of a round; and rounds in any order, which never leave the table."""

from __future__ import annotations

from dataclasses import replace
from errno import ENOMEM
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from cni_calico.kernel.netlink.filter_events import Happened
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Resource
from cni_calico.netfilter.tables import AddTable, Operation
from cni_calico.nodeagent.policing.feed.changes import Refusal
from cni_calico.nodeagent.policing.states import NEXT, EngineState, RoundOutcome, begins
from cni_calico.nodeagent.policing.tables.tunnels import Tunnels
from cni_calico.nodeagent.status.policing import PolicyFigures
from tests.fakes.notes import Notes
from tests.unit.nodeagent.fabric import FELIX, INTERFACES, workload
from tests.unit.nodeagent.policing.host import POLICY, WORKLOAD, Host, host_record, policed, status_files

READING, OFF, FAILED, ON, BEHIND = EngineState
APPLIED, LACKING, REFUSED, UNWANTED = RoundOutcome
HOST = ResourceKey("HostEndpoint", "eth0")
WORKING = workload("a", "calia", "10.65.0.1/32")


@pytest.mark.parametrize(("before", "outcome"), tuple(product(EngineState, RoundOutcome)))
def test_each_state_with_each_outcome(before: EngineState, outcome: RoundOutcome) -> None:
    after = NEXT[outcome][before]
    assert after is not READING  # what has been decided once is never unknown again
    match outcome:
        case RoundOutcome.APPLIED | RoundOutcome.LACKING:
            assert after is (ON if outcome is APPLIED else BEHIND)
            assert begins(before, after) is (before in (READING, OFF, FAILED))
        case RoundOutcome.REFUSED:
            assert after is (BEHIND if before in (ON, BEHIND) else FAILED)
            assert after.in_force is before.in_force and not begins(before, after)
        case RoundOutcome.UNWANTED:
            assert after is OFF and not begins(before, after)


def test_only_what_has_been_applied_is_in_force() -> None:
    assert [state for state in EngineState if state.in_force] == [ON, BEHIND]


class RoundsMachine(RuleBasedStateMachine):
    """Without Kubernetes: a policy, or a host endpoint of this node, is a reason to enforce."""

    @initialize()
    def begin(self) -> None:
        self.directory = TemporaryDirectory()
        self.host = Host(Path(self.directory.name))
        self.host.kernel.broken = False
        self.felix = replace(FELIX, endpoint_status_prefix=self.directory.name, nftables_refresh_s=90)
        self.documents: dict[ResourceKey, Any] = {POLICY: Refusal("no"), WORKLOAD: WORKING}
        self.restart()

    def teardown(self) -> None:
        if hasattr(self, "rounds"):
            self.rounds.stop()
            self.directory.cleanup()

    @precondition(lambda self: hasattr(self, "rounds"))
    @rule()
    def restart_agent(self) -> None:
        self.rounds.stop()
        self.restart()

    def restart(self) -> None:
        """What an earlier run enforced is in the kernel."""
        self.log, self.watched = Notes(), 0
        self.figures = PolicyFigures()
        self.host.told.clear()
        self.rounds = self.host.rounds(self.figures, self.log, self.watch)
        self.rounds.configure(self.felix)
        self.rounds.receive(dict(self.documents))
        self.state = READING
        self.was_policed: bool | None = None  # None: the kernel has not been looked at
        self.announced = 0

    def watch(self) -> None:
        self.watched += 1

    # -- records, failures, kernel events, parameters -----------------------------------------------------------------

    def put(self, key: ResourceKey, record: Any) -> None:
        self.documents.pop(key, None)
        if record is not None:
            self.documents[key] = record
        self.rounds.receive({key: record})

    @rule(what=st.sampled_from(["valid", "refused", None]))
    def change_policy(self, what: str | None) -> None:
        spec = {"tier": "default", "selector": "all()", "types": ["Ingress"], "ingress": [{"action": "Allow"}]}
        valid = Resource("GlobalNetworkPolicy", Metadata(POLICY.name), spec)
        self.put(POLICY, valid if what == "valid" else Refusal("no") if what else None)

    @rule(there=st.booleans())
    def change_workload(self, there: bool) -> None:
        self.put(WORKLOAD, WORKING if there else None)

    @rule(node=st.sampled_from(["n1", "n2", ""]))
    def change_host_endpoint(self, node: str) -> None:
        self.put(HOST, host_record(node) if node else None)

    @rule()
    def kernel_recovers(self) -> None:
        self.host.kernel.refuse, self.host.kernel.broken = lambda _: 0, False

    @rule()
    def kernel_refuses_everything(self) -> None:
        self.host.kernel.refuse = lambda _: ENOMEM

    @rule()
    def kernel_refuses_new_tables(self) -> None:
        def refuse(operation: Operation) -> int:
            return ENOMEM if isinstance(operation, AddTable) else 0

        self.host.kernel.refuse = refuse

    @rule()
    def kernel_cannot_be_read(self) -> None:
        self.host.kernel.broken = True

    @rule()
    def somebody_flushes(self) -> None:
        self.host.kernel.flush_ruleset()
        self.rounds.notice(Happened(touched_by={"nft"}))

    @rule()
    def links_change(self) -> None:
        self.rounds.notice(Happened(links=None))

    @rule(enforced=st.booleans(), stands=st.booleans())
    def configure(self, enforced: bool, stands: bool) -> None:
        self.felix = replace(
            self.felix,
            policy_enforcement="Enabled" if enforced else "Disabled",
            standing_rules="Enabled" if stands else "Disabled",
        )
        self.rounds.configure(self.felix)

    @rule(tunnels=st.sampled_from([Tunnels(), Tunnels(frozenset((4,)), True)]))
    def other_tunnels(self, tunnels: Tunnels) -> None:
        self.rounds.use_tunnels(tunnels)

    @rule(seconds=st.sampled_from([0.1, 1.0, 31.0, 200.0]))
    def time_passes(self, seconds: float) -> None:
        self.host.time += seconds

    # -- rounds -------------------------------------------------------------------------------------------------------

    @precondition(lambda self: not self.state.in_force)
    @rule(error=st.sampled_from(["", "no right to list"]))
    def wait(self, error: str) -> None:
        """A listing is missing: nothing is decided."""
        before = self.host.told[-1] if self.host.told else None
        self.rounds.wait_for(error)
        if before is not None and self.host.told:
            assert self.host.told[-1].in_force == before.in_force and not self.host.told[-1].in_force
        assert not self.rounds.in_force

    @rule()
    def rounds_of_a_healthy_kernel(self) -> None:
        self.kernel_recovers()
        for _ in range(2):
            self.round()

    @rule(seconds=st.sampled_from([0.0, 0.3, 100.0]))
    def round_later(self, seconds: float) -> None:
        self.host.time += seconds
        self.round()

    @rule()
    def round_without_a_listing(self) -> None:
        self.round("EndpointSlice not read yet")

    @rule()
    def round(self, unread: str = "") -> None:
        failures, was_there = self.figures.failures, policed(self.host)
        self.rounds.calculate()
        self.rounds.once((), unread)
        failed = self.figures.failures > failures
        polices = self.felix.policy_enforcement == "Enabled" and (
            POLICY in self.documents or (HOST in self.documents and self.documents[HOST].node == "n1")
        )
        outcome = (REFUSED if failed else LACKING if unread else APPLIED) if polices else UNWANTED
        before, self.state = self.state, NEXT[outcome][self.state]
        self.check_told(failed=failed, unread=unread, polices=polices)
        self.check_kernel(failed=failed)
        self.check_first(before, failed=failed, was_there=was_there)

    def check_told(self, *, failed: bool, unread: str, polices: bool) -> None:
        said, in_force = self.host.told[-1], self.state.in_force
        assert self.rounds.in_force is said.in_force is in_force and said.decided
        assert bool(said.failing) is (failed or bool(unread))
        assert said.ready is (in_force or (not polices and not said.failing))
        assert said.upstream_goes is (in_force or not polices)
        assert bool(said.why_not) is not polices
        assert self.rounds.waits_to_retry is failed
        if self.state is ON:
            assert not said.failing

    def check_kernel(self, *, failed: bool) -> None:
        there = policed(self.host)
        if not failed:
            assert there is self.state.in_force
        if self.state in (ON, BEHIND) and not failed:
            assert bool(status_files(self.host)) is (WORKLOAD in self.documents)
        if self.state is OFF and not failed:
            assert bool(status_files(self.host)) is (
                WORKLOAD in self.documents
            )  # nothing is to come that an ADD waits for

    def check_first(self, before: EngineState, *, failed: bool, was_there: bool) -> None:
        if self.was_policed is None and self.rounds._enforcer.looked:
            self.was_policed = was_there
        if begins(before, self.state):
            if not self.was_policed:
                self.announced += 1
            self.was_policed = True
            assert self.watched
        elif self.state is OFF and not policed(self.host) and not failed:
            self.was_policed = False
        assert sum("enforces policies from now on" in text for text in self.log.said) == self.announced


def test_rounds_in_any_order_follow_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cni_calico.nodeagent.policing.feed.interfaces.read_interfaces", lambda deadline: INTERFACES)
    run_state_machine_as_test(
        RoundsMachine,
        settings=settings(
            max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
