#!/usr/bin/env python3
"""What a packet of an established connection costs, with the look-up of its interface behind or before the test of the
connection.

    later_packets.py [--batches 400] [--size 200]

Three nodes with the engine's rules, the third one's changed by hand: its look-ups come first, as in upstream's rules,
and each class begins with the test. The first two are the same, so that their difference is the error of the figures. A
batch is so many datagrams of one connection, which the kernel takes to the other end's socket in the sender's system
call; the nodes take turns after each batch. Printed is the tenth percentile of the batches, in nanoseconds a packet,
and the ratios to the first node. Needs root and nft (tests/setup/lab.sh).
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.bench.policy.packets import PROBED, PROBING
from tests.netns.policing.lab import Lab, lab, socket_in

PORT = 7000
TABLE = ("ip", "calico-policy")
NODES = ("behind", "behind, again", "before")


def node(stack: ExitStack) -> Lab:
    made = stack.enter_context(lab(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cct-later-")))))
    made.put("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})
    made.put_profile("kns.default")
    made.add("probing", PROBING, app="client")
    made.add("probed", PROBED, app="server")
    rules = [{"action": "Allow", "protocol": "UDP"}]
    for kind in ("Ingress", "Egress"):
        spec = {"tier": "default", "selector": "all()", "types": [kind], kind.lower(): rules}
        made.put("GlobalNetworkPolicy", kind.lower(), spec)
    made.start(FELIX_IPV6SUPPORT="false")
    made.until_in_force(policies=2)
    return made


def look_up_first(made: Lab) -> None:
    """Change the rules by hand; the engine is stopped, so that it does not mend them."""
    made.stop()
    listing = made.host.run("nft", "-a", "list", "table", *TABLE).stdout
    commands = []
    for chain, body in re.findall(r"^\tchain (\S+) \{[^\n]*\n(.*?)^\t\}", listing, re.MULTILINE | re.DOTALL):
        found = re.search(r"ct state established,related accept # handle (\d+)", body)
        if chain in ("from-workloads", "to-workloads", "workloads-to-host") and found:
            commands.append(f"delete rule ip calico-policy {chain} handle {found[1]}")
        elif re.match(r"(from|to)-", chain):
            commands.append(f"insert rule ip calico-policy {chain} ct state established,related accept")
    if len(commands) < 5:
        raise SystemExit(f"the rules are not as expected:\n{listing}")
    made.host.run("nft", "; ".join(commands))


def connection(made: Lab, stack: ExitStack) -> Callable[[], None]:
    """Sends one datagram of a connection that is established."""
    source, destination = made.workloads["probing"], made.workloads["probed"]
    inside = stack.enter_context(socket_in(destination.ns, socket.AF_INET, socket.SOCK_DGRAM, 0))
    inside.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    inside.bind(("", PORT))
    sender = stack.enter_context(socket_in(source.ns, socket.AF_INET, socket.SOCK_DGRAM, 0))
    sender.connect((destination.address(), PORT))
    sender.send(b"first")
    inside.settimeout(5)
    _, back = inside.recvfrom(10)
    inside.sendto(b"answer", back)
    sender.settimeout(5)
    sender.recv(10)
    return lambda: sender.send(b"later") and None


def measure(batches: int, size: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in NODES}
    with ExitStack() as stack:
        nodes = {name: node(stack) for name in NODES}
        for made in nodes.values():
            made.stop()
        look_up_first(nodes["before"])
        sends = {name: connection(made, stack) for name, made in nodes.items()}
        for number in range(batches):
            for name in NODES[:: 1 if number % 2 else -1]:
                send = sends[name]
                begun = time.perf_counter_ns()
                for _ in range(size):
                    send()
                found[name].append((time.perf_counter_ns() - begun) / size)
    return {name: statistics.quantiles(times, n=10)[0] for name, times in found.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=400)
    parser.add_argument("--size", type=int, default=200)
    chosen = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}", file=sys.stderr)
    found = measure(chosen.batches, chosen.size)
    for name, nanoseconds in found.items():
        print(f"{name:15} {nanoseconds:8.0f} ns   {nanoseconds / found[NODES[0]]:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
