"""What the policies of a connection's other end make of a change at this end: allowed here and denied there is no
connection.
"""

from __future__ import annotations

from cni_calico.ctl.policy.changed_rows import ChangedRow
from cni_calico.model.keys import ResourceKey
from cni_calico.policy.judge.cells import AskedEachTime, plane_of
from cni_calico.policy.judge.compare import verdict_of
from cni_calico.policy.judge.spans import intersection
from cni_calico.policy.judge.worlds import ComparedEnd, WorldPair
from cni_calico.policy.wanted import Direction, Packed

_MOST = 400  # pairs of ends that are looked at for one line


def describe_other_end(worlds: WorldPair, row: ChangedRow) -> str:
    """Nothing where the other end lets through what this one now allows, or where there are too many ends to say."""
    if row.reach is not None or row.after is None or row.denies or len(row.sources) * len(row.destinations) > _MOST:
        return ""
    other: Direction = "egress" if row.direction == "ingress" else "ingress"
    denied = allowed = False
    for source in row.sources:
        for destination in row.destinations:
            for verdict in _verdicts(worlds, row, other, source, destination):
                denied, allowed = denied or verdict == "Deny", allowed or verdict != "Deny"
    if not denied:
        return ""
    return f"{other} of the other end denies {'a part of it' if allowed else 'it'} all the same"


def _verdicts(
    worlds: WorldPair, row: ChangedRow, direction: Direction, source: ComparedEnd, destination: ComparedEnd
) -> set[str]:
    asked = destination if direction == "ingress" else source
    if not isinstance(asked, ResourceKey) or asked not in worlds.after.endpoints:
        return {"Allow"}
    judge = worlds.judges[1]
    group = judge.of_workload(asked, direction)
    found: set[str] = set()
    for one in _addresses(worlds, source):
        for another in _addresses(worlds, destination):
            if len(one) != len(another):
                continue
            family = 4 if len(one) == 4 else 6
            for protocol, piece in row.pieces:
                cell = judge.cell(group, one, another, protocol)
                everything = plane_of(protocol, family)
                low, high = piece.firsts
                if isinstance(cell, AskedEachTime):
                    found.add(verdict_of(cell.find(low, piece.seconds[0][0])))
                    continue
                for first in {low, *(cut for cut in cell.cuts() if low < cut <= high)}:
                    across = cell.across(first, everything)
                    found.update(verdict_of(judged) for there, judged in across if intersection(there, piece.seconds))
    return found


def _addresses(worlds: WorldPair, end: ComparedEnd) -> tuple[Packed, ...]:
    if not isinstance(end, ResourceKey):
        return (end.example,)
    endpoint = worlds.after.endpoints.get(end)
    return () if endpoint is None else endpoint.addresses
