"""How long the policy calculation takes, alone: start, and each kind of change, at three sizes of cluster.

    .venv/bin/python tests/bench/policy/graph.py [--runs 200]

No root, kernel or datastore: records in, changes out. Prints the table of BENCHMARKS.md.
"""

from __future__ import annotations

import argparse
import platform
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.graph import Graph
from tests.bench.policy.cluster import (
    LARGE,
    LOCAL_NODE,
    MIDDLE,
    SMALL,
    ClusterSize,
    endpoint,
    policy,
    records,
)


def timed(what: Callable[[], object]) -> float:
    """CPU milliseconds: nothing here waits, and a busy machine does not count."""
    started = time.process_time()
    what()
    return (time.process_time() - started) * 1000


def start(size: ClusterSize) -> tuple[Graph, float]:
    found = list(records(size))
    graph = Graph(lambda record: record.node == LOCAL_NODE)

    def load() -> None:
        for key, record in found:
            graph.put(key, record)
        graph.flush()

    return graph, timed(load)


def changes(graph: Graph, size: ClusterSize, runs: int) -> dict[str, float]:
    """Median CPU milliseconds of each kind of change, from the record to the difference."""
    found: dict[str, list[float]] = {}

    def change(name: str, key: ResourceKey, record: object) -> None:
        def apply() -> None:
            graph.put(key, record)
            graph.flush()

        found.setdefault(name, []).append(timed(apply))

    total = size.local + size.remote
    for run in range(runs):
        key, record = policy(size, run % size.policies)
        rules = [
            {**rule, "source": {"selector": f"{rule['source']['selector']} && app != 'x{run}'"}}
            for rule in record.spec["ingress"][:9]
        ]  # nine selectors of their own
        new = replace(record, spec={**record.spec, "ingress": [{"action": "Deny"}, *rules]})
        name = ResourceKey(key.kind, f"new{run}")
        change("policy put", name, new)
        change("policy deleted", name, None)
        key, here = endpoint(size, total)
        here = replace(here, node=LOCAL_NODE, interface_name="calinew")
        change("local endpoint put", key, here)
        change("local endpoint deleted", key, None)
        key, there = endpoint(size, size.local + run % size.remote)
        more = replace(there, ip_networks=(*there.ip_networks, ip_network(f"10.250.{run // 250}.{run % 250 + 1}")))
        change("remote endpoint joins sets", key, more)
        graph.put(key, there)
        graph.flush()
    return {name: median(times) for name, times in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    arguments = parser.parse_args()
    print(f"Python {platform.python_version()}, {platform.machine()}; CPU milliseconds, median of {arguments.runs}\n")
    names: list[str] = []
    rows: list[list[str]] = []
    for size in (SMALL, MIDDLE, LARGE):
        graph, started = start(size)
        found = changes(graph, size, arguments.runs)
        names = ["policies, local, remote", "start", *found, "peak memory so far, MB"]
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        shown = [f"{size.policies}, {size.local}, {size.remote}", f"{started:.0f}"]
        rows.append([*shown, *(f"{value:.2f}" for value in found.values()), f"{memory:.0f}"])
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for row in rows:
        print("| " + " | ".join(row) + " |")


if __name__ == "__main__":
    main()
