"""The ring: any sequence of records against a list, files that are damaged, torn records, and a disk without room."""

from __future__ import annotations

import os
from errno import ENOSPC
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import MonkeyPatch

from cni_calico.flows import ring as rings
from cni_calico.flows.records import BYTES, SIX, FlowRecord, decode, encode
from cni_calico.flows.ring import Ring

_U16, _U32, _U64 = (st.integers(0, 2**bits - 1) for bits in (16, 32, 64))
_V4, _V6 = st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)
ROOM = 4096 + 8 * BYTES


def record(began: int = 1) -> FlowRecord:
    return FlowRecord(began, began, b"\n\0\0\1", b"\n\0\0\2", b"\n\0\0\2", 1, 2, 2, 17, *(0,) * 12)


@st.composite
def _records(draw: st.DrawFn) -> FlowRecord:
    six = draw(st.booleans())
    addresses = [draw(_V6 if six else _V4) for _ in range(3)]
    flags = draw(st.integers(0, 255)) & ~SIX | (SIX if six else 0)
    ports, numbers = [draw(_U16) for _ in range(3)], [draw(_U32) for _ in range(5)]
    times, counts, ends = ([draw(kind) for _ in range(n)] for kind, n in ((_U64, 2), (_U64, 4), (_U32, 2)))
    return FlowRecord(*times, *addresses, *ports, draw(st.integers(0, 255)), flags, *numbers, *counts, *ends)


@given(_records(), _U64)
def test_a_record_is_read_as_it_was_written(one: FlowRecord, number: int) -> None:
    data = encode(one, number)
    assert len(data) == BYTES and decode(data, number) == one
    assert decode(data, number ^ 1) is None and decode(data[:-1], number) is None


@given(_records(), st.integers(0, BYTES * 8 - 1))
def test_a_torn_record_is_none(one: FlowRecord, bit: int) -> None:
    data = bytearray(encode(one, 7))
    data[bit // 8] ^= 1 << bit % 8
    assert decode(bytes(data), 7) is None


@pytest.mark.parametrize("written", [0, 1, 7, 8, 9, 16, 21])
def test_the_newest_are_there_and_again_after_a_restart(tmp_path: Path, written: int) -> None:
    ring = Ring(str(tmp_path / "flows" / "ring"), ROOM)
    assert [ring.append(record(i)) for i in range(1, written + 1)] == list(range(1, written + 1))
    if written:
        ring.update(written, record(99))
    ring.update(written - 8, record(98))  # it has been overwritten
    kept = [(i, record(99 if i == written else i)) for i in range(written, max(0, written - 8), -1)]
    assert list(ring.newest_first()) == kept
    assert [ring.read(i) for i, _ in kept] == [one for _, one in kept]
    assert ring.read(written + 1) is None and ring.read(written - 8) is None
    assert list(ring.newest_first(written)) == kept[1:]
    ring.close()
    os.utime(ring.path, (7, 7))
    again = Ring(ring.path, ROOM)
    assert (ring.alive, again.alive) == (0.0, 7.0)
    again.touch()
    assert os.stat(ring.path).st_mtime > 7
    assert list(again.newest_first()) == kept and again.append(record()) == written + 1
    assert os.stat(ring.path).st_size == ROOM and oct(os.stat(ring.path).st_mode)[-3:] == "600"
    again.close()


@pytest.mark.parametrize("damage", ["short", "magic", "version", "empty"])
def test_a_file_that_is_not_ours_is_set_aside(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "ring"
    Ring(str(path), ROOM).close()
    data = bytearray(path.read_bytes())
    if damage == "magic":
        data[0] ^= 1
    elif damage == "version":
        data[16] ^= 1
    path.write_bytes({"short": bytes(data[:-1]), "empty": b""}.get(damage, bytes(data)))
    ring = Ring(str(path), ROOM)
    assert not ring.trouble and not list(ring.newest_first()) and ring.append(record()) == 1
    assert (tmp_path / "ring.bad").exists()
    ring.close()


def test_without_room_for_the_file_the_newest_are_in_memory(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "_IN_MEMORY", 3)
    (tmp_path / "ring").symlink_to(tmp_path / "elsewhere")
    ring = Ring(str(tmp_path / "ring"), ROOM)
    for i in range(1, 6):
        ring.append(record(i))
    assert str(tmp_path) in ring.trouble and [one.began for _, one in ring.newest_first()] == [5, 4, 3]
    assert not (tmp_path / "elsewhere").exists()


@given(st.lists(st.tuples(st.sampled_from(("append", "update", "again")), st.integers(1, 30)), max_size=40))
@settings(max_examples=60, deadline=None)
def test_pieces_are_those_of_a_list(steps: list[tuple[str, int]]) -> None:
    """Whatever was appended and seen again, by this process or an earlier one: what was seen since, in either order."""
    with TemporaryDirectory() as root, MonkeyPatch.context() as patched:
        patched.setattr(rings, "_PIECE", 4)
        ring, model = Ring(f"{root}/ring", 4096 + 11 * BYTES), dict[int, FlowRecord]()
        for step, value in steps:
            if step == "append":
                model[ring.append(record(value))] = record(value)
            elif step == "update" and model:
                number = max(model) - value % 11
                if number in model:
                    model[number] = model[number]._replace(last=value)
                    ring.update(number, model[number])
            else:
                ring.close()
                ring = Ring(f"{root}/ring", 4096 + 11 * BYTES)
            model = {number: one for number, one in model.items() if number > max(model) - 11}
            for since in (0, value):
                wanted = [(number, one) for number, one in sorted(model.items()) if one.last >= since]
                assert [one for piece in ring.pieces(newest_first=False, since=since) for one in piece] == wanted
                found = [one for piece in ring.pieces(newest_first=True, since=since) for one in piece]
                assert found == wanted[::-1]
        ring.close()


@pytest.mark.parametrize("written", [0, 1, 7, 8, 30])
def test_a_larger_ring_has_what_the_smaller_one_had(tmp_path: Path, written: int) -> None:
    path = str(tmp_path / "ring")
    small = Ring(path, ROOM)
    for began in range(1, written + 1):
        small.append(record(began))
    small.close()
    large = Ring(path, 4096 + 100 * BYTES)
    assert [number for number, _ in large.newest_first()] == list(range(written, max(0, written - 8), -1))
    assert all(found == record(number) for number, found in large.newest_first()) and large.count == 100
    number = large.append(record(99))
    large.close()
    again = Ring(path, ROOM)  # a smaller one would lose what is there
    assert again.count == 100 and again.read(number) == record(99) and number == written + 1
    again.close()
    assert [one.name for one in tmp_path.iterdir()] == ["ring"]


def test_without_room_for_a_larger_ring_the_smaller_one_stays(tmp_path: Path, monkeypatch: MonkeyPatch) -> None:
    path = str(tmp_path / "ring")
    small = Ring(path, ROOM)
    small.append(record(1))
    small.close()

    def no_room(fd: int, offset: int, size: int) -> None:
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    with monkeypatch.context() as full:
        full.setattr(os, "posix_fallocate", no_room)
        kept = Ring(path, 4096 + 100 * BYTES)
    assert "No space left" in kept.trouble and kept.count == 8 and kept.read(1) == record(1)
    number = kept.append(record(2))
    kept.close()
    again = Ring(path, 4096 + 100 * BYTES)
    assert not again.trouble and again.count == 100 and again.read(number) == record(2)
    again.close()
    assert [one.name for one in tmp_path.iterdir()] == ["ring"]


@given(st.lists(st.integers(1, 12), max_size=6), st.lists(st.integers(1, 12), max_size=3), st.booleans())
def test_what_is_read_at_once_is_read_as_all_else(expected: list[int], updated: list[int], flushes: bool) -> None:
    """Of 12 records the last 8 are there, in two pieces of the file; some were changed."""
    with TemporaryDirectory() as root:
        ring = Ring(f"{root}/ring", ROOM)
        for number in range(1, 13):
            ring.append(record(number))
        ring.flush()
        for number in updated:
            ring.update(number, record(100 + number))
        if flushes:
            ring.flush()
        there = {number: record(100 + number if number in updated else number) for number in range(5, 13)}
        found = {number: row[: len(there[number])] for number, row in ring.rows(expected).items()}
        assert found == {number: there[number] for number in expected if number in there}
        assert [ring.read(number) for number in expected] == [there.get(number) for number in expected]
        again = Ring(f"{root}/ring", ROOM)  # what another one has written is looked at whole
        assert again.read(12) == again.rows([12])[12] == (there[12] if flushes or 12 not in updated else record(12))
        again.close()
        ring.close()


def test_what_a_ring_has_written_itself_must_have_its_number() -> None:
    """It is in the place of another one where that could not be written."""
    with TemporaryDirectory() as root:
        ring = Ring(f"{root}/ring", ROOM)
        for number in range(1, 9):
            ring.append(record(number))
        ring.flush()
        with open(f"{root}/ring", "r+b") as file:
            file.seek(4096)
            file.write(encode(record(16), 16) + encode(record(1), 1))
        assert sorted(ring.rows([1, 2, 8])) == [1, 2]
        assert [ring.read(number) for number in (8, 1, 2)] == [None, record(1), record(2)]
        ring.close()
