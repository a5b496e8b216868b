#!/usr/bin/env python3
"""CNI calls while policies change: ADD and DEL with the policy engine idle and busy, beside the yardstick, in one run.

    cni_calls.py [--runs 200] [--rounds 3] [--every 0.02]

A node with etcd, the resident server and the engine, and a cluster of 100 policies and 1,000 remote endpoints. In each
round the calls are made twice: with nothing else, and while a policy of ten rules comes or goes every 20 ms; one at a
time in turn with the reference plugin ptp, which the budgets are multiples of, and 32 at once. Prints p50 / p99 / CPU
in ms, and the ratios to ptp. Needs root; builds the executables first.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from cni_calico.datastore.connect import open_datastore
from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.model.access import DatastoreConfig
from cni_calico.model.keys import ResourceKey
from tests.bench import contest
from tests.bench.policy.changes import ROOT, SIZES, changed_policy, document, endpoint, policy
from tests.bench.table import etcd_node
from tests.deadlines import until
from tests.e2e.host import Node

POLICIES = 100
IDLE, BUSY = "engine idle", "policies change"
PARTS = ("median", "p99", "cpu")  # of contest.Figures


def fill(url: str) -> None:
    apps, _, remote = SIZES[POLICIES]
    writes = [document("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})]
    writes += [policy(number, POLICIES, apps) for number in range(POLICIES)]
    writes += [
        endpoint(number, apps, f"n{number % 40}", "eth0x", f"10.70.{number >> 8}.{number & 255}")
        for number in range(remote)
    ]
    with closing(open_datastore(DatastoreConfig("etcdv3", etcd_endpoints=(url,)))) as store:
        for at in range(0, len(writes), 50):
            store.commit(writes[at : at + 50], Deadline.after(30))


def change(url: str, every_s: float) -> None:
    """Until SIGTERM; then says how many changes there were."""
    stopping, count = threading.Event(), 0
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    removal = Write.remove(ResourceKey("GlobalNetworkPolicy", "changed"))
    with closing(open_datastore(DatastoreConfig("etcdv3", etcd_endpoints=(url,)))) as store:
        while not stopping.wait(every_s):
            store.commit((removal if count % 2 else changed_policy("a1"),), Deadline.after(30))
            count += 1
    print(count)


def inside(node: Node, *arguments: str) -> list[str]:
    return ["nsenter", f"--net={node.host.path}", sys.executable, *arguments]


@contextmanager
def engine(node: Node, url: str) -> Iterator[None]:
    status = node.root / "status"
    status.mkdir()
    environ = {**os.environ, "ETCD": url, "NODE": node.nodename, "STATUS": str(status)}
    process = subprocess.Popen(inside(node, "-m", "tests.bench.policy.engine"), env=environ, cwd=ROOT)
    try:
        tables = ["nsenter", f"--net={node.host.path}", "nft", "list", "tables"]
        until(lambda: b"calico-policy" in subprocess.run(tables, capture_output=True).stdout, "the engine's tables")
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def changing(node: Node, url: str, every_s: float, counts: list[int]) -> Iterator[None]:
    command = inside(node, __file__, "--change", url, "--every", str(every_s))
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield
    finally:
        process.terminate()
        counts.append(int(process.communicate()[0]))


def measure(runs: int, rounds: int, every_s: float) -> None:
    one: dict[tuple[str, str], dict[str, list[contest.Figures]]] = {}
    many: dict[str, dict[str, list[tuple[float, float]]]] = {}
    counts: list[int] = []

    def take(when: str) -> None:
        for verb, figures in contest.in_turn(node, who, runs, server.pid).items():
            for name, figure in figures.items():
                one.setdefault((verb, when), {}).setdefault(name, []).append(figure)
        for name, rate in contest.burst(node, who, rounds=1).items():
            many.setdefault(when, {}).setdefault(name, []).append(rate)

    with etcd_node() as node, node.server() as server:
        (url,) = node.datastore.etcd_endpoints
        subprocess.run(inside(node, __file__, "--fill", url), check=True)
        who = [contest.ours(node), contest.references(node.root)[0]]
        with engine(node, url):
            for _ in range(rounds):
                take(IDLE)
                with changing(node, url, every_s, counts):
                    take(BUSY)
    print(f"CNI, {rounds} rounds of {runs} calls, {sum(counts)} changes of policies meanwhile")
    print(f"  {'one at a time: p50 / p99 / CPU ms':40}{'ours':>24}{'ptp':>24}   ours : ptp, wall, CPU; p99 : p50")
    for (verb, when), found in sorted(one.items()):
        mine, theirs = (_median(found[each.name]) for each in who)
        ratios = f"{mine.median / theirs.median:.2f}, {mine.cpu / theirs.cpu:.2f}; {mine.p99 / mine.median:.2f}"
        print(f"  {f'{verb.upper()}, {when}':40}{_shown(mine):>24}{_shown(theirs):>24}   {ratios}")
    print(f"  {'32 ADDs at once: ADDs/s / p99 ms':40}{'ours':>24}{'ptp':>24}   ours : ptp")
    for when, rates in many.items():
        pairs = [[statistics.median(values) for values in zip(*rates[each.name], strict=True)] for each in who]
        shown = "".join(f"{f'{rate:.0f} / {p99:.0f}':>24}" for rate, p99 in pairs)
        print(f"  {when:40}{shown}   {pairs[0][0] / pairs[1][0]:.2f}")


def _median(figures: Sequence[contest.Figures]) -> contest.Figures:
    return contest.Figures(*(statistics.median(getattr(each, name) for each in figures) for name in PARTS))


def _shown(figures: contest.Figures) -> str:
    return f"{figures.median:.1f} / {figures.p99:.1f} / {figures.cpu:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--every", type=float, default=0.02, metavar="SECONDS")
    parser.add_argument("--fill", default="", help=argparse.SUPPRESS)
    parser.add_argument("--change", default="", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.fill:
        fill(chosen.fill)
    elif chosen.change:
        change(chosen.change, chosen.every)
    else:
        subprocess.run([str(ROOT / "build" / "build.sh")], check=True, stdout=subprocess.DEVNULL)
        measure(chosen.runs, chosen.rounds, chosen.every)


if __name__ == "__main__":
    main()
