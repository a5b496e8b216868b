"""PURE: what makes the kernel's tables hold the goal.

Rule: one place decides for each of our tables whether it is made, changed, made anew or removed; what is unread is
replaced without being known.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from cni_calico.netfilter.difference import Phases, Touched, plan_tables, remade
from cni_calico.netfilter.tables import DropTable, NftTable, TableId
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.optional import OptionalFeature
from cni_calico.nodeagent.policing.tables.touched import ARP, TABLES


def plan_goal(
    goal: Goal,
    wanted: Callable[[TableId], NftTable | None],
    held: Mapping[TableId, NftTable],
    unread: Collection[TableId],
    touched: Mapping[TableId, Touched] | None,
) -> Phases:
    """``wanted``: of a table, None: it is to be gone. ``unread``: tables that are there, but too large to be read.
    ``touched`` None: everything is compared.
    """
    others = Phases()
    changes: list[tuple[NftTable, NftTable | None, Touched | None]] = []
    for table in TABLES:
        whole = wanted(table)
        if table == ARP and whole is not None and OptionalFeature.ARP_ANSWERS in goal.lacking:
            continue
        if whole is None:
            if table in held or table in unread:
                others.removals.append(DropTable(table))
        elif table in unread:
            others.new += remade(whole, table)
        elif touched is None or table not in held:
            changes.append((whole, held.get(table), None))
        elif table in touched:
            changes.append((whole, held[table], touched[table]))
    phases = plan_tables(changes)
    phases.new += others.new
    phases.removals += others.removals
    return goal.refused.without(phases)
