"""What ip_vs forwards passes the chains of all that is forwarded, found by marks; without it none of this is there."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.netfilter.difference import Phases, plan_table
from cni_calico.netfilter.rules import ACCEPT, DROP, PacketVerdict, SetMarkTo, jump
from cni_calico.netfilter.tables import NftTable, TableId, interface_key, mirror, word_key
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.hosts.ipvs import MarkedWay, WayNumbers, spread
from cni_calico.nodeagent.policing.tables.naming import class_chain
from cni_calico.nodeagent.policing.tables.settings import FilterSettings, ipvs_marks_of
from cni_calico.nodeagent.policing.tables.touched import FILTER, TABLES
from cni_calico.policy.wanted import Wanted
from tests.fakes.nftables import FakePacketFilter
from tests.unit.nodeagent.policing.tables.test_goal import bring_about
from tests.unit.nodeagent.policing.tables.worlds import THERE, difference, goal_of, random_wanted

PLAIN = FilterSettings()
MARKED = replace(PLAIN, ipvs_marks=ipvs_marks_of(0xFFFF0000))
WAYS = [MarkedWay(f"from-{i}", None) for i in range(6)]


@pytest.mark.parametrize(
    ("mask", "marks"), [(0xFFFF0000, 0xFFDC0000), (0x7F, 0x5C), (0x1FF, 0x1DC), (0xF0F0F0, 0xF0D0C0), (0x3F, 0)]
)
def test_the_bits_that_nothing_else_uses(mask: int, marks: int) -> None:
    assert ipvs_marks_of(mask) == marks


@given(number=st.integers(0, 255), bits=st.sets(st.integers(0, 31), min_size=8))
def test_a_number_is_spread_over_the_bits(number: int, bits: set[int]) -> None:
    mask = sum(1 << bit for bit in bits)
    value = spread(number, mask)
    assert not value & ~mask
    assert [value >> bit & 1 for bit in sorted(bits)][:8] == [number >> i & 1 for i in range(8)]


@given(st.lists(st.sets(st.sampled_from(WAYS)), max_size=12))
def test_a_number_is_no_other_ways_and_not_given_again_at_once(changes: list[set[MarkedWay]]) -> None:
    numbers, before = WayNumbers(), dict[MarkedWay, int]()
    for wanted in changes:
        gone = {number for way, number in before.items() if way not in wanted}
        numbers.keep(iter(sorted(wanted)), 31)
        assert numbers.of.keys() == wanted and not numbers.lacking
        assert len(set(numbers.of.values())) == len(wanted) and all(3 <= n <= 31 for n in numbers.of.values())
        assert all(numbers.of[way] == before[way] for way in wanted & before.keys())
        assert not gone & {number for way, number in numbers.of.items() if way not in before}
        before = dict(numbers.of)


def test_more_ways_than_numbers() -> None:
    numbers = WayNumbers()
    numbers.keep(iter(WAYS), 7)
    assert (len(numbers.of), numbers.lacking) == (5, 1)
    numbers.keep(iter(WAYS[1:]), 7)
    assert (len(numbers.of), numbers.lacking) == (5, 0)


def passed(goal: Goal, family: int, interface: str) -> PacketVerdict | None:
    """What is asked behind ip_vs about packets that came in by an interface."""
    table = goal.tables.of[FILTER[family]]
    to_mark = table.verdicts["ipvs-by-interface"].get(interface_key(interface))
    if to_mark is None:
        return None
    action = table.chains[to_mark.chain].rules[0].actions[0]
    assert isinstance(action, SetMarkTo) and action.bits == goal.settings.ipvs_marks
    return table.verdicts["ipvs-from-marked"].get(word_key(action.value))


@pytest.mark.parametrize("seed", range(8))
def test_changes_lead_to_the_same_chains(seed: int) -> None:
    """In a kernel that refuses a jump to what is not there, and to remove what is in use."""
    rng = random.Random(seed)
    kernel, held, goal, wanted = FakePacketFilter(), dict[TableId, NftTable](), Goal(PLAIN), Wanted()
    for _ in range(8):
        marks = rng.choice((MARKED.ipvs_marks, MARKED.ipvs_marks, 0))
        goal.configure(replace(PLAIN, ipv6=rng.random() < 0.7, ipvs_marks=marks))
        there = rng.choice((THERE, {}))
        goal.use_interfaces(there)
        after = random_wanted(rng)
        goal.update(difference(wanted, after))
        wanted = after
        bring_about(goal, kernel, held, full=False)
        assert kernel.tables == held == goal.tables.of
        fresh = goal_of(wanted, goal.settings, there)
        if not marks:
            assert goal.tables.of == fresh.tables.of and not any(map(is_ours, goal.tables.of.values()))
            continue
        for family in (4, 6) if goal.settings.ipv6 else (4,):
            table = FILTER[family]
            for endpoint in wanted.endpoints.values():
                to = jump(class_chain(endpoint.class_id, ingress=False))
                assert passed(goal, family, endpoint.interface) == to == passed(fresh, family, endpoint.interface)
            mine, its = goal.tables.of[table], fresh.tables.of[table]
            for name in ("ipvs-from", "ipvs-to", "ipvs-host-in", "ipvs-host-out", "ipvs-mark", "host-in"):
                assert mine.chains.get(name) == its.chains.get(name)
            assert mine.verdicts["ipvs-by-interface"].keys() == its.verdicts["ipvs-by-interface"].keys()


def is_ours(table: NftTable) -> bool:
    return any(name.startswith(("ipvs-", "qos-ipvs")) for name in (*table.chains, *table.sets))


def test_what_goes_to_the_host_is_judged_behind_ip_vs() -> None:
    rng = random.Random(3)
    wanted = next(one for one in iter(lambda: random_wanted(rng), None) if one.hosts and one.endpoints)
    goal = goal_of(wanted, MARKED, THERE)
    chains = goal.tables.of[FILTER[4]].chains.values()
    at = {chain.name: chain.hook.priority for chain in chains if chain.hook and chain.hook.hook == "input"}
    assert at["ipvs-mark"] < 99 < at["ipvs-rest"] < at["workloads-to-host"] < at["end-of-to-host"] < at["host-in"]


def test_a_workload_whose_entries_were_refused_reaches_no_service() -> None:
    rng = random.Random(1)
    wanted = next(one for one in iter(lambda: random_wanted(rng), None) if one.endpoints)
    goal = goal_of(wanted, MARKED)
    [name, *_] = [endpoint.interface for endpoint in wanted.endpoints.values()]
    goal.deny_interface(name, "no room")
    assert passed(goal, 4, name) == DROP
    goal.forgive()
    assert passed(goal, 4, name) not in (None, DROP, ACCEPT)


def test_too_few_numbers_are_said() -> None:
    rng = random.Random(4)
    wanted = next(one for one in iter(lambda: random_wanted(rng), None) if len(one.endpoints) > 1 and not one.hosts)
    goal = goal_of(wanted, replace(PLAIN, ipvs_marks=0x3))
    classes = {endpoint.class_id for endpoint in wanted.endpoints.values()}
    interfaces = [endpoint.interface for endpoint in wanted.endpoints.values()]
    assert goal.hosts.forwarding.numbers.lacking == len(classes) - 1
    assert [passed(goal, 4, name) for name in interfaces].count(DROP) or len(classes) == 1
    assert any("NftablesMarkMask" in text for text in goal.left_out()) is (len(classes) > 1)


def test_it_goes_as_it_came() -> None:
    """In one table that is made again, since hooks change."""
    rng = random.Random(2)
    goal = goal_of(random_wanted(rng), PLAIN, THERE)
    before = {table: str(goal.tables.of[table]) for table in TABLES}
    goal.tables.take_touched()
    goal.configure(MARKED)
    phases, held = Phases(), goal_of(Wanted(), PLAIN).tables.of
    plan_table(goal.tables.of[FILTER[4]], held[FILTER[4]], None, phases)
    mirror(held, [one for phase in phases for one in phase])
    assert held[FILTER[4]] == goal.tables.of[FILTER[4]]
    goal.configure(PLAIN)
    assert {table: sorted(str(goal.tables.of[table])) for table in TABLES} == {t: sorted(s) for t, s in before.items()}
