#!/usr/bin/env python3
"""CNI calls while policies change: p50 and p99 of ADD and DEL with the policy engine idle and busy, in one run.

    cni_calls.py [--runs 200] [--rounds 3] [--every 0.02]

A node with etcd, the resident server and the engine, and a cluster of 100 policies and 1,000 remote endpoints. In each
round the calls are made twice: with nothing else, and while a policy of ten rules comes or goes every 20 ms. Needs
root; builds the executables first.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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


def fill(url: str) -> None:
    apps, _, remote = SIZES[POLICIES]
    writes = [document("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})]
    writes += [policy(number, POLICIES, apps) for number in range(POLICIES)]
    writes += [
        endpoint(number, apps, f"n{number % 40}", "eth0x", f"10.70.{number >> 8}.{number & 255}")
        for number in range(remote)
    ]
    with open_datastore(DatastoreConfig("etcdv3", etcd_endpoints=(url,))) as store:
        for at in range(0, len(writes), 50):
            store.commit(writes[at : at + 50], Deadline.after(30))


def change(url: str, every_s: float) -> None:
    """Until SIGTERM; then says how many changes there were."""
    stopping, count = threading.Event(), 0
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    removal = Write.remove(ResourceKey("GlobalNetworkPolicy", "changed"))
    with open_datastore(DatastoreConfig("etcdv3", etcd_endpoints=(url,))) as store:
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
    found: dict[tuple[str, str], list[contest.Figures]] = {}
    counts: list[int] = []
    with etcd_node() as node, node.server() as server:
        (url,) = node.datastore.etcd_endpoints
        subprocess.run(inside(node, __file__, "--fill", url), check=True)
        mine = contest.ours(node)
        with engine(node, url):
            for _ in range(rounds):
                for verb, figures in contest.in_turn(node, [mine], runs, server.pid).items():
                    found.setdefault((verb, "engine idle"), []).append(figures["ours"])
                with changing(node, url, every_s, counts):
                    for verb, figures in contest.in_turn(node, [mine], runs, server.pid).items():
                        found.setdefault((verb, "policies change"), []).append(figures["ours"])
    print(f"CNI, {rounds} rounds of {runs} calls, {sum(counts)} changes of policies meanwhile: ms, p50 / p99")
    for (verb, when), figures in sorted(found.items()):
        p50, p99 = (statistics.median(getattr(one, name) for one in figures) for name in ("median", "p99"))
        print(f"  {verb.upper()}, {when:16} {p50:8.2f} / {p99:.2f}")


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
