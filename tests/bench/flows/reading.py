"""What the recorder's processor does for each connection, and the memory that it needs.

    .venv/bin/python -m tests.bench.flows.reading [THOUSANDS [alone]]

Thousands of connections begin, each let through on both sides of the host, and end; the recorder is in this process,
and its processor time is counted apart from that of whoever sends. It judges each decision, unless it is "alone".
"""

from __future__ import annotations

import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.flows.deciders import render_line
from cni_calico.flows.judging.encoding import render_whole
from cni_calico.flows.recorder import Recorder
from cni_calico.kernel.memory import resident_bytes
from cni_calico.kernel.netlink.nfnetlink import CTNETLINK, Nfnetlink, general
from cni_calico.log import Log
from cni_calico.nodeagent.policing.tables.numbers import Recording, RuleNumbers
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.policy.wanted import Wanted
from cni_calico.regular import make_directories
from tests.bench.flows.packets import ALLOWED_PORT, SIDES, documents
from tests.netns.wire import Wire, entered, frame, open_wire
from tests.unit.policy.cluster import graph_of


def put_in_force(wire: Wire, numbers: RuleNumbers, root: str, records: Mapping[Any, Any]) -> Wanted:
    """The rules of these records, and what their numbers stand for where a recorder below ``root`` reads it."""
    graph = graph_of(records)
    graph.flush()
    wanted = graph.wanted()
    wire.apply(wanted)
    make_directories(f"{root}/state/flows", 0o700)
    Path(f"{root}/state/flows/numbers").write_text("".join(render_line(*one) for one in numbers.take_new()))
    wire.route({ip_address("10.0.0.1"): "cali1", ip_address("10.0.0.2"): "calil3"})
    return wanted


def main(thousands: int, *, judges: bool) -> None:
    incoming, source = SIDES["both sides"]
    packet = {"source": ip_address(source), "destination": ip_address("10.0.0.1"), "protocol": 17, "icmp": (0, 0)}
    numbers = RuleNumbers()
    with (
        tempfile.TemporaryDirectory() as root,
        open_wire(FilterSettings(recording=Recording(numbers))) as wire,
    ):
        wanted = put_in_force(wire, numbers, root, documents())
        with entered(wire.host):
            ours, theirs = socket.socketpair()
            fd = theirs.fileno() if judges else None
            recorder = Recorder(f"{root}/state", f"{root}/run", Log("error"), agent_fd=fd)
            for message in render_whole(wanted):
                ours.sendall(message)
            netlink = Nfnetlink()
        spent = 0.0

        def step() -> None:
            nonlocal spent
            begun = time.process_time()
            recorder.step()
            spent += time.process_time() - begun

        sent, empty = 0, resident_bytes()
        for _ in range(thousands):
            for _ in range(1000):
                sport = 1024 + sent % 60_000
                sent += 1
                wire.outer[incoming].send(frame({**packet, "sport": sport, "dport": ALLOWED_PORT}, 0))
            step()
            netlink.request(CTNETLINK << 8 | 2, 0, general(""), "flush", Deadline.after(10))
            step()
        while recorder.status()["allowed"] < sent and not recorder.status()["lost"]["nflog-allowed"]:
            step()
        said = recorder.status()
        print(f"{spent / sent * 1e6:.1f} us of the processor for a connection; recorded {said['allowed']} of {sent}")
        judged = said["agreed"], said["unjudged"], said["disagreed"]
        print("judged {}, not judged {}, otherwise {}".format(*judged))
        print(f"lost {said['lost']}, taken apart {said['slow']}")
        print(f"resident {empty >> 20} MiB before, {resident_bytes() >> 20} MiB after")
        netlink.close()
        recorder.close()
    with open("/proc/loadavg") as file:
        print(f"load {file.read().split()[0]}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20, judges="alone" not in sys.argv)
