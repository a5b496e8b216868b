"""A day of sums: what writing them costs, the disk that they take, and what it takes to add them up again.

    .venv/bin/python -m tests.bench.flows.sums [SUMS]

SUMS (500) in each of the 288 times of five minutes, each of them one connection.
"""

from __future__ import annotations

import sys
import tempfile
import time

from cni_calico.flows.aggregates import FlowAggregates
from cni_calico.flows.names import EndName
from cni_calico.flows.records import COUNTED, ENDED, FlowRecord
from cni_calico.flows.sums import BUCKET_S
from cni_calico.flows.totals import FlowTotals
from cni_calico.kernel.memory import resident_bytes
from cni_calico.log import SILENT

NOW, DAY = 1_800_000_000, 288


def flow(began: int, i: int) -> FlowRecord:
    ends = bytes((10, 65, 0, i % 250)), bytes((10, 65, 1 + i // 250 % 250, i % 7))
    where = *ends, ends[1], 5000, 80 + i % 3, 80 + i % 3, 6, COUNTED | ENDED
    return FlowRecord(began, began, *where, NOW + i % 50, NOW + i % 40, 0, 0, 0, 5, 600, 5, 600, 1 + i % 250, 0)


def main(count: int) -> None:
    names = {i: EndName("pod", "shop", f"web-{i}-7d9f5c6b8-x2k4v") for i in range(1, 251)}
    longest = 0.0
    with tempfile.TemporaryDirectory() as root:
        aggregates = FlowAggregates(f"{root}/flows.db", names.get, SILENT, NOW)
        empty, begun = resident_bytes(), time.process_time()
        for now in range(NOW, NOW + DAY * BUCKET_S, BUCKET_S):
            for i in range(count):
                aggregates.sums.add(flow(now * 1_000_000, i))
            while aggregates.sums.unwritten:
                at = time.perf_counter()
                aggregates.flush(now + 10)
                longest = max(longest, time.perf_counter() - at)
        spent = time.process_time() - begun
        print(f"{spent / DAY / count * 1e6:.1f} us for a sum, written at most {longest * 1e3:.0f} ms at once")
        print(f"{aggregates.size >> 20} MiB of disk, {resident_bytes() - empty >> 20} MiB more resident")
        begun, totals, found = time.process_time(), FlowTotals(), 0
        for part in aggregates.read(0, NOW):
            found += len(part)
            for key, source, destination, counts in part:
                totals.add(key, source, destination, counts)
        shown = len(list(totals.documents("n1", lambda number: None)))
        print(f"{found} sums added up to {shown} in {time.process_time() - begun:.2f} s of the processor")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 500)
