"""A table of ours that holds far more than it should is not read to its end, and replaced in one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from unittest.mock import Mock, patch

import pytest

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError, RulesUnknown
from cni_calico.kernel.filter.nf_tables import table_reading
from cni_calico.kernel.filter.nf_tables.filter import NfTables
from cni_calico.log import Log
from cni_calico.netfilter.rules import DROP, NftRule
from cni_calico.netfilter.tables import AddChain, AddElements, AddRules, AddSet, AddTable, DropTable, NftSet, Operation
from cni_calico.nodeagent.policing.enforce.enforcer import Enforcer
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.touched import FILTER
from tests.deadlines import soon
from tests.netns.namespaces import Namespace, namespace
from tests.netns.policing.tables import read_all

pytestmark = pytest.mark.netns
RULES = 5000
OLD = NftSet("old", ("ipv4_addr",))


@dataclass
class Watched(NfTables):
    """The kernel, and what it was given."""

    done: list[tuple[Operation, ...]] = field(default_factory=list)
    lose: int = 0

    def __post_init__(self) -> None:
        NfTables.__init__(self)

    def apply(self, operations: Sequence[Operation], deadline: Deadline) -> None:
        NfTables.apply(self, operations, deadline)
        self.done.append(tuple(operations))
        if self.lose:
            self.lose -= 1
            raise RulesUnknown("cannot change the rules: the answer was lost")


@pytest.fixture
def alone() -> Iterator[Namespace]:
    with namespace("large") as made:
        yield made


def _old(rules: int, elements: int) -> list[Operation]:
    table = FILTER[4]
    some = tuple(NftRule((), (DROP,), f"rule {i}") for i in range(rules))
    members = frozenset(i.to_bytes(4, "big") for i in range(elements))
    return [
        AddTable(table),
        AddSet(table, OLD),
        *([AddElements(table, OLD, members)] if members else []),
        AddChain(table, "pi-old"),
        *([AddRules(table, "pi-old", some)] if some else []),
    ]


@pytest.mark.parametrize(("rules", "elements"), [(RULES, 0), (0, 10 * RULES)])
def test_it_is_replaced(alone: Namespace, monkeypatch: pytest.MonkeyPatch, rules: int, elements: int) -> None:
    monkeypatch.setattr(table_reading, "READ_BYTES", 1 << 16)

    def act() -> None:
        with Watched() as kernel:
            kernel.apply(_old(rules, elements), soon())
            kernel.done.clear()
            enforcer = Enforcer(kernel, Goal(FilterSettings()), Log("none"))
            with pytest.raises(KernelError, match=r"far more|takes more"):
                kernel.read_table(FILTER[4], soon(), (enforcer.goal.tables.of[FILTER[4]],))
            enforcer.read(soon())
            assert enforcer.is_there
            enforcer.bring_about(soon())
            (replacing,) = [some for some in kernel.done if DropTable(FILTER[4]) in some]
            chains = {one.name for one in replacing if isinstance(one, AddChain) and one.table == FILTER[4]}
            assert any(
                chain.hook is not None for name, chain in enforcer.held[FILTER[4]].chains.items() if name in chains
            )
            assert read_all(kernel, enforcer.goal.tables.of) == enforcer.goal.tables.of == enforcer.held
            enforcer.doubt()
            assert enforcer.bring_about(soon()) == 0

    alone.call(act)


def test_its_replacement_may_end_unknown(alone: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_reading, "READ_BYTES", 1 << 16)

    def act() -> None:
        with Watched() as kernel:
            kernel.apply(_old(RULES, 0), soon())
            kernel.lose = 1
            enforcer = Enforcer(kernel, Goal(FilterSettings()), Log("none"))
            enforcer.bring_about(soon())
            assert read_all(kernel, enforcer.goal.tables.of) == enforcer.goal.tables.of

    alone.call(act)


def test_it_can_be_removed(alone: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_reading, "READ_BYTES", 1 << 16)

    def act() -> None:
        with Watched() as kernel:
            kernel.apply(_old(RULES, 0), soon())
            assert kernel.has_table(FILTER[4], soon()) and not kernel.has_table(FILTER[6], soon())
            assert Enforcer(kernel, Goal(FilterSettings()), Log("none")).remove(soon())
            assert not kernel.has_table(FILTER[4], soon())

    alone.call(act)


def test_reading_that_takes_too_long_is_given_up(alone: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_reading, "READ_S", 0.0)

    def act() -> None:
        with NfTables() as kernel, pytest.raises(KernelError, match=r"far more|takes more"):
            kernel.read_table(FILTER[4], soon())

    alone.call(act)


def test_so_is_reading_whose_answers_keep_coming(alone: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_reading, "READ_S", 0.02)  # these rules take a second

    def act() -> None:
        decoded = Mock(wraps=table_reading.decode_rule)
        with Watched() as kernel, patch.object(table_reading, "decode_rule", decoded):
            kernel.apply(_old(4 * RULES, 0), soon())
            with pytest.raises(KernelError, match=r"takes more"):
                kernel.read_table(FILTER[4], soon())
            assert decoded.call_count < 4 * RULES

    alone.call(act)
