"""PURE: what a reading of our tables is given, and what a later one recognises that an earlier one did not.

Rule: a chain is recognised by printing what is wanted and comparing; one that was not is no change of the kernel's when
another goal lets it be recognised, and is not written again when it turns out to be what is wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from cni_calico.netfilter.difference import Touched
from cni_calico.netfilter.rules import NftRule, Unrecognised
from cni_calico.netfilter.tables import NftChain, NftTable, TableId
from cni_calico.nodeagent.policing.tables.touched import GoalTables

Recognises = Callable[[TableId, NftChain, NftChain], bool]  # as PacketFilter.recognises


def as_recognised(before: Mapping[TableId, NftTable], now: Mapping[TableId, NftTable]) -> dict[TableId, NftTable]:
    """``before``, but chains that were not recognised then, because something else was wanted, are as they are now."""
    found = {}
    for table, there in before.items():
        chains = now[table].chains if table in now else {}
        late = {name: chains[name] for name, chain in there.chains.items() if name in chains and _is_strange(chain)}
        found[table] = replace(there, chains=there.chains | {n: one for n, one in late.items() if not _is_strange(one)})
    return found


def join_released(
    touched: dict[TableId, Touched], goal: GoalTables, held: Mapping[TableId, NftTable], recognises: Recognises
) -> None:
    """Add to ``touched`` what was kept of an earlier run until now. While it was read only stand-ins were wanted in its
    place: what equals the policies themselves is known in ``held`` from now on.
    """
    for table, released in goal.kept.take_released().items():
        touched.setdefault(table, Touched()).join(released)
        chains, wanted = held[table].chains, goal.of[table].chains
        for name in released.chains & chains.keys() & wanted.keys():
            there = chains[name]
            if _is_strange(there) and recognises(table, there, wanted[name]):
                chains[name] = replace(there, rules=wanted[name].rules)


def _is_strange(chain: NftChain) -> bool:
    return any(isinstance(test, Unrecognised) for rule in chain.rules[:1] for test in rule.tests)


def as_large(table: NftTable | None, more_rules: int) -> NftTable | None:
    """For a reader who looks only at its size."""
    if table is None or not more_rules:
        return table
    return replace(table, chains=table.chains | {"": NftChain("", (NftRule(),) * more_rules)})
