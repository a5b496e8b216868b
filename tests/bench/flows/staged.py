"""What staged policies cost the agent and the recorder: CPU seconds and memory.

    .venv/bin/python tests/bench/flows/staged.py [--policies 1000] [--endpoints 10000] [--local 100] [--reports 200000]

No root. The cluster is that of tests/bench/policy/proposed.py, of which ``local`` workloads are this node's; one policy
is staged. ``agent``: the second graph, until all is encoded; ``recorder``: decoding that, then reports of connections,
which differ by the source port, and of which a hundred kinds are new.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from cni_calico.flows.deciders import END, Decider
from cni_calico.flows.judging.allowance import Allowance
from cni_calico.flows.judging.encoding import Messages, render_whole
from cni_calico.flows.judging.known import KnownRules
from cni_calico.flows.judging.staged import StagedFlows
from cni_calico.log import Log
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.nodeagent.recording.staged import StagedRules
from cni_calico.policy.graph import Graph
from cni_calico.policy.staged import StagedPolicy
from tests.bench.policy.proposed import cluster, policy

NODE = "n1"


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    for name, default in (("policies", 1000), ("endpoints", 10_000), ("local", 100), ("reports", 200_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    graph, left, ours = Graph(lambda one: one.node == NODE), given.local, list[WorkloadEndpoint]()
    for key, record in cluster(given.policies, given.endpoints):
        if isinstance(record, WorkloadEndpoint) and left:
            left -= 1
            record = replace(record, node=NODE)
            ours.append(record)
        graph.put(key, record)
    graph.flush()
    before, begun = megabytes(), time.process_time()
    rules = StagedRules(NODE, Log("error", stderr=False))
    enforced, record = policy(3, given.policies, max(5, given.endpoints // 200), 8100)
    rules.stage(ResourceKey("StagedGlobalNetworkPolicy", "p3"), StagedPolicy(enforced, enforced, record))
    rules.go_on(anew=True)
    rules.begin(graph.records(), graph.budget)
    told = b""
    while not told:
        told = b"".join(rules.go_on(anew=False) or ())
    print(
        f"agent     {time.process_time() - begun:6.2f} s, {megabytes() - before:.0f} MB, {len(told) >> 10} KiB to tell"
    )
    known = KnownRules()
    hear(known, b"".join(render_whole(graph.wanted())))
    before, begun = megabytes(), time.process_time()
    staged = StagedFlows(known, Allowance(time.monotonic, time.thread_time, share=1e9))
    messages = Messages()
    messages.put(told)
    while (message := messages.take()) is not None:
        staged.receive(message, 0.0)
    print(f"recorder  {time.process_time() - begun:6.2f} s, {megabytes() - before:.0f} MB to hear")
    decider = Decider("GlobalNetworkPolicy", "", "p3", "default", True, END, "Deny")
    ends = [one.ip_networks[0].network_address.packed for one in ours]
    keys = [
        ends[number % 10] + ends[number // 10 % 10] + b"\6" + number.to_bytes(4, "big")[2:] + (8000).to_bytes(2, "big")
        for number in range(given.reports)
    ]
    begun = time.process_time()
    for key in keys:
        staged.count(key, decider)
    each_us = (time.process_time() - begun) / given.reports * 1e6
    print(f"count     {each_us:6.2f} us a report; {staged.uncounted} not counted")
    with open("/proc/loadavg") as file:
        print(f"load {file.read().split()[0]}")


def hear(known: KnownRules, data: bytes) -> None:
    messages = Messages()
    messages.put(data)
    while (message := messages.take()) is not None:
        known.receive(message.kind, message.changes, 0.0)


if __name__ == "__main__":
    main()
