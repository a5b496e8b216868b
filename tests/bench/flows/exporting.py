"""What exporting takes of the recorder, without any collector: `python -m tests.bench.flows.exporting [CONNECTIONS]`.

Connections that both sides let through here begin and end, on 200 ports; then each update is made into a message. The
memory is what gRPC and the export take besides the recorder, from sources.
"""

from __future__ import annotations

import sys
import time

from cni_calico.flows.deciders import Decider
from cni_calico.flows.names import EndName
from cni_calico.flows.records import ENDED, FlowRecord
from cni_calico.kernel.memory import resident_bytes
from cni_calico.nodeagent.recording import process as _process  # as much as the recorder imports

OUT, IN = 1000, 1001
DECIDERS = {
    OUT: Decider("Profile", "", "kns.shop", "", False, 0, "Allow"),
    IN: Decider("NetworkPolicy", "shop", "db", "default", True, 2, "Allow"),
}
NAMES = {1: EndName("pod", "shop", "web-7d9-x2k4"), 2: EndName("pod", "shop", "db-0")}
LABELS = {"app": "web", "pod-template-hash": "7d9", "projectcalico.org/namespace": "shop"}


def record(port: int) -> FlowRecord:
    ends = b"\n\1\0\1", b"\n\1\0\2", b"\n\1\0\2", 40000, port, port, 6, 0
    return FlowRecord(1, 2, *ends, OUT, IN, 0, 0, 0, 0, 0, 0, 0, 1, 2)


def main(count: int) -> None:
    before = resident_bytes()
    from cni_calico.flows.export.exporter import Exporter
    from cni_calico.flows.export.intervals import IntervalSums
    from cni_calico.flows.export.keys import KeyMaker
    from cni_calico.flows.export.messages import encode_update
    from cni_calico.slim_grpc import load_grpc

    assert Exporter  # as much as it imports
    load_grpc()
    print(f"memory: {(resident_bytes() - before) >> 20} MB besides the recorder's {before >> 20}")
    keys = KeyMaker(DECIDERS.get, NAMES.get, lambda name: name.name)
    sums = IntervalSums(keys.keys, lambda record: (LABELS, LABELS))
    begun = [record(1000 + at % 200) for at in range(count)]
    ended = [one.but(flags=ENDED, packets=3, packets_back=2, size=180, size_back=900) for one in begun]
    start = time.process_time()
    for number, (one, end) in enumerate(zip(begun, ended, strict=True)):
        sums.note(number, None, one)
        sums.note(number, one, end)
    print(f"a connection: {(time.process_time() - start) / count * 1e6:.1f} us")
    flows = sums.take(0)
    start = time.process_time()
    for flow in flows * 10:
        encode_update(flow)
    print(f"an update: {(time.process_time() - start) / len(flows) / 10 * 1e6:.1f} us ({len(flows)} of them)")


if __name__ == "__main__":
    assert _process
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
