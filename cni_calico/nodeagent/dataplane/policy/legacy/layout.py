"""PURE: one family's table as chains of legacy iptables.

Rule: the same table gives the same chains, however it was reached; only chains that changed are compiled again.

nf_tables has one table whose chains hang on any hook. iptables has a table for each kind of hook: a chain that acts
before connection tracking is in ``raw``, one before translation or after routing in ``mangle``, the rest in ``filter``.
A chain is in every table in which something jumps to it; one that nothing jumps to yet is in ``filter``.
Each hook has one chain of ours, which jumps to the stages in their order; the built-in chain's first rule jumps there.

A map from interfaces to chains is a chain of comparisons; a large one is a tree by the beginnings of names.

Where a chain has to be is known by counting, for each table, what leads to it there. So a change costs what it touches,
besides looking which chains are still the same objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from cni_calico.model.netfilter import BaseHook, Immediate, NftChain, NftTable, NoTrack
from cni_calico.nodeagent.dataplane.policy.legacy.matches import CannotExpress, Marks, interface, quoted, set_marks
from cni_calico.nodeagent.dataplane.policy.legacy.names import CHAINS, chain_name, tagged
from cni_calico.nodeagent.dataplane.policy.legacy.port_chains import PortChain
from cni_calico.nodeagent.dataplane.policy.legacy.rules import ActionChain, Compiled, compile_rule, map_chain

FILTER, MANGLE, RAW = "filter", "mangle", "raw"
TABLES = (RAW, MANGLE, FILTER)
_BEFORE_TRACKING, _SOURCE_TRANSLATION = -200, 100
_LEAF = 12  # at most so many comparisons in one chain of a map
_COMMENT = 200


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


@dataclass(frozen=True, slots=True)
class CompiledChain:
    source: NftChain
    place: tuple[str, str] | None
    part: PlacedChains


@dataclass(slots=True)
class Compiler:
    """Remembers what it has compiled, and where that is, for one family."""

    marks: Marks
    _chains: dict[str, CompiledChain] = field(default_factory=dict)
    _maps: dict[tuple[str, str], tuple[dict[bytes, Immediate], PlacedChains]] = field(default_factory=dict)
    _placed: Placement = field(default_factory=lambda: Placement())

    def layout(self, table: NftTable) -> Layout:
        """It changes with the next call. Raises NotExpressed."""
        changed: dict[str, CompiledChain] = {}
        for name, chain in table.chains.items():
            known = self._chains.get(name)
            if known is None or (known.source is not chain and known.source != chain):
                changed[name] = self._compile(chain, table)
        gone = self._chains.keys() - table.chains.keys()
        maps = self._changed_maps(table, changed.values())
        # nothing can fail from here on, but for chains that are not there
        stages = any(self._is_stage(name) for name in (*changed, *gone))
        for name in gone:
            del self._chains[name]
            self._placed.put(name, None)
        self._chains.update(changed)
        for name, one in changed.items():
            self._placed.put(name, one.part)
        for key, (verdicts, part) in maps.items():
            self._maps[key] = verdicts, part
            self._placed.put(key, part)
        for key in [key for key in self._maps if not self._placed.is_used(key)]:
            del self._maps[key]
            self._placed.put(key, None)
        if stages or any(self._is_stage(name) for name in changed):
            self._hang()
        self._placed.settle()
        return self._placed.layout

    def faults(self, table: NftTable) -> Iterator[NotExpressed]:
        """Everything that cannot be expressed, where ``layout`` names only the first."""
        for chain in table.chains.values():
            try:
                self._compile(chain, table)
            except NotExpressed as e:
                yield e
        for name, verdicts in table.verdicts.items():
            for key, verdict in verdicts.items():
                try:
                    _entry(name, "-i", key.rstrip(b"\0"), verdict)
                except NotExpressed as e:
                    yield e

    def source_of(self, name: str) -> str:
        """The chain that became this chain of iptables, "" for none."""
        return next((one for one in self._chains if chain_name(one) == name), "")

    def _is_stage(self, name: str) -> bool:
        return name in self._chains and self._chains[name].place is not None

    def _hang(self) -> None:
        """The chains of ours at the hooks."""
        stages: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for name, one in self._chains.items():
            if one.place is not None and one.source.hook is not None:
                stages.setdefault(one.place, []).append((one.source.hook.priority, name))
        self._placed.hang({place: [name for _, name in sorted(listed)] for place, listed in stages.items()}, self.marks)

    def _compile(self, chain: NftChain, table: NftTable) -> CompiledChain:
        done, rules, place = Compiled(), list[str](), None
        base = chain.hook is not None
        try:
            if chain.hook is not None:
                place = _place(chain.hook)
            for rule in chain.rules:
                before = len(done.rules)
                compile_rule(rule, table, self.marks, base=base, done=done)
                rules += [_commented(text, rule.comment) for text in done.rules[before:]]
        except CannotExpress as e:
            raise NotExpressed(str(e), chain=chain.name) from e
        if base and done.jumps:
            rules.insert(0, f"-j {set_marks(0, self.marks.accept)}")
        untracked = any(isinstance(e, NoTrack) for rule in chain.rules for e in rule.expressions)
        leads = frozenset[Placed]((*done.chains, *done.maps, *done.actions))
        return CompiledChain(chain, place, PlacedChains({chain_name(chain.name): tag_all(rules)}, leads, not untracked))

    def _changed_maps(
        self, table: NftTable, changed: Iterable[CompiledChain]
    ) -> dict[tuple[str, str], tuple[dict[bytes, Immediate], PlacedChains]]:
        """Those that are looked up and differ from what is remembered."""
        used = {lead for one in changed for lead in one.part.leads if isinstance(lead, tuple)}
        found = {}
        for key in used | self._maps.keys():
            verdicts = table.verdicts.get(key[0], {})
            known = self._maps.get(key)
            if known is None or known[0] != verdicts:
                before = {} if known is None else known[1].chains
                found[key] = dict(verdicts), _part_of_map(key, verdicts, before)
        return found


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


def _commented(rule: str, comment: str) -> str:
    """``rule`` begins with its matches: a comment is one, too."""
    return f"-m comment --comment {quoted(comment[:_COMMENT])} {rule}" if comment else rule


def _place(hook: BaseHook) -> tuple[str, str]:
    """The table and the built-in chain of a hook. Raises CannotExpress."""
    early = hook.priority < _BEFORE_TRACKING
    place = {
        "prerouting": (RAW if early else MANGLE, "PREROUTING"),
        "output": (RAW if early else FILTER, "OUTPUT"),
        "input": (FILTER, "INPUT"),
        "forward": (FILTER, "FORWARD"),
        "postrouting": (MANGLE, "POSTROUTING"),
    }.get(hook.hook)
    if hook.hook == "postrouting" and hook.priority > _SOURCE_TRANSLATION:
        raise CannotExpress("iptables cannot drop after source translation")
    if place is None or hook.kind != "filter":
        raise CannotExpress(f"iptables has no hook {hook.hook} of kind {hook.kind}")
    return place


def _part_of_map(key: tuple[str, str], verdicts: Mapping[bytes, Immediate], before: Chains) -> PlacedChains:
    chains = {}
    for name, rules in _branches(*key, verdicts):
        chains[name] = tag_all(rules)
        if name in before and before[name].tags == chains[name].tags:
            chains[name] = before[name]
    return PlacedChains(chains, frozenset(verdict.chain for verdict in verdicts.values() if verdict.chain))


def _branches(name: str, option: str, verdicts: Mapping[bytes, Immediate]) -> Iterator[tuple[str, list[str]]]:
    """Every chain of the tree; the first one is its root."""
    entries = sorted((key.rstrip(b"\0"), verdict) for key, verdict in verdicts.items())
    last = [_entry(name, option, *entry) for entry in entries if _is_open(entry[0])]
    waiting = [("", [entry for entry in entries if not _is_open(entry[0])])]
    while waiting:
        prefix, entries = waiting.pop()
        rules = []
        groups: dict[bytes, list[tuple[bytes, Immediate]]] = {}
        if len(entries) <= _LEAF:
            groups = {key: [(key, verdict)] for key, verdict in entries}
        else:
            common = _common(entries[0][0], entries[-1][0]) + 1
            for entry in entries:
                groups.setdefault(entry[0][:common], []).append(entry)
        for beginning, some in sorted(groups.items()):
            if len(some) == 1:
                rules.append(_entry(name, option, *some[0]))
            else:
                text = beginning.decode("utf-8", "surrogateescape")
                rules.append(f"{interface(option, beginning)} -g {map_chain(name, option, text)}")
                waiting.append((text, some))
        yield map_chain(name, option, prefix), rules + ([] if prefix else last)


def _is_open(key: bytes) -> bool:
    """Whether iptables takes the name for a prefix of names."""
    return key.endswith(b"+")


def _common(first: bytes, last: bytes) -> int:
    """The length of the prefix that these two, and everything sorted between them, have in common."""
    return next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))


def _entry(name: str, option: str, key: bytes, verdict: Immediate) -> str:
    """An interface that iptables cannot name can only be denied, with all that begin like it and have no entry."""
    if _is_open(key) and verdict.kind == "drop":
        return f"{option} {quoted(key.decode('utf-8', 'surrogateescape'))} -j DROP"
    try:
        match = interface(option, key.ljust(16, b"\0"))
    except CannotExpress as e:
        raise NotExpressed(str(e), map_name=name, key=key.ljust(16, b"\0")) from e
    if verdict.kind == "drop":
        return f"{match} -j DROP"
    if verdict.kind != "jump":
        raise NotExpressed(
            f"iptables has nothing for the verdict {verdict.kind}", map_name=name, key=key.ljust(16, b"\0")
        )
    return f"{match} -g {chain_name(verdict.chain)}"
