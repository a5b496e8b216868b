"""PURE: scripts for iptables-restore that turn what legacy iptables has into what it should have.

Rule: a script is one transaction for each table of iptables: packets see all of it or nothing. Only chains that differ
are written. A rule that is there is recognised by its tag (names.py): one without the right tag is not ours any more.
The jump to our chains is the first rule of the built-in chain, because what others accept before it would pass.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from cni_calico.kernel.filter.legacy.names import CHAINS
from cni_calico.kernel.filter.legacy.placement import TABLES, Layout

_TAG = re.compile(r'--comment "?(cali:[0-9a-f]+)"?(?: |$)')
_LEADS = re.compile(rf'-[jg] "?{re.escape(CHAINS)}')
_COUNTED = re.compile(rf"^\[(\d+):\d+\] -A {re.escape(CHAINS)}(.*) -j DROP$", re.MULTILINE)
_QUOTED = re.compile(r'--comment "((?:[^"\\]|\\.)*)"')
_TEXTS = re.compile(r'"(?:[^"\\]|\\.)*"')
_TARGET = re.compile(r" -([jg]) (\S+)")
_BESIDES = ("NFLOG", "MARK")  # what stands beside the rule with the verdict
_BUILT_IN = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")

Tags = tuple[str, ...]


@dataclass(slots=True)
class InKernel:
    """One family. ``chains``: the tags of our chains' rules, for each table of iptables.

    ``jumps``: of each built-in chain (table, chain) that leads to ours, the rules that do, as they were read, and where
    they stand.
    """

    chains: dict[str, dict[str, Tags]] = field(default_factory=lambda: {table: {} for table in TABLES})
    jumps: dict[tuple[str, str], tuple[tuple[int, str], ...]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.jumps) or any(self.chains.values())


@dataclass(frozen=True, slots=True)
class RestoreLine:
    """A line for iptables-restore; ``chain``: the one that it is about, "" for none."""

    text: str
    chain: str = ""


def tag_of(rule: str) -> str:
    found = _TAG.search(rule)
    return found[1] if found else ""


def parse_saved(saved: str) -> InKernel:
    """From the output of iptables-save for all tables."""
    found = InKernel()
    table = ""
    rules: dict[str, list[str]] = {}
    jumps: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for line in (*saved.splitlines(), "COMMIT"):
        if line.startswith("*"):
            table, rules, seen = line[1:].strip(), {}, dict.fromkeys(_BUILT_IN, 0)
        elif line.startswith(f":{CHAINS}"):
            rules[line[1:].split()[0]] = []
        elif line.startswith(f"-A {CHAINS}"):
            rules.setdefault(line.split()[1], []).append(tag_of(line))
        elif line.startswith("-A "):
            chain = line.split()[1]
            if chain in _BUILT_IN:
                seen[chain] += 1
                if _LEADS.search(line):
                    jumps.setdefault((table, chain), []).append((seen[chain], line))
        elif line == "COMMIT" and table:
            if rules or table in TABLES:
                found.chains[table] = {chain: tuple(tags) for chain, tags in rules.items()}
            table = ""
    found.jumps = {place: tuple(lines) for place, lines in jumps.items()}
    return found


def parse_dropped(saved: str) -> Counter[str]:
    """How many packets our rules that drop have had, by each of their comments; from the output of iptables-save -c."""
    found: Counter[str] = Counter()
    for rule in _COUNTED.finditer(saved):
        for comment in _QUOTED.findall(rule[2]) if rule[1] != "0" else ():
            found[re.sub(r"\\(.)", r"\1", comment)] += int(rule[1])
    return found


def count_rules(saved: str, names: Collection[str]) -> Counter[str]:
    """How many rules these chains of ours have. ``saved``: the output of iptables-save for all tables.

    Several rules of iptables that were one of ours count once: those that jump to others of our chains, and what stands
    beside the rule with the verdict, do not count.
    """
    counts: dict[str, Counter[str]] = {}
    mine = counts.setdefault("", Counter())
    for line in saved.splitlines():
        if line.startswith("*"):
            mine = counts.setdefault(line, Counter())
        elif line.startswith(f"-A {CHAINS}") and (chain := line.split()[1]) in names:
            found = _TARGET.search(_TEXTS.sub("", line))
            if found and found[2] not in _BESIDES and not (found[1] == "j" and found[2].startswith(CHAINS)):
                mine[chain] += 1
    largest = Counter[str]()
    for one in counts.values():
        largest |= one  # a chain is the same in each table
    return largest


def in_kernel(layout: Layout) -> InKernel:
    """What there is once a layout is in force."""
    chains = {table: {name: rules.tags for name, rules in chains.items()} for table, chains in layout.chains.items()}
    found = InKernel(chains)
    for place, rule in layout.hooks.items():
        found.jumps[place] = ((1, f"-A {place[1]} {rule}"),)
    return found


def same(held: InKernel, wanted: InKernel) -> bool:
    """Whether everything is as it should be, each jump in its place."""
    if {table: chains for table, chains in held.chains.items() if chains} != {
        table: chains for table, chains in wanted.chains.items() if chains
    }:
        return False
    return _places(held) == _places(wanted)


def _places(of: InKernel) -> dict[tuple[str, str], list[tuple[int, str]]]:
    return {place: [(at, tag_of(line)) for at, line in lines] for place, lines in of.jumps.items()}


def plan(held: InKernel, layout: Layout, *, keep: bool) -> list[RestoreLine]:
    """``keep``: what is there and not wanted stays for now."""
    lines: list[RestoreLine] = []
    for table in (*TABLES, *(held.chains.keys() - set(TABLES))):
        mine = list(_plan_table(table, held, layout, keep))
        if mine:
            lines += [RestoreLine(f"*{table}"), *mine, RestoreLine("COMMIT")]
    return lines


def _equal(first: Tags | None, second: Tags) -> bool:
    return first is second or first == second


def _plan_table(table: str, held: InKernel, layout: Layout, keep: bool) -> Iterator[RestoreLine]:
    there, wanted = held.chains.get(table, {}), layout.chains.get(table, {})
    changed = [name for name, rules in wanted.items() if not _equal(there.get(name), rules.tags)]
    gone = [] if keep else sorted(there.keys() - wanted.keys())
    yield from (RestoreLine(f":{name} - [0:0]", name) for name in (*changed, *gone))
    for name in changed:
        yield from (RestoreLine(f"-A {name} {rule}", name) for rule in wanted[name].lines)
    hooks = {chain: rule for (of, chain), rule in layout.hooks.items() if of == table}
    jumps = {chain: lines for (of, chain), lines in held.jumps.items() if of == table}
    for chain in _BUILT_IN:
        rule, found = hooks.get(chain), jumps.get(chain, ())
        if rule is None and keep:
            continue
        if rule is not None and [(at, tag_of(line)) for at, line in found] == [(1, tag_of(rule))]:
            continue
        yield from (RestoreLine(f"-D {line[3:]}") for _, line in found)
        if rule is not None:
            yield RestoreLine(f"-I {chain} 1 {rule}")
    yield from (RestoreLine(f"-X {name}", name) for name in gone)
