#!/usr/bin/env python3
"""What a changed policy, member or local endpoint takes of the processor, thread by thread; agents take turns.

    change_threads.py [--policies 100] [--parts policy,joins,endpoints] [--repeat 40] [--blocks 4] [--settle 15]
                      NAME=COMMAND [NAME=COMMAND ...]

The cluster is that of changes.py, whose parts are done; COMMAND gets ETCD and NODE in its
environment, ``ours`` alone stands for the sources. The kernel's schedstat counts, before and after each block; the
threads of a process come in the order in which they were started. Needs root and an etcd.
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import time
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.bench.policy.changes import AGENT, prepared

PARTS = {
    "policy": ("policy put ms",),
    "joins": ("remote joins ms", "remote leaves ms"),
    "endpoints": ("local put ms", "local deleted ms"),
}
AFTERWARDS_S = 0.2  # what a change leaves to be done
CPU = "CPU ms"


def thread_ms(pid: int) -> dict[int, float]:
    """What each thread has had of the processor, by its number."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended
            found[int(task.name)] = int((task / "schedstat").read_text().split()[0]) / 1e6
    return dict(sorted(found.items()))


def serve(turns: Connection, policies: int, command: list[str], settle_s: float) -> None:
    """A contestant's process: a part whenever it is its turn, until there is none."""
    with prepared(policies, command, False) as bench:
        bench.start(1)
        time.sleep(settle_s)
        turns.send({})
        while (part := turns.recv()) is not None:
            name, repeat = part
            bench.samples = {}
            assert bench.agent is not None
            before = thread_ms(bench.agent.process.pid)
            getattr(bench, name)(repeat)
            time.sleep(AFTERWARDS_S)
            after = thread_ms(bench.agent.process.pid)
            cost = [(now - before.get(thread, 0.0)) / (2 * repeat) for thread, now in after.items()]
            turns.send({CPU: cost, **{figure: bench.samples[figure] for figure in PARTS[name]}})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", type=int, default=100)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--repeat", type=int, default=40)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--settle", type=float, default=15.0, help="seconds after the start")
    parser.add_argument("contestants", nargs="+", metavar="NAME=COMMAND")
    chosen = parser.parse_args()
    commands = {
        name: shlex.split(command) or AGENT for name, _, command in (c.partition("=") for c in chosen.contestants)
    }
    spawn = get_context("spawn")  # each has threads and sockets of its own namespace
    pipes: dict[str, Connection] = {}
    try:
        for name, command in commands.items():
            pipes[name], theirs = spawn.Pipe()
            spawn.Process(target=serve, args=(theirs, chosen.policies, command, chosen.settle)).start()
            theirs.close()
            pipes[name].recv()
        for part in chosen.parts.split(","):
            measure(part, pipes, chosen)
    finally:
        for pipe in pipes.values():
            with suppress(OSError):
                pipe.send(None)


def measure(part: str, pipes: dict[str, Connection], chosen: argparse.Namespace) -> None:
    """Print a line for each contestant."""
    found: dict[str, list[dict[str, list[float]]]] = {name: [] for name in pipes}
    for _ in range(chosen.blocks):
        for name, pipe in pipes.items():
            pipe.send((part, chosen.repeat))
            found[name].append(pipe.recv())
    for name, blocks in found.items():
        total = statistics.median(sum(block[CPU]) for block in blocks)
        threads = ", ".join(f"{number}: {cost:.2f}" for number, cost in enumerate(blocks[-1][CPU]) if cost > 0.03)
        values = {figure: [one for block in blocks for one in block[figure]] for figure in PARTS[part]}
        said = ", ".join(f"{figure} {statistics.median(its):.1f}" for figure, its in values.items())
        print(f"{chosen.policies} policies, {part}, {name}: {CPU} {total:.2f} ({threads}); {said}", flush=True)


if __name__ == "__main__":
    main()
