"""PURE: one family's table as chains of legacy iptables.

Rule: the same table gives the same chains, however it was reached; only chains that changed are compiled again.

nf_tables has one table whose chains hang on any hook. iptables has a table for each kind of hook: a chain that acts
before connection tracking is in ``raw``, one before translation or after routing in ``mangle``, the rest in ``filter``.
A chain is in every table in which something jumps to it; one that nothing jumps to yet is in ``filter``.
Each hook has one chain of ours, which jumps to the stages in their order; the built-in chain's first rule jumps there.

A map from interfaces to chains is a chain of comparisons; a large one is a tree by the beginnings of names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cni_calico.model.netfilter import BaseHook, Immediate, NftChain, NftTable, NoTrack
from cni_calico.nodeagent.dataplane.policy.legacy.matches import CannotExpress, Marks, interface, quoted, set_marks
from cni_calico.nodeagent.dataplane.policy.legacy.names import CHAINS, chain_name, tagged
from cni_calico.nodeagent.dataplane.policy.legacy.rules import ActionChain, Compiled, compile_rule, map_chain

FILTER, MANGLE, RAW = "filter", "mangle", "raw"
TABLES = (RAW, MANGLE, FILTER)
_BEFORE_TRACKING = -200
_LEAF = 12  # at most so many comparisons in one chain of a map
_COMMENT = 200

Chains = dict[str, tuple[str, ...]]  # by name: the rules, each with its tag


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


@dataclass(frozen=True, slots=True)
class CompiledChain:
    source: NftChain
    rules: tuple[str, ...]
    compiled: Compiled
    fits_filter: bool  # whether its rules are possible in that table


@dataclass(slots=True)
class Compiler:
    """Remembers what it has compiled, for one family."""

    marks: Marks
    _chains: dict[str, CompiledChain] = field(default_factory=dict)

    def layout(self, table: NftTable) -> Layout:
        """Raises NotExpressed."""
        for name in self._chains.keys() - table.chains.keys():
            del self._chains[name]
        for name, chain in table.chains.items():
            known = self._chains.get(name)
            if known is None or known.source != chain:
                self._chains[name] = self._compile(chain, table)
        return _Builder(table, self._chains, self.marks).build()

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

    def _compile(self, chain: NftChain, table: NftTable) -> CompiledChain:
        done, rules = Compiled(), list[str]()
        base = chain.hook is not None
        try:
            if chain.hook is not None:
                _place(chain.hook)
            for rule in chain.rules:
                before = len(done.rules)
                compile_rule(rule, table, self.marks, base=base, done=done)
                rules += [_commented(text, rule.comment) for text in done.rules[before:]]
        except CannotExpress as e:
            raise NotExpressed(str(e), chain=chain.name) from e
        if base and done.jumps:
            rules.insert(0, f"-j {set_marks(0, self.marks.accept)}")
        untracked = any(isinstance(e, NoTrack) for rule in chain.rules for e in rule.expressions)
        return CompiledChain(chain, tag_all(rules), done, not untracked)


def tag_all(rules: list[str] | tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"-m comment --comment {tagged(rule)} {rule}" for rule in rules)


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
    if place is None or hook.kind != "filter":
        raise CannotExpress(f"iptables has no hook {hook.hook} of kind {hook.kind}")
    return place


class _Builder:
    def __init__(self, table: NftTable, compiled: Mapping[str, CompiledChain], marks: Marks) -> None:
        self._table = table
        self._compiled = compiled
        self._marks = marks
        self._done = Layout()
        self._trees: dict[tuple[str, str], tuple[Chains, tuple[str, ...]]] = {}

    def build(self) -> Layout:
        stages: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for name, one in self._compiled.items():
            if one.source.hook is not None:
                stages.setdefault(_place(one.source.hook), []).append((one.source.hook.priority, name))
        reached: set[str] = set()
        for place, listed in sorted(stages.items()):
            table, hook = place
            for _, name in listed:
                self._reach(name, table, reached)
            jumps = [f"-j {chain_name(name)}" for _, name in sorted(listed)]
            jumps.append(f"-j {set_marks(0, self._marks.both)}")
            self._done.chains[table][CHAINS + hook] = tag_all(jumps)
            self._done.hooks[place] = tag_all((f"-j {CHAINS}{hook}",))[0]
        for name in self._compiled:
            if name not in reached and self._fits_filter(name):
                self._reach(name, FILTER, reached)
        return self._done

    def _fits_filter(self, name: str) -> bool:
        """Whether the chain can be there with everything that it leads to."""
        seen, waiting = {name}, [name]
        while waiting:
            one = self._compiled.get(waiting.pop())
            if one is None or not one.fits_filter:
                return False
            more = {*one.compiled.chains, *(lead for used in one.compiled.maps for lead in self._tree(*used)[1])} - seen
            seen |= more
            waiting += more
        return True

    def _reach(self, name: str, table: str, reached: set[str]) -> None:
        """Put the chain there, and whatever it leads to."""
        waiting = [name]
        chains = self._done.chains[table]
        while waiting:
            name = waiting.pop()
            one = self._compiled.get(name)
            if one is None:
                raise NotExpressed(f"a rule leads to the chain {name}, which is not there", chain=name)
            reached.add(name)
            if chain_name(name) in chains:
                continue
            chains[chain_name(name)] = one.rules
            waiting += one.compiled.chains
            for action in one.compiled.actions:
                self._add_action(action, chains)
            for used in one.compiled.maps:
                tree, leads = self._tree(*used)
                chains.update(tree)
                waiting += leads

    def _add_action(self, action: ActionChain, chains: Chains) -> None:
        chains.setdefault(action.name, tag_all(action.rules()))

    def _tree(self, name: str, option: str) -> tuple[Chains, tuple[str, ...]]:
        """The chains of a map, and the neutral names of those that its entries lead to."""
        key = (name, option)
        if key not in self._trees:
            verdicts = self._table.verdicts.get(name, {})
            tree = {chain: tag_all(rules) for chain, rules in _branches(name, option, verdicts)}
            leads = tuple(sorted({verdict.chain for verdict in verdicts.values() if verdict.chain}))
            self._trees[key] = tree, leads
        return self._trees[key]


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
