"""What the kernel itself refuses is left out, and only that; a door between us and it makes operations that it refuses.

Rule: the kernel decides. The door changes an operation into one that the real nf_tables does not accept (a jump to
nowhere, a key that is too long, networks that overlap, a loop), as an older kernel or a fault of ours would.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cni_calico.deadline import Deadline
from cni_calico.errors import RulesRefused
from cni_calico.kernel.filter.interface import TableReader
from cni_calico.kernel.filter.nf_tables.filter import NfTables
from cni_calico.log import Log
from cni_calico.netfilter.rules import DROP, NftRule, jump
from cni_calico.netfilter.tables import (
    AddChain,
    AddElements,
    AddRules,
    AddSet,
    AddVerdicts,
    BaseHook,
    NftChain,
    NftTable,
    Operation,
    TableId,
    interface_key,
)
from cni_calico.nodeagent.policing.enforce.enforcer import Enforcer
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.matches import NETWORKS
from cni_calico.nodeagent.policing.tables.naming import class_chain, policy_chain
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.stages import FROM, TO
from cni_calico.nodeagent.policing.tables.touched import TABLES
from cni_calico.policy.wanted import Wanted
from tests.deadlines import soon, until
from tests.netns.namespaces import namespace
from tests.netns.policing.lab import Lab, lab
from tests.netns.policing.tables import read_all
from tests.netns.policing.uplinked import DHCP, start, uplinked_lab
from tests.unit.nodeagent.policing.enforce.test_faultfinder import a_world, require_closed_or_right
from tests.unit.nodeagent.policing.tables.worlds import difference, goal_of

pytestmark = pytest.mark.netns
NOWHERE = NftRule((), (jump("nowhere"),))
Spoil = Callable[[Operation], Operation]


class Door:
    """A packet filter whose operations are changed on the way to the kernel."""

    at_once = False

    def __init__(self, kernel: NfTables, spoil: Spoil) -> None:
        self.kernel = kernel
        self.spoil = spoil

    def apply(self, operations: Sequence[Operation], deadline: Deadline) -> None:
        self.kernel.apply(list(map(self.spoil, operations)), deadline)

    def check(self, operations: Sequence[Operation], deadline: Deadline) -> None:
        self.kernel.check(list(map(self.spoil, operations)), deadline)

    def read_table(self, table: TableId, deadline: Deadline, likes: Sequence[NftTable] = ()) -> NftTable | None:
        return self.kernel.read_table(table, deadline, likes)

    def count_unrecognised(self, table: TableId, chains: Collection[str], deadline: Deadline) -> Mapping[str, int]:
        return self.kernel.count_unrecognised(table, chains, deadline)

    def recognises(self, table: TableId, there: NftChain, wanted: NftChain) -> bool:
        return self.kernel.recognises(table, there, wanted)

    def generation(self, deadline: Deadline) -> int:
        return self.kernel.generation(deadline)

    @property
    def reader(self) -> TableReader:
        return self.kernel.reader

    def forget_cached(self) -> None:
        self.kernel.forget_cached()


WORLD = a_world()
VICTIM = sorted(WORLD.endpoints.values(), key=lambda one: one.interface)[0]
KEY = interface_key(VICTIM.interface)
POLICY = sorted((p for p in WORLD.policies.values() if p.ingress), key=lambda p: str(p.id))[0]
CLASS_CHAIN = class_chain(VICTIM.class_id, True)
SET = next(name for name, one in sorted(WORLD.sets.items()) if any(len(a) == 4 for a in one.addresses))


def _rules(name: str, more: NftRule) -> Spoil:
    def spoil(o: Operation) -> Operation:
        mine = (
            isinstance(o, AddRules)
            and o.chain == name
            and any(rule.tests or rule.actions != (DROP,) for rule in o.rules)
        )
        return replace(o, rules=(*o.rules, more)) if mine and isinstance(o, AddRules) else o

    return spoil


def _chain(name: str) -> Spoil:
    return lambda o: replace(o, hook=BaseHook("forward", 0, "nat")) if isinstance(o, AddChain) and o.name == name else o


def _set(o: Operation) -> Operation:
    mine = isinstance(o, AddSet) and o.spec.name == SET
    return replace(o, spec=replace(o.spec, key=("ipv6_addr",) * 5)) if mine and isinstance(o, AddSet) else o


def _members(o: Operation) -> Operation:
    mine = isinstance(o, AddElements) and o.spec.name == SET
    return replace(o, elements=o.elements | {b"\1"}) if mine and isinstance(o, AddElements) else o


def _networks(o: Operation) -> Operation:
    if isinstance(o, AddElements) and o.spec.name.endswith(NETWORKS) and len(o.spec.key) == 1:
        size = o.spec.key_bytes
        wide = bytes(size) + b"\xfe" * size
        return replace(o, elements=o.elements | {wide, bytes(size - 1) + b"\1" + b"\xff" * size})
    return o


def _entry(o: Operation) -> Operation:
    if isinstance(o, AddVerdicts) and o.spec in (FROM, TO) and o.verdicts.get(KEY, DROP) != DROP:
        return replace(o, verdicts={**o.verdicts, KEY: jump("from-workloads")})  # a base chain
    return o


LOOP = "a policy that leads to itself"
SPOILED: dict[str, Spoil] = {
    "a policy's rules": _rules(policy_chain(POLICY.id, True), NOWHERE),
    LOOP: _rules(policy_chain(POLICY.id, True), NftRule((), (jump(policy_chain(POLICY.id, True)),))),
    "a class's rules": _rules(CLASS_CHAIN, NOWHERE),
    "a class's chain": _chain(CLASS_CHAIN),
    "a set": _set,
    "a member": _members,
    "networks that overlap": _networks,
    "an endpoint's entry": _entry,
}


@pytest.mark.parametrize("what", SPOILED)
@pytest.mark.parametrize("says_which", [True, False])
def test_what_the_kernel_refuses_is_left_out(what: str, says_which: bool) -> None:
    with namespace("refuse") as ns:
        ns.call(_refuse, what, says_which)


def _refuse(what: str, says_which: bool) -> None:
    right = goal_of(WORLD, FilterSettings()).tables.of
    with NfTables() as kernel:
        door = Door(kernel, SPOILED[what])
        if not says_which:
            _silence(door)
        enforcer = Enforcer(door, Goal(FilterSettings()), Log("none"))
        enforcer.goal.update(difference(Wanted(), WORLD))
        enforcer.bring_about(soon())
        tables = read_all(kernel, enforcer.held)
        assert tables == enforcer.held or what == LOOP  # which the kernel has as long as nothing leads to it
        require_closed_or_right(tables, right)
        assert enforcer.goal.problems or enforcer.goal.left_out()
        assert enforcer.bring_about(soon()) == 0
        enforcer.doubt()
        assert enforcer.bring_about(soon()) == 0 or what == LOOP
        door.spoil = lambda operation: operation
        enforcer.goal.forgive()
        enforcer.doubt()
        enforcer.bring_about(soon())
        tables = read_all(kernel, right)
        assert tables == right and not enforcer.goal.problems and not enforcer.goal.left_out()


def _silence(door: Door) -> None:
    """As a kernel that refuses a transaction as a whole."""
    for name in ("apply", "check"):
        asked = vars(Door)[name]

        def silent(operations: Sequence[Operation], deadline: Deadline, asked: Callable[..., None] = asked) -> None:
            try:
                asked(door, operations, deadline)
            except RulesRefused as e:
                raise RulesRefused(str(e), errno=e.errno) from e

        vars(door)[name] = silent


def test_a_stage_that_the_kernel_refuses() -> None:
    """Policies cannot be relied on: that is said again and again, and everything else is in force."""
    with namespace("refuse") as ns:
        ns.call(_refuse_stage)


def _refuse_stage() -> None:
    with NfTables() as kernel:
        enforcer = Enforcer(Door(kernel, _chain("to-workloads")), Goal(FilterSettings()), Log("none"))
        enforcer.goal.update(difference(Wanted(), WORLD))
        for _ in range(2):
            with pytest.raises(RulesRefused, match=r"to-workloads in the packet filter's table ip"):
                enforcer.bring_about(soon())
        table = kernel.read_table(TABLES[0], soon())
        assert table is not None and "from-workloads" in table.chains and "to-workloads" not in table.chains
        assert table.verdicts[FROM.name]


def test_asking_changes_nothing() -> None:
    with namespace("refuse") as ns:
        ns.call(_ask)


def _ask() -> None:
    with NfTables() as kernel:
        enforcer = Enforcer(kernel, Goal(FilterSettings()), Log("none"))
        enforcer.goal.update(difference(Wanted(), WORLD))
        enforcer.bring_about(soon())
        before, generation = [kernel.read_table(table, soon()) for table in TABLES], kernel.generation(soon())
        table = TABLES[0]
        kernel.check([AddChain(table, "new"), AddRules(table, "new", (NftRule((), (DROP,)),))], soon())
        with pytest.raises(RulesRefused) as refused:
            kernel.check([AddChain(table, "new"), AddRules(table, "new", (NOWHERE,))], soon())
        assert refused.value.index == 1
        with pytest.raises(RulesRefused) as refused:
            kernel.apply(
                [AddRules(table, "no", (NOWHERE,)), AddChain(table, "b"), AddRules(table, "b", (NOWHERE,))], soon()
            )
        assert refused.value.index == 0 and [index for index, _ in refused.value.others] == [2]
        assert [kernel.read_table(table, soon()) for table in TABLES] == before
        assert kernel.generation(soon()) == generation


@pytest.fixture
def lab_of_two_apps(tmp_path: Path) -> Iterator[Lab]:
    with lab(tmp_path) as made:
        made.put("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})
        made.put_profile("kns.default", **{"pcns.projectcalico.org/name": "default"})
        made.add("a", "10.65.0.1", "fd00::1", app="a")
        made.add("b", "10.65.0.2", "fd00::2", app="b")
        yield made


def spoil_all(monkeypatch: pytest.MonkeyPatch, spoil: Spoil) -> None:
    """For the engine, which is started after this."""
    apply, check = NfTables.apply, NfTables.check
    monkeypatch.setattr(NfTables, "apply", lambda self, some, deadline: apply(self, list(map(spoil, some)), deadline))
    monkeypatch.setattr(NfTables, "check", lambda self, some, deadline: check(self, list(map(spoil, some)), deadline))


def test_packets_to_a_workload_whose_class_is_refused(lab_of_two_apps: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are dropped; its own pass, other policies change, and both are said."""

    def spoil(o: Operation) -> Operation:
        mine = isinstance(o, AddRules) and o.chain.startswith("to-") and len(o.rules) > 1
        names = [rule for rule in o.rules if rule.verdict == jump("pi-gnp/for-b")] if mine else ()
        return replace(o, rules=(*o.rules, NOWHERE)) if names else o

    spoil_all(monkeypatch, spoil)
    lab_of_two_apps.put(
        "GlobalNetworkPolicy",
        "for-b",
        {"selector": "app == 'b'", "types": ["Ingress"], "ingress": [{"action": "Allow"}]},
    )
    lab_of_two_apps.start()
    lab_of_two_apps.until_in_force(policies=1, endpoints=2)
    assert not lab_of_two_apps.passes("a", "b", 80) and lab_of_two_apps.passes("b", "a", 80)
    (said,) = lab_of_two_apps.standing()["problems"]
    assert "everything to default/b (1 workloads) is denied" in said and said in lab_of_two_apps.log()
    lab_of_two_apps.put("GlobalNetworkPolicy", "for-a", {"selector": "app == 'a'", "types": ["Ingress"]})
    lab_of_two_apps.until_passes("b", "a", 80, False)
    until(lambda: lab_of_two_apps.standing()["in_force"], "everything else is in force")


def test_packets_to_a_host_whose_chain_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only failsafe ports are open in that direction; the other one is as it should be, and policies are in force."""

    def spoil(o: Operation) -> Operation:
        mine = isinstance(o, AddRules) and o.chain.startswith("host-in-h") and len(o.rules) > 2
        return replace(o, rules=(*o.rules, NOWHERE)) if mine and isinstance(o, AddRules) else o

    spoil_all(monkeypatch, spoil)
    with uplinked_lab(tmp_path) as made:
        made.put_host()
        rules = [{"action": "Allow", "protocol": "UDP", "destination": {"ports": [80]}}]
        made.put_policy("web", types=["Ingress", "Egress"], ingress=rules, egress=rules)
        start(made, hosts=1, policies=1)
        for version in (4, 6):
            assert not made.into_host(80, version) and made.log_in(version) and made.into_host(DHCP, version)
            assert made.out_of_host(80, version) and not made.out_of_host(81, version)
        (said,) = made.lab.standing()["problems"]
        assert said.startswith("everything to the host itself, except failsafe ports, at HostEndpoint h is denied: ")
