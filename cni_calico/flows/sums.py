"""PURE: what connections add up to in each five minutes: by their ends, the port, and what decided about them.

Rule: the sums are those of all records as they are: one that changes is taken out as it was and added as it is. A
connection counts in the five minutes in which it began, with all that it carries until it ends. What there can be any
number of is bounded: beyond MOST_ADDRESSES that talk with one end and port and have no name, an address counts as the
network set in which it is, else as its network, and beyond MOST_SUMS a connection counts as one of the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from ipaddress import ip_network
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from cni_calico.flows.records import COUNTED, DENIED, ENDED, SIX, FlowRecord

BUCKET_S = 300
BUCKET_US = BUCKET_S * 1_000_000
MOST_ADDRESSES, MOST_SUMS = 1000, 10_000  # in a bucket
NETWORK = 0xFFFFFFFF  # in the place of a name's number: the address is that of a network
PREFIXES = {4: 24, 16: 48}
_NOTHING = (0, 0, 0, 0)
Within = Callable[[bytes, int], int]
"""The number of the name of the network set in which an address is, for who has a name of that number; 0 for none."""
_KEY = itemgetter(2, 3, 6, 8, 10, 11, 12, 13, 14, 19, 20)  # of a record: the fields of FlowKey


class FlowKey(NamedTuple):
    """All as in records. Of ICMP ``port`` is type and code. ``source_end``, ``destination_end``: numbers of names, or
    NETWORK; the address of a network set is all zeros. The rest of connections has no addresses, and ``denied_by`` says
    whether they were denied.
    """

    source: bytes
    destination: bytes
    port: int
    protocol: int
    egress: int
    ingress: int
    host_out: int
    host_in: int
    denied_by: int
    source_end: int
    destination_end: int

    @property
    def is_rest(self) -> bool:
        return not self.source


REST, REST_DENIED = (FlowKey(b"", b"", 0, 0, 0, 0, 0, 0, denied, 0, 0) for denied in (0, 1))


@dataclass(slots=True)
class SumCounts:
    """What is added to a sum, or taken out. ``ended``: connections that have; ``measured``: whose packets and bytes are
    known. ``began``, ``last``: of the first and the last one. ``made``: at least one is new, not only changed.
    """

    began: int
    last: int
    connections: int = 0
    packets: int = 0
    size: int = 0
    packets_back: int = 0
    size_back: int = 0
    ended: int = 0
    measured: int = 0
    made: bool = False

    def count(self, record: FlowRecord, times: int = 1) -> None:
        """``times`` -1: take it out."""
        began, last, flags, carried = record[0], record[1], record[9], record[15:19]
        if began < self.began:
            self.began = began
        if last > self.last:
            self.last = last
        self.connections += times
        if carried != _NOTHING:  # those that are new have carried nothing yet
            packets, size, packets_back, size_back = carried
            self.packets += times * packets
            self.size += times * size
            self.packets_back += times * packets_back
            self.size_back += times * size_back
        if flags & (ENDED | COUNTED):
            self.ended += times * bool(flags & ENDED)
            self.measured += times * bool(flags & COUNTED)

    def change(self, before: FlowRecord, after: FlowRecord) -> None:
        """Take one out and count the other."""
        last, was, flags = after[1], before[9], after[9]
        if last > self.last:
            self.last = last
        packets_before, size_before, packets_back_before, size_back_before = before[15:19]
        packets, size, packets_back, size_back = after[15:19]
        self.packets += packets - packets_before
        self.size += size - size_before
        self.packets_back += packets_back - packets_back_before
        self.size_back += size_back - size_back_before
        if flags != was:
            self.ended += bool(flags & ENDED) - bool(was & ENDED)
            self.measured += bool(flags & COUNTED) - bool(was & COUNTED)

    def add(self, other: SumCounts) -> None:
        self.began, self.last = min(self.began, other.began), max(self.last, other.last)
        self.connections += other.connections
        self.packets += other.packets
        self.size += other.size
        self.packets_back += other.packets_back
        self.size_back += other.size_back
        self.ended += other.ended
        self.measured += other.measured
        self.made = self.made or other.made


UnwrittenSums = dict[int, dict[FlowKey, SumCounts]]
"""By bucket: when it began, in microseconds since 1970, divided by BUCKET_US."""


def key_of(record: FlowRecord) -> FlowKey:
    return FlowKey._make(_KEY(record))


def record_of(key: FlowKey, counts: SumCounts) -> FlowRecord:
    """All connections of a sum as if they were one."""
    flags = SIX if len(key.source) == 16 else 0
    flags |= DENIED if key.denied_by else 0
    flags |= ENDED if counts.ended >= counts.connections else 0
    flags |= COUNTED if counts.measured > 0 else 0
    where = key.source, key.destination, key.destination, 0, key.port, key.port, key.protocol, flags
    decided = key.egress, key.ingress, key.host_out, key.host_in, key.denied_by
    carried = counts.packets, counts.size, counts.packets_back, counts.size_back
    return FlowRecord(counts.began, counts.last, *where, *decided, *carried, key.source_end, key.destination_end)


def no_sets(address: bytes, other: int) -> int:
    del address, other
    return 0


def coarser(key: FlowKey, within: Within = no_sets) -> Iterator[FlowKey]:
    """As what else it may have been counted: one end as its set or network, or both, or one of the rest."""
    froms = [*filter(None, (_from_set(key, within), from_network(key)))]
    tos = [*filter(None, (_to_set(key, within), to_network(key)))]
    yield from froms
    yield from tos
    for one in froms:
        for other in tos:
            yield one._replace(destination=other.destination, destination_end=other.destination_end)
    yield rest_of(key)


def rest_of(key: FlowKey) -> FlowKey:
    return REST_DENIED if key.denied_by else REST


def from_network(key: FlowKey) -> FlowKey | None:
    """With the source's network in its place; None if it has a name."""
    return None if key.source_end else key._replace(source=_network(key.source), source_end=NETWORK)


def to_network(key: FlowKey) -> FlowKey | None:
    """With the destination's network in its place; None if it has a name."""
    return None if key.destination_end else key._replace(destination=_network(key.destination), destination_end=NETWORK)


def _from_set(key: FlowKey, within: Within) -> FlowKey | None:
    """With the source's network set in its place; None if it has a name, or is in none."""
    number = 0 if key.source_end else within(key.source, key.destination_end)
    return key._replace(source=bytes(len(key.source)), source_end=number) if number else None


def _to_set(key: FlowKey, within: Within) -> FlowKey | None:
    number = 0 if key.destination_end else within(key.destination, key.source_end)
    return key._replace(destination=bytes(len(key.destination)), destination_end=number) if number else None


def _network(address: bytes) -> bytes:
    kept = PREFIXES[len(address)] // 8
    return address[:kept].ljust(len(address), b"\0")


def network_name(address: bytes) -> str:
    return str(ip_network((address, PREFIXES[len(address)])))


class _Bucket:
    """What is known of five minutes: the sums that there are, and the addresses that talk with an end and a port."""

    def __init__(self) -> None:
        self.keys: set[FlowKey] = set()
        self.talking: dict[tuple[object, ...], set[bytes]] = {}
        self.addresses = 0


class FlowSums:
    """``unwritten``: what was added and taken out since the last ``take``."""

    def __init__(
        self, most_addresses: int = MOST_ADDRESSES, most_sums: int = MOST_SUMS, within: Within = no_sets
    ) -> None:
        self._most_addresses, self._most_sums, self._within = most_addresses, most_sums, within
        self._known: dict[int, _Bucket] = {}  # of the newest two
        self._older = _Bucket()  # of all others, since the last ``take``
        self._newest = 0
        self.unwritten: UnwrittenSums = {}

    def add(self, record: FlowRecord, times: int = 1) -> None:
        bucket = record[0] // BUCKET_US
        counts = self._unwritten_of(bucket, record)
        if counts is None:
            counts = self._counts(bucket, self._key_to_add(bucket, key_of(record)), record)
        counts.made = True
        counts.count(record, times)

    def change(self, before: FlowRecord, after: FlowRecord) -> None:
        """``after`` has the same ends and ports."""
        bucket = before[0] // BUCKET_US
        counts = self._unwritten_of(bucket, before)
        if counts is None:
            counts = self._counts(bucket, self._key_counted(bucket, key_of(before)), before)
        if before[10:15] == after[10:15] and before[0] == after[0]:
            counts.change(before, after)
        else:
            counts.count(before, -1)
            self.add(after)

    def take(self, most: int) -> UnwrittenSums:
        """What has to be written next, so many at most."""
        taken: UnwrittenSums = {}
        for bucket in sorted(self.unwritten):
            sums = self.unwritten[bucket]
            if len(sums) <= most:
                taken[bucket] = self.unwritten.pop(bucket)
                most -= len(sums)
            else:
                taken[bucket] = {key: sums.pop(key) for key in list(islice(sums, most))}
                return taken
        self._older = _Bucket()
        return taken

    def give_back(self, taken: UnwrittenSums, oldest: int) -> int:
        """What could not be written, of buckets from ``oldest`` on; returns how many connections are not kept."""
        lost = 0
        for bucket, sums in taken.items():
            if bucket < oldest:
                lost += sum(max(0, counts.connections) for counts in sums.values())
                continue
            there = self.unwritten.setdefault(bucket, {})
            for key, counts in sums.items():
                if key in there:
                    counts.add(there[key])
                there[key] = counts
        return lost

    def _unwritten_of(self, bucket: int, record: FlowRecord) -> SumCounts | None:
        """The sum that nearly all records are added to: one that was added to lately, by no other key."""
        sums = self.unwritten.get(bucket)
        return None if sums is None else sums.get(_KEY(record))

    def _counts(self, bucket: int, key: FlowKey, record: FlowRecord) -> SumCounts:
        sums = self.unwritten.get(bucket)
        if sums is None:
            sums = self.unwritten[bucket] = {}
        counts = sums.get(key)
        if counts is None:
            counts = sums[key] = SumCounts(record.began, record.last)
        return counts

    def _bucket(self, bucket: int) -> _Bucket:
        known = self._known.get(bucket)
        if known is not None:
            return known
        if bucket <= self._newest - 2:
            return self._older
        self._newest = max(self._newest, bucket)
        self._known = {number: one for number, one in self._known.items() if number > self._newest - 2}
        known = self._known[bucket] = _Bucket()
        return known

    def _key_counted(self, bucket: int, key: FlowKey) -> FlowKey:
        """As what it was counted; itself if that is not known: then the file knows."""
        known = self._bucket(bucket)
        if key in known.keys:
            return key
        folded = [self._folded(known, key, within, adds=False) for within in (self._within, no_sets)]
        return next((one for one in (*folded, rest_of(key)) if one in known.keys), key)

    def _key_to_add(self, bucket: int, key: FlowKey) -> FlowKey:
        known = self._bucket(bucket)
        if key in known.keys:
            return key
        full = len(known.keys) >= self._most_sums
        key = self._folded(known, key, self._within, adds=not full)
        if full and key not in known.keys:
            key = rest_of(key)
        known.keys.add(key)
        return key

    def _folded(self, known: _Bucket, key: FlowKey, within: Within, *, adds: bool) -> FlowKey:
        """With the network set or the network in the place of an address that is one too many."""
        whole = key
        talks_with = whole.destination, whole.destination_end, whole.port
        if not whole.source_end and not self._may_talk(known, ("from", *talks_with), whole.source, adds=adds):
            key = _from_set(whole, within) or from_network(whole) or key
        talks_with = whole.source, whole.source_end, whole.port
        if not whole.destination_end and not self._may_talk(known, ("to", *talks_with), whole.destination, adds=adds):
            to = _to_set(whole, within) or to_network(whole) or whole
            key = key._replace(destination=to.destination, destination_end=to.destination_end)
        return key

    def _may_talk(self, known: _Bucket, group: tuple[object, ...], address: bytes, *, adds: bool) -> bool:
        there: AbstractSet[bytes] = known.talking.get(group, frozenset())
        if address in there:
            return True
        if not adds or known.addresses >= 2 * self._most_sums or len(there) >= self._most_addresses:
            return False
        known.talking.setdefault(group, set()).add(address)
        known.addresses += 1
        return True
