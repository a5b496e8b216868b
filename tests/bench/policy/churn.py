#!/usr/bin/env python3
"""What an engine's memory does over many changes: those of soak.py as fast as they go, without packets and checks.

    churn.py [--counts 1000,3000,10000,20000,50000] [--pause 0.01] [--seed N]

After each of these numbers of changes everything but the workloads is removed, so that the engine has the same records
as at the start, and its memory is read: resident, and of that what is no file's. Needs root. Prints a line for each.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.bench.policy.changes import MEMORY
from tests.bench.policy.soak import Soak
from tests.bench.policy.soak_node import SoakNode
from tests.netns.policing.lab import lab

REST_S = 10.0  # until the engine has taken in all, and what it frees has been given back


def resident_mb(pid: int) -> tuple[float, float]:
    text = Path(f"/proc/{pid}/status").read_text()
    all_of_it, own = (int(text.partition(name)[2].split()[0]) / 1024 for name in ("VmRSS:", "RssAnon:"))
    return all_of_it, own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", default="1000,3000,10000,20000,50000")
    parser.add_argument("--pause", type=float, default=0.01, help="seconds after each change")
    parser.add_argument("--seed", type=int, default=7)
    chosen = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="cct-churn-", dir=MEMORY) as directory,
        lab(Path(directory)) as made,
        ExitStack() as stack,
    ):
        node = SoakNode(made, Path(directory), stack, limit_s=24 * 3600)
        running = Soak(node, chosen.seed)
        running.prepare()
        node.start()
        made.until_in_force()
        done, begun = 0, time.monotonic()
        for count in map(int, chosen.counts.split(",")):
            running.hurry(count - done, chosen.pause)
            done = count
            running.clear()
            running.turn_beacons()
            time.sleep(REST_S)
            all_of_it, own = resident_mb(made.pid)
            lines = len(made.ruleset().splitlines())
            print(
                f"{done} changes, {time.monotonic() - begun:.0f} s: resident {all_of_it:.2f} MB, "
                f"of that {own:.2f} no file's; {lines} lines of rules",
                flush=True,
            )


if __name__ == "__main__":
    main()
