"""What policy sync costs the agent: `python -m tests.bench.policy_sync [WORKLOADS | joins]`.

Each workload has a reader of its own that needs the set of which one member changes; processor time is the server's
process's, with everything until all readers have the change. "joins": one workload opens ten thousand connections as
fast as it can, while another one joins.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from cni_calico.policy.wanted import SetChange, WantedChanges
from tests.deadlines import until
from tests.unit.nodeagent.sync.test_serving import ENDPOINT, KEY, Client, Served, clients

ROUNDS = 20
READERS = """
import grpc, sys
options = (("grpc.use_local_subchannel_pool", 1),)
channels = [grpc.insecure_channel(f"unix:{path}", options) for path in sys.argv[1:]]
calls = [channel.unary_stream("/felix.PolicySync/Sync")(b"") for channel in channels]
for call in calls:
    for _ in range(5):
        next(call)
print("read", flush=True)
while True:
    for call in calls:
        next(call)
    print("read", flush=True)
"""

JOINS = """
import socket, sys
for _ in range(10_000):
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(0.05)
    try:
        one.connect(sys.argv[1])
        one.send(b"PRI * HTTP/2.0")
    except OSError:
        pass
    one.close()
"""


def resident_kb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


def measure(count: int, served: Served) -> str:
    keys = [replace(KEY, name=f"p{i}") for i in range(count)]
    endpoints = {
        key: replace(ENDPOINT, key=key, workload=f"shop/p{i}", interface=f"cali{i}") for i, key in enumerate(keys)
    }
    served.server.receive(WantedChanges(endpoints=endpoints))
    empty = resident_kb()
    paths = [served.add(f"v{i}", pod=f"p{i}") for i in range(count)]
    for path in paths:
        until(path.is_socket)
    listening = resident_kb()
    with subprocess.Popen([sys.executable, "-c", READERS, *paths], stdout=subprocess.PIPE, text=True) as readers:
        assert readers.stdout is not None and readers.stdout.readline() == "read\n"
        followed, costs = resident_kb(), []
        for i in range(ROUNDS):
            begun = time.process_time()
            served.server.receive(WantedChanges(sets_changed={"s-clients": SetChange(clients(1, first=100 + i))}))
            assert readers.stdout.readline() == "read\n"
            costs.append(1000 * (time.process_time() - begun))
        readers.kill()
    sockets, readers_kb = (listening - empty) / count, (followed - listening) / count
    cost = f"{median(costs):.1f} ms of processor time (most {max(costs):.1f}) for a changed member"
    return f"{count} readers: {cost}; {sockets:.0f} kB for a socket, {readers_kb:.0f} more for its reader"


def measure_joins(served: Served) -> str:
    hostile, other = served.add("hostile", pod="hostile"), served.add()
    for path in (hostile, other):
        until(path.is_socket)
    used, begun = time.process_time(), time.monotonic()
    with subprocess.Popen([sys.executable, "-c", JOINS, hostile]):
        Client(other).join().until_in_sync()
        joined = time.monotonic() - begun
    cost = 1000 * (time.process_time() - used)
    its = f"another workload's reader, who had all after {joined:.2f} s"
    return f"10,000 connections: {cost:.0f} ms of processor time, with {its}"


def main() -> None:
    joins = sys.argv[1:] == ["joins"]
    count = int(sys.argv[1]) if len(sys.argv) > 1 and not joins else 250
    with tempfile.TemporaryDirectory() as directory:
        served = Served(Path(directory), 30.0)
        try:
            print(measure_joins(served) if joins else measure(count, served))
        finally:
            served.stop()


if __name__ == "__main__":
    main()
