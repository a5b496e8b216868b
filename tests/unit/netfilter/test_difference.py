"""The difference of two tables: carried out by a packet filter, and mirrored by us, it gives the second."""

from __future__ import annotations

import copy
import random

import pytest

from cni_calico.netfilter.difference import Phases, Touched, plan_table
from cni_calico.netfilter.rules import ACCEPT, DROP, AddressInSet, Dispatch, HasMark, NftRule, PacketVerdict, jump
from cni_calico.netfilter.tables import BaseHook, NftChain, NftSet, NftTable, TableId, mirror
from tests.deadlines import soon
from tests.fakes.nftables import FakePacketFilter
from tests.unit.netfilter.rules import rule

TABLE = TableId("ip", "t")
SETS = (NftSet("nets", ("ipv4_addr",), interval=True), NftSet("pairs", ("ipv4_addr", "inet_service")))
MAP = NftSet("by-interface", ("ifname",), verdicts=True)
HOOKS = {"first": BaseHook("forward", 0), "second": BaseHook("input", 1)}
NAMES = [f"c{i}" for i in range(6)]
INTERFACES = [f"cali{i}".encode().ljust(16, b"\0") for i in range(6)]


def random_table(rng: random.Random) -> NftTable:
    """Chains lead to later ones alone, and to sets that are there."""
    table = NftTable(TABLE.family, TABLE.name)
    for spec in SETS:
        if rng.random() < 0.7:
            table.sets[spec.name] = spec
            table.elements[spec.name] = {
                bytes((10, i)).ljust(spec.key_bytes, b"\0") * (2 if spec.interval else 1)
                for i in range(5)
                if rng.random() < 0.5
            }
    there = [name for name in NAMES if rng.random() < 0.6]
    if rng.random() < 0.7:
        table.sets[MAP.name] = MAP
        leads = {key: rng.choice([DROP, *map(jump, there)]) for key in INTERFACES if rng.random() < 0.6}
        table.verdicts[MAP.name] = leads
    for i, name in enumerate(there):
        table.chains[name] = NftChain(name, random_rules(rng, there[i + 1 :], table, maps=False))
    for name, hook in HOOKS.items():
        if rng.random() < 0.7:
            table.chains[name] = NftChain(name, random_rules(rng, there, table, maps=True), hook)
    return table


def random_rules(rng: random.Random, leads: list[str], table: NftTable, *, maps: bool) -> tuple[NftRule, ...]:
    rules = [rule(jump(name)) for name in leads if rng.random() < 0.4]
    rules += [rule(HasMark(1 << i), ACCEPT) for i in range(rng.randrange(3))]
    rules += [rule(AddressInSet(True, "nets"), DROP) for _ in (1,) if "nets" in table.sets]
    if maps and MAP.name in table.sets:
        rules.append(rule(Dispatch(False, MAP.name)))
    rng.shuffle(rules)
    return tuple(rules)


def touched_of(before: NftTable, after: NftTable) -> Touched:
    """What differs, found naively; and something that does not."""
    touched = Touched()
    touched.chains = {n for n in {*before.chains, *after.chains} if before.chains.get(n) != after.chains.get(n)}
    touched.sets = {*before.sets, *after.sets}
    for name, elements in after.elements.items():
        held = before.elements.get(name)
        touched.elements[name] = None
        if held is not None:
            touched.element_change(name, (), ())
            touched.elements[name] = (elements - held, held - elements)
    empty: dict[bytes, PacketVerdict] = {}
    old, new = before.verdicts.get(MAP.name, empty), after.verdicts.get(MAP.name, empty)
    touched.verdicts[MAP.name] = {*old, *new}
    return touched


@pytest.mark.parametrize("everything", [True, False], ids=["all of it is compared", "what was touched is"])
@pytest.mark.parametrize("seed", range(40))
def test_any_table_becomes_any_other(seed: int, everything: bool) -> None:
    rng = random.Random(seed)
    kernel, known = FakePacketFilter(), dict[TableId, NftTable]()
    before: NftTable | None = None
    for _ in range(6):
        after = random_table(rng)
        touched = None if everything or before is None else touched_of(before, after)
        phases = Phases()
        plan_table(copy.deepcopy(after), known.get(TABLE), touched, phases)
        for operations in phases:
            kernel.apply(operations, soon())
            mirror(known, operations)
        assert kernel.read_table(TABLE, soon()) == after == known[TABLE]
        again = Phases()
        plan_table(after, known[TABLE], None, again)
        assert not again
        before = after
