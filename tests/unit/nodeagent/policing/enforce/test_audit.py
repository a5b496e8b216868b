"""The comparison in slices finds what others changed, and takes nothing of our own for it."""

from __future__ import annotations

import random
from collections.abc import Callable
from errno import ENOENT

import pytest

from cni_calico.errors import KernelError
from cni_calico.log import SILENT
from cni_calico.netfilter.rules import DROP, NftRule
from cni_calico.netfilter.tables import (
    AddChain,
    AddElements,
    AddRules,
    AddSet,
    AddVerdicts,
    DropElements,
    DropTable,
    FlushChain,
    NftSet,
    Operation,
)
from cni_calico.nodeagent.policing.enforce.audit import Audit
from cni_calico.nodeagent.policing.enforce.enforcer import Enforcer
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.stages import FROM
from cni_calico.nodeagent.policing.tables.touched import ARP, FILTER
from cni_calico.policy.wanted import Wanted
from tests.deadlines import soon
from tests.fakes.nftables import FakePacketFilter
from tests.unit.nodeagent.policing.tables.worlds import difference, random_wanted

T4 = FILTER[4]


class Node:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.kernel = FakePacketFilter()
        self.enforcer = Enforcer(self.kernel, Goal(FilterSettings()), SILENT)
        self.wanted = Wanted()
        self.change()

    def change(self) -> None:
        after = random_wanted(self.rng)
        self.enforcer.goal.update(difference(self.wanted, after))
        self.wanted = after
        self.enforcer.bring_about(soon())

    def elsewhere(self, *operations: Operation) -> None:
        self.kernel.apply(operations, soon())

    def compare(self) -> str:
        """One piece at a time, to the end."""
        audit = self.enforcer.audit
        audit.begin()
        found = ""
        while audit.is_running and not found:
            found = audit.step(0.0)
        return found


def _element(node: Node) -> tuple[NftSet, bytes] | None:
    table = node.kernel.tables[T4]
    return next(((table.sets[name], next(iter(some))) for name, some in table.elements.items() if some), None)


def _network(node: Node) -> tuple[NftSet, bytes] | None:
    table = node.kernel.tables[T4]
    sets = ((table.sets[name], next(iter(some))) for name, some in table.elements.items() if some)
    return next(((spec, element) for spec, element in sets if spec.interval), None)


def node_with(found: Callable[[Node], object]) -> Node:
    made = Node(1)
    while not found(made):
        made.change()
    return made


def test_nothing_was_changed() -> None:
    for seed in range(5):
        node = Node(seed)
        slices = node.enforcer.audit.slices
        assert node.compare() == "" and node.enforcer.audit.ended == 1
        assert node.enforcer.audit.slices > slices + 20  # it was really done in pieces


@pytest.mark.parametrize("at_once", [False, True])
def test_what_others_changed_is_found(at_once: bool) -> None:
    def drop_element(node: Node) -> None:
        found = _element(node)
        assert found is not None
        node.elsewhere(DropElements(T4, found[0], frozenset((found[1],))))

    def drop_network(node: Node) -> None:
        found = _network(node)
        assert found is not None
        node.elsewhere(DropElements(T4, found[0], frozenset((found[1],))))

    def drop_verdict(node: Node) -> None:
        keys = frozenset(list(node.kernel.tables[T4].verdicts[FROM.name])[:1])
        node.elsewhere(DropElements(T4, FROM, keys))

    def other_verdict(node: Node) -> None:
        keys = frozenset(list(node.kernel.tables[T4].verdicts[FROM.name])[:1])
        node.elsewhere(DropElements(T4, FROM, keys), AddVerdicts(T4, FROM, dict.fromkeys(keys, DROP)))

    changes: list[tuple[Callable[[Node], object], Callable[[Node], None]]] = [
        (_element, drop_element),
        (_network, drop_network),
        (lambda node: node.kernel.tables[T4].verdicts[FROM.name], drop_verdict),
        (lambda node: node.kernel.tables[T4].verdicts[FROM.name], other_verdict),
        (_element, lambda node: node.elsewhere(FlushChain(T4, "from-workloads"))),
        (_element, lambda node: node.elsewhere(AddRules(T4, "to-workloads", (NftRule((), (DROP,)),)))),
        (_element, lambda node: node.elsewhere(AddChain(T4, "strange"))),
        (_element, lambda node: node.elsewhere(AddSet(T4, NftSet("strange", ("ipv4_addr",))))),
        (_element, lambda node: node.elsewhere(AddElements(T4, _element(node)[0], frozenset((b"\1\2\3\4",))))),
        (_element, lambda node: node.elsewhere(DropTable(ARP))),
        (_element, lambda node: node.kernel.flush_ruleset()),
    ]
    for needs, change in changes:
        node = node_with(needs)
        assert node.compare() == ""
        change(node)
        if at_once:
            node.enforcer.audit.begin()
            assert node.enforcer.audit.step(60.0)
        else:
            assert node.compare()
        node.enforcer.doubt()
        node.enforcer.bring_about(soon())
        assert node.compare() == ""


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 6))])
def test_our_own_changes_are_no_finding(seed: int) -> None:
    """Whatever we change between two pieces; and it comes to its end once we rest."""
    node = Node(seed)
    audit = node.enforcer.audit
    for _ in range(4):
        audit.begin()
        while audit.is_running:
            assert audit.step(0.0) == ""
            if node.rng.random() < 0.2:
                node.change()
    assert audit.ended == 4


def test_a_slice_ends_with_its_budget() -> None:
    node, now = Node(3), [0.0]

    def clock() -> float:
        now[0] += 0.001
        return now[0]

    audit = Audit(node.kernel.reader, lambda: node.enforcer.held, clock)
    audit.begin()
    while audit.is_running:
        begun = now[0]
        audit.step(0.02)
        assert now[0] - begun < 0.03
    assert audit.slices > 3


def test_what_is_gone_is_a_finding_and_other_errors_are_told() -> None:
    node = Node(1)
    errors = [KernelError("no such table", errno=ENOENT), KernelError("broken", errno=5)]

    class Broken:
        def sets(self, *_: object) -> None:
            raise errors[0]

        def reset(self) -> None:
            pass

    audit = Audit(Broken(), lambda: node.enforcer.held)
    audit.begin()
    assert "is gone" in audit.step() and not audit.is_running
    errors.pop(0)
    audit.begin()
    with pytest.raises(KernelError, match="broken"):
        audit.step()
    assert not audit.is_running
