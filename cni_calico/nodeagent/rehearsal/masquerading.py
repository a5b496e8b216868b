"""Masquerading in a rehearsal: our rules as they are beside those that would be.

Rule: both are compared as text, word by word, sets without the order of their members; rules that nft prints in words
of its own seem to change, which is said rather than passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cni_calico.deadline import Deadline
from cni_calico.kernel.filter import iptables, nft
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.desired import Nat
from cni_calico.nodeagent.dataplane.masquerade_rules import (
    CHAIN,
    FAMILY,
    TABLE,
    render_iptables,
    render_nftables,
    select_own,
)

_SET = re.compile(r"set ([\w-]+) \{.*?elements = \{([^}]*)\}", re.DOTALL)
_BEGINNINGS = ("ip ", "ip6 ", "oifname ", "meta ")


def describe_nat(nat: Nat, felix: FelixSettings, by_nftables: bool, deadline: Deadline) -> Iterator[str]:
    """What would be done for one family. ``by_nftables``: which way is used. Raises KernelError."""
    wanted = ", ".join(map(str, nat.sources)) or "none"
    if by_nftables:
        there = nft.print_table(FAMILY[nat.family], TABLE, deadline)
        is_same = same_rules(there, render_nftables(nat)) if nat.sources else not there
    else:
        in_use = iptables.in_use(nat.family, "legacy")
        own = select_own(iptables.read_rules(nat.family, "legacy", deadline)) if in_use else []
        is_same = sorted(_iptables_rules(own)) == sorted(_wanted_iptables(nat, felix)) if nat.sources else not own
        there = "\n".join(own)
    if is_same or (nat.partial and there):
        return
    if by_nftables and not nat.sources:
        yield f"remove table {FAMILY[nat.family]} {TABLE}"
    else:
        yield f"{'change' if there else 'set'} masquerading for IPv{nat.family}: {wanted}"


def same_rules(there: str, script: str) -> bool:
    """Whether ``nft list table`` printed what the script makes."""
    return _rules(there) == _rules(script) and _sets(there) == _sets(script)


def _rules(text: str) -> list[list[str]]:
    lines = (line.strip() for line in text.splitlines())
    return [line.split() for line in lines if line.startswith(_BEGINNINGS)]


def _sets(text: str) -> dict[str, frozenset[str]]:
    split = ((name, frozenset(members.replace(",", " ").split())) for name, members in _SET.findall(text))
    return {name: members for name, members in split if members}


def _iptables_rules(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("-A ") and not line.endswith(f"-j {CHAIN}")]


def _wanted_iptables(nat: Nat, felix: FelixSettings) -> list[str]:
    script = render_iptables(nat, True, felix.chain_insert_mode == "insert")
    return _iptables_rules(script.splitlines())
