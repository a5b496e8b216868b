"""PURE: what must be changed in other programs' iptables rules.

Packets to and from workloads are accepted if the FORWARD chain would drop them, and what upstream's agent left behind
is removed.

Rule: text of iptables-save in, script for iptables-restore --noflush out, "" if nothing is to be done. Our rules have a
comment by which they are recognised; upstream's chains are those whose names begin with "cali-", and its rules in
others' chains are those that lead there or whose comment begins with "cali:". Policies that we enforce with iptables
have names of the same kind (kernel/filter/legacy/names.py): they stay, and what is accepted comes behind them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from itertools import pairwise

from cni_calico.kernel.filter.legacy.names import CHAINS as OURS
from cni_calico.kernel.filter.legacy.names import SETS as OUR_SETS

COMMENT = "cni-calico: forward workload packets"
UPSTREAM = "cali-"
UPSTREAM_COMMENT = "cali:"
UPSTREAM_SETS = ("cali40", "cali60", "cali4t", "cali6t")  # the last two are left by an interrupted update


def _lines_of_tables(saved: str) -> dict[str, list[str]]:
    tables: dict[str, list[str]] = {}
    current: list[str] = []
    for line in saved.splitlines():
        if line.startswith("*"):
            current = tables.setdefault(line[1:].strip(), [])
        elif line.startswith((":", "-A ")):
            current.append(line)
    return tables


def drops_forwarded(saved: str) -> bool:
    """Whether the FORWARD chain drops or rejects what no rule accepted, by its policy or by its last rule."""
    lines = _lines_of_tables(saved).get("filter", [])
    if any(line.startswith(":FORWARD DROP") for line in lines):
        return True
    rules = [line for line in lines if line.startswith("-A FORWARD ")]
    return bool(rules) and rules[-1].startswith(("-A FORWARD -j DROP", "-A FORWARD -j REJECT"))


def plan_forward(saved: str, prefixes: Sequence[str]) -> str:
    """Add the missing rules at the head of the chain; remove ours that are no longer wanted."""
    wanted = [f"-{side} {prefix}+" for prefix in prefixes for side in ("i", "o")] if drops_forwarded(saved) else []
    there = [
        line for line in _lines_of_tables(saved).get("filter", []) if line.startswith("-A FORWARD ") and COMMENT in line
    ]
    missing = [match for match in wanted if not any(f" {match} " in line for line in there)]
    stale = [line for line in there if not any(f" {match} " in line for match in wanted)]
    if not missing and not stale:
        return ""
    lines = ["*filter", *("-D" + line[2:] for line in stale)]
    place = "2 " if _leads_to_policies(saved) else ""
    lines += [f'-I FORWARD {place}{match} -m comment --comment "{COMMENT}" -j ACCEPT' for match in missing]
    return "\n".join([*lines, "COMMIT"]) + "\n"


def _leads_to_policies(saved: str) -> bool:
    """Whether the first rule of FORWARD leads to our policies."""
    rules = (line for line in _lines_of_tables(saved).get("filter", []) if line.startswith("-A FORWARD "))
    return f"-j {OURS}" in next(rules, "")


def plan_takeover(saved: str) -> str:
    """Remove upstream's chains from every table, and its rules from others' chains."""
    out: list[str] = []
    for table, lines in _lines_of_tables(saved).items():
        chains = [line[1:].split()[0] for line in lines if line.startswith(f":{UPSTREAM}")]
        chains = [chain for chain in chains if not chain.startswith(OURS)]
        rules = ["-D" + line[2:] for line in lines if not line.startswith(f"-A {UPSTREAM}") and _is_upstreams(line)]
        if chains or rules:
            out += [f"*{table}", *(f":{chain} - [0:0]" for chain in chains), *rules]
            out += [*(f"-X {chain}" for chain in chains), "COMMIT"]
    return "\n".join(out) + "\n" if out else ""


def _is_upstreams(line: str) -> bool:
    """Whether a rule in another program's chain is upstream's: not all of them lead to a chain (some set marks)."""
    if not line.startswith("-A ") or f"-j {OURS}" in line:
        return False
    for word, after in pairwise(shlex.split(line)):
        if word in ("-j", "-g") and after.startswith(UPSTREAM):
            return True
        if word == "--comment" and after.startswith(UPSTREAM_COMMENT):
            return True
    return False


def select_upstream_sets(names: Iterable[str]) -> list[str]:
    """The IP sets that upstream's rules used."""
    ours = tuple(OUR_SETS.values())
    return [name for name in names if name.startswith(UPSTREAM_SETS) and not name.startswith(ours)]


def count_upstream_chains(saved: Iterable[str]) -> int:
    return sum(text.count(f"\n:{UPSTREAM}") - text.count(f"\n:{OURS}") for text in saved)
