"""A kernel with legacy iptables and IP sets, behind the functions of kernel/filter/legacy/programs.py.

It refuses what the real one refuses (a chain or set that is not there, one in use, a name that is too long), and
carries out a script table by table: what was committed before the refused one stays.
"""

from __future__ import annotations

import copy
import re
import shlex
from dataclasses import dataclass, field
from errno import EINVAL

import pytest

from cni_calico.deadline import Deadline
from cni_calico.errors import RulesRefused
from cni_calico.kernel.filter.legacy import programs

BUILT_IN = {
    "raw": ("PREROUTING", "OUTPUT"),
    "mangle": ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"),
    "filter": ("INPUT", "FORWARD", "OUTPUT"),
}
_TARGETS = {"ACCEPT", "DROP", "RETURN", "MARK", "CT", "LOG", "REJECT"}
_ONLY_IN = {"CT": "raw", "REJECT": "filter"}
Tables = dict[str, dict[str, list[str]]]


@dataclass
class FakeLegacy:
    """``tables`` of each family, ``sets`` with their members as ipset writes them. ``refuse``: a text in lines that
    are refused.
    """

    tables: dict[int, Tables] = field(default_factory=lambda: {4: {}, 6: {}})
    sets: dict[str, tuple[str, set[str]]] = field(default_factory=dict)
    scripts: list[str] = field(default_factory=list)
    refuse: str = ""
    ipv6: bool = True

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("restore", "restore_sets", "read_tables", "read_sets", "has_ipv6"):
            monkeypatch.setattr(programs, name, getattr(self, name))
        monkeypatch.setattr(programs, "RuleCounts", lambda family: FakeCounts(self.tables[family]))

    def has_ipv6(self) -> bool:
        return self.ipv6

    # -- iptables -----------------------------------------------------------------------------------------------------

    def read_tables(self, family: int, deadline: Deadline) -> str:
        out = []
        for table, chains in self.tables[family].items():
            out += [f"*{table}", *(f":{chain} {'ACCEPT' if chain.isupper() else '-'} [0:0]" for chain in chains)]
            out += [f"-A {chain} {rule}" for chain, rules in chains.items() for rule in rules]
            out.append("COMMIT")
        return "\n".join(["# a comment", *out, ""])

    def restore(self, family: int, script: str, deadline: Deadline, *, lock_s: float = 5, test: bool = False) -> None:
        if not test:
            self.scripts.append(script)
        table, chains = "", dict[str, list[str]]()
        for i, line in enumerate(script.splitlines()):
            if self.refuse and self.refuse in line:
                raise RulesRefused(f"refused at line {i}", errno=EINVAL, index=i)
            if line.startswith("*"):
                table = line[1:]
                known = self.tables[family].get(table) or {chain: [] for chain in BUILT_IN[table]}
                chains = copy.deepcopy(known)
            elif line == "COMMIT":
                self._check(table, chains, i)
                if not test:
                    self.tables[family][table] = chains
            else:
                self._carry_out(chains, line, i)

    @staticmethod
    def _carry_out(chains: dict[str, list[str]], line: str, i: int) -> None:
        word, _, rest = line.partition(" ")
        chain, _, rule = rest.partition(" ")
        try:
            if word.startswith(":"):
                assert len(word) <= 29
                chains[word[1:]] = []
            elif word == "-A":
                chains[chain].append(rule)
            elif word == "-I":
                at, _, rule = rule.partition(" ")
                chains[chain].insert(int(at) - 1, rule)
            elif word == "-D":
                chains[chain].remove(rule)
            elif word == "-X":
                assert chains.pop(chain) == []
            else:
                raise AssertionError
        except (KeyError, ValueError, AssertionError):
            raise RulesRefused(f"no such thing: {line}", errno=EINVAL, index=i) from None

    def _check(self, table: str, chains: dict[str, list[str]], i: int) -> None:
        for rules in chains.values():
            for rule in rules:
                words = shlex.split(rule)
                target = words[words.index("-j" if "-j" in words else "-g") + 1]
                wrong = target not in chains and target not in _TARGETS
                wrong = wrong or _ONLY_IN.get(target, table) != table
                wrong = wrong or any(name not in self.sets for name in re.findall(r"--match-set (\S+)", rule))
                if wrong:
                    raise RulesRefused(f"refused in {table}: {rule}", errno=EINVAL, index=i)

    # -- IP sets ------------------------------------------------------------------------------------------------------

    def read_sets(self, deadline: Deadline) -> str:
        lines = [f"create {name} {spec}" for name, (spec, _) in self.sets.items()]
        lines += [f"add {name} {member}" for name, (_, members) in self.sets.items() for member in sorted(members)]
        return "".join(f"{line}\n" for line in lines)

    def restore_sets(self, script: str, deadline: Deadline) -> None:
        self.scripts.append(script)
        for i, line in enumerate(script.splitlines()):
            words = line.split()
            name = words[1]
            known = self.sets.get(name)
            used = any(
                f"--match-set {name} " in rule
                for tables in self.tables.values()
                for chains in tables.values()
                for rules in chains.values()
                for rule in rules
            )
            wrong = len(name) > 31 or (words[0] != "create" and known is None) or (words[0] == "destroy" and used)
            if wrong or (self.refuse and self.refuse in line):
                raise RulesRefused(f"refused: {line}", errno=EINVAL, index=i)
            if words[0] == "create":
                self.sets.setdefault(name, (" ".join(words[2:]), set()))
            elif words[0] == "swap":
                self.sets[name], self.sets[words[2]] = self.sets[words[2]], self.sets[name]
            elif words[0] == "destroy":
                del self.sets[name]
            elif known is not None and words[0] == "flush":
                known[1].clear()
            elif known is not None:
                (known[1].add if words[0] == "add" else known[1].discard)(words[-1])


class FakeCounts:
    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    def read(self, table: str) -> tuple[int, ...]:
        return tuple(len(rules) for rules in self._tables.get(table, {}).values())

    def close(self) -> None:
        """Nothing is open."""
