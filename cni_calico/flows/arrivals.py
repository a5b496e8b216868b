"""What the kernel reports to the recorder: decisions of rules, ends of connections, and what of it was lost.

Rule: of each kind only so much is recorded in a second, a packet that both sides of the host decide about once. What
comes beyond that is still recorded if its sender has not had much of it, and else counted as lost; what is too much
even to be looked at the kernel drops and numbers.
So a flood costs a bounded share of a processor, its loss is known exactly, and others' records are not lost with it.
Denied packets have a socket of their own: they cannot push out what was let through. Who records only those listens to
nothing else, so that no other packet and no connection pays for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from errno import EBUSY, EPERM
from operator import itemgetter

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.flows.groups import PAIRS, groups_of
from cni_calico.flows.lasting import owner_of
from cni_calico.flows.limits import USUAL_LIMITS, FlowLimits
from cni_calico.flows.losses import ALLOWED, DENIED, ENDS, OVERRUN, RATE, Loss
from cni_calico.flows.packets import key_of
from cni_calico.kernel.netlink.decisions import IN_DATAGRAM, DecisionReports, ReportedDecision
from cni_calico.kernel.netlink.ended import EndedConnections, TrackedConnection

AT_ONCE = 64  # datagrams of a socket
_ENDS_AT_ONCE = AT_ONCE * IN_DATAGRAM  # one in each: else those of what is read would fall behind
_ROOMS = {ALLOWED: 8 << 20, DENIED: 4 << 20, ENDS: 32 << 20}
_LOOKED_AT = 3  # times as many reports
_SMALL = 20  # a part of them that any sender may have
_OF_A_PACKET = 3  # reports of what lets it through, at most
_OPEN_S, _DESCRIBED_EVERY_S = 10.0, 3600.0
_NUMBER = itemgetter(0)  # of a report
_TAKEN = EBUSY, EPERM  # what the kernel says of a group that another program listens to


DecidedPacket = tuple[bool, bytes, int, int]
"""Whether it was let through; the key of its connection; the number of the rule; that of what let the same packet
through right after it, 0 for nothing: where both sides decide here they report one after the other.
"""


class SharedSecond:
    """How many packets of a kind are recorded in a second, and whose. ``shed``: reports of those that never were."""

    def __init__(self, most: int) -> None:
        self.limit(most)
        self._keys: list[bytes] = []  # of those that were taken while there was room for any
        self._senders: dict[bytes, int] = {}
        self._taken = self.shed = 0
        self.is_over = False

    def limit(self, most: int) -> None:
        self.most, self._small = most, most // _SMALL

    def begin(self) -> None:
        self._keys.clear()
        self._senders.clear()
        self._taken, self.is_over = 0, False

    def may_have_all(self, packets: Sequence[DecidedPacket]) -> bool:
        """Whether whoever sends may have so many more; then they are taken."""
        if self._taken + len(packets) > self.most:
            return False
        self._taken += len(packets)
        self._keys += [packet[1] for packet in packets]
        return True

    def may_have(self, packet: DecidedPacket) -> bool:
        """Whether the sender of this one may have it. Who had how much is asked only once the most is reached."""
        key = packet[1]
        if self._taken < self.most:
            self._taken += 1
            self._keys.append(key)
            return True
        if self._keys:
            self._senders = Counter(map(owner_of, self._keys))
            self._keys.clear()
        sender = owner_of(key)
        count = self._senders[sender] = self._senders.get(sender, 0) + 1
        if count > self._small:
            self.shed += 2 if packet[3] else 1
            self.is_over = True
            return False
        self._taken += 1
        return True


class Arrivals:
    """In the network namespace of the calling thread; ``clock`` never steps. ``malformed``: packets that belong to no
    connection. ``allowed``: also what is let through, and ends. ``pair``: of groups, the one that was asked for or the
    first after it to which nobody else listens.
    Raises KernelError (EPERM, EBUSY: other programs listen to all of our groups).
    """

    def __init__(self, clock: Callable[[], float], pair: int = 0, *, allowed: bool = True) -> None:
        self._clock = clock
        self.malformed, self._unplaced = 0, b""
        self._described = 0, 0.0  # how many strange messages; when others may be
        self.totals = Counter[str]()  # the same, of each source
        self.numbers = Counter[int]()  # reports of each rule that were read, also those that are not recorded
        self.came = 1  # reports and ends since whoever takes them began to count
        self._second, self._seen = 0, Counter[str]()
        usual = USUAL_LIMITS
        self._shares = {ALLOWED: SharedSecond(usual.rate), DENIED: SharedSecond(usual.denied_rate)}
        self._unfinished: list[ReportedDecision] = []  # of a packet that was let through; more of them may follow
        self._held_back: set[str] = set()  # what had more reports than may be taken in this second
        self._told = Counter[str]()
        with ExitStack() as opened:
            sources = (ALLOWED, DENIED) if allowed else (DENIED,)
            self.pair, self._reports = _open_first(pair, sources, opened)
            self._ends = opened.enter_context(EndedConnections(_ROOMS[ENDS])) if allowed else None
            self._opened = opened.pop_all()
        self._all_read, self._next_read, self._awaited = clock(), clock(), list[int]()

    def close(self) -> None:
        self._opened.close()

    def limit(self, limits: FlowLimits) -> None:
        """Take so much in a second from now on."""
        self._shares[ALLOWED].limit(limits.rate)
        self._shares[DENIED].limit(limits.denied_rate)

    @property
    def groups(self) -> tuple[int, int]:
        """That are listened to."""
        return groups_of(self.pair)

    def descriptors(self) -> list[int]:
        """Of the sockets, to wait for."""
        ends = () if self._ends is None else (self._ends,)
        return [one.fileno() for one in (*self._reports.values(), *ends)]

    @property
    def is_behind(self) -> bool:
        """Whether reports wait for the next second."""
        return bool(self._held_back)

    def behind_s(self) -> float:
        """Everything that was reported so long ago has been read, also where there is always more: what waited then was
        in front of what has been read since.
        """
        now = self._clock()
        if all(one.read >= awaited for one, awaited in zip(self._reports.values(), self._awaited, strict=False)):
            self._all_read, self._next_read = self._next_read, now
            self._awaited = [one.read + one.waiting for one in self._reports.values()]
        return now - self._all_read

    @property
    def overrun(self) -> int:
        """How often ends of connections were lost."""
        return 0 if self._ends is None else self._ends.overrun

    @property
    def strange(self) -> int:
        """Messages that could not be understood."""
        of_ends = 0 if self._ends is None else self._ends.strange
        return self.malformed + of_ends + sum(one.strange for one in self._reports.values())

    def describe_strange(self) -> str:
        """The line about them for the log, "" if nothing is new, or there was one within the hour."""
        strange, now = self.strange, self._clock()
        if strange == self._described[0] or now < self._described[1]:
            return ""
        self._described = strange, now + _DESCRIBED_EVERY_S
        ends = () if self._ends is None else (self._ends,)
        samples = (self._unplaced, *(one.sample for one in (*self._reports.values(), *ends)))
        begin = next(filter(None, samples), b"").hex()
        return f"{strange} messages of the kernel could not be understood so far; one begins: {begin}"

    @property
    def slow(self) -> int:
        """Reports that had to be taken apart."""
        return sum(one.slow for one in self._reports.values())

    def take(self) -> tuple[list[DecidedPacket], list[TrackedConnection], bool]:
        """(decisions; ends; whether there may be more). Raises KernelError."""
        decisions, more = list[DecidedPacket](), False
        for source, reports in self._reports.items():
            datagrams = self._may_take(source)
            if not datagrams:
                continue
            taken = reports.take(datagrams)
            self._seen[source] += len(taken)
            self.numbers.update(map(_NUMBER, taken))
            self.totals[source] += len(taken)
            more = more or len(taken) >= datagrams
            if source == ALLOWED:
                taken = self._without_unfinished(taken, reports)
                more = more or bool(self._unfinished)
            found, misplaced = in_pairs(taken, allowed=source == ALLOWED)
            if misplaced:
                self.malformed += len(misplaced)
                self._unplaced = misplaced[-1]
            share = self._shares[source]
            if not share.may_have_all(found):
                found = [*filter(share.may_have, found)]
            decisions += found
        ended = [] if self._ends is None else self._ends.take(_ENDS_AT_ONCE)
        self.came += len(decisions) + len(ended)
        return decisions, ended, more or len(ended) >= _ENDS_AT_ONCE

    def _without_unfinished(self, taken: list[ReportedDecision], reports: DecisionReports) -> list[ReportedDecision]:
        """What is complete. A packet's reports may be in two datagrams, and for whoever reads late its connection may
        have ended before the second one is read; so what the first one ends with waits for it.
        """
        taken, size = self._unfinished + taken, 0
        if reports.waiting:
            for _, packet in taken[: -_OF_A_PACKET - 1 : -1]:
                if packet != taken[-1][1]:
                    break
                size += 1
        self._unfinished = taken[len(taken) - size :]
        return taken[: len(taken) - size]

    def _may_take(self, source: str) -> int:
        """So many datagrams, however full they are."""
        second = int(self._clock())
        if second != self._second:
            self._second = second
            self._seen.clear()
            self._held_back.clear()
            for share in self._shares.values():
                share.begin()
        left = (_LOOKED_AT * self._shares[source].most - self._seen[source]) // IN_DATAGRAM
        if left <= 0:
            self._held_back.add(source)
        return min(AT_ONCE, max(0, left))

    def lost(self) -> dict[str, int]:
        """So far; of ends how often, because nobody knows how many."""
        lost = {source: one.lost + self._shares[source].shed for source, one in self._reports.items()}
        return {ALLOWED: 0, **lost, ENDS: self.overrun}

    def unread(self) -> dict[str, int]:
        """Reports of each source that could not be read: they did not fit, or were not understood."""
        return {source: one.lost + one.strange for source, one in self._reports.items()}

    def assume_lost(self, source: str, count: int) -> bool:
        """So many reports of it were lost, by the rules' counters, and nothing has followed that tells of it; False if
        the kernel has dropped none of which it was not told.
        """
        reports = self._reports[source]
        if not reports.has_dropped:
            return False
        reports.assume_lost(count)
        return True

    def recorded(self) -> dict[str, int]:
        """Reports of each source that were recorded: with what was lost of it, all that its rules have counted."""
        return {source: self.totals[source] - self._shares[source].shed for source in self._reports}

    def new_losses(self, now: float) -> Iterator[Loss]:
        """Since the last time. ``now``: seconds since 1970."""
        lost = Counter(self.lost())
        if lost == self._told:
            return
        for source, count in (lost - self._told).items():
            is_over = source in self._held_back or (source in self._shares and self._shares[source].is_over)
            why = RATE if is_over else OVERRUN
            yield Loss(now - 1, now, source, why, None if source == ENDS else count)
        self._told = lost


def in_pairs(
    reports: Sequence[ReportedDecision], *, allowed: bool, key_of: Callable[[bytes], bytes | None] = key_of
) -> tuple[list[DecidedPacket], list[bytes]]:
    """(what was decided about packets of connections; the packets that are of none). ``allowed``: they were let
    through; what is denied stands alone.
    """
    found, misplaced = list[DecidedPacket](), list[bytes]()
    key: bytes | None = None
    before, single = b"", 0  # the packet; the number of what let it through, unless it has its second number
    for number, packet in reports:
        if packet != before:
            before, last, key = packet, key, key_of(packet)
            if key != last:
                single = 0
        if key is None:
            misplaced.append(packet)
        elif single and number != single:
            found[-1] = True, key, single, number
            single = 0
        else:
            found.append((allowed, key, number, 0))
            single = number if allowed else 0
    return found, misplaced


def _open_first(pair: int, sources: Sequence[str], opened: ExitStack) -> tuple[int, dict[str, DecisionReports]]:
    """The first pair of groups that is free, from ``pair`` on. Raises KernelError."""
    deadline, busy = Deadline.after(_OPEN_S), KernelError("there are no groups")
    for tried in range(PAIRS):
        chosen = (pair + tried) % PAIRS
        with ExitStack() as opening:
            try:
                found = {
                    source: opening.enter_context(DecisionReports(group, _ROOMS[source], deadline))
                    for source, group in zip((ALLOWED, DENIED), groups_of(chosen), strict=True)
                    if source in sources
                }
            except KernelError as e:
                if e.errno not in _TAKEN:
                    raise
                busy = e
                continue
            opened.push(opening.pop_all())
            return chosen, found
    raise busy
