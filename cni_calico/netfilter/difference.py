"""PURE: the operations, in three phases, that turn what a table holds into what it should hold.

Rule: each phase is one transaction. (1) New objects that nothing refers to yet: sets with their members, chains. (2)
The switch: rules of chains in use, members of sets in use, maps, base chains. (3) Removal of what nothing refers to any
more. Measured under load, this order neither lets a forbidden packet pass nor loses an allowed one. Making a chain and
the map element that refers to it in one transaction would let packets pass, because a packet that has begun with the
old rules finds the new element and an empty chain.

The next comparison finds whatever a failed phase left behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from cni_calico.netfilter.rules import PacketVerdict
from cni_calico.netfilter.tables import (
    AddChain,
    AddElements,
    AddRules,
    AddSet,
    AddTable,
    AddVerdicts,
    DropChain,
    DropElements,
    DropSet,
    DropTable,
    FlushChain,
    NftTable,
    Operation,
    TableId,
)


@dataclass(slots=True)
class Touched:
    """The objects of one table that may now differ from the kernel's. ``elements``: (added, removed) of a set; None:
    compare all of it.
    """

    chains: set[str] = field(default_factory=set)
    sets: set[str] = field(default_factory=set)
    elements: dict[str, tuple[set[bytes], set[bytes]] | None] = field(default_factory=dict)
    verdicts: dict[str, set[bytes]] = field(default_factory=dict)

    def join(self, other: Touched) -> None:
        """Its chains and sets, too."""
        self.chains |= other.chains
        self.sets |= other.sets

    def element_change(self, name: str, added: Iterable[bytes], removed: Iterable[bytes]) -> None:
        both = self.elements.setdefault(name, (set(), set()))
        if both is not None:
            plus, minus = both
            for element in removed:
                plus.discard(element)
                minus.add(element)
            for element in added:
                minus.discard(element)
                plus.add(element)


@dataclass(slots=True)
class Phases:
    """Operations of all tables, phase by phase."""

    new: list[Operation] = field(default_factory=list)
    switch: list[Operation] = field(default_factory=list)
    removals: list[Operation] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.new or self.switch or self.removals)

    def __iter__(self) -> Iterator[list[Operation]]:
        """In their order, without those that are empty."""
        for phase in (self.new, self.switch, self.removals):
            if phase:
                yield phase


def plan_tables(changes: Iterable[tuple[NftTable, NftTable | None, Touched | None]]) -> Phases:
    """What makes each ``held`` equal to its ``goal``; (goal, held, touched) as for ``plan_table``."""
    phases = Phases()
    for goal, held, touched in changes:
        plan_table(goal, held, touched, phases)
    return phases


def plan_table(goal: NftTable, held: NftTable | None, touched: Touched | None, phases: Phases) -> None:
    """Add to ``phases`` what makes ``held`` (None: there is no such table) equal to ``goal``.

    With ``touched`` None everything is compared.
    """
    table = TableId(goal.family, goal.name)
    if held is None:
        phases.new.append(AddTable(table))
        held, touched = NftTable(goal.family, goal.name), None
    elif cannot_become(goal, held, touched):
        phases.new += remade(goal, table)
        return
    if touched is None:
        touched = _everything(goal, held)
    _plan_sets(table, goal, held, touched, phases)
    _plan_chains(table, goal, held, touched, phases)
    _plan_verdicts(table, goal, held, touched, phases)


def cannot_become(goal: NftTable, held: NftTable, touched: Touched | None = None) -> bool:
    """Whether another program has made a set or base chain of ours into something that no change can turn back. With
    ``touched`` only these are looked at: the others were compared when the table was read.
    """
    sets, chains = (goal.sets.keys(), goal.chains.keys()) if touched is None else (touched.sets, touched.chains)
    if any(name in goal.sets and held.sets.get(name, goal.sets[name]) != goal.sets[name] for name in sets):
        return True
    both = (name for name in chains if name in goal.chains and name in held.chains)
    return any(held.chains[name].hook != goal.chains[name].hook for name in both)


def remade(goal: NftTable, table: TableId) -> list[Operation]:
    """Make the whole table again in one transaction: this loses a few packets, but lets none pass."""
    phases = Phases()
    plan_table(goal, None, None, phases)
    return [AddTable(table), DropTable(table), *phases.new, *phases.switch]


def leads_to_chains(verdicts: Mapping[bytes, PacketVerdict] | None) -> bool:
    """Whether a map's elements refer to chains; one whose elements do not is written, and removed, like a set."""
    return any(verdict.chain for verdict in (verdicts or {}).values())


def _everything(goal: NftTable, held: NftTable) -> Touched:
    touched = Touched(set(goal.chains) | set(held.chains), set(goal.sets) | set(held.sets))
    touched.elements.update(dict.fromkeys(goal.elements))
    for name, verdicts in goal.verdicts.items():
        touched.verdicts[name] = set(verdicts) | set(held.verdicts.get(name, ()))
    return touched


def _plan_sets(table: TableId, goal: NftTable, held: NftTable, touched: Touched, phases: Phases) -> None:
    for name in sorted(touched.sets):
        spec = goal.sets.get(name)
        if spec is None:
            if name in held.sets:
                if leads_to_chains(held.verdicts.get(name)):  # these may be removed, too
                    keys = frozenset(held.verdicts[name])
                    phases.switch.append(DropElements(table, held.sets[name], keys))
                phases.removals.append(DropSet(table, name))
        elif name not in held.sets:
            phases.new.append(AddSet(table, spec))
            known = goal.verdicts.get(name)
            if known and not leads_to_chains(known):  # rules that look it up must find it complete
                phases.new.append(AddVerdicts(table, spec, dict(known)))
    for name in sorted(touched.elements):
        spec = goal.sets.get(name)
        if spec is None:
            continue
        there = held.elements.get(name)
        if there is None:
            if goal.elements[name]:
                phases.new.append(AddElements(table, spec, frozenset(goal.elements[name])))
            continue
        change = touched.elements[name]
        if change is None:
            added, removed = goal.elements[name] - there, there - goal.elements[name]
        else:
            added, removed = change[0] - there, change[1] & there
        if removed:
            phases.switch.append(DropElements(table, spec, frozenset(removed)))
        if added:
            phases.switch.append(AddElements(table, spec, frozenset(added)))


def _plan_chains(table: TableId, goal: NftTable, held: NftTable, touched: Touched, phases: Phases) -> None:
    rules: list[Operation] = []
    gone: list[str] = []
    for name in sorted(touched.chains):
        chain, there = goal.chains.get(name), held.chains.get(name)
        if chain is None:
            if there is not None:
                gone.append(name)
        elif there is None:
            phase = phases.new if chain.hook is None else phases.switch
            phase.append(AddChain(table, name, chain.hook))
            if chain.rules:
                (rules if chain.hook is None else phases.switch).append(AddRules(table, name, chain.rules))
        elif there.rules != chain.rules:
            if there.rules:
                phases.switch.append(FlushChain(table, name))
            if chain.rules:
                phases.switch.append(AddRules(table, name, chain.rules))
    phases.new += rules  # after all chains and sets that they name
    # rules first, because a rule that is removed may refer to another chain
    phases.removals[:0] = [
        *(FlushChain(table, name) for name in gone if held.chains[name].rules),
        *(DropChain(table, name) for name in gone),
    ]


def _plan_verdicts(table: TableId, goal: NftTable, held: NftTable, touched: Touched, phases: Phases) -> None:
    for name, keys in sorted(touched.verdicts.items()):
        spec, wanted, there = goal.sets.get(name), goal.verdicts.get(name, {}), held.verdicts.get(name, {})
        if spec is None or (name not in held.sets and not leads_to_chains(wanted)):
            continue  # gone, or made complete
        differ = [key for key in sorted(keys) if wanted.get(key) != there.get(key)]
        removed = frozenset(key for key in differ if key in there)
        added = {key: wanted[key] for key in differ if key in wanted}
        if removed:
            phases.switch.append(DropElements(table, spec, removed))
        if added:
            phases.switch.append(AddVerdicts(table, spec, added))
