"""What the enforcer does when the kernel refuses, loses answers, or holds something else than was left there."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from errno import EFBIG, EINVAL, ENOENT, ENOMEM, EOPNOTSUPP

import pytest

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError, RulesRefused, RulesUnknown
from cni_calico.log import Log
from cni_calico.netfilter.rules import ConnectionLimit, RateLimit, SourceIsElsewhere
from cni_calico.netfilter.tables import AddChain, AddRules, AddTable, FlushChain, NftTable, Operation, TableId
from cni_calico.nodeagent.policing.enforce import enforcer as module
from cni_calico.nodeagent.policing.enforce.enforcer import Enforcer
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.naming import policy_chain
from cni_calico.nodeagent.policing.tables.optional import OptionalFeature, feature_of
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.standing import select_standing
from cni_calico.nodeagent.policing.tables.touched import ARP, FILTER
from cni_calico.policy.wanted import PacketLimits, Wanted, WantedChanges
from tests.deadlines import soon
from tests.fakes.nftables import FakePacketFilter
from tests.unit.nodeagent.policing.tables.worlds import POLICIES, difference, random_wanted

NP0 = POLICIES[0]


def world_with(policy: object, seed: int = 1) -> Wanted:
    rng = random.Random(seed)
    while True:
        wanted = random_wanted(rng)
        if policy in wanted.policies:
            return wanted


@pytest.fixture
def enforcer_kernel() -> FakePacketFilter:
    return FakePacketFilter()


@pytest.fixture
def enforcer(enforcer_kernel: FakePacketFilter) -> Enforcer:
    return Enforcer(enforcer_kernel, Goal(FilterSettings()), Log("none"))


def enforce(enforcer: Enforcer, before: Wanted, after: Wanted) -> int:
    enforcer.goal.update(difference(before, after))
    return enforcer.bring_about(soon())


def test_nothing_changes_nothing(enforcer_kernel: FakePacketFilter, enforcer: Enforcer) -> None:
    wanted = world_with(NP0)
    enforce(enforcer, Wanted(), wanted)
    parts = [feature_of(operations[0]) for operations in enforcer_kernel.transactions]
    assert parts[:2] == [None, None] and None not in parts[2:]  # nothing is removed on a fresh node
    count = len(enforcer_kernel.transactions)
    assert enforcer.bring_about(soon()) == 0
    again = Enforcer(enforcer_kernel, Goal(FilterSettings()), Log("none"))
    assert enforce(again, Wanted(), wanted) == 0  # a restart
    assert len(enforcer_kernel.transactions) == count


class CountingFilter(FakePacketFilter):
    """Counts how often a table is read."""

    readings = 0

    def read_table(self, table: TableId, deadline: Deadline, likes: Sequence[NftTable] = ()) -> NftTable | None:
        self.readings += 1
        return super().read_table(table, deadline, likes)


@pytest.mark.parametrize("meanwhile", ["nothing", "another program's transaction", "our rules are gone"])
def test_a_start_with_nothing_changed_reads_once(meanwhile: str) -> None:
    """Unless somebody has changed the packet filter since it was read."""
    kernel, wanted = CountingFilter(), world_with(NP0)
    enforce(Enforcer(kernel, Goal(FilterSettings()), Log("none")), Wanted(), wanted)
    again = Enforcer(kernel, Goal(FilterSettings()), Log("none"))
    again.goal.update(difference(Wanted(), wanted))
    assert not again.looked
    kernel.readings = 0
    again.look(soon(), 0)
    assert again.looked and again.was_policed
    tables, changes = kernel.readings, len(kernel.transactions)
    if meanwhile == "our rules are gone":
        kernel.flush_ruleset()
    elif meanwhile != "nothing":
        kernel.apply([AddTable(TableId("inet", "others"))], soon())
        changes += 1
    again.compare_all(whole=True)  # as the first round does
    again.bring_about(soon())
    assert kernel.readings == tables * (1 if meanwhile == "nothing" else 2)
    assert (len(kernel.transactions) == changes) is (meanwhile != "our rules are gone")
    ours = {table: held for table, held in kernel.tables.items() if table.name != "others"}
    assert ours == again.goal.tables.of == again.held
    again.compare_all(whole=True)
    assert again.bring_about(soon()) == 0
    assert kernel.readings >= 2 * tables, "a comparison that is due reads"


def test_a_lost_answer(enforcer_kernel: FakePacketFilter, enforcer: Enforcer) -> None:
    """In force or not: it is read back, and what is left is done."""
    enforcer_kernel.lose = 1
    enforce(enforcer, Wanted(), world_with(NP0))
    assert enforcer_kernel.tables == enforcer.goal.tables.of == enforcer.held
    enforcer_kernel.lose = 100
    enforcer.goal.update(difference(world_with(NP0), Wanted()))
    with pytest.raises(RulesUnknown):
        enforcer.bring_about(soon())
    enforcer_kernel.lose = 0
    enforcer.bring_about(soon())
    assert enforcer_kernel.tables == enforcer.goal.tables.of


def test_a_policy_that_the_kernel_refuses(enforcer_kernel: FakePacketFilter, enforcer: Enforcer) -> None:
    """It denies in its place and is named; everything else is in force."""
    names = {policy_chain(NP0, ingress) for ingress in (True, False)}

    def refuse(operation: Operation) -> int:
        if not isinstance(operation, AddRules) or operation.chain not in names:
            return 0
        return EOPNOTSUPP if any(rule.tests or len(rule.actions) > 1 for rule in operation.rules) else 0

    rng = random.Random(4)
    wanted = next(
        w
        for w in iter(lambda: random_wanted(rng), None)
        if NP0 in w.policies and any(rule.protocol and 4 in rule.families for rule in w.policies[NP0].rules())
    )
    enforcer_kernel.refuse = refuse
    enforce(enforcer, Wanted(), wanted)
    assert set(enforcer.goal.problems) == {NP0}
    assert enforcer_kernel.tables == enforcer.goal.tables.of
    enforcer_kernel.refuse = lambda operation: 0
    policy = wanted.policies[NP0]
    enforcer.goal.update(WantedChanges(policies={NP0: policy}))  # the record changed: tried again
    enforcer.bring_about(soon())
    assert enforcer.goal.problems == {} and enforcer_kernel.tables == enforcer.goal.tables.of


def test_refused_for_another_reason(enforcer_kernel: FakePacketFilter, enforcer: Enforcer) -> None:
    """What was in force stays, the caller is told, and the next attempt finds everything."""
    before, after = world_with(NP0, 1), world_with(NP0, 2)
    enforce(enforcer, Wanted(), before)
    enforcer_kernel.refuse = lambda operation: ENOMEM if isinstance(operation, FlushChain) else 0
    enforcer.goal.update(difference(before, after))
    with pytest.raises(RulesRefused):
        enforcer.bring_about(soon())
    enforcer_kernel.refuse = lambda operation: 0
    enforcer.bring_about(soon())
    assert enforcer_kernel.tables == enforcer.goal.tables.of


def test_somebody_else_changed_our_tables(enforcer_kernel: FakePacketFilter, enforcer: Enforcer) -> None:
    wanted = world_with(NP0)
    enforce(enforcer, Wanted(), wanted)
    enforcer_kernel.flush_ruleset()
    enforcer.doubt()
    assert enforcer.bring_about(soon()) >= 2
    assert enforcer_kernel.tables == enforcer.goal.tables.of
    enforcer.doubt()
    assert enforcer.bring_about(soon()) == 0


def test_removed(enforcer_kernel: FakePacketFilter, enforcer: Enforcer) -> None:
    enforce(enforcer, Wanted(), world_with(NP0))
    assert enforcer.remove(soon()) and enforcer_kernel.tables == {}
    assert not enforcer.remove(soon())


def test_a_lack_of_memory_is_no_policys_fault(enforcer_kernel: FakePacketFilter, enforcer: Enforcer) -> None:
    """No policy denies because of it, and the next attempt brings all of them into force."""
    enforcer_kernel.refuse = lambda operation: ENOMEM if isinstance(operation, AddRules) else 0
    with pytest.raises(RulesRefused):
        enforce(enforcer, Wanted(), world_with(NP0))
    assert enforcer.goal.problems == {}
    enforcer_kernel.refuse = lambda operation: 0
    enforcer.bring_about(soon())
    assert enforcer_kernel.tables == enforcer.goal.tables.of


def test_a_refused_policy_is_forgiven(enforcer_kernel: FakePacketFilter, enforcer: Enforcer) -> None:
    enforce(enforcer, Wanted(), world_with(NP0))
    sound = {name: dict(table.chains) for name, table in enforcer_kernel.tables.items()}
    enforcer.goal.give_up(NP0, "no")
    enforcer.bring_about(soon())
    assert set(enforcer.goal.problems) == {NP0}
    enforcer.goal.forgive()
    enforcer.bring_about(soon())
    assert enforcer.goal.problems == {} and sound == {
        name: table.chains for name, table in enforcer_kernel.tables.items()
    }


def test_what_is_let_go_is_compared_the_next_time(enforcer_kernel: FakePacketFilter, enforcer: Enforcer) -> None:
    enforcer.goal.update(difference(Wanted(), world_with(NP0)))
    enforcer.let_go()
    assert enforcer.goal.tables.take_touched() == {}
    enforcer.bring_about(soon())
    assert enforcer_kernel.tables == enforcer.goal.tables.of


# -- what policies do not need ----------------------------------------------------------------------------------------


def _has(kind: type) -> Callable[[Operation], bool]:
    return lambda o: isinstance(o, AddRules) and any(isinstance(test, kind) for rule in o.rules for test in rule.tests)


LACKING: list[tuple[OptionalFeature, Callable[[Operation], bool]]] = [
    (OptionalFeature.ARP_ANSWERS, lambda o: o.table == ARP and isinstance(o, AddChain)),
    (OptionalFeature.SOURCES, _has(SourceIsElsewhere)),
    (OptionalFeature.CONNECTIONS, _has(ConnectionLimit)),
    (OptionalFeature.LIMITS, _has(RateLimit)),
]


def limited_world() -> Wanted:
    """Every endpoint with limits of both kinds."""
    wanted = world_with(NP0)
    limits = PacketLimits(packet_rate=10, packet_burst=5, max_connections=3)
    endpoints = {key: replace(one, ingress_limits=limits) for key, one in wanted.endpoints.items()}
    assert endpoints
    return replace(wanted, endpoints=endpoints)


@pytest.mark.parametrize(("feature", "needs"), LACKING)
def test_a_kernel_that_lacks_what_policies_do_not_need(
    enforcer_kernel: FakePacketFilter, enforcer: Enforcer, feature: OptionalFeature, needs: Callable[[Operation], bool]
) -> None:
    """The policies are in force all the same, the feature is named, and tried again when it is forgiven."""
    enforcer_kernel.refuse = lambda operation: EOPNOTSUPP if needs(operation) else 0
    wanted = limited_world()
    enforce(enforcer, Wanted(), wanted)
    assert set(enforcer.goal.lacking) == {feature} and enforcer.goal.problems == {}
    for table in FILTER.values():
        assert enforcer_kernel.tables[table] == enforcer.goal.tables.of[table]
    chains = {name for table in enforcer_kernel.tables.values() for name in table.chains}
    assert ("spoofing" in chains) is (feature is not OptionalFeature.SOURCES)
    assert ("replies" in chains) is (feature is not OptionalFeature.ARP_ANSWERS)
    assert ("qos-forward" in chains) is (feature is not OptionalFeature.LIMITS)
    held = len(enforcer_kernel.transactions)
    assert enforcer.bring_about(soon()) == 0 and len(enforcer_kernel.transactions) == held
    enforcer_kernel.refuse = lambda operation: 0
    enforcer.goal.forgive()
    enforcer.doubt()
    enforcer.bring_about(soon())
    assert enforcer.goal.lacking == {} and enforcer_kernel.tables == enforcer.goal.tables.of


def test_policies_are_in_force_before_what_they_do_not_need(
    enforcer_kernel: FakePacketFilter, enforcer: Enforcer
) -> None:
    """Also when that fails for a reason that passes: it alone is tried again."""
    enforcer_kernel.refuse = lambda operation: ENOMEM if operation.table == ARP else 0
    with pytest.raises(RulesRefused):
        enforce(enforcer, Wanted(), world_with(NP0))
    assert all(enforcer_kernel.tables[table] == enforcer.goal.tables.of[table] for table in FILTER.values())
    assert enforcer.goal.lacking == {}
    enforcer_kernel.refuse = lambda operation: 0
    enforcer.bring_about(soon())
    assert enforcer_kernel.tables == enforcer.goal.tables.of


def test_a_kernel_without_arp_tables() -> None:
    """It does not even list them."""

    class WithoutArp(FakePacketFilter):
        def read_table(self, table: TableId, deadline: Deadline, likes: Sequence[NftTable] = ()) -> NftTable | None:
            if table == ARP:
                raise KernelError("cannot read the table: not supported", errno=EOPNOTSUPP)
            return FakePacketFilter.read_table(self, table, deadline)

    kernel = WithoutArp()
    kernel.refuse = lambda operation: EOPNOTSUPP if operation.table == ARP else 0
    enforcer = Enforcer(kernel, Goal(FilterSettings()), Log("none"))
    enforce(enforcer, Wanted(), world_with(NP0))
    assert set(enforcer.goal.lacking) == {OptionalFeature.ARP_ANSWERS}
    assert all(kernel.tables[table] == enforcer.goal.tables.of[table] for table in FILTER.values())


@pytest.mark.parametrize("errno", [EINVAL, ENOENT])
def test_what_changes_together_with_a_refused_limit_is_in_force(
    enforcer_kernel: FakePacketFilter, enforcer: Enforcer, errno: int
) -> None:
    """An endpoint whose limits are refused has its policies, and the next change of it too."""
    enforcer_kernel.refuse = lambda operation: errno if _has(RateLimit)(operation) else 0
    enforce(enforcer, Wanted(), world_with(NP0))
    enforce(enforcer, world_with(NP0), limited_world())
    enforce(enforcer, limited_world(), world_with(NP0, 3))
    for table in FILTER.values():
        assert enforcer_kernel.tables[table] == enforcer.goal.tables.of[table]


class _SlowToRead(FakePacketFilter):
    """Its tables take too long to be read."""

    asked: int = 0

    def read_table(self, table: TableId, deadline: Deadline, likes: Sequence[NftTable] = ()) -> NftTable | None:
        self.asked += table in self.tables
        if table in self.tables:
            raise KernelError("it takes too long", errno=EFBIG)
        return None


def test_what_took_too_long_to_read_is_replaced_without_reading_it_again() -> None:
    """Otherwise reading takes the time that replacing needs, round after round."""
    kernel = _SlowToRead(tables={table: NftTable(table.family, table.name) for table in FILTER.values()})
    enforcer = Enforcer(kernel, Goal(FilterSettings()), Log("none"))
    kernel.refuse = lambda operation: ENOMEM
    with pytest.raises(RulesRefused):
        enforce(enforcer, Wanted(), world_with(NP0))
    asked = kernel.asked
    assert asked == len(FILTER) and enforcer.is_there
    kernel.refuse = lambda operation: 0
    enforcer.bring_about(soon())
    assert kernel.asked == asked and set(FILTER.values()) <= set(kernel.tables)
    assert kernel.tables[FILTER[4]] == enforcer.goal.tables.of[FILTER[4]]


def test_a_table_that_is_both_unread_and_given_up_goes_with_the_policies() -> None:
    """Otherwise it is there for ever, and with it, as far as is known, policies."""
    kernel = _SlowToRead(tables={ARP: NftTable(ARP.family, ARP.name)})
    enforcer = Enforcer(kernel, Goal(FilterSettings()), Log("none"))
    kernel.refuse = lambda o: EOPNOTSUPP if o.table == ARP and isinstance(o, AddChain) else 0
    enforce(enforcer, Wanted(), world_with(NP0))
    assert set(enforcer.goal.lacking) == {OptionalFeature.ARP_ANSWERS} and ARP in kernel.tables
    enforcer.only(select_standing)
    enforcer.bring_about(soon())
    assert ARP not in kernel.tables and not enforcer.is_there


@pytest.mark.parametrize(("at_once", "reads"), [(20_000, True), (0, False)])
def test_after_lost_reports_a_large_table_is_compared_in_slices(
    enforcer_kernel: FakePacketFilter, enforcer: Enforcer, monkeypatch: pytest.MonkeyPatch, at_once: int, reads: bool
) -> None:
    monkeypatch.setattr(module, "_READ_AT_ONCE", at_once)
    enforce(enforcer, Wanted(), world_with(NP0))
    compared = enforcer.figures.compared
    del enforcer_kernel.tables[FILTER[6]]
    enforcer.compare_lost()
    if not reads:
        enforcer.bring_about(soon())
        assert enforcer.figures.compared == compared and FILTER[6] not in enforcer_kernel.tables
        while enforcer.audit.is_running:
            enforcer.compare_on()
    enforcer.bring_about(soon())
    assert enforcer.figures.compared == compared + 1 and enforcer_kernel.tables == enforcer.goal.tables.of
