"""Instructions for the first and for later packets of a connection between two pods, through 20 policies.

For a machine of tests/kernels, whose clock counts instructions:

    python -m tests.kernels.machine 6.1 python3 -m tests.bench.policy.instructions

A packet is a UDP datagram from the call that sends it to the call that has received it, both pods on one node. What is
printed is the median of many, and what is left of it when the same without any table of ours is taken away. The
receiving pod is governed by 20 policies; the one that allows is the last of them.
"""

from __future__ import annotations

import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.netns.policing.lab import Lab, lab, socket_in

POLICIES, PORT = 20, 80
PACKETS = 100


def measure(of: Lab) -> tuple[float, float]:
    """(of a connection's first packet, of a later one), in nanoseconds of this machine."""
    a, b = of.workloads["a"], of.workloads["b"]
    first, later = [], []
    with socket_in(b.ns, socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((b.address(), PORT))
        for _ in range(PACKETS):
            with socket_in(a.ns, socket.AF_INET, socket.SOCK_DGRAM) as client:
                client.connect((b.address(), PORT))
                first.append(_one(client, server))
                _, back = server.recvfrom(16) if client.send(b"asked") else (b"", None)
                server.sendto(b"answered", back)
                client.recv(16)
                later.append(_one(client, server))
    return statistics.median(first), statistics.median(later)


def _one(client: socket.socket, server: socket.socket) -> int:
    begun = time.perf_counter_ns()
    client.send(b"x")
    server.recv(16)
    return time.perf_counter_ns() - begun


def add_policies(of: Lab) -> None:
    for i in range(POLICIES):
        last = i == POLICIES - 1
        rule = {
            "action": "Allow",
            "protocol": "UDP" if last else "TCP",
            "source": {"selector": "app == 'a'" if last else f"app == 'nobody{i}'"},
            "destination": {"ports": [PORT, 8000 + i]},
        }
        spec = {"selector": "app == 'b'", "order": i, "types": ["Ingress"], "ingress": [rule]}
        of.put("GlobalNetworkPolicy", f"p{i:02}", spec)


def main() -> int:
    lines = []
    for by, environ in (("nftables", {}), ("iptables", {"FELIX_NFTABLESMODE": "Disabled"})):
        with tempfile.TemporaryDirectory() as directory, lab(Path(directory)) as made:
            made.put("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})
            made.put_profile("kns.default")
            made.add("a", "10.65.0.1", "fd00::1", app="a")
            made.add("b", "10.65.0.2", "fd00::2", app="b")
            measure(made)  # warm
            without = measure(made)
            add_policies(made)
            made.start(**environ)
            assert made.until_in_force(policies=POLICIES)["by"] == by
            measure(made)
            found = measure(made)
        for what, total, bare in zip(("first", "later"), found, without, strict=True):
            lines.append(f"{by:9} {what}: {total:8.0f} instructions, {total - bare:8.0f} of them for policies")
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
