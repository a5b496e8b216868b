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

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cni_calico.kernel.filter.legacy.maps import entry_of, part_of_map
from cni_calico.kernel.filter.legacy.matches import CannotExpress, Marks, quoted, set_marks
from cni_calico.kernel.filter.legacy.names import chain_name
from cni_calico.kernel.filter.legacy.placement import (
    FILTER,
    MANGLE,
    RAW,
    Layout,
    NotExpressed,
    Placed,
    PlacedChains,
    Placement,
    tag_all,
)
from cni_calico.kernel.filter.legacy.rules import Compiled, compile_rule
from cni_calico.netfilter.rules import NoTrack, PacketVerdict, SetDscp
from cni_calico.netfilter.tables import BaseHook, NftChain, NftTable

_BEFORE_TRACKING, _SOURCE_TRANSLATION = -200, 100
_COMMENT = 200  # bytes; iptables takes 255


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
    _maps: dict[tuple[str, str], tuple[dict[bytes, PacketVerdict], PlacedChains]] = field(default_factory=dict)
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
                    entry_of(name, "-i", key.rstrip(b"\0"), verdict)
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
        elsewhere = any(isinstance(action, NoTrack | SetDscp) for rule in chain.rules for action in rule.actions)
        leads = frozenset[Placed]((*done.chains, *done.maps, *done.actions))
        return CompiledChain(chain, place, PlacedChains({chain_name(chain.name): tag_all(rules)}, leads, not elsewhere))

    def _changed_maps(
        self, table: NftTable, changed: Iterable[CompiledChain]
    ) -> dict[tuple[str, str], tuple[dict[bytes, PacketVerdict], PlacedChains]]:
        """Those that are looked up and differ from what is remembered."""
        used = {lead for one in changed for lead in one.part.leads if isinstance(lead, tuple)}
        found = {}
        for key in used | self._maps.keys():
            verdicts = table.verdicts.get(key[0], {})
            known = self._maps.get(key)
            if known is None or known[0] != verdicts:
                before = {} if known is None else known[1].chains
                found[key] = dict(verdicts), part_of_map(key, verdicts, before)
        return found


def _commented(rule: str, comment: str) -> str:
    """``rule`` begins with its matches: a comment is one, too."""
    cut = comment.encode()[:_COMMENT].decode(errors="ignore")
    return f"-m comment --comment {quoted(cut)} {rule}" if cut else rule


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
