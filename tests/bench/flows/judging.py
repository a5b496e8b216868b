"""What it costs to judge recorded flows: by ``decide``, and by compiled cells.

    .venv/bin/python -m tests.bench.flows.judging [POLICIES ENDPOINTS FLOWS]

The cluster of tests.bench.policy.cluster; every endpoint is of this node. A tenth as many different flows as there are
flows, TCP to ports around those that are allowed; ingress. The first figure is of few flows, because it takes so long;
the others are of all, what has to be made first included. "repeated" is what it costs once everything has been made.
"diff" makes every cell of TCP: each source class to each class of destinations, all ports. "told" is what the recorder
is told of these rules at its start, and what it needs for them, in a process of its own. Processor time.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from ipaddress import IPv4Address

from cni_calico.flows.judging.encoding import Messages, render_whole
from cni_calico.flows.judging.known import KnownRules
from cni_calico.kernel.memory import resident_bytes
from cni_calico.policy.explain import Packet, decide
from cni_calico.policy.graph import Graph
from cni_calico.policy.judge.trace import Judge
from tests.bench.policy.cluster import FIRST_ADDRESS, ClusterSize, endpoint, records

TCP, FEW, SECONDS = 6, 200, 20.0


def main(policies: int, endpoints: int, count: int) -> None:
    size = ClusterSize(policies, endpoints, 0, max(5, endpoints // 200))
    graph = Graph(lambda _: True, lambda _: False)
    for key, record in records(size):
        graph.put(key, record)
    graph.flush()
    wanted = graph.wanted()
    keys = [endpoint(size, e)[0] for e in range(endpoints)]
    drawn = random.Random(1)

    def any_flow() -> tuple[int, Packet]:
        source, destination = drawn.randrange(endpoints), drawn.randrange(endpoints)
        addresses = (IPv4Address(FIRST_ADDRESS + e) for e in (source, destination))
        return destination, Packet(*addresses, TCP, 40000, 8000 + drawn.randrange(13))

    different = [any_flow() for _ in range(count // 10)]
    flows = [drawn.choice(different) for _ in range(count)]
    print(f"{policies} policies, {endpoints} endpoints, {count} flows, {len(wanted.sets)} sets")

    begun = time.process_time()
    plain = [decide(wanted, keys[at], "ingress", packet) for at, packet in flows[:FEW]]
    print(f"decide     {(time.process_time() - begun) / FEW * 1e6:9.1f} us a flow")

    before, begun = resident_bytes(), time.process_time()
    judge = Judge(wanted)
    print(f"index      {(time.process_time() - begun) * 1e3:9.1f} ms, {resident_bytes() - before >> 10} KiB")
    begun = time.process_time()
    judged = [judge.judge(judge.of_workload(keys[at], "ingress"), packet) for at, packet in flows]
    spent = time.process_time() - begun
    print(f"cells      {spent / count * 1e6:9.1f} us a flow, with {len(judge)} cells made")
    begun = time.process_time()
    for at, packet in flows:
        judge.judge(judge.of_workload(keys[at], "ingress"), packet)
    print(f"repeated   {(time.process_time() - begun) / count * 1e6:9.1f} us a flow")
    print(f"memory     {(resident_bytes() - before) / 1024 / len(judge):9.1f} KiB a cell, the index included")
    wrong = sum(found.decision != expected for found, expected in zip(judged, plain, strict=False))
    allowed = sum(found.decision is not None and found.decision.verdict == "Allow" for found in judged)
    print(f"different from decide: {wrong} of {FEW}; allowed {allowed} of {count}")

    classes = list({judge.classes.of(IPv4Address(FIRST_ADDRESS + e).packed): e for e in range(endpoints)})
    ends = {
        wanted.endpoints[keys[e]].class_id: judge.classes.of(IPv4Address(FIRST_ADDRESS + e).packed)
        for e in range(endpoints)
    }
    fresh, made, begun = Judge(wanted), 0, time.process_time()
    for group, destination in ends.items():
        for source in classes:
            fresh.cell_of((group, "ingress", None), source, destination, TCP)
        made += len(classes)
        if time.process_time() - begun > SECONDS:
            break
    spent = time.process_time() - begun
    whole = len(classes) * len(ends)
    print(f"diff       {spent / made * 1e6:9.1f} us a cell, {whole} cells in {spent / made * whole:.1f} s")
    with tempfile.NamedTemporaryFile() as told:
        begun = time.process_time()
        told.writelines(render_whole(wanted))
        told.flush()
        print(f"told       {(time.process_time() - begun) * 1e3:9.1f} ms for {told.tell() >> 10} KiB")
        subprocess.run([sys.executable, "-m", "tests.bench.flows.judging", "hear", told.name], check=True)
    with open("/proc/loadavg") as file:
        print(f"load {file.read().split()[0]}")


def hear(path: str) -> None:
    before, begun = resident_bytes(), time.process_time()
    known, messages = KnownRules(), Messages()
    with open(path, "rb") as file:
        while data := file.read(64 << 10):
            messages.put(data)
            while (message := messages.take()) is not None:
                known.receive(message.kind, message.changes, 0.0)
    spent = time.process_time() - begun
    print(f"heard      {spent * 1e3:9.1f} ms, {(resident_bytes() - before) / (1 << 20):.1f} MiB")


if __name__ == "__main__":
    if sys.argv[1:2] == ["hear"]:
        hear(sys.argv[2])
    elif len(sys.argv) > 1:
        main(*map(int, sys.argv[1:4]))
    else:
        main(100, 1000, 20_000)
        main(1000, 10_000, 50_000)
