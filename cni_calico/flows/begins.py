"""PURE: decisions as they are read, many at once: connections that begin as others did are recorded together.

Rule: the outcome is that of one decision after the other. Taken together is only what begins a connection of which
nothing is known, and all but the times and source port of which is known from one before: names, rules, judging. They
are in the sums at once: the times of a sum do not go back when one of them is denied, or decided upon again, at once.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

from cni_calico.flows.arrivals import DecidedPacket
from cni_calico.flows.judging.unjudged import JudgedReports
from cni_calico.flows.names import Names
from cni_calico.flows.records import SIX, FlowRecord, record_from
from cni_calico.flows.stores import FlowStore
from cni_calico.flows.untranslated import UntranslatedDecisions

_MOST = 5_000  # that are remembered
_NOTHING = (0, 0, 0, 0)


class AlikeBegin:
    """``before``, ``after``: what a record has before and after its source port, without times; ``head``: with times
    and ``before`` now. ``judged``: counts those that need not be judged, None if each has to be. ``times``: how many
    begin so now.
    """

    __slots__ = ("after", "before", "head", "judged", "times")

    def __init__(self, record: FlowRecord, judged: list[int] | None) -> None:
        self.before, self.after = record[2:5], record[6:]
        self.head: tuple[int | bytes, ...] = ()
        self.judged, self.times = judged, 0


class BegunTogether:
    """Before ``deciding``."""

    def __init__(self, deciding: UntranslatedDecisions, store: FlowStore, judged: JudgedReports, names: Names) -> None:
        self._deciding, self._live, self._store, self._judged = deciding, deciding.live, store, judged
        self._names, self._version = names, (0, 0)
        self._known: dict[tuple[bytes, int, int], AlikeBegin] = {}

    def decide_all(self, decisions: Sequence[DecidedPacket], now: int, new: MutableMapping[int, None] | None) -> None:
        """``new``: gets the numbers of records that are new, or denied now, if somebody wants to know."""
        version = self._names.version, self._judged.version
        if self._version != version or len(self._known) >= _MOST:
            self._version = version
            self._known.clear()
        rest = decisions if self._deciding.may_hold(decisions) else self._begin_together(decisions, now, new)
        for one in rest:
            self._decide(one, now, new)

    def _begin_together(
        self, decisions: Sequence[DecidedPacket], now: int, new: MutableMapping[int, None] | None
    ) -> list[DecidedPacket]:
        """Returns those that are no such begin, in their order: none of these comes before one of the same connection
        that is.
        """
        busy = self._live.known_among({decision[1] for decision in decisions})
        known, pass_on = self._known, busy.add
        rest: list[DecidedPacket] = []
        keys: list[bytes] = []
        records: list[FlowRecord] = []
        found: list[AlikeBegin] = []
        unjudged: list[tuple[AlikeBegin, DecidedPacket]] = []
        for decision in decisions:
            allowed, key, number, also = decision
            alike = known.get((key[:-4] + key[-2:], number, also)) if allowed else None
            if alike is None or key in busy:
                pass_on(key)
                rest.append(decision)
                continue
            pass_on(key)
            if alike.judged is None:
                unjudged.append((alike, decision))
            if not alike.times:
                found.append(alike)
                alike.head = now, now, *alike.before
            alike.times += 1
            keys.append(key)
            records.append(record_from((*alike.head, key[-4] << 8 | key[-3], *alike.after)))
        if keys:
            counts = [(record_from((*one.head, 0, *one.after)), one.times) for one in found]
            first = self._live.begin_all(keys, records, counts)
            for one in found:
                if one.judged is not None:
                    one.judged[0] += one.times
                one.times = 0
            for one, (_, key, number, also) in unjudged:
                self._judged.check(key, number, also)
                one.judged = self._judged.counter(key, number, also)
            if new is not None:
                new.update(dict.fromkeys(range(first, first + len(keys))))
        return rest

    def _decide(self, decision: DecidedPacket, now: int, new: MutableMapping[int, None] | None) -> None:
        allowed, key, number, also = decision
        live = self._live
        following, denied = self._store.next, live.denied
        self._judged.check(key, number, also)
        where = self._deciding.decide(key, number, now, allowed=allowed, also=also)
        if new is not None and (where >= following or live.denied > denied):
            new[where] = None
        if allowed and where >= following:
            self._learn(key, number, also, where, now)

    def _learn(self, key: bytes, number: int, also: int, where: int, now: int) -> None:
        """If it is a connection of which only that is known."""
        record, decided = self._store.read(where), self._live.decided_by(number, also)
        if record is None or decided is None or record.key != key or record[:2] != (now, now):
            return
        if record[10:15] == (*decided, 0) and record[15:19] == _NOTHING and record.flags in (0, SIX):
            counter = self._judged.counter(key, number, also)
            self._known[key[:-4] + key[-2:], number, also] = AlikeBegin(record, counter)
