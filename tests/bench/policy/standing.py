#!/usr/bin/env python3
"""What the standing rules cost packets: with policies in force, and on a host without any.

    standing.py [--rounds 200] [--batch 300] [--before ec7deb18]

One node with two workloads and an uplink; its tables are exchanged for those of the next variant before each batch, so
that all variants see the same namespaces and the same machine. ``before`` are the tables that the engine of that commit
makes for the same records (in a checkout of its own, which goes afterwards), ``now`` those of this tree, ``none`` no
tables at all; ``now`` and ``policed now`` take part twice, which shows the noise. The policy is as small as policies
are, so that a rule that is added weighs most.

The kernel handles a packet within the sender's system call. Of each batch the time for one packet, of all batches the
10th percentile: of packets that open a connection, and of later ones. Needs root, git and nft.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, os.environ.get("STANDING_TREE", str(Path(__file__).resolve().parents[3])))

from tests.deadlines import until
from tests.netns.namespaces import Namespace
from tests.netns.policing.lab import socket_in
from tests.netns.policing.uplinked import OTHER, POD, Uplinked, uplinked_lab

ROOT = Path(__file__).resolve().parents[3]
SECOND, PORT, FIRST_PORT, PORTS = "10.65.0.2", 80, 20000, 40000
POLICY = {"selector": "all()", "order": 1, "ingress": [{"action": "Allow"}], "egress": [{"action": "Allow"}]}
NFT = ("nsenter", "--net={}", "nft")


@contextmanager
def node(root: Path) -> Iterator[Uplinked]:
    with uplinked_lab(root) as made:
        made.lab.add("b", SECOND, app="b")
        made.other.do("route", "add", f"{SECOND}/32", "via", "172.31.0.1")
        yield made


def print_tables(*, policed: bool) -> None:
    """What the engine of this tree has in the kernel for the node's records."""
    with tempfile.TemporaryDirectory(prefix="cct-standing-") as root, node(Path(root)) as made:
        if policed:
            made.lab.put("GlobalNetworkPolicy", "small", POLICY)
        made.lab.start(FELIX_IPV6SUPPORT="false")
        if policed:
            made.lab.until_in_force(endpoints=2, policies=1)
        else:
            until(lambda: made.lab.standing().get("ready"), "the engine has decided")
        print(made.host.run("nft", "-s", "list", "ruleset").stdout)


def tables_of(tree: Path, *, policed: bool) -> str:
    command = [sys.executable, __file__, "--tables", "policed" if policed else "alone"]
    environ = {**os.environ, "STANDING_TREE": str(tree)}
    return subprocess.run(command, env=environ, check=True, capture_output=True, text=True, cwd=tree).stdout


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="cct-standing-tree-") as root:
        tree = Path(root) / "tree"
        archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], check=True, capture_output=True).stdout
        tree.mkdir()
        subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True)
        yield tree


def use(host: Namespace, rules: str) -> None:
    command = [part.format(host.path) for part in NFT]
    subprocess.run([*command, "-f", "-"], input=f"flush ruleset\n{rules}", check=True, text=True)


class Way:
    """Packets from one namespace to a socket in another."""

    def __init__(self, stack: ExitStack, source: Namespace, at: Namespace, address: str) -> None:
        self.address = address
        self.later = stack.enter_context(socket_in(source, socket.AF_INET, socket.SOCK_DGRAM))
        self.raw = stack.enter_context(socket_in(source, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP))
        self.arrived = stack.enter_context(socket_in(at, socket.AF_INET, socket.SOCK_DGRAM))
        self.arrived.bind(("", PORT))
        self.arrived.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        self.arrived.settimeout(5)
        self.later.settimeout(5)
        self.later.connect((address, PORT))
        self.number = 0

    def first_us(self, count: int) -> float:
        """The mean time of a packet that opens a connection."""
        packets = []
        for _ in range(count):
            self.number += 1
            ports = (FIRST_PORT + self.number % PORTS).to_bytes(2, "big") + PORT.to_bytes(2, "big")
            packets.append(ports + (12).to_bytes(2, "big") + bytes(2) + b"cost")
        send, to = self.raw.sendto, (self.address, 0)
        begun = time.perf_counter()
        for packet in packets:
            send(packet, to)
        return self._arrived(count, time.perf_counter() - begun)

    def later_us(self, count: int) -> float:
        """The mean time of a packet of a connection that has been answered."""
        self.later.send(b"open")
        self.arrived.sendto(b"answer", self.arrived.recvfrom(100)[1])
        self.later.recv(100)
        send = self.later.send
        begun = time.perf_counter()
        for _ in range(count):
            send(b"cost")
        return self._arrived(count, time.perf_counter() - begun)

    def _arrived(self, count: int, took_s: float) -> float:
        for _ in range(count):
            self.arrived.recv(100)
        return 1e6 * took_s / count


def measure(variants: dict[str, str], rounds: int, batch: int) -> dict[tuple[str, str], dict[str, list[float]]]:
    """(way, kind of packet) -> variant -> microseconds of each batch."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="cct-standing-") as root, ExitStack() as stack:
        made = stack.enter_context(node(Path(root)))
        pods = {name: workload.ns for name, workload in made.lab.workloads.items()}
        made.host.set_sysctl("netfilter/nf_conntrack_udp_timeout", "1")
        ways = {
            "pod to pod": Way(stack, pods["a"], pods["b"], SECOND),
            "pod to uplink": Way(stack, pods["a"], made.other, OTHER[4]),
            "uplink to pod": Way(stack, made.other, pods["a"], POD[4]),
        }
        gc.disable()
        for number in range(rounds + 1):
            for name in random.sample(sorted(variants), len(variants)):
                use(made.host, variants[name])
                for way_name, way in ways.items():
                    for kind, taken in (("later", way.later_us(batch)), ("first", way.first_us(batch))):
                        if number:  # the first round warms up
                            found.setdefault((way_name, kind), {}).setdefault(name, []).append(taken)
        gc.enable()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--batch", type=int, default=300)
    parser.add_argument("--before", default="ec7deb18")
    parser.add_argument("--tables", choices=("policed", "alone"), help="only print this tree's tables")
    chosen = parser.parse_args()
    if chosen.tables:
        print_tables(policed=chosen.tables == "policed")
        return 0
    with checkout(chosen.before) as tree:
        before = {policed: tables_of(tree, policed=policed) for policed in (True, False)}
    now = {policed: tables_of(ROOT, policed=policed) for policed in (True, False)}
    variants = {
        "none": "",
        "now": now[False],
        "now again": now[False],
        "policed before": before[True],
        "policed now": now[True],
        "policed now again": now[True],
    }
    assert not before[False].strip(), "the engine of that commit had no tables without policies"
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    print(f"load average {os.getloadavg()[0]:.1f}; {chosen.rounds} batches of {chosen.batch}", file=sys.stderr)
    for (way, kind), times in measure(variants, chosen.rounds, chosen.batch).items():
        print(f"{kind} packet, {way}, us")
        for name in sorted(times):
            base = "policed before" if "policed" in name else "none"
            low, base_low = (statistics.quantiles(times[one], n=10)[0] for one in (name, base))
            percent, more_ns = 100 * (low / base_low - 1), 1000 * (low - base_low)
            print(f"  {name:20} {low:7.3f}  {percent:+6.2f} % of {base}, {more_ns:+.0f} ns")
    return 0


if __name__ == "__main__":
    sys.exit(main())
