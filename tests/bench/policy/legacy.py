#!/usr/bin/env python3
"""Legacy iptables and IP sets: how long until a change is in force in the kernel, and what it costs.

    tests/bench/policy/legacy.py [--sizes 10,100,1000] [--repeat 20] [--other CHECKOUT]

The cluster of cluster.py, both families, without datastore: a record changes, and its difference is calculated and put
into force by iptables' and ipset's programs. Each contestant (this checkout, and with ``--other`` another one, such as
an older version of the product) has a process with its own network and /run, and they take turns, block by block, so
that both see the same machine. Needs root and ipset, iptables (tests/setup/tests.sh).

Prints medians in ms: how long; of that the processor time of Python and of the programs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
BLOCKS = 4
OWN_NAMESPACES = 'mount -t tmpfs tmpfs /run && ip link set lo up && exec "$@"'
Samples = dict[str, list[tuple[float, float, float]]]


class Node:
    """The worker's: one node's policies in this process's network."""

    def __init__(self, policies: int) -> None:
        from cni_calico.kernel.filter.legacy.filter import LegacyFilter
        from cni_calico.kernel.filter.legacy.matches import Marks
        from cni_calico.log import Log
        from cni_calico.nodeagent.policing.enforce.enforcer import Enforcer
        from cni_calico.nodeagent.policing.tables.goal import Goal
        from cni_calico.nodeagent.policing.tables.settings import FilterSettings
        from cni_calico.policy.graph import Graph
        from tests.bench.policy import cluster

        self.cluster = cluster
        self.size = {one.policies: one for one in (cluster.SMALL, cluster.MIDDLE, cluster.LARGE)}[policies]
        self.graph = Graph(lambda record: record.node == cluster.LOCAL_NODE)
        filtering = LegacyFilter(Marks(0x40000, 0x80000), 5.0)
        self.enforcer = Enforcer(filtering, Goal(FilterSettings()), Log("warning"))

    def change(self, *changed: tuple[Any, Any]) -> tuple[float, float, float]:
        """(ms until it is in force, of Python's processor time, of the programs')."""
        from cni_calico.deadline import Deadline

        own, theirs, begun = _cpu(RUSAGE_SELF), _cpu(RUSAGE_CHILDREN), time.perf_counter()
        for key, record in changed:
            self.graph.put(key, record)
        self.enforcer.goal.update(self.graph.flush().changes)
        self.enforcer.bring_about(Deadline.after(300))
        return (
            1000 * (time.perf_counter() - begun),
            1000 * (_cpu(RUSAGE_SELF) - own),
            1000 * (_cpu(RUSAGE_CHILDREN) - theirs),
        )

    def block(self, repeat: int) -> Samples:
        from cni_calico.model.keys import ResourceKey

        found: Samples = {}
        key, record = self.cluster.policy(self.size, 0)
        _, pod = self.cluster.endpoint(self.size, self.size.local + self.size.remote)
        other_key, other = self.cluster.endpoint(self.size, self.size.local)
        more = replace(other, ip_networks=(*other.ip_networks, ip_network("10.250.0.1")))
        pod = replace(pod, node=self.cluster.LOCAL_NODE, interface_name="calinew")
        for run in range(repeat):
            rules = [
                {**rule, "source": {"selector": f"{rule['source']['selector']} && app != 'x{run}'"}}
                for rule in record.spec["ingress"][:9]
            ]  # nine selectors of their own
            new = replace(record, spec={**record.spec, "ingress": [{"action": "Deny"}, *rules]})
            steps = {
                "policy put": (ResourceKey(key.kind, "new"), new),
                "policy deleted": (ResourceKey(key.kind, "new"), None),
                "local endpoint put": (ResourceKey("WorkloadEndpoint", "new", "default"), pod),
                "local endpoint deleted": (ResourceKey("WorkloadEndpoint", "new", "default"), None),
                "remote endpoint joins sets": (other_key, more),
                "... leaves them": (other_key, other),
            }
            for name, step in steps.items():
                found.setdefault(name, []).append(self.change(step))
        return found

    def serve(self) -> None:
        """A block for each line with its number of repetitions; the first one is the start."""
        print(json.dumps({"start": [self.change(*self.cluster.records(self.size))]}), flush=True)
        for line in sys.stdin:
            print(json.dumps(self.block(int(line))), flush=True)


def _cpu(whose: int) -> float:
    used = getrusage(whose)
    return used.ru_utime + used.ru_stime


class Contestant:
    def __init__(self, checkout: Path, policies: int) -> None:
        worker = [sys.executable, __file__, "--worker", str(checkout), "--sizes", str(policies)]
        self.process = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-c", OWN_NAMESPACES, "sh", *worker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.samples: Samples = {}
        self.take()

    def take(self) -> None:
        assert self.process.stdout is not None
        for name, samples in json.loads(self.process.stdout.readline()).items():
            self.samples.setdefault(name, []).extend(samples)

    def turn(self, repeat: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{repeat}\n")
        self.process.stdin.flush()
        self.take()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="10,100,1000")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--other", type=Path, help="another checkout, measured beside this one")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        sys.path.insert(0, str(chosen.worker.resolve()))
        Node(int(chosen.sizes)).serve()
        return
    checkouts = {"this": ROOT, **({"other": chosen.other} if chosen.other else {})}
    for size in map(int, chosen.sizes.split(",")):
        contestants = {name: Contestant(checkout, size) for name, checkout in checkouts.items()}
        for block in range(BLOCKS):
            for name in sorted(contestants, reverse=block % 2 == 1):
                contestants[name].turn(max(1, chosen.repeat // BLOCKS))
        for one in contestants.values():
            one.end()
        print(f"{size} policies: ms (Python's, programs' processor time)")
        for step in next(iter(contestants.values())).samples:
            shown = []
            for name, one in contestants.items():
                took, own, theirs = (median(values) for values in zip(*one.samples[step], strict=True))
                shown.append(f"{name} {took:8.1f} ({own:7.1f}, {theirs:7.1f})")
            print(f"  {step:28}" + "   ".join(shown), flush=True)


if __name__ == "__main__":
    main()
