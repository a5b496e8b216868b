"""The newest connections in a file of fixed size, or in memory where no file can be written.

Rule: the file's room is taken when it is made, so a full disk can never stop recording later. What comes together is
written together (``flush``). A record is in the place that its number gives; one that was overwritten or torn is told
by itself. A file that is not ours, or of another version, is set aside (one is kept) and begun anew: history may be
lost, never a start.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from struct import Struct

from cni_calico.flows.records import BYTES, FlowRecord, decode, encode_run, last_of, rows_of
from cni_calico.flows.stores import RecordRow
from cni_calico.regular import make_directories, require_regular

VERSION = 1
_MAGIC = b"cni-calico flows"
_HEAD = Struct("=16sIIQQ")  # magic, version, bytes of a record, records, number of the next one
_NEXT = Struct("=Q")
_HEAD_BYTES, _NEXT_AT = 4096, 32
_IN_MEMORY = 16384  # records, where there is no file
_PIECE = 512  # records that are read at once
_NEAR = 8  # what is as far apart is read together
_MOST_UNWRITTEN = 4_000  # records


class Ring:
    """``size``: bytes, of which a file that is there may have more. ``trouble``: why it is only in memory, or not as
    large, "" if it is neither. ``next``: the number of the next record; the first ever has number 1. ``alive``: when
    the one before was last ``touch``ed, in seconds since 1970; 0 if there was none.
    """

    def __init__(self, path: str, size: int) -> None:
        self.path, self.trouble = path, ""
        self.count = max(1, (size - _HEAD_BYTES) // BYTES)
        self._count = 0  # of the file
        self.next = 1
        self.alive = 0.0
        self._unwritten: dict[int, FlowRecord] = {}
        self._latest: dict[int, int] = {}  # of pieces: no record of them was seen later than that; where it is known
        self._noted = 1  # from this number on nothing is in ``_latest`` yet
        self._first = 1  # that this ring has appended
        self._memory: bytearray | None = None
        self._fd = -1
        try:
            self._open()
        except OSError as e:
            self._close_file()
            self.trouble = f"cannot keep flows in {path}: {e.strerror}: only the newest {_IN_MEMORY} are kept"
            self.count = min(self.count, _IN_MEMORY)
            self._memory = bytearray(self.count * BYTES)
        self._noted = self._first = self.next

    def close(self) -> None:
        self.flush()
        self._close_file()

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def touch(self) -> None:
        """Note in the file that somebody records, also if there is nothing to record."""
        if self._fd >= 0:
            try:
                os.utime(self._fd)
            except OSError as e:
                self._fail(e)

    @property
    def oldest(self) -> int:
        """The number of the oldest record that may still be there."""
        return max(1, self.next - self.count)

    def append(self, record: FlowRecord) -> int:
        """Returns its number."""
        number = self.next
        self.next += 1
        self._unwritten[number] = record
        if len(self._unwritten) >= _MOST_UNWRITTEN:
            self.flush()
        return number

    def append_all(self, records: Sequence[FlowRecord]) -> int:
        """Returns the number of the first."""
        first = self.next
        self.next += len(records)
        self._unwritten.update(zip(range(first, self.next), records, strict=True))
        if len(self._unwritten) >= _MOST_UNWRITTEN:
            self.flush()
        return first

    def _note_seen(self, number: int, last: int) -> None:
        piece = number // _PIECE
        latest = self._latest.get(piece)
        if number >= self._noted and (number % _PIECE == 0 or number == 1):
            self._latest[piece] = last
            self._latest.pop((number + 1 - self.count) // _PIECE - 1, None)
        elif latest is not None and latest < last:
            self._latest[piece] = last

    def update(self, number: int, record: FlowRecord) -> None:
        """A record that has been overwritten meanwhile stays so."""
        if number >= self.next - self.count:
            self._unwritten[number] = record
            if len(self._unwritten) >= _MOST_UNWRITTEN:
                self.flush()

    def update_all(self, records: Sequence[tuple[int, FlowRecord]]) -> None:
        """As ``update``, of many."""
        oldest = self.oldest
        self._unwritten.update(one for one in records if one[0] >= oldest)
        if len(self._unwritten) >= _MOST_UNWRITTEN:
            self.flush()

    def read(self, number: int) -> FlowRecord | None:
        found = self._unwritten.get(number)
        if not 0 < number < self.next or number < self.next - self.count:
            return None
        if found is not None:
            return found
        return decode(self._bytes(number, 1), number, whole=number >= self._first)

    def rows(self, numbers: Sequence[int]) -> dict[int, RecordRow]:
        """Those that are there, by number: neighbours are read together."""
        unwritten, rows = self._unwritten, dict[int, RecordRow]()
        wanted = sorted(set(numbers))
        at = 0
        while at < len(wanted):
            begin, end = wanted[at], at + 1
            while end < len(wanted) and wanted[end] - wanted[end - 1] <= _NEAR and wanted[end] - begin < _PIECE:
                end += 1
            at, run = end, wanted[at:end]
            count = run[-1] - begin + 1
            if begin < max(self._first, self.oldest) or run[-1] >= self.next or begin % self.count + count > self.count:
                found = ((number, self.read(number)) for number in run)
                rows.update((number, record) for number, record in found if record is not None)
                continue
            those = [number for number in run if number not in unwritten]
            if len(those) < len(run):
                rows.update((number, unwritten[number]) for number in run if number in unwritten)
            if those:
                there = rows_of(self._bytes(begin, count))
                for number in those:
                    row = there[number - begin] if number - begin < len(there) else ()
                    if row and row[-1] == number:
                        rows[number] = row
        return rows

    def flush(self) -> None:
        """Write what was appended and updated; neighbours at once."""
        if not self._unwritten:
            return
        unwritten, oldest = self._unwritten, self.oldest
        numbers = sorted(unwritten)
        numbers = numbers[bisect_left(numbers, oldest) :]
        begin, last = 0, -1
        run: list[tuple[int, FlowRecord]] = []
        for number in numbers:
            if number != last + 1 or number % self.count == 0:
                if run:
                    self._write(begin, encode_run(run))
                begin, run = number, []
            run.append((number, unwritten[number]))
            last = number
        if run:
            self._write(begin, encode_run(run))
        at = 0
        while at < len(numbers):
            end = bisect_left(numbers, (numbers[at] // _PIECE + 1) * _PIECE, at)
            self._note_seen(numbers[at], max([unwritten[number][1] for number in numbers[at:end]]))
            at = end
        unwritten.clear()
        self._noted = self.next
        if self._memory is None:
            try:
                os.pwrite(self._fd, _NEXT.pack(self.next), _NEXT_AT)
            except OSError as e:
                self._fail(e)

    def newest_first(self, before: int | None = None) -> Iterator[tuple[int, FlowRecord]]:
        """(number, record) of what can be read, from the one below ``before`` on."""
        for piece in self.pieces(newest_first=True, before=before):
            yield from piece

    def pieces(
        self, *, newest_first: bool, since: int = 0, before: int | None = None
    ) -> Iterator[list[tuple[int, FlowRecord]]]:
        """As many as are read at once, or none: (number, record) of what can be read and was last seen at ``since`` or
        later, in microseconds since 1970. What is appended meanwhile is not among them.
        """
        self.flush()
        end = self.next if before is None else min(before, self.next)
        known = range(self.oldest // _PIECE, (end - 1) // _PIECE + 1)
        for piece in reversed(known) if newest_first else known:
            yield self._piece(piece, end, since, newest_first=newest_first)

    def _piece(self, piece: int, end: int, since: int, *, newest_first: bool) -> list[tuple[int, FlowRecord]]:
        self.flush()
        latest = self._latest.get(piece)
        begin, end = max(self.oldest, piece * _PIECE), min(end, (piece + 1) * _PIECE)
        if begin >= end or (latest is not None and latest < since):
            return []
        until_wrap = min(end - begin, self.count - begin % self.count)
        data = self._bytes(begin, until_wrap)
        if until_wrap < end - begin and len(data) == until_wrap * BYTES:
            data += self._bytes(begin + until_wrap, end - begin - until_wrap)
        seen = [last_of(data, at) for at in range(0, len(data) - BYTES + 1, BYTES)]
        if latest is None and seen:
            self._latest[piece] = max(seen)
        numbers = range(begin, begin + len(seen))
        found = []
        for number in reversed(numbers) if newest_first else numbers:
            at = number - begin
            if seen[at] >= since:
                record = decode(data[at * BYTES : (at + 1) * BYTES], number)
                if record is not None:
                    found.append((number, record))
        return found

    def _place(self, number: int) -> int:
        return number % self.count * BYTES

    def _bytes(self, number: int, count: int) -> bytes:
        at, size = self._place(number), count * BYTES
        if self._memory is not None:
            return bytes(self._memory[at : at + size])
        try:
            return os.pread(self._fd, size, _HEAD_BYTES + at)
        except OSError:
            return b""

    def _write(self, number: int, data: bytes) -> None:
        """Records that do not go beyond the end of the ring."""
        at = self._place(number)
        if self._memory is not None:
            self._memory[at : at + len(data)] = data
            return
        try:
            os.pwrite(self._fd, data, _HEAD_BYTES + at)
        except OSError as e:
            self._fail(e)

    def _fail(self, error: OSError) -> None:
        self.trouble = f"cannot write flows to {self.path}: {error.strerror}"

    # -- the file -----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        make_directories(os.path.dirname(self.path), 0o700)
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        try:
            self._fd = os.open(self.path, flags)
        except FileNotFoundError:
            self._make(flags)
            return
        if not self._is_ours():
            self._close_file()
            os.replace(self.path, f"{self.path}.bad")
            self._make(flags)
        elif self._count < self.count:
            self._grow(flags)
        else:
            self.count = self._count  # a larger one stays as it is

    def _grow(self, flags: int) -> None:
        """Put a larger file with the records of this one in its place; where there is no room for it, keep this one."""
        self._close_file()
        with closing(Ring(self.path, 0)) as smaller:
            try:
                self._make(flags)
            except OSError as e:
                self._close_file()
                self._fd, self.count = os.open(self.path, flags), self._count
                self.trouble = f"cannot keep more flows in {self.path}: {e.strerror}"
                return
            for piece in smaller.pieces(newest_first=False):
                self._unwritten.update(piece)
                self.flush()

    def _is_ours(self) -> bool:
        size, owner = require_regular(self._fd, self.path), os.fstat(self._fd).st_uid
        head = os.pread(self._fd, _HEAD.size, 0)
        if len(head) != _HEAD.size or owner != os.geteuid():
            return False
        magic, version, of_record, count, following = _HEAD.unpack(head)
        if (magic, version, of_record) != (_MAGIC, VERSION, BYTES) or not count:
            return False
        self._count, self.next, self.alive = count, max(1, following), os.fstat(self._fd).st_mtime
        return bool(size == _HEAD_BYTES + count * BYTES)

    def _make(self, flags: int) -> None:
        """With its room, before it has its name."""
        temporary = f"{self.path}.new"
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        self._fd = os.open(temporary, flags | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.posix_fallocate(self._fd, 0, _HEAD_BYTES + self.count * BYTES)
            os.pwrite(self._fd, _HEAD.pack(_MAGIC, VERSION, BYTES, self.count, self.next), 0)
            os.replace(temporary, self.path)
        except BaseException:
            os.unlink(temporary)
            raise
