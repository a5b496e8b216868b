"""Whatever object the kernel refuses, and however little it says: that one is left out, nothing opens, nothing waits.

The oracle is the goal without any refusal: in the kernel, whatever leads from an endpoint's entry is exactly that or a
drop, and everything else is exactly that.
"""

from __future__ import annotations

import random
from errno import EINVAL, EOPNOTSUPP

import pytest

from cni_calico.errors import RulesRefused
from cni_calico.log import Log
from cni_calico.netfilter.rules import DROP, Dispatch
from cni_calico.netfilter.tables import (
    AddChain,
    AddElements,
    AddRules,
    AddSet,
    AddTable,
    AddVerdicts,
    FilterObject,
    NftChain,
    NftTable,
    Operation,
    TableId,
    interface_key,
    object_of,
)
from cni_calico.nodeagent.policing.enforce.enforcer import Enforcer
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.naming import class_chain, policy_chain
from cni_calico.nodeagent.policing.tables.optional import feature_of
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.stages import FROM, TO
from cni_calico.nodeagent.policing.tables.touched import FILTER
from cni_calico.policy.wanted import Wanted
from tests.deadlines import soon
from tests.fakes.nftables import FakePacketFilter
from tests.unit.nodeagent.policing.tables.worlds import difference, goal_of, random_wanted

HOW = {"it says which": (True, True), "it says nothing": (False, True), "it finds out late": (False, False)}


def enforcer_of(kernel: FakePacketFilter) -> Enforcer:
    return Enforcer(kernel, Goal(FilterSettings()), Log("none"))


def drops(chain: NftChain) -> bool:
    return bool(chain.rules) and not chain.rules[0].tests and chain.rules[0].actions == (DROP,)


def jumps_of(chain: NftChain) -> list[str]:
    return [rule.verdict.chain for rule in chain.rules if rule.verdict is not None and rule.verdict.chain]


def sets_of(chain: NftChain) -> list[str]:
    return [name for rule in chain.rules if not isinstance(rule.actions[0], Dispatch) for name in rule.lookups()]


def require_closed_or_right(tables: dict[TableId, NftTable], right: dict[TableId, NftTable]) -> None:
    for table in FILTER.values():
        have, should = tables[table], right[table]
        for spec in (FROM, TO):
            assert have.verdicts[spec.name].keys() <= should.verdicts[spec.name].keys()
            for key, verdict in have.verdicts[spec.name].items():
                if verdict == DROP:
                    continue
                assert verdict == should.verdicts[spec.name][key]
                _require_class(have, should, verdict.chain)
        for name, chain in should.chains.items():
            if chain.hook is not None:  # it drops what has no entry
                assert have.chains[name] == chain


def _require_class(have: NftTable, should: NftTable, name: str) -> None:
    if drops(have.chains[name]):
        return
    assert have.chains[name] == should.chains[name]
    for policy in jumps_of(have.chains[name]):
        if drops(have.chains[policy]):
            continue
        assert have.chains[policy] == should.chains[policy]
        for listed in sets_of(have.chains[policy]):
            assert have.elements[listed] == should.elements[listed]


def operations_to(before: Wanted, after: Wanted) -> list[Operation]:
    """What policies need to come from one to the other."""
    kernel = FakePacketFilter()
    enforcer = enforcer_of(kernel)
    enforcer.goal.update(difference(Wanted(), before))
    enforcer.bring_about(soon())
    done = len(kernel.transactions)
    enforcer.goal.update(difference(before, after))
    enforcer.bring_about(soon())
    return [operation for some in kernel.transactions[done:] for operation in some if feature_of(operation) is None]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("seed", range(12))
def test_any_object_refused(how: str, seed: int) -> None:
    """At the start and in a change; all its operations, or those of one kind."""
    rng = random.Random(seed)
    before, after = random_wanted(rng), random_wanted(rng)
    if seed % 2:
        before = Wanted()
    operations = operations_to(before, after)
    if not operations:
        return
    culprit = rng.choice(operations)
    only = type(culprit) if rng.random() < 0.5 else object
    kernel = FakePacketFilter()
    kernel.says_which, kernel.checks = HOW[how]
    enforcer = enforcer_of(kernel)
    enforcer.goal.update(difference(Wanted(), before))
    enforcer.bring_about(soon())
    refused = object_of(culprit)
    kernel.refuse = lambda o: EINVAL if object_of(o) == refused and isinstance(o, only) else 0
    enforcer.goal.update(difference(before, after))
    right = goal_of(after, FilterSettings()).tables.of
    essential = ""
    try:
        enforcer.bring_about(soon())
    except RulesRefused as e:
        essential = str(e)
        assert enforcer.goal.refused.essential()
        chain = right[refused[0]].chains.get(refused[1])
        needed = refused[1] in (FROM.name, TO.name) or refused[1].startswith(("host-", "failsafe-"))
        assert isinstance(culprit, AddTable) or needed or (chain and chain.hook)
    if not essential:
        require_closed_or_right(kernel.tables, right)
    assert enforcer.goal.problems or enforcer.goal.left_out() or kernel.tables == right
    _require_rest(kernel.tables, enforcer, refused)
    count = len(kernel.transactions)
    if not essential:
        assert enforcer.bring_about(soon()) == 0 and len(kernel.transactions) == count  # and it rests
    kernel.refuse = lambda operation: 0
    enforcer.goal.forgive()
    enforcer.doubt()
    enforcer.bring_about(soon())
    assert kernel.tables == right and not enforcer.goal.problems and not enforcer.goal.left_out()


def _require_rest(tables: dict[TableId, NftTable], enforcer: Enforcer, refused: FilterObject) -> None:
    """Everything that is not withheld is as the goal has it."""
    withheld = enforcer.goal.refused.withheld
    for table in FILTER.values():
        if (table, "") in withheld:
            continue
        goal, have = enforcer.goal.tables.of[table], tables[table]
        for name, chain in goal.chains.items():
            assert (table, name) in withheld or have.chains.get(name) == chain, name
        for name, elements in goal.elements.items():
            assert (table, name) in withheld or have.elements.get(name) == elements, name
        for name, verdicts in goal.verdicts.items():
            assert (table, name) in withheld or have.verdicts.get(name) == verdicts, name


def a_world() -> Wanted:
    """With at least two endpoints of different classes, and policies with sets."""
    rng = random.Random(3)
    while True:
        wanted = random_wanted(rng)
        used = {one.class_id for one in wanted.endpoints.values()}
        sets = wanted.sets.values()
        single, wide = (any(len(a) == 4 for one in sets for a in one.addresses), any(one.nets for one in sets))
        if len(used) > 1 and single and wide and any(policy.ingress for policy in wanted.policies.values()):
            return wanted


@pytest.mark.parametrize("how", HOW)
def test_an_endpoints_entry_alone(how: str) -> None:
    """Of all that are new the one is found; it is denied, the others are as they should be."""
    wanted = a_world()
    victim = sorted(wanted.endpoints.values(), key=lambda one: one.interface)[0]
    key = interface_key(victim.interface)
    kernel = FakePacketFilter()
    kernel.says_which, kernel.checks = HOW[how]

    def refuse(operation: Operation) -> int:
        jumps = isinstance(operation, AddVerdicts) and operation.verdicts.get(key, DROP) != DROP
        return EOPNOTSUPP if jumps else 0

    kernel.refuse = refuse
    enforcer = enforcer_of(kernel)
    enforcer.goal.update(difference(Wanted(), wanted))
    if how == "it finds out late":  # then a map is one object
        with pytest.raises(RulesRefused):
            enforcer.bring_about(soon())
        return
    enforcer.bring_about(soon())
    table = kernel.tables[FILTER[4]]
    assert table.verdicts[FROM.name][key] == table.verdicts[TO.name][key] == DROP
    others = [one for one in table.verdicts[FROM.name].items() if one[0] != key]
    assert others and all(verdict != DROP for _, verdict in others)
    assert [text for text in enforcer.goal.left_out() if victim.interface in text]


def test_every_policy_refused_at_once() -> None:
    """They are found together, not one after the other."""
    wanted = a_world()
    names = {policy_chain(policy, ingress) for policy in wanted.policies for ingress in (True, False)}
    kernel = FakePacketFilter()

    def refuse(operation: Operation) -> int:
        mine = isinstance(operation, AddRules) and operation.chain in names
        return EINVAL if mine and any(rule.tests or rule.actions != (DROP,) for rule in operation.rules) else 0

    kernel.refuse = refuse
    enforcer = enforcer_of(kernel)
    enforcer.goal.update(difference(Wanted(), wanted))
    enforcer.bring_about(soon())
    assert enforcer.figures.refused <= 3
    require_closed_or_right(kernel.tables, goal_of(wanted, FilterSettings()).tables.of)


@pytest.mark.parametrize("deny_too", [False, True])
def test_a_class_refused(deny_too: bool) -> None:
    """Its endpoints are denied in that direction, in the other they have their policies."""
    wanted = a_world()
    victim = next(iter(wanted.endpoints.values()))
    name = class_chain(victim.class_id, True)
    kernel = FakePacketFilter()

    def refuse(operation: Operation) -> int:
        if deny_too:
            return EINVAL if isinstance(operation, AddChain | AddRules) and object_of(operation)[1] == name else 0
        return EINVAL if isinstance(operation, AddRules) and operation.chain == name and len(operation.rules) > 1 else 0

    kernel.refuse = refuse
    enforcer = enforcer_of(kernel)
    enforcer.goal.update(difference(Wanted(), wanted))
    enforcer.bring_about(soon())
    table, key = kernel.tables[FILTER[4]], interface_key(victim.interface)
    if deny_too:
        assert table.verdicts[TO.name][key] == DROP
    else:
        assert drops(table.chains[name]) and not drops(table.chains[class_chain(victim.class_id, False)])
    assert enforcer.goal.left_out() and not enforcer.goal.refused.essential()
    require_closed_or_right(kernel.tables, goal_of(wanted, FilterSettings()).tables.of)


def test_a_member_refused_in_a_set_in_use() -> None:
    """The policies with that set deny: without the member, a deny would let it in and an allow lock it out."""
    wanted = a_world()
    name, members = next((name, one) for name, one in wanted.sets.items() if one.addresses)
    kernel = FakePacketFilter()
    enforcer = enforcer_of(kernel)
    fewer = {**wanted.sets, name: type(members)(nets=members.nets)}
    before = Wanted(fewer, wanted.policies, wanted.classes, wanted.endpoints)
    enforcer.goal.update(difference(Wanted(), before))
    enforcer.bring_about(soon())
    kernel.refuse = lambda o: EINVAL if isinstance(o, AddElements) and o.spec.name == name else 0
    enforcer.goal.update(difference(before, wanted))
    enforcer.bring_about(soon())
    using = {p.id for p in wanted.policies.values() if any(name in rule.set_ids() for rule in p.rules())}
    assert using and set(enforcer.goal.problems) == using
    assert all(name in enforcer.goal.problems[policy] for policy in using)
    require_closed_or_right(kernel.tables, goal_of(wanted, FilterSettings()).tables.of)


def test_a_table_refused() -> None:
    """A kernel without IPv6: IPv4 is in force, and it is said that not all is."""
    wanted = a_world()
    kernel = FakePacketFilter()
    kernel.refuse = lambda o: EOPNOTSUPP if o.table == FILTER[6] else 0
    enforcer = enforcer_of(kernel)
    enforcer.goal.update(difference(Wanted(), wanted))
    with pytest.raises(RulesRefused, match=r"ip6 calico-policy"):
        enforcer.bring_about(soon())
    assert kernel.tables[FILTER[4]] == enforcer.goal.tables.of[FILTER[4]] and FILTER[6] not in kernel.tables
    with pytest.raises(RulesRefused):  # for as long as it lasts
        enforcer.bring_about(soon())


def test_a_map_refused() -> None:
    wanted = a_world()
    kernel = FakePacketFilter()
    kernel.refuse = lambda o: EINVAL if isinstance(o, AddSet) and o.spec.name == TO.name else 0
    enforcer = enforcer_of(kernel)
    enforcer.goal.update(difference(Wanted(), wanted))
    with pytest.raises(RulesRefused, match="depend on"):
        enforcer.bring_about(soon())
