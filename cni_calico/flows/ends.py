"""PURE: ends of connections as they are read, many at once.

Rule: the outcome is that of one end after the other. Taken together are ends of connections that are followed, whose
begin was read before, and of which nothing else has the key; they are nearly all.
"""

from __future__ import annotations

from collections.abc import Sequence

from cni_calico.flows.outcomes import MOST_COUNT, ended
from cni_calico.flows.records import COUNTED, ENDED, FlowRecord, record_from
from cni_calico.flows.stores import FlowStore, RecordRow
from cni_calico.flows.untranslated import UntranslatedDecisions
from cni_calico.kernel.netlink.ended import TrackedConnection

_FIELDS, _FLAGS = len(FlowRecord._fields), COUNTED | ENDED


class EndedTogether:
    """Before ``deciding``."""

    def __init__(self, deciding: UntranslatedDecisions, store: FlowStore) -> None:
        self._deciding, self._live, self._store = deciding, deciding.live, store

    def end_all(self, connections: Sequence[TrackedConnection], now: int) -> None:
        """``end`` each."""
        if not connections:
            return
        rest = connections if self._deciding.holds_any else self._end_together(connections, now)
        for connection in rest:
            self._deciding.end(connection, now)

    def _end_together(self, connections: Sequence[TrackedConnection], now: int) -> list[TrackedConnection]:
        """Returns those that are not so plain, in their order."""
        live, rest = self._live, list[TrackedConnection]()
        numbers = live.lasting_among([connection[0] for connection in connections])
        rows = self._store.rows([number for number in numbers if number is not None])
        found: list[tuple[int, RecordRow, FlowRecord]] = []
        keys: dict[bytes, None] = {}
        left: set[bytes] = set()
        for connection, number in zip(connections, numbers, strict=True):
            key = connection[0]
            row = None if number is None else rows.get(number)
            if row is None or number is None or key in keys or key in left or not live.ends(connection, row):
                rest.append(connection)
                left.add(key)
                continue
            keys[key] = None
            found.append((number, row, _ended(row, connection, now)))
        live.forget_ended(keys)
        self._store.end_all(found)
        return rest


def _ended(row: RecordRow, connection: TrackedConnection, now: int) -> FlowRecord:
    """As ``outcomes.ended``: of nearly all."""
    _, asked, port, packets, size, packets_back, size_back, _, when, _ = connection
    if packets is None or packets_back is None or packets > MOST_COUNT or packets_back > MOST_COUNT or not when:
        return ended(record_from(row[:_FIELDS]), connection, now)
    began, _, source, destination, _, sport, dport, _, protocol, flags, out, into, host_out, host_in, by, *_ = row
    last = int(when * 1e6)
    where = source, destination, asked, sport, dport, port or dport, protocol, flags | _FLAGS, out, into, host_out
    carried = host_in, by, packets, size or 0, packets_back, size_back or 0, row[19], row[20]
    return record_from((began, last if last > began else began, *where, *carried))
