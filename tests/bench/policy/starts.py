#!/usr/bin/env python3
"""Policy: how long an agent takes from its start until policy is in force, and where that time goes.

    starts.py [--sizes 10,100,1000] [--repeat 20] [--store STORE] [--settle S] [--agent COMMAND] [--other COMMAND]
    starts.py --phases TREE [--sizes 10] [--repeat 5] [--store STORE]

STORE is etcd, local (the embedded one) or kubernetes (an API server on loopback; api_server.py).
Contestants start in turn, each on a cluster of its own like that of changes.py. A cold start is one on a kernel without
rules of ours and without any file of an earlier run: until a packet is denied by a policy. A warm one finds the rules
of the start before, and nothing has changed: until both endpoints that have an interface have their status file again,
and how many times the packet filter was changed by then (its generation). CPU is counted in ticks of 10 ms. Memory,
and CPU once more, are read S seconds later (0.5; what a start leaves free has been given back after 7).

``--phases`` runs the agent whose modules are in TREE, a bundle's contents directory, with a clock around the functions
that timed_agent.py names, and prints when each was first entered and last left, in ms since the process was started,
how often, and the CPU of its thread in it (what it calls included). Needs root and an etcd (tests/setup/tests.sh), or
kube-apiserver (tests/setup/lab.sh).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from cni_calico.datastore.connect import open_datastore
from cni_calico.datastore.interface import Datastore
from cni_calico.deadline import Deadline
from cni_calico.kernel.filter.nf_tables.filter import NfTables
from cni_calico.model.access import DatastoreConfig
from cni_calico.model.keys import ResourceKey
from tests.bench.policy.api_server import PROBE_INTERFACES, fill_api_server, open_api_server, plug_others
from tests.bench.policy.changes import (
    AGENT,
    MEMORY,
    SIZES,
    Agent,
    Bench,
    agent_environment,
    changed_policy,
    open_lab,
)
from tests.e2e.kubernetes.cluster import Cluster
from tests.netns.policing.lab import Lab

CHANGED = ResourceKey("GlobalNetworkPolicy", "changed")
PAUSE_S = 0.001
LIMIT_S = 300.0
TIMED = Path(__file__).with_name("timed_agent.py")


def _has_two(directory: Path) -> bool:
    return len(list(directory.iterdir())) >= 2


class Starts(Bench):
    """One contestant, whose agent starts again and again."""

    store: Datastore

    def __init__(self, lab: Lab, policies: int, command: list[str], kind: str, settle_s: float) -> None:
        super().__init__(lab, policies, command)
        self.settle_s = settle_s
        self.told: dict[str, str] = {}  # to the agent, where the records are
        if kind == "local":
            path = str(lab.root / "cluster.db")
            self._use(open_datastore(DatastoreConfig("local", path=path)))
            self.told = {"DATASTORE_TYPE": "local", "DATASTORE_PATH": path}

    def _use(self, store: Datastore) -> None:
        self.store.close()
        self.store = store

    def fill_api_server(self, kube: Cluster) -> None:
        store = kube.store()
        self._use(store)
        self.told = {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": kube.kubeconfig()}
        plug_others(self.lab.host, self.lab.workloads["probing"].ns, self.local)
        fill_api_server(kube, store, [*self.records(), changed_policy("a1")])

    def environment(self) -> dict[str, str]:
        return agent_environment(self.lab.root) | self.told

    def cold(self, repeat: int) -> None:
        for _ in range(repeat):
            self._forget()
            assert self.lab.passes("probing", "probed", 80)
            self._begin("cold", lambda: not self.lab.passes("probing", "probed", 80))

    def warm(self, repeat: int) -> None:
        for _ in range(repeat):
            status = self.lab.root / "endpoint-status"
            for file in status.iterdir():
                file.unlink()
            before = self._generation()
            self._begin("warm", partial(_has_two, status))
            self.add(warm_changes=self._generation() - before)

    def _begin(self, name: str, is_done: Any) -> None:
        begun = time.monotonic()
        self.agent = Agent(self.command, {**self.environment(), "BENCH_BEGUN": repr(begun)})
        while not is_done():
            if time.monotonic() > begun + LIMIT_S or self.agent.process.poll() is not None:
                raise SystemExit("never in force")
            self.pause.wait(PAUSE_S)
        self.samples.setdefault(f"{name} ms", []).append(1000 * (time.monotonic() - begun))
        self.samples.setdefault(f"{name} CPU ms", []).append(self.agent.cpu_ms())
        self.pause.wait(self.settle_s)
        self.samples.setdefault(f"{name} CPU ms later", []).append(self.agent.cpu_ms())
        self.samples.setdefault(f"{name} MB resident then", []).append(self.agent.resident_mb())
        self.agent.stop()
        self.agent = None

    def _forget(self) -> None:
        self.lab.host.run("nft", "flush", "ruleset")
        for name in ("run", "state", "log"):
            shutil.rmtree(self.lab.root / name, ignore_errors=True)

    def _generation(self) -> int:
        with NfTables() as kernel:
            return kernel.generation(Deadline.after(10))


def serve(turns: Connection, policies: int, command: list[str], kind: str, settle_s: float = 0.5) -> None:
    """A contestant's process: whatever it is told, until that is nothing."""
    with ExitStack() as stack:
        if kind == "kubernetes":
            lab = open_lab("bench-starts", stack, PROBE_INTERFACES, etcd=False)
            bench = Starts(lab, policies, command, kind, settle_s)
            bench.fill_api_server(open_api_server(stack))
        else:
            bench = Starts(open_lab("bench-starts", stack), policies, command, kind, settle_s)
            bench.fill(hosts=False)
            bench.write(changed_policy("a1"))
        stack.callback(lambda: bench.store.close())
        stack.callback(lambda: bench.agent is not None and bench.agent.stop())
        turns.send({})
        while (part := turns.recv()) is not None:
            bench.samples = {}
            getattr(bench, part)(1)
            turns.send(bench.samples)


def measure(
    policies: int, repeat: int, contestants: dict[str, list[str]], kind: str, settle_s: float = 0.5
) -> dict[str, dict[str, Any]]:
    """The samples of every figure, by contestant."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in contestants}
    spawn, pipes, processes = get_context("spawn"), {}, []
    try:
        for name, command in contestants.items():
            pipes[name], theirs = spawn.Pipe()
            processes.append(spawn.Process(target=serve, args=(theirs, policies, command, kind, settle_s)))
            processes[-1].start()
            theirs.close()
            pipes[name].recv()
        for turn in range(repeat):
            names = list(contestants)
            for part in ("cold", "warm"):
                for name in names[turn % len(names) :] + names[: turn % len(names)]:
                    pipes[name].send(part)
                    for figure, values in pipes[name].recv().items():
                        found[name].setdefault(figure, []).extend(values)
    finally:
        for pipe in pipes.values():
            pipe.send(None)
        for process in processes:
            process.join()
    return found


# -- phases ------------------------------------------------------------------------------------------------------------


def print_phases(policies: int, repeat: int, tree: str, kind: str) -> None:
    with tempfile.NamedTemporaryFile(prefix="bench-starts", dir=MEMORY) as file:
        command = [sys.executable, "-I", "-S", str(TIMED), file.name, tree]
        pipe, theirs = (spawn := get_context("spawn")).Pipe()
        process = spawn.Process(target=serve, args=(theirs, policies, command, kind))
        process.start()
        theirs.close()
        pipe.recv()
        for part in ("cold", "warm"):
            runs: list[dict[str, list[float]]] = []
            whole: list[float] = []
            for _ in range(repeat):
                pipe.send(part)
                whole += pipe.recv()[f"{part} ms"]
                runs.append(_summed(json.loads(Path(file.name).read_text())))
            print(f"{part}, {policies} policies: {statistics.median(whole):.0f} ms")
            for name in sorted({name for run in runs for name in run}, key=lambda name: _median(runs, name, 0)):
                first, last, count, cpu = (_median(runs, name, which) for which in range(4))
                print(f"  {name:32} {first:8.0f} {last:8.0f} {count:6.0f} x {cpu:8.1f} CPU ms", flush=True)
        pipe.send(None)
        process.join()


def _summed(told: list[tuple[str, float, float, float]]) -> dict[str, list[float]]:
    """By function: when it was first entered and last left, how often, its CPU."""
    seen: dict[str, list[float]] = {}
    for name, entered, left, cpu in told:
        one = seen.setdefault(name, [entered, left, 0.0, 0.0])
        one[0], one[1] = min(one[0], entered), max(one[1], left)
        one[2] += 1
        one[3] += cpu
    return seen


def _median(runs: list[dict[str, list[float]]], name: str, which: int) -> float:
    return statistics.median(run[name][which] for run in runs if name in run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="10,100,1000")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--store", default="etcd", choices=("etcd", "local", "kubernetes"))
    parser.add_argument("--agent", default=shlex.join(AGENT), help="our agent's command")
    parser.add_argument("--other", default="", help="that of another agent, in turns with ours")
    parser.add_argument("--settle", type=float, default=0.5)
    parser.add_argument("--phases", metavar="TREE", default="")
    chosen = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}", file=sys.stderr)
    for size in map(int, chosen.sizes.split(",")):
        if chosen.phases:
            print_phases(size, chosen.repeat, chosen.phases, chosen.store)
            continue
        contestants = {"agent": shlex.split(chosen.agent)}
        if chosen.other:
            contestants["other"] = shlex.split(chosen.other)
        found = measure(size, chosen.repeat, contestants, chosen.store, chosen.settle)
        apps, here, remote = SIZES[size]
        print(f"{size} policies, {apps} apps, {here} local and {remote} remote endpoints")
        for figure in found["agent"]:
            values = [statistics.median(each[figure]) for each in found.values()]
            ratio = f"{values[0] / values[-1]:8.3f}" if len(values) > 1 and values[-1] else ""
            print(f"  {figure:32}" + "".join(f"{value:10.1f}" for value in values) + f"   {ratio}", flush=True)


if __name__ == "__main__":
    main()
