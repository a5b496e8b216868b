"""What it takes to answer from a full ring, in the recorder's process with its reader.

    .venv/bin/python -m tests.bench.flows.asking

The newest 465,000 connections, of the last hour; nothing arrives meanwhile.
"""

from __future__ import annotations

import tempfile
import threading
import time
from unittest.mock import patch

from cni_calico.deadline import Deadline
from cni_calico.directories import FLOW_SOCKET
from cni_calico.flows import recorder as module
from cni_calico.flows import tracking
from cni_calico.flows.client import ask
from cni_calico.flows.query import Condition, FlowQuery
from cni_calico.flows.records import COUNTED, ENDED, FlowRecord
from cni_calico.kernel.memory import resident_bytes
from cni_calico.log import SILENT
from tests.fakes.stepped_recorder import Arriving, NoComparison

LAST_HOUR = 3500.0


def fill(ring: module.Ring, now: float) -> int:
    step = int(LAST_HOUR * 1e6) // ring.count
    for i in range(ring.count):
        began = int((now - LAST_HOUR) * 1e6) + i * step
        where = bytes((10, 0, i >> 8 & 255, i & 255)), bytes((10, 1, 0, 2)), bytes((10, 1, 0, 2)), i % 65536
        ports = 80 + i % 50, 80, 6, ENDED | COUNTED
        ring.append(FlowRecord(began, began, *where, *ports, 300, 301, 0, 0, 0, 5, 600, 5, 600, 0, 0))
        if i % 10_000 == 0:
            ring.flush()
    ring.flush()
    return ring.count


def main() -> None:
    now = time.time()
    one = Condition("from", ("10.0.1.3",)), Condition("to", ("10.1.0.2",)), Condition("port", ("97",))
    questions = {
        "the newest 20": FlowQuery(last=20),
        "those of one address": FlowQuery(one[:1]),
        "what policy explain asks": FlowQuery(one, since=now - 3600, aggregate=True),
        "five minutes, added up": FlowQuery(since=now - 300, aggregate=True),
        "all": FlowQuery(),
    }
    with (
        tempfile.TemporaryDirectory() as root,
        patch.object(module, "Arrivals", lambda *_, **__: Arriving()),
        patch.object(module, "Comparison", NoComparison),
        patch.object(tracking.ConnectionTracking, "_switch_on", lambda self: True),
    ):
        recorder, ended = module.Recorder(root, root, SILENT), threading.Event()
        print(f"{fill(recorder._ring, now)} connections, {resident_bytes() >> 20} MiB resident")

        def serve() -> None:
            while not ended.is_set():
                recorder.step()

        serving = threading.Thread(target=serve)
        serving.start()
        for name, question in questions.items():
            begun, first, count = time.perf_counter(), 0.0, 0
            for _ in ask(f"{root}/{FLOW_SOCKET}", question, Deadline.after(600)):
                first = first or time.perf_counter() - begun
                count += 1
            spent = time.perf_counter() - begun
            resident = resident_bytes() >> 20
            print(f"{name}: {count - 1} after {spent:.2f} s, the first after {first:.2f} s, {resident} MiB resident")
        ended.set()
        serving.join()
        recorder.close()


if __name__ == "__main__":
    main()
