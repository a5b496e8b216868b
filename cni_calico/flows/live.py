"""Which record a decision or an end belongs to: connections that last, and attempts that were denied.

Rule: a connection is one record, however many rules decide about it and however often its first packet comes. What
decided is in the record as soon as it is known; nothing waits for an end. Time is given, in microseconds since 1970.
A rule decides about a connection once, within a moment: what it decides later is another connection with the same
addresses and ports, also while the end of the one before has not been read (``flows.reuse``).

Where a host endpoint and a workload decide in the same direction, the workload is asked last on the way in and first on
the way out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from cni_calico.flows.attempts import DeniedAttempts
from cni_calico.flows.deciders import FIRST, Decider
from cni_calico.flows.lasting import LastingConnections, owner_of
from cni_calico.flows.limits import FlowLimits
from cni_calico.flows.oldest import OldestKeys, forget_oldest
from cni_calico.flows.outcomes import (
    MOST_COUNT,
    NOBODY,
    DecidedSides,
    counted,
    decided_in,
    ended,
    with_decision,
    with_one_more,
)
from cni_calico.flows.packets import key_as_sent, parts_of
from cni_calico.flows.records import DENIED, ENDED, GONE, SIX, FlowRecord, record_from
from cni_calico.flows.reuse import ReusedKeys
from cni_calico.flows.stores import FlowStore, RecordRow
from cni_calico.kernel.netlink.ended import TrackedConnection

ATTEMPT_US = 64_000_000  # a repeated first packet within that is the same attempt, as long as it is denied
_AT_ONCE_US = 1_000_000  # two first packets of a connection, and what both sides decide about it
_LATE_US = 5_000_000  # what others have to say of the same packet: reports may be held back
_END_LATE_US = 10_000_000
_EARLY_US, _EARLY_MOST = 2_000_000, 10_000  # ends that arrive before what they end
_ANY = 1 << 63  # no record has a higher number
_REMEMBERED = 10_000


class LiveFlows:
    """``decider_of``: what a number stands for, None if that is unknown; ``name_of``: the number of the name that an
    address has now, 0 for none. ``most``: connections that are followed at once; what goes for others' sake
    looks as if it lasted for ever. ``all_read``: when nothing was left that had been reported before.
    """

    def __init__(
        self,
        store: FlowStore,
        decider_of: Callable[[int], Decider | None],
        name_of: Callable[[bytes], int],
        most: int = 100_000,
    ) -> None:
        self._store, self._decider_of, self._name_of, self._most = store, decider_of, name_of, most
        self._lasting = LastingConnections(most)
        self._attempts = DeniedAttempts()
        self._early: dict[bytes, tuple[TrackedConnection, int]] = {}
        self._oldest_early = OldestKeys(self._early)
        self._reused = ReusedKeys()
        self._decided: dict[tuple[int, int], DecidedSides] = {}  # by the numbers that let a first packet through
        self._missing: set[bytes] = set()
        self.all_read = 0
        self._newest, self._marked, self._young, self._before_step = 0, _ANY, _ANY, 0  # numbers of records
        self.allowed = self.denied = self.dropped = self.unknown = 0

    def __len__(self) -> int:
        return len(self._lasting)

    def limit(self, limits: FlowLimits) -> None:
        """Follow so many from now on."""
        self._most = limits.live
        self.dropped += self._lasting.limit(self._most)

    def resume(self, records: Iterable[tuple[int, FlowRecord]]) -> None:
        """Go on with what an earlier recorder wrote; the newest come first."""
        found: dict[bytes, int] = {}
        for number, record in records:
            if len(found) >= self._most:
                break
            if not record.flags & (ENDED | DENIED) and found.setdefault(record.key, number) != number:
                self._end_unseen(number)
        for key, number in reversed(found.items()):
            self._follow(key, number, self._name_of(owner_of(key)))

    # -- decisions ----------------------------------------------------------------------------------------------------

    def decide(self, key: bytes, number: int, now: int, *, allowed: bool, also: int = 0) -> int:
        """Returns the number of the record. ``also``: what let the same packet through right after it, 0 for none."""
        if not allowed:
            self._decider(number)
            return self._deny(key, number, now)
        if key not in self._attempts and key not in self._lasting:
            return self._begin(key, self._decided.get((number, also)) or self._first(number, also), now)
        where = self._go_on(key, number, self._decider(number), now)
        return self._go_on(key, also, self._decider(also), now) if also else where

    def _first(self, number: int, also: int) -> DecidedSides:
        """What has decided about a connection that begins; remembered where it is known."""
        deciders = [(one, self._decider(one)) for one in ((number, also) if also else (number,))]
        decided = NOBODY
        for one, decider in deciders:
            decided = with_one_more(decided, one, decider)
        if all(decider is not None for _, decider in deciders):
            if len(self._decided) >= _REMEMBERED:
                self._decided.clear()
            self._decided[number, also] = decided
        return decided

    def _decider(self, number: int) -> Decider | None:
        decider = self._decider_of(number)
        if decider is None and number >= FIRST:
            self.unknown += 1
        return decider

    def _go_on(self, key: bytes, number: int, decider: Decider | None, now: int) -> int:
        """With a connection or an attempt that may be the same."""
        where = self._lasting.get(key)
        record = None if where is None else self._store.read(where)
        repeated = record is not None and number in record.decided
        at_once = _AT_ONCE_US if repeated else _LATE_US
        if record is not None and where is not None and not self._is_over(where, record, now, at_once):
            if not repeated:
                self._store.update(where, with_decision(record, number, decider, now))
            else:
                self._reused.note_repeat(key, number, now)
            return where
        decided = NOBODY
        attempt = self._attempts.get(key)
        denied = None if attempt is None else self._store.read(attempt)
        if attempt is not None and denied is not None and now - denied.last <= ATTEMPT_US:
            if number in denied.numbers():  # tried again: what denied it has not been asked yet
                if number not in (again := self._attempts.let_through_by(key)):
                    self._attempts.let_through(key, with_one_more(again, number, decider))
                return attempt
            if not denied.egress and decider is not None and not decider.ingress:
                self._store.update(attempt, denied.but(egress=number))
                return attempt  # it let out what the other side denied: the kernel's two lists are read in turn
            if decider is not None and decider.untranslated:
                self._store.update(attempt, with_decision(denied, number, decider, denied.last))
                return attempt
            decided = denied.egress, self._if_untranslated(denied.ingress), 0, denied.host_in
        self._attempts.pop(key)
        return self._begin(key, with_one_more(decided, number, decider), now)

    def _if_untranslated(self, number: int) -> int:
        decider = self._decider_of(number)
        return number if decider is not None and decider.untranslated else 0

    def _begin(self, key: bytes, decided: DecidedSides, now: int) -> int:
        """A connection."""
        self.allowed += 1
        made = self._new(key, now, decided)
        if self._early:
            early = self._early.pop(key, None)
            if early is not None:
                return self._store.append(ended(made, early[0], now))
        if key in self._lasting:
            self._replace(key, now)
        if self._reused.has_repeats:
            self._reused.forget_repeats(key)
        made_at = self._newest = self._store.append(made)
        self._follow(key, made_at, made.source_end)
        return made_at

    def _replace(self, key: bytes, now: int) -> None:
        """A younger connection has the key: the end of the one before, if there is one, has not been read yet."""
        where = self._lasting.pop(key)
        if where is not None:
            self._reused.wait_for_end(key, where, now)

    def known_among(self, keys: set[bytes]) -> set[bytes]:
        """Of which something is known, so that another decision may be about the same connection."""
        early, attempts = keys & self._early.keys(), self._attempts.among(keys)
        return self._lasting.known_among(keys) | early | attempts | self._reused.repeated_among(keys)

    def begin_all(
        self, keys: Sequence[bytes], records: Sequence[FlowRecord], alike: Sequence[tuple[FlowRecord, int]]
    ) -> int:
        """Connections of which nothing is known (``known_among``). Returns the number of the first; ``alike``: as for
        ``FlowStore.append_all``.
        """
        self.allowed += len(keys)
        first = self._store.append_all(records, alike)
        self._newest = first + len(keys) - 1
        if self._missing:
            self._missing.difference_update(keys)
        shares = [(owner_of(record.key) if record.source_end else b"", times) for record, times in alike]
        self.dropped += self._lasting.add_all(keys, first, shares)
        return first

    def decided_by(self, number: int, also: int) -> DecidedSides | None:
        """What has decided about a connection that began with these; None if that is not remembered."""
        return self._decided.get((number, also))

    def _follow(self, key: bytes, number: int, source_end: int) -> None:
        """Whoever has a name has a share. Nothing that was missing before is this one."""
        if self._missing:
            self._missing.discard(key)
        self.dropped += self._lasting.add(key, number, owner_of(key) if source_end else b"")

    def _is_over(self, where: int, record: FlowRecord, now: int, most: int) -> bool:
        """Whether a decision is too late to be about that connection, other than by our own slowness."""
        if where <= self._before_step:
            return True
        return now - record.last > most and record.last < self.all_read - _AT_ONCE_US

    def _deny(self, key: bytes, number: int, now: int) -> int:
        again, known = self._attempts.let_through_by(key), self._attempts.pop(key)
        where = known if known is not None else self._lasting.get(key)
        record = None if where is None else self._store.read(where)
        if known is None and record is not None and where is not None and self._is_over(where, record, now, _LATE_US):
            self._replace(key, now)
            self._reused.forget_repeats(key)
            record = None
        if where is not None:
            self._lasting.pop(key)
        if record is None or where is None or record.denied_by not in (0, number) or now - record.last > ATTEMPT_US:
            self.denied += 1
            where, record = None, self._new(key, now, again if record is not None else NOBODY)
        elif not record.denied:
            self.allowed, self.denied = self.allowed - 1, self.denied + 1
        packets = min(MOST_COUNT, record.packets + 1)
        record = record.but(flags=record.flags | DENIED, denied_by=number, packets=packets, last=now)
        if where is None:
            where = self._store.append(record)
        else:
            self._store.update(where, record)
        self._attempts.put(key, where, now)
        self._attempts.limit(self._most)
        return where

    def denied_since(self, since: int) -> list[bytes]:
        """The keys of attempts."""
        found = ((key, self._store.read(where)) for key, where in self._attempts.newest_first(since))
        return [key for key, record in found if record is not None and record.last >= since]

    def note_sent(self, where: int, destination: bytes, port: int) -> None:
        """Where the first packet was sent."""
        record = self._store.read(where)
        if record is not None:
            self._store.update(where, record.but(asked=destination, asked_port=port))

    def _new(self, key: bytes, now: int, decided: DecidedSides) -> FlowRecord:
        source, destination, protocol, sport, dport = parts_of(key)
        name_of, flags = self._name_of, SIX if len(source) == 16 else 0
        where = now, now, source, destination, destination, sport, dport, dport, protocol, flags
        return record_from(where + decided + (0, 0, 0, 0, 0, name_of(source), name_of(destination)))

    # -- ends ---------------------------------------------------------------------------------------------------------

    def lasting_among(self, keys: Sequence[bytes]) -> list[int | None]:
        """The record of each that lasts and may end (``forget_ended``) by nothing but its key."""
        found = self._lasting.numbers_of(keys)
        waiting = self._reused.waiting_among(keys)
        return (
            [None if key in waiting else number for key, number in zip(keys, found, strict=True)] if waiting else found
        )

    def ends(self, connection: TrackedConnection, row: RecordRow) -> bool:
        """Whether it is the end of that record's connection, and not of one before or after it."""
        began: int = row[0]
        return began < self.all_read and connection[7] * 1e6 <= began + _AT_ONCE_US

    def forget_ended(self, keys: Collection[bytes]) -> None:
        """They do not last any more."""
        self._lasting.pop_all(keys)

    def end(self, connection: TrackedConnection, now: int) -> int:
        """Returns the number of the record, 0 if there is none (yet)."""
        key = connection[0]
        where, record = self._take_ended(connection)
        if where is None:
            if not self._is_reported(connection):
                self._early[key] = connection, now
                if len(self._early) > _EARLY_MOST:
                    del self._early[self._oldest_early.first()]
            return 0
        if record is not None:
            self._store.update(where, ended(record, connection, now))
        return where

    def _take_ended(self, connection: TrackedConnection) -> tuple[int | None, FlowRecord | None]:
        """The oldest with that key that did not begin long before it: the ends of those were lost."""
        key = connection.key
        while (waiting := self._reused.take_waiting(key)) is not None:
            record = self._store.read(waiting)
            if record is None or not _is_younger(connection, record):
                return waiting, record
            self._end_unseen(waiting)
        if (where := self._lasting.get(key)) is None:
            key, where = self._as_sent(connection)
        if where is not None:
            record = self._store.read(where)
            if record is not None and record.began >= self.all_read and self._is_reported(connection):
                return None, None  # it is of one before, the reports of which were lost
            self._lasting.pop(key)
            if record is None or not _is_younger(connection, record):
                return where, record
            self._end_unseen(where)
        began = int(connection.began * 1e6)
        repeats = self._reused.take_repeats(key, began)
        if not repeats:
            return None, None
        decided = NOBODY
        for number in repeats:
            decided = with_one_more(decided, number, self._decider_of(number))
        where = self._begin(key, decided, began)
        self._lasting.pop(key)
        return where, self._store.read(where)

    def _as_sent(self, connection: TrackedConnection) -> tuple[bytes, int | None]:
        """(key, record) of one about which was decided only before translation (``flows.untranslated``)."""
        sent = key_as_sent(*connection[:3])
        where = None if sent == connection.key else self._lasting.get(sent)
        return (connection.key, None) if where is None else (sent, where)

    def _is_reported(self, connection: TrackedConnection) -> bool:
        """What was reported about its begin has been read."""
        return 0 < connection.began * 1e6 < self.all_read - _AT_ONCE_US

    def note_all_read(self, now: int) -> None:
        """Nothing is left that was reported before."""
        self.all_read = now

    def note_step(self, now: int) -> None:
        """Somebody has set the clock: times from before tell nothing any more. Whatever is decided from now on is about
        other connections.
        """
        self._before_step = self._newest
        self._attempts.clear()
        self._early.clear()
        self.all_read = now

    def _end_unseen(self, where: int) -> None:
        record = self._store.read(where)
        if record is not None:
            self._store.update(where, record.but(flags=record.flags | ENDED | GONE))

    def tidy(self, now: int) -> None:
        """Forget what can only be another connection by now."""
        for where in self._reused.take_overdue(now - _END_LATE_US):
            self._end_unseen(where)
        self._attempts.forget(now - ATTEMPT_US)
        forget_oldest(self._early, now - _EARLY_US)

    # -- comparing with what connection tracking has ------------------------------------------------------------------

    def mark(self) -> bool:
        """Returns whether a connection lasts that did so at the last mark, or before this recorder. Those that have
        begun since then are young: what they have carried is not asked for.
        """
        self._young, self._marked = self._marked, self._newest
        return self._lasting.has_before(self._young)

    def begin_comparison(self) -> set[bytes]:
        """The connections that should be found; hand them to ``compare`` and ``end_comparison``."""
        return self._lasting.everything()

    def compare(self, expected: set[bytes], connection: TrackedConnection, now: int) -> None:
        """It is there. What was let through while nobody recorded gets a record if its label says who decided, once
        there is room: it takes no other one's place, which would be found here again.
        """
        key = connection.key
        if (where := self._lasting.get(key)) is None:
            key, where = self._as_sent(connection)
        if where is not None:
            record = self._store.read(where) if where <= self._young else None
            expected.discard(key)
            if record is None or not _is_younger(connection, record):
                if record is not None:
                    self._store.update(where, counted(record, connection, record.last))
                return
            self._lasting.pop(key)  # its report was lost, and so was the end of the one before
            self._end_unseen(where)
        egress, ingress = decided_in(connection.label)
        if (egress or ingress) and not self._lasting.is_full:
            began = int(connection.began * 1e6) or now
            made = self._new(key, began, (egress, ingress, 0, 0)).but(last=now)
            self.allowed += 1
            self._follow(key, self._store.append(counted(made, connection, now)), made.source_end)

    def end_comparison(self, expected: set[bytes]) -> None:
        """What was missing twice has ended unseen: a list may miss an entry once."""
        gone = self._lasting.known_among(expected & self._missing)
        for key in gone:
            where = self._lasting.pop(key)
            if where is not None:
                self._end_unseen(where)
        expected -= gone
        self._missing = self._lasting.known_among(expected)


def _is_younger(connection: TrackedConnection, record: FlowRecord) -> bool:
    """Whether it began when the record was there already."""
    return connection[7] * 1e6 > record[0] + _AT_ONCE_US
