"""PURE: which chain is in which table of iptables.

Rule: a chain is in every table in which something leads to it; one that nothing leads to is in ``filter`` if it fits
there. Where a chain has to be is known by counting, for each table, what leads to it there, so a change costs what it
touches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from cni_calico.kernel.filter.legacy.matches import CannotExpress, Marks, set_marks
from cni_calico.kernel.filter.legacy.names import CHAINS, chain_name, tagged
from cni_calico.kernel.filter.legacy.port_chains import PortChain
from cni_calico.kernel.filter.legacy.rules import ActionChain

FILTER, MANGLE, RAW = "filter", "mangle", "raw"
TABLES = (RAW, MANGLE, FILTER)


@dataclass(frozen=True, slots=True)
class ChainRules:
    """The rules of a chain of iptables, each with its tag; the tags once more."""

    lines: tuple[str, ...]
    tags: tuple[str, ...]


Chains = dict[str, ChainRules]  # by name


class NotExpressed(CannotExpress):
    """``chain`` or ``map`` with ``key`` is what cannot be expressed."""

    def __init__(self, why: str, *, chain: str = "", map_name: str = "", key: bytes = b"") -> None:
        super().__init__(why)
        self.chain = chain
        self.map_name = map_name
        self.key = key


@dataclass(slots=True)
class Layout:
    """``chains`` of each table of iptables; ``hooks``: for (table, built-in chain) the rule that has to come first."""

    chains: dict[str, Chains] = field(default_factory=lambda: {table: {} for table in TABLES})
    hooks: dict[tuple[str, str], str] = field(default_factory=dict)


# a chain by its neutral name, a map by (name, option of iptables), or an action: each becomes chains of iptables
Placed = str | tuple[str, str] | ActionChain | PortChain


@dataclass(frozen=True, slots=True)
class PlacedChains:
    """What a node becomes, and where that leads to. ``fits_filter``: whether its rules are possible in that table."""

    chains: Chains
    leads: frozenset[Placed]
    fits_filter: bool = True


class Placement:
    """Which nodes are in which table: those that a hook leads to, by any way; and those that nothing leads to, in
    ``filter`` if they fit there.
    """

    def __init__(self) -> None:
        self.layout = Layout()
        self._parts: dict[Placed, PlacedChains] = {}
        self._parents: Counter[Placed] = Counter()  # how many nodes and hooks lead to it, wherever they are
        self._refs: dict[str, Counter[Placed]] = {table: Counter() for table in TABLES}  # how many of those in a table
        self._hooked: dict[tuple[str, str], list[str]] = {}
        self._loose: set[Placed] = set()  # counted as if a hook of ``filter`` led to them
        self._idle: set[Placed] = set()  # that nothing leads to

    def is_used(self, node: Placed) -> bool:
        return self._parents[node] > 0

    def put(self, node: Placed, part: PlacedChains | None) -> None:
        """``part`` None: there is no such node any more."""
        before = self._parts.pop(node, None)
        old: frozenset[Placed] = before.leads if before is not None else frozenset()
        new: frozenset[Placed] = part.leads if part is not None else frozenset()
        tables = [table for table in TABLES if self._refs[table][node]]
        if part is not None:
            self._parts[node] = part
        for table in tables:
            self._replace(table, before, part)
        for lead in new - old:
            self._parents[lead] += 1
            self._idle.discard(lead)
        for lead in old - new:
            self._part_from(lead)
        for table in tables:
            self._count(table, ((lead, 1) for lead in new - old))
            self._count(table, ((lead, -1) for lead in old - new))
        if part is None:
            self._idle.discard(node)
        elif not self._parents[node]:
            self._idle.add(node)

    def hang(self, stages: dict[tuple[str, str], list[str]], marks: Marks) -> None:
        """``stages``: the base chains at each hook, in their order."""
        before, self._hooked = self._hooked, stages
        for place, names in stages.items():
            for name in names:
                self._parents[name] += 1
                self._idle.discard(name)
                self._count(place[0], [(name, 1)])
        for place, names in before.items():
            for name in names:
                self._part_from(name)
                self._count(place[0], [(name, -1)])
        for table, hook in before.keys() - stages.keys():
            del self.layout.chains[table][CHAINS + hook], self.layout.hooks[table, hook]
        for (table, hook), names in stages.items():
            jumps = [f"-j {chain_name(name)}" for name in names]
            jumps.append(f"-j {set_marks(0, marks.both)}")
            self.layout.chains[table][CHAINS + hook] = tag_all(jumps)
            self.layout.hooks[table, hook] = tag_all((f"-j {CHAINS}{hook}",)).lines[0]

    def _part_from(self, node: Placed) -> None:
        self._parents[node] -= 1
        if not self._parents[node]:
            del self._parents[node]
            if node in self._parts:
                self._idle.add(node)

    def settle(self) -> None:
        """After all changes. Raises NotExpressed."""
        loose = {node for node in self._idle if self._fits_filter(node)}
        for node in loose - self._loose:
            self._count(FILTER, [(node, 1)])
        for node in self._loose - loose:
            self._count(FILTER, [(node, -1)])
        self._loose = loose
        for node in self._parents.keys() - self._parts.keys():
            if isinstance(node, ActionChain | PortChain):
                self.put(node, PlacedChains({node.name: tag_all(node.rules())}, frozenset()))
            elif any(refs[node] for refs in self._refs.values()):
                raise NotExpressed(f"a rule leads to the chain {node}, which is not there", chain=str(node))
        for node in [node for node in self._idle if isinstance(node, ActionChain | PortChain)]:
            self.put(node, None)

    def _fits_filter(self, node: Placed) -> bool:
        """Whether it can be there with everything that it leads to. An action is only there with what leads to it."""
        seen, waiting = {node}, [node]
        while waiting:
            one = waiting.pop()
            if isinstance(one, ActionChain | PortChain):
                continue
            part = self._parts.get(one)
            if part is None or not part.fits_filter:
                return False
            more = part.leads - seen
            seen |= more
            waiting += more
        return not isinstance(node, ActionChain | PortChain)

    def _count(self, table: str, changes: Iterable[tuple[Placed, int]]) -> None:
        """One more or one less leads to each node in this table; what begins or ceases to be there does so for what it
        leads to, too.
        """
        refs, waiting = self._refs[table], list(changes)
        while waiting:
            node, change = waiting.pop()
            refs[node] += change
            part = self._parts.get(node)
            if change > 0 and refs[node] == 1:
                self._replace(table, None, part)
            elif not refs[node]:
                del refs[node]
                self._replace(table, part, None)
            else:
                continue
            waiting += ((lead, change) for lead in (part.leads if part is not None else ()))

    def _replace(self, table: str, before: PlacedChains | None, after: PlacedChains | None) -> None:
        chains = self.layout.chains[table]
        if before is not None:
            for name in before.chains:
                del chains[name]
        if after is not None:
            chains.update(after.chains)


def tag_all(rules: Iterable[str]) -> ChainRules:
    tags = [(tagged(rule), rule) for rule in rules]
    return ChainRules(tuple(f"-m comment --comment {tag} {rule}" for tag, rule in tags), tuple(tag for tag, _ in tags))
