"""PURE: what upstream's agent programs for a case of tests/golden/policy, as text that can be loaded.

Rule: the dumps are upstream's except what the recording left out, which is put back: chains without rules, and the
comment by which upstream knows its rules in others' chains. Names of interfaces and addresses can be replaced by those
of a node that is there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden" / "policy"
_HASH = "cali:0123456789abcdef"
_OTHERS = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")


def nft_script(name: str, replaced: Mapping[str, str] | None = None) -> str:
    """For ``nft -f``."""
    text = _replace((GOLDEN / f"{name}.upstream").read_text(), replaced)
    made = []
    for table in re.findall(r"(?ms)^table (\S+ \S+) \{$(.*?)^\}$", text):
        defined = set(re.findall(r"(?m)^\tchain (\S+) \{$", table[1]))
        missing = sorted(set(re.findall(r"(?:jump|goto) ([^\s,;]+)", table[1])) - defined)
        made += [f"add table {table[0]}", *(f"add chain {table[0]} {chain}" for chain in missing)]
    return "\n".join(made) + "\n" + text


def iptables_scripts(name: str, replaced: Mapping[str, str] | None = None) -> tuple[str, str]:
    """For ``ipset restore``, and then for ``iptables-legacy-restore``."""
    rules, sets = _replace((GOLDEN / f"{name}.upstream-iptables").read_text(), replaced).split("### ipset\n")
    return sets, re.sub(rf"(?m)^-A ({'|'.join(_OTHERS)}) ", rf'-A \1 -m comment --comment "{_HASH}" ', rules)


def _replace(text: str, replaced: Mapping[str, str] | None) -> str:
    if not replaced:
        return text
    words = "|".join(map(re.escape, replaced))
    return re.sub(rf"(?<![\w.])({words})(?![\w.])", lambda found: replaced[found[1]], text)
