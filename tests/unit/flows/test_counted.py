"""Records that are counted in the sums as they change."""

from __future__ import annotations

from pathlib import Path

from cni_calico.flows.counted import CountedRecords
from cni_calico.flows.records import ENDED, FlowRecord
from cni_calico.flows.ring import Ring
from cni_calico.flows.sums import FlowSums

COUNT = 10_000


def test_much_that_comes_at_once_is_counted_and_written_meanwhile(tmp_path: Path) -> None:
    """What a recorder has to read that was away for a while must not all be in its memory."""
    ring, sums = Ring(str(tmp_path / "ring"), 4 << 20), FlowSums()
    records = CountedRecords(ring, sums)

    def counted(what: str) -> int:
        return sum(getattr(one, what) for bucket in sums.unwritten.values() for one in bucket.values())

    ends = bytes((10, 0, 0, 1)), bytes((10, 0, 0, 2)), bytes((10, 0, 0, 2))
    for i in range(COUNT):
        record = FlowRecord(1_000_000, 1_000_000, *ends, 1024 + i, 80, 80, 6, 0, 300, *(0,) * 10)
        assert records.append(record) == i + 1
    assert COUNT - 4000 <= counted("connections") <= COUNT
    ring_now = Ring(str(tmp_path / "ring"), 4 << 20)
    assert ring_now.next > COUNT - 4000
    ring_now.close()
    for number in range(1, COUNT + 1):
        record = records.read(number)
        assert record is not None and record.sport == 1023 + number
        records.update(number, record.but(flags=ENDED))
    assert COUNT - 4000 <= counted("ended") <= COUNT
    records.settle()
    assert counted("connections") == counted("ended") == COUNT
    ring.close()
