"""Sums of flows against a naive model: whatever happens to records, to the recorder and to its file."""

from __future__ import annotations

import os
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.flows.aggregates import FlowAggregates
from cni_calico.flows.counted import CountedRecords
from cni_calico.flows.names import EndName
from cni_calico.flows.records import COUNTED, DENIED, ENDED, FlowRecord
from cni_calico.flows.sums import BUCKET_S, NETWORK, REST, FlowSums, SumCounts, key_of
from cni_calico.log import SILENT, Log
from tests.full_disk import largest_file
from tests.unit.flows.test_live import Kept

NOW = 2_000_000_100
NAMES = {1: EndName("pod", "shop", "web"), 2: EndName("pod", "shop", "db"), 3: EndName("workload", "", "web")}
DAY = 24 * 3600
Totals = dict[tuple[object, ...], tuple[int, ...]]


def flow(began_s: float = NOW, source: int = 1, name: int = 0, port: int = 80, **changes: int) -> FlowRecord:
    addresses = bytes((192, 0, 2 + source // 256, source % 256)), bytes((10, 0, 0, 2)), bytes((10, 0, 0, 2))
    began = int(began_s * 1e6)
    made = FlowRecord(began, began, *addresses, 1000, port, port, 6, 0, 300, 301, 0, 0, 0, 0, 0, 0, 0, name, 2)
    return made._replace(**changes)


def opened(root: Path, now: float = NOW, **limits: int) -> FlowAggregates:
    return FlowAggregates(str(root / "flows" / "flows.db"), NAMES.get, SILENT, now, **limits)


def counts_in(counts: SumCounts) -> tuple[int, ...]:
    carried = counts.packets, counts.size, counts.packets_back, counts.size_back
    return counts.connections, *carried, counts.ended, counts.measured


def totals(aggregates: FlowAggregates, begin: int = 0, end: int = 1 << 60) -> Totals:
    """What a reader finds: by the names of the ends, or their addresses, and the rest of the key."""
    found: dict[tuple[object, ...], SumCounts] = {}
    for part in aggregates.read(begin, end):
        for key, source, destination, counts in part:
            where = (source or key.source, destination or key.destination, *key[2:9])
            if where in found:
                found[where].add(counts)
            else:
                found[where] = SumCounts(counts.began, counts.last)
                found[where].add(counts)
    return {where: counts_in(counts) for where, counts in found.items() if any(counts_in(counts))}


def naive(records: Iterable[FlowRecord], oldest_s: float = 0) -> Totals:
    found: dict[tuple[object, ...], list[int]] = defaultdict(lambda: [0] * 7)
    for one in records:
        if one.began // 1_000_000 // BUCKET_S >= oldest_s // BUCKET_S:
            key = key_of(one)
            ends = [NAMES.get(number) for number in (one.source_end, one.destination_end)]
            carried = one.packets, one.size, one.packets_back, one.size_back
            flags = bool(one.flags & ENDED), bool(one.flags & COUNTED)
            where = (ends[0] or one.source, ends[1] or one.destination, *key[2:9])
            found[where] = [a + b for a, b in zip(found[where], (1, *carried, *flags), strict=True)]
    return {where: tuple(counts) for where, counts in found.items()}


_STEPS = st.sampled_from(
    ("new", "new", "decide", "deny", "measure", "end", "settle", "write", "restart", "later", "full")
)


@given(st.lists(st.tuples(_STEPS, st.integers(0, 5)), max_size=40))
@settings(max_examples=40, deadline=None)
def test_the_sums_are_those_of_the_records(steps: list[tuple[str, int]]) -> None:
    """Where nothing is lost: it is not killed, and a full disk has room again before ten minutes are over."""
    now, kept = NOW, Kept()
    with TemporaryDirectory() as root:
        aggregates = opened(Path(root), now)
        records = CountedRecords(kept, aggregates.sums)

        def change(which: int, **changes: int) -> None:
            number = len(kept.records) - 1 - which
            if number > 0 and (record := records.read(number)) is not None:
                flags = record.flags | changes.pop("flags", 0)
                records.update(number, record._replace(flags=flags, **changes))

        for step, which in steps:
            if step == "new":
                records.append(flow(now, source=which, name=which % 4, port=80 + which % 2, ingress=0))
            elif step == "decide":
                change(which, ingress=301, last=now * 1_000_000)
            elif step == "deny":
                change(which, denied_by=302, flags=DENIED, packets=which)
            elif step == "measure":
                change(which, flags=COUNTED, packets=10 + which, size=1000)
            elif step == "end":
                change(which, flags=COUNTED | ENDED, packets=20, size=2000, packets_back=3, size_back=300)
            elif step == "settle":
                records.settle()
            elif step == "write":
                records.settle()
                aggregates.flush(now, force=True)
            elif step == "restart":
                records.settle()
                aggregates.close(now)
                aggregates = opened(Path(root), now)
                records = CountedRecords(kept, aggregates.sums)
            elif step == "full":
                records.settle()
                with largest_file(0):
                    aggregates.flush(now, force=True)
                aggregates.flush(now, force=True)
            else:
                now += 60 * which
        records.settle()
        assert totals(aggregates) == naive(one for one in kept.records if one is not None)
        aggregates.close(now)
        again = opened(Path(root), now)
        assert totals(again) == naive(one for one in kept.records if one is not None) and not again.trouble
        again.close(now)


@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 3), st.booleans()), max_size=80))
@settings(max_examples=60, deadline=None)
def test_bounded_sums_have_every_connection_in_one(flows: list[tuple[int, int, bool]]) -> None:
    sums, made = FlowSums(most_addresses=4, most_sums=10), []
    for source, port, denied in flows:
        made.append(flow(source=source, port=80 + port, denied_by=302 if denied else 0))
        sums.add(made[-1])
    keys = [key for found in sums.unwritten.values() for key in found]
    assert sum(counts.connections for found in sums.unwritten.values() for counts in found.values()) == len(flows)
    assert len(keys) <= 12 and sum(not key.is_rest for key in keys) <= 10
    for port in range(4):
        single = {key.source for key in keys if key.port == 80 + port and not key.is_rest and key.source_end != NETWORK}
        assert len(single) <= 4
    for one in made:
        sums.change(one, one._replace(flags=ENDED))
    found = [counts for each in sums.unwritten.values() for counts in each.values()]
    assert all(counts.ended == counts.connections for counts in found), "what changes is found as it was counted"
    for one in made:
        sums.change(one._replace(flags=ENDED), one._replace(began=one.began + BUCKET_S * 1_000_000))
    first = sums.unwritten.get(NOW // BUCKET_S, {})
    assert not any(counts.connections or counts.ended for counts in first.values())


def test_addresses_without_a_name_count_as_their_network(tmp_path: Path) -> None:
    aggregates = opened(tmp_path)
    for source in range(1300):
        aggregates.sums.add(flow(source=source))
        aggregates.sums.add(flow(source=source, port=81, name=1))
    found = totals(aggregates)
    networks = [where[0].name for where in found if isinstance(where[0], EndName) and where[0].kind == "network"]
    assert sorted(networks) == [f"192.0.{i}.0/24" for i in (5, 6, 7)] and len(found) == 1000 + 3 + 1
    assert sum(counts[0] for counts in found.values()) == 2600
    assert found[NAMES[1], NAMES[2], 81, *key_of(flow())[3:9]][0] == 1300
    aggregates.flush(NOW, force=True)
    assert totals(aggregates) == found
    aggregates.sums.change(flow(source=1299), flow(source=1299, flags=ENDED))
    aggregates.close(NOW)
    assert sum(counts[5] for counts in totals(opened(tmp_path)).values()) == 1


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3), st.integers(0, 20), st.booleans()), max_size=60),
    st.sets(st.integers(0, 20)),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_beyond_the_most_an_address_counts_as_its_network_set(
    flows: list[tuple[int, int, int, bool]], inside: set[int], restarts: bool
) -> None:
    """``inside``: addresses that are in a set, one for each name of the other end."""

    def within(address: bytes, other: int) -> int:
        return 50 + other if address[-1] in inside and address[0] != 0 else 0

    names = {**NAMES, **{50 + one: EndName("networkset", "", f"set-{one}") for one in range(4)}}
    with TemporaryDirectory() as root:
        path = str(Path(root) / "flows.db")
        made = FlowAggregates(path, names.get, SILENT, NOW, within=within)
        made.sums._most_addresses = 3
        records = []
        for source, name, destination, denied in flows:
            there = bytes((10, 1, 0, destination))
            ends = {"destination": there, "destination_end": 0 if name else 2}
            records.append(flow(source=source, name=name)._replace(**ends, denied_by=302 if denied else 0))
            made.sums.add(records[-1])
        if restarts:
            made.close(NOW)
            made = FlowAggregates(path, names.get, SILENT, NOW, within=within)
            made.sums._most_addresses = 3
        for one in records:
            made.sums.change(one, one._replace(flags=ENDED))
        made.close(NOW)
        found = [one for part in FlowAggregates(path, names.get, SILENT, NOW).read(0, 1 << 60) for one in part]
    assert sum(counts.connections for *_, counts in found) == len(flows)
    assert all(counts.ended == counts.connections for *_, counts in found), "what changes is found as it was counted"
    for key, source, destination, _ in found:
        for end, address in ((source, key.source), (destination, key.destination)):
            if end is not None and end.kind == "networkset":
                assert not any(address)
            elif end is not None and end.kind == "network":
                assert address[-1] == 0 and any(address)
    for name in range(4):
        of_one = {key.source for key, source, *_ in found if source is None and name == 0}
        assert len(of_one) <= 3 * 21


def test_what_was_counted_before_a_restart_is_found_by_the_file(tmp_path: Path) -> None:
    """As its network, or among the rest; what the file does not have is nothing."""
    aggregates = opened(tmp_path)
    aggregates.sums._most_sums = 1002
    for source in range(1010):
        aggregates.sums.add(flow(source=source))
    for port in range(100, 110):
        aggregates.sums.add(flow(port=port))
    aggregates.close(NOW)
    again = opened(tmp_path)
    for before in (flow(source=1005), flow(port=105), flow(NOW - 3 * BUCKET_S)):
        again.sums.change(before, before._replace(flags=ENDED))
    again.close(NOW)
    found = [(key, source, counts) for part in opened(tmp_path).read(0, 1 << 60) for key, source, _, counts in part]
    ended = [(key.is_rest, source and source.kind) for key, source, counts in found if counts.ended]
    assert sorted(ended, key=str) == [(False, "network"), (True, None)]


def test_what_is_too_old_goes(tmp_path: Path) -> None:
    aggregates = opened(tmp_path)
    old, new = flow(NOW, source=1), flow(NOW + DAY, source=2)
    aggregates.sums.add(old)
    aggregates.flush(NOW, force=True)
    assert aggregates.oldest == NOW // BUCKET_S * BUCKET_S
    aggregates.sums.add(new)
    aggregates.flush(NOW + DAY + BUCKET_S, force=True)
    assert totals(aggregates) == naive([new]) and aggregates.oldest == (NOW + DAY) // BUCKET_S * BUCKET_S
    with sqlite3.connect(aggregates.path) as database:
        assert database.execute("SELECT count(*) FROM end").fetchone() == (2,)
    aggregates.sums.change(old, old._replace(flags=ENDED))
    aggregates.keep(3600)
    aggregates.flush(NOW + DAY + 3000, force=True)
    assert totals(aggregates) == naive([new])
    aggregates.close(NOW + DAY + 3600 + BUCKET_S)
    assert totals(opened(tmp_path, NOW + DAY + 3600 + BUCKET_S)) == {}


def test_the_disk_has_a_budget_and_the_oldest_go_first(tmp_path: Path) -> None:
    aggregates, most = opened(tmp_path, most_bytes=512 << 10), 0
    for i in range(40):
        for source in range(200):
            aggregates.sums.add(flow(NOW + i * BUCKET_S, source=source, port=i))
        aggregates.flush(NOW + i * BUCKET_S, force=True)
        most = max(most, os.path.getsize(aggregates.path))
    assert most <= 512 << 10 and aggregates.size >= most
    found = totals(aggregates)
    kept = {int(str(where[2])) for where in found}
    assert kept == set(range(min(kept), 40)) and 5 < len(kept) < 40
    assert all(sum(counts[0] for where, counts in found.items() if where[2] == i) == 200 for i in kept)


@pytest.mark.parametrize("what", ["text", "empty", "another", "newer", "link", "directory", "without a table"])
def test_another_file_is_set_aside(tmp_path: Path, what: str) -> None:
    path = tmp_path / "flows" / "flows.db"
    path.parent.mkdir()
    if what == "text":
        path.write_bytes(b"not a database, and longer than its head" * 10)
    elif what == "empty":
        path.touch()
    elif what == "link":
        (tmp_path / "elsewhere").write_bytes(b"x")
        path.symlink_to(tmp_path / "elsewhere")
    elif what == "directory":
        path.mkdir()
    else:
        if what != "another":
            opened(tmp_path).close(NOW)
        with sqlite3.connect(path) as database:
            change = {"newer": "PRAGMA user_version = 9", "without a table": "DROP TABLE flow"}
            database.execute(change.get(what, "CREATE TABLE x (y)"))
        database.close()
    aggregates = opened(tmp_path)
    aggregates.sums.add(flow())
    aggregates.flush(NOW, force=True)
    assert not aggregates.trouble and totals(aggregates) == naive([flow()])
    assert os.path.lexists(f"{path}.bad") == (what != "empty") and path.is_file() and not path.is_symlink()
    assert oct(path.stat().st_mode)[-3:] == "600"
    assert what != "link" or (tmp_path / "elsewhere").read_bytes() == b"x"


def test_a_file_that_is_damaged_while_it_is_used_is_set_aside(tmp_path: Path) -> None:
    log = Log("info", str(tmp_path / "log"), stderr=False)
    aggregates = FlowAggregates(str(tmp_path / "flows.db"), NAMES.get, log, NOW)
    for source in range(500):
        aggregates.sums.add(flow(source=source))
    aggregates.close(NOW)
    with Path(aggregates.path).open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 40960)
    aggregates = FlowAggregates(str(tmp_path / "flows.db"), NAMES.get, log, NOW)
    for source in range(500, 1000):
        aggregates.sums.add(flow(source=source))
    aggregates.flush(NOW, force=True)
    assert totals(aggregates) == naive(flow(source=source) for source in range(500, 1000)) and not aggregates.trouble
    assert Path(f"{aggregates.path}.bad").exists() and "set aside" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    "change",
    ["UPDATE end SET address = x'0a00'", "UPDATE end SET address = 7", "UPDATE flow SET packets = 'many'"],
)
def test_what_no_recorder_has_written_is_found_when_it_is_read(tmp_path: Path, change: str) -> None:
    aggregates = opened(tmp_path)
    aggregates.sums.add(flow(source=1))
    aggregates.flush(NOW, force=True)
    with sqlite3.connect(aggregates.path) as database:
        database.execute(change)
    database.close()
    assert totals(aggregates) == {} and "cannot be read" in aggregates.trouble
    assert Path(f"{aggregates.path}.bad").exists()
    aggregates.sums.add(flow(source=2))
    aggregates.flush(NOW, force=True)
    assert totals(aggregates) == naive([flow(source=2)]) and not aggregates.trouble


def test_a_file_that_somebody_removes_is_made_again(tmp_path: Path) -> None:
    aggregates = opened(tmp_path)
    aggregates.sums.add(flow(source=1))
    aggregates.flush(NOW, force=True)
    os.unlink(aggregates.path)
    aggregates.sums.add(flow(source=2))
    aggregates.close(NOW)
    assert totals(opened(tmp_path)) == naive([flow(source=2)])


def full(root: Path, aggregates: FlowAggregates, now: float) -> None:
    with largest_file(0):
        aggregates.flush(now, force=True)


def no_directory(root: Path, aggregates: FlowAggregates, now: float) -> None:
    (root / "flows").rename(root / "away")
    (root / "flows").write_text("")
    aggregates.flush(now, force=True)
    (root / "flows").unlink()
    (root / "away").rename(root / "flows")


@pytest.mark.parametrize("fail", [full, no_directory])
def test_without_a_disk_ten_minutes_are_kept(
    tmp_path: Path, fail: Callable[[Path, FlowAggregates, float], None]
) -> None:
    aggregates = opened(tmp_path)
    minutes = [flow(NOW + 60 * i, source=i) for i in range(30)]
    for i, one in enumerate(minutes):
        aggregates.sums.add(one)
        fail(tmp_path, aggregates, NOW + 60 * i)
        assert "ten minutes" in aggregates.trouble and str(tmp_path) in aggregates.trouble
    kept = naive(minutes, NOW + 29 * 60 - 600)
    assert totals(aggregates) == kept and aggregates.lost == 30 - sum(counts[0] for counts in kept.values())
    aggregates.flush(NOW + 30 * 60, force=True)
    assert not aggregates.trouble
    aggregates.close(NOW + 30 * 60)
    assert totals(opened(tmp_path)) == kept


def test_it_is_written_now_and_then(tmp_path: Path) -> None:
    aggregates = opened(tmp_path)
    for after, written in ((1, False), (9, False), (10, True), (11, True)):
        aggregates.sums.add(flow(source=after))
        aggregates.flush(NOW + after)
        assert bool(aggregates.sums.unwritten) == (not written or after == 11)
    aggregates.flush(NOW - 1000)
    assert not aggregates.sums.unwritten, "the clock was set back"
    assert totals(aggregates, 0, NOW // BUCKET_S) == {} and len(totals(aggregates, NOW // BUCKET_S)) == 4


def test_much_is_written_in_parts(tmp_path: Path) -> None:
    """So that reports are read in between; nothing is twice or missing meanwhile."""
    aggregates, flows = opened(tmp_path), [flow(NOW + i * 60, source=i % 900) for i in range(1300)]
    for one in flows:
        aggregates.sums.add(one)
    for left in (800, 300, 0):
        aggregates.flush(NOW + 90_000)
        assert sum(map(len, aggregates.sums.unwritten.values())) == left
        assert totals(aggregates, (NOW + 3600) // BUCKET_S) == naive(flows, NOW + 3600)


def test_the_rest_has_no_ends() -> None:
    assert REST.is_rest and not key_of(flow()).is_rest
