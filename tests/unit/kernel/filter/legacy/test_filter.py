"""Legacy iptables as the engine's packet filter: whatever happened, what is there is what one step would have made."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from cni_calico.kernel.filter.legacy.filter import LegacyFilter
from cni_calico.kernel.filter.legacy.matches import Marks
from cni_calico.log import Log
from cni_calico.nodeagent.policing.enforce.enforcer import Enforcer
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.hosts.interfaces import InterfaceAddresses
from cni_calico.nodeagent.policing.tables.naming import policy_chains
from cni_calico.nodeagent.policing.tables.optional import OptionalFeature
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.touched import FILTER
from cni_calico.policy.budget import denied
from cni_calico.policy.wanted import Wanted
from tests.deadlines import soon
from tests.fakes.legacy import FakeLegacy, Tables
from tests.unit.nodeagent.policing.tables.worlds import THERE, difference, goal_of, random_wanted

SETTINGS = FilterSettings(spoofing=True)
MARKS = Marks(0x40000, 0x80000)


def enforcer_of(goal: Goal) -> Enforcer:
    return Enforcer(LegacyFilter(MARKS, 5), goal, Log("error"))


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLegacy]:
    made = FakeLegacy()
    made.install(monkeypatch)
    yield made


def content(kernel: FakeLegacy) -> tuple[dict[int, Tables], dict[str, tuple[str, set[str]]]]:
    """Without tables in which there is nothing."""
    tables = {
        family: {name: chains for name, chains in tables.items() if any(chains.values())}
        for family, tables in kernel.tables.items()
    }
    return tables, kernel.sets


def from_scratch(goal: Goal, wanted: Wanted, there: InterfaceAddresses, monkeypatch: pytest.MonkeyPatch) -> object:
    with monkeypatch.context() as patched:
        other = FakeLegacy()
        other.install(patched)
        enforcer_of(goal_of(wanted, goal.settings, there)).bring_about(soon())
        return content(other)


@pytest.mark.parametrize("seed", range(5))
def test_changes_lead_where_one_step_leads(kernel: FakeLegacy, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    goal, wanted = Goal(SETTINGS), Wanted()
    enforcer = enforcer_of(goal)
    for _ in range(4):
        if rng.random() < 0.2:
            goal.configure(replace(SETTINGS, ipv6=rng.random() < 0.5, reject=rng.random() < 0.5))
        there = rng.choice((THERE, {}))
        goal.use_interfaces(there)
        after = random_wanted(rng)
        goal.update(difference(wanted, after))
        wanted = after
        if rng.random() < 0.3:
            enforcer.doubt()
        enforcer.bring_about(soon())
        assert content(kernel) == from_scratch(goal, wanted, there, monkeypatch)
        assert not goal.problems and set(goal.lacking) == {OptionalFeature.ARP_ANSWERS}


@pytest.mark.parametrize("seed", range(3))
def test_a_restart(kernel: FakeLegacy, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same goal nothing is written; with another one it gets there, and nothing of ours is removed first."""
    rng = random.Random(seed)
    first, second = random_wanted(rng), random_wanted(rng)
    enforcer_of(goal_of(first, SETTINGS, THERE)).bring_about(soon())
    kernel.scripts.clear()
    assert enforcer_of(goal_of(first, SETTINGS, THERE)).bring_about(soon()) == 0 and kernel.scripts == []
    goal = goal_of(second, SETTINGS, THERE)
    enforcer_of(goal).bring_about(soon())
    assert content(kernel) == from_scratch(goal, second, THERE, monkeypatch)
    removing = [i for i, script in enumerate(kernel.scripts) if "\n-X " in script or script.startswith("destroy")]
    switching = [i for i, script in enumerate(kernel.scripts) if "-A cali-p-from-workloads" in script]
    assert not removing or not switching or min(removing) >= max(switching)


@pytest.mark.parametrize("seed", [0, 2])
def test_rules_of_policies_are_counted_without_recognising_them(kernel: FakeLegacy, seed: int) -> None:
    """Each of a policy's rules counts; a policy that denies has one."""
    wanted = random_wanted(random.Random(seed))
    denying = {name for i, name in enumerate(sorted(wanted.policies, key=str)) if i % 2}
    policies = {name: denied(one, "too large") if name in denying else one for name, one in wanted.policies.items()}
    goal = goal_of(replace(wanted, policies=policies), SETTINGS)
    enforcer_of(goal).bring_about(soon())
    chains = {chain: name for name in policies for chain in policy_chains(name)}
    for table in FILTER.values():
        filtering = LegacyFilter(MARKS, 5)
        there = filtering.read_table(table, soon())
        assert there is not None and chains.keys().isdisjoint(there.chains), "nothing is recognised"
        found = filtering.count_unrecognised(table, chains, soon())
        for chain, name in chains.items():
            rules = goal.tables.of[table].chains[chain].rules if chain in goal.tables.of[table].chains else ()
            assert (found[chain] == len(rules) <= 1) if name in denying else found[chain] >= len(rules)
    assert denying and max(found.values()) > 1


def tamper_rule(kernel: FakeLegacy) -> None:
    del kernel.tables[4]["filter"]["cali-p-to-workloads"][-1]


def tamper_flush(kernel: FakeLegacy) -> None:
    kernel.tables[6] = {}


def tamper_place(kernel: FakeLegacy) -> None:
    kernel.tables[4]["filter"]["FORWARD"].insert(0, "-j ACCEPT")


def tamper_jump(kernel: FakeLegacy) -> None:
    kernel.tables[4]["filter"]["INPUT"].clear()


def tamper_content(kernel: FakeLegacy) -> None:
    rules = kernel.tables[4]["filter"]["cali-p-FORWARD"]
    rules[0] = "-j RETURN"


def tamper_member(kernel: FakeLegacy) -> None:
    next(members for spec, members in kernel.sets.values() if spec.startswith("hash:ip family inet ")).add(
        "203.0.113.9"
    )


@pytest.mark.parametrize(
    "tamper", [tamper_rule, tamper_flush, tamper_place, tamper_jump, tamper_content, tamper_member]
)
def test_tampering_is_repaired(kernel: FakeLegacy, tamper: Callable[[FakeLegacy], None]) -> None:
    goal = goal_of(random_wanted(random.Random(4)), SETTINGS, THERE)
    enforcer = enforcer_of(goal)
    enforcer.bring_about(soon())
    before = str(content(kernel))
    tamper(kernel)
    assert str(content(kernel)) != before
    enforcer.doubt()
    enforcer.bring_about(soon())
    tables, _ = content(kernel)
    if tamper is tamper_place:  # what others have stays, behind ours
        assert tables[4]["filter"]["FORWARD"].pop() == "-j ACCEPT"
    assert sorted(str(content(kernel))) == sorted(before)
    assert enforcer.figures.found_changed == 1


def test_added_or_removed_rules_are_noticed(kernel: FakeLegacy) -> None:
    filtering = LegacyFilter(MARKS, 5)
    Enforcer(filtering, goal_of(random_wanted(random.Random(4)), SETTINGS), Log("error")).bring_about(soon())
    assert not filtering.touched()
    tamper_rule(kernel)
    assert filtering.touched()


def test_a_refused_policy_denies_and_the_rest_is_in_force(kernel: FakeLegacy) -> None:
    wanted = random_wanted(random.Random(1))
    enforcer_of(goal_of(wanted, SETTINGS)).bring_about(soon())
    whole = kernel.tables[4]["filter"]
    name, rules = next((chain, rules) for chain, rules in whole.items() if chain.startswith("cali-p-pi-gnp/") and rules)
    kernel.tables, kernel.sets = {4: {}, 6: {}}, {}
    (kernel.refuse,) = re.findall(r"cali:[0-9a-f]+", rules[0])[:1]
    goal = goal_of(wanted, SETTINGS)
    enforcer_of(goal).bring_about(soon())
    assert [policy.name for policy in goal.problems] == [name.rpartition("/")[2]]
    there = kernel.tables[4]["filter"]
    (deny,) = there[name]
    assert deny.endswith("-j DROP") and "refused" in deny
    assert {chain: some for chain, some in there.items() if "-p-p" not in chain} == {
        chain: some for chain, some in whole.items() if "-p-p" not in chain
    }


def test_an_endpoint_that_iptables_cannot_name(kernel: FakeLegacy) -> None:
    """ "+" is what stands for the rest of a name."""
    rng = random.Random(2)
    wanted = next(w for w in iter(lambda: random_wanted(rng), None) if w.endpoints)
    key, endpoint = next(iter(wanted.endpoints.items()))
    goal = goal_of(replace(wanted, endpoints={**wanted.endpoints, key: replace(endpoint, interface="cali+")}), SETTINGS)
    enforcer_of(goal).bring_about(soon())
    assert [text.partition(":")[0] for text in goal.left_out()] == ["the endpoint at cali+ is denied everything"]
    rules = kernel.tables[4]["filter"]["cali-p-by-i/from-workloads"]
    assert rules[-1].endswith('-i "cali+" -j DROP') and all(" -g cali-p-from" in rule for rule in rules[:-1])


def test_removal_leaves_what_is_others(kernel: FakeLegacy) -> None:
    filtering = LegacyFilter(MARKS, 5)
    Enforcer(filtering, goal_of(random_wanted(random.Random(4)), SETTINGS, THERE), Log("error")).bring_about(soon())
    kernel.tables[4]["filter"]["FORWARD"].append("-j ACCEPT")
    kernel.sets["other"] = ("hash:ip family inet", {"10.0.0.1"})
    assert LegacyFilter(MARKS, 5).remove(FILTER.values(), soon())
    tables, sets = content(kernel)
    assert tables == {4: {"filter": {"INPUT": [], "FORWARD": ["-j ACCEPT"], "OUTPUT": []}}, 6: {}}
    assert sets == {"other": ("hash:ip family inet", {"10.0.0.1"})}
    assert not LegacyFilter(MARKS, 5).remove(FILTER.values(), soon())


def test_a_kernel_without_ipv6(kernel: FakeLegacy) -> None:
    kernel.ipv6 = False
    enforcer = enforcer_of(goal_of(random_wanted(random.Random(4)), SETTINGS, THERE))
    enforcer.bring_about(soon())
    assert kernel.tables[4] and not kernel.tables[6] and not any(name.startswith("cali60") for name in kernel.sets)
    enforcer.doubt()
    assert enforcer.bring_about(soon()) == 0 and FILTER[6] in enforcer.held
