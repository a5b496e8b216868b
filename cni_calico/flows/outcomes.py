"""PURE: a record with what was heard of its connection: one more decision, what it has carried, its end.

Rule: nothing that is known becomes unknown.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

from cni_calico.flows.deciders import Decider
from cni_calico.flows.records import COUNTED, ENDED, FlowRecord, record_from
from cni_calico.kernel.netlink.ended import TrackedConnection

DecidedSides = tuple[int, int, int, int]
"""Numbers of what decided: egress, ingress, host_out, host_in."""
NOBODY: DecidedSides = (0, 0, 0, 0)
MOST_COUNT = (1 << 32) - 1
_LABEL, _ALL = Struct("=4I"), 0xFFFFFFFF


def decided_in(label: bytes) -> tuple[int, int]:
    """(egress, ingress) from the label of a connection, 0 for nobody or not to be told."""
    if len(label) != _LABEL.size:
        return 0, 0
    egress, not_egress, ingress, not_ingress = _LABEL.unpack(label)
    return egress if egress ^ not_egress == _ALL else 0, ingress if ingress ^ not_ingress == _ALL else 0


def with_decision(record: FlowRecord, number: int, decider: Decider | None, now: int) -> FlowRecord:
    before: DecidedSides = record.decided[:4]
    egress, ingress, host_out, host_in = with_one_more(before, number, decider)
    last = max(now, record.last)
    return record.but(last=last, egress=egress, ingress=ingress, host_out=host_out, host_in=host_in)


def with_one_more(before: DecidedSides, number: int, decider: Decider | None) -> DecidedSides:
    egress, ingress, host_out, host_in = before
    if decider.ingress if decider is not None else egress:
        return egress, number, host_out, ingress
    if not egress:
        return number, ingress, host_out, host_in
    return egress, ingress, number, host_in


def counted(record: FlowRecord, seen: TrackedConnection, last: int, flags: int = 0) -> FlowRecord:
    """With what it has carried. ``flags``: to be added."""
    _, asked, asked_port, packets, size, packets_back, size_back, *_ = seen
    fields: list[Any] = [*record]
    fields[1], fields[4], fields[7] = last, asked, asked_port or fields[6]
    if packets is not None and packets_back is not None:
        flags |= COUNTED
        fields[15:19] = min(MOST_COUNT, packets), size or 0, min(MOST_COUNT, packets_back), size_back or 0
    fields[9] |= flags
    return record_from(fields)


def ended(record: FlowRecord, seen: TrackedConnection, now: int) -> FlowRecord:
    when = seen[8]
    return counted(record, seen, max(int(when * 1e6) if when else now, record[0]), ENDED)
