"""The goal follows changes as if made in one step, and its phases bring a kernel there that refuses what is wrong."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from cni_calico.deadline import Deadline
from cni_calico.netfilter.difference import Phases, plan_table
from cni_calico.netfilter.rules import DROP
from cni_calico.netfilter.tables import AddChain, AddRules, FlushChain, NftChain, NftTable, TableId, mirror
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.touched import FILTER, TABLES
from cni_calico.policy.wanted import PolicyId, Wanted, WantedChanges, WantedPolicy
from tests.fakes.nftables import FakePacketFilter
from tests.unit.nodeagent.policing.tables.worlds import POLICIES, THERE, difference, goal_of, random_wanted

SETTINGS = FilterSettings(spoofing=True)


def bring_about(goal: Goal, kernel: FakePacketFilter, held: dict[TableId, NftTable], *, full: bool) -> int:
    """The number of transactions."""
    phases, touched = Phases(), goal.tables.take_touched()
    for table in TABLES:
        if full or table not in held:
            plan_table(goal.tables.of[table], kernel.tables.get(table), None, phases)
        elif table in touched:
            plan_table(goal.tables.of[table], held.get(table), touched[table], phases)
    count = 0
    for operations in phases:
        kernel.apply(operations, Deadline.after(10))
        mirror(held, operations)
        count += 1
    return count


@pytest.mark.parametrize("seed", range(16))
def test_changes_lead_where_one_step_leads(seed: int) -> None:
    rng = random.Random(seed)
    kernel, held, goal, wanted = FakePacketFilter(), dict[TableId, NftTable](), Goal(SETTINGS), Wanted()
    for _ in range(8):
        if rng.random() < 0.2:
            reject, ipv6 = rng.random() < 0.5, rng.random() < 0.5
            goal.configure(replace(SETTINGS, ipv6=ipv6, to_host=rng.choice(("DROP", "ACCEPT")), reject=reject))
        there = rng.choice((THERE, {}))
        goal.use_interfaces(there)
        after = random_wanted(rng)
        goal.update(difference(wanted, after))
        wanted = after
        bring_about(goal, kernel, held, full=False)
        assert kernel.tables == held == goal.tables.of
        assert goal.tables.of == goal_of(wanted, goal.settings, there).tables.of
        assert not goal.problems


@pytest.mark.parametrize("seed", range(10))
def test_from_whatever_is_there(seed: int) -> None:
    """A start: somebody else's state of the same names is changed into ours, and nothing is left to do then."""
    rng = random.Random(seed)
    kernel, held = FakePacketFilter(), dict[TableId, NftTable]()
    bring_about(goal_of(random_wanted(rng), SETTINGS), kernel, held, full=True)
    goal = goal_of(random_wanted(rng), SETTINGS)
    bring_about(goal, kernel, held, full=True)
    assert kernel.tables == goal.tables.of
    assert bring_about(goal, kernel, held, full=True) == 0


def test_nothing_in_use_is_made_anew() -> None:
    """No chain that packets go through is removed or stands empty between two transactions."""
    rng = random.Random(3)
    kernel, held, goal, wanted = FakePacketFilter(), dict[TableId, NftTable](), Goal(SETTINGS), Wanted()
    for _ in range(30):
        after = random_wanted(rng)
        goal.update(difference(wanted, after))
        wanted = after
        seen = len(kernel.transactions)
        bring_about(goal, kernel, held, full=False)
        for operations in kernel.transactions[seen : seen + 1]:  # the first phase
            made = {operation.name for operation in operations if isinstance(operation, AddChain)}
            if any(isinstance(operation, FlushChain) for operation in operations):
                continue  # nothing was new: it is the second
            assert {o.chain for o in operations if isinstance(o, AddRules)} <= made


def test_a_foreign_set_of_our_name() -> None:
    rng = random.Random(5)
    goal = goal_of(random_wanted(rng), SETTINGS)
    kernel, held = FakePacketFilter(), dict[TableId, NftTable]()
    bring_about(goal, kernel, held, full=True)
    table = kernel.tables[FILTER[4]]
    name = next(iter(goal.tables.of[FILTER[4]].elements), "")
    if name:
        table.sets[name] = replace(table.sets[name], interval=not table.sets[name].interval)
    chain = table.chains["to-workloads"]
    assert chain.hook is not None
    table.chains["to-workloads"] = NftChain("to-workloads", chain.rules, replace(chain.hook, priority=77))
    bring_about(goal, kernel, held, full=True)
    assert kernel.tables == goal.tables.of


def test_what_is_complete_is_not_rendered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(11)
    wanted = next(w for w in iter(lambda: random_wanted(rng), None) if POLICIES[0] in w.policies)
    goal, rendered = goal_of(wanted, SETTINGS), list[PolicyId]()
    render = goal.chains.render

    def counted(policy: WantedPolicy) -> None:
        rendered.append(policy.id)
        render(policy)

    monkeypatch.setattr(goal.chains, "render", counted)
    goal.wait_for(frozenset(), "")
    goal.wait_for(frozenset(), "its rules need what is not known")
    assert rendered == [] and not goal.problems


def test_a_policy_that_is_given_up_denies() -> None:
    rng = random.Random(11)
    wanted = next(w for w in iter(lambda: random_wanted(rng), None) if POLICIES[0] in w.policies)
    goal = goal_of(wanted, SETTINGS)
    goal.give_up(POLICIES[0], 'it is "bad"')
    chains = goal.tables.of[FILTER[4]].chains
    mine = [chain for name, chain in chains.items() if name[3:] == "np/default/np0"]
    assert mine and all(len(chain.rules) == 1 and chain.rules[0].actions == (DROP,) for chain in mine)
    assert goal.problems == {POLICIES[0]: 'it is "bad"'}
    assert all('"' not in rule.comment for chain in mine for rule in chain.rules)
    policy = wanted.policies[POLICIES[0]]
    goal.update(WantedChanges(policies={POLICIES[0]: replace(policy, ingress=policy.ingress and policy.ingress[:0])}))
    assert not goal.problems


@pytest.mark.parametrize("seed", range(12))
def test_failsafe_ports_come_first(seed: int) -> None:
    """Whenever the process ends between two transactions: no chain of a host denies without them."""
    rng = random.Random(seed)
    kernel, held, goal, wanted = FakePacketFilter(), dict[TableId, NftTable](), Goal(SETTINGS), Wanted()
    goal.use_interfaces(THERE)
    seen = 0
    for _ in range(8):
        after = random_wanted(rng)
        goal.update(difference(wanted, after))
        wanted = after
        phases = Phases()
        for table in TABLES:
            plan_table(goal.tables.of[table], kernel.tables.get(table), None, phases)
        for operations in phases:
            kernel.apply(operations, Deadline.after(10))
            mirror(held, operations)
            seen += sum(
                map(_require_failsafe, (kernel.tables[table] for table in FILTER.values() if table in kernel.tables))
            )
    assert seen


@pytest.mark.parametrize("seed", range(8))
def test_host_endpoints_only_add_stages_of_their_own(seed: int) -> None:
    """All other chains are the same, and a change of a workload's policy touches the same."""
    rng = random.Random(seed)
    while True:
        wanted = random_wanted(rng)
        policy = wanted.policies.get(POLICIES[0])  # never a host's
        goals = [goal_of(one, SETTINGS, THERE) for one in (wanted, replace(wanted, hosts={}, host_classes={}))]
        rules = [c.rules for c in goals[0].tables.of[FILTER[4]].chains.values() if c.name[3:] == "np/default/np0"]
        if policy is not None and any(rules) and goals[0].hosts.interfaces:
            break
    touched = []
    for goal in goals:
        goal.tables.take_touched()
        none = replace(policy, ingress=policy.ingress and (), egress=policy.egress and ())
        goal.update(WantedChanges(policies={policy.id: none}))
        touched.append(goal.tables.take_touched())
    assert touched[0] == touched[1] != {}
    for table in FILTER.values():
        hosts, others = (goal.tables.of[table].chains for goal in goals)
        more = hosts.keys() - others.keys()
        assert more and all(name.startswith(("host-", "failsafe-")) for name in more)
        assert {name: chain for name, chain in hosts.items() if name not in more} == others


def _require_failsafe(table: NftTable) -> int:
    """Returns how many chains were looked at."""
    count = 0
    for name, chain in table.chains.items():
        if not name.startswith(("host-in-h", "host-out-h")) or not chain.rules:
            continue
        count += 1
        jumps = [rule.verdict.chain for rule in chain.rules[:2] if rule.verdict is not None and rule.verdict.chain]
        (failsafe,) = (jumped for jumped in jumps if jumped.startswith("failsafe-"))
        assert len(table.chains[failsafe].rules) == 9
    return count
