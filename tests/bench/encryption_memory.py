"""Resident memory of an agent whose cluster has many nodes with WireGuard keys: encryption off, and on.

    .venv/bin/python -m tests.bench.encryption_memory [--peers 1000]      three minutes

The cluster is the same in all: Nodes with keys, and a block of each, which the agent follows for VXLAN's routes anyway.
What is compared is an agent that starts without encryption, and one that starts with it; in between it is switched on
while the first one runs.

As root, with wireguard-go where the kernel has no WireGuard. Prints VmRSS of calico-node's largest process, when it has
not grown for ten seconds.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from cni_calico.model.wireguard import render_public_key, with_published_key
from tests.bench.memory import memory_kb
from tests.deadlines import until
from tests.netns.encrypted import EncryptedPair, encrypted_pair, felix_default
from tests.unit.nodeagent.fabric import node, pool

AT_ONCE = 400  # records of one commit
STILL_KB = 128


def largest_kb(parent: int) -> int:
    """Of its children and theirs."""
    found, todo = [0], [parent]
    while todo:
        pid = todo.pop()
        found.append(memory_kb(pid)[0])
        todo += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return max(found)


def settled_kb(pair: EncryptedPair) -> int:
    process = pair.nodes["n1"].process
    assert process is not None
    seen: list[int] = []

    def is_settled() -> bool:
        seen.append(largest_kb(process.pid))
        return len(seen) > 2 and max(seen[-3:]) - min(seen[-3:]) <= STILL_KB

    until(is_settled, "it grows no more", 300, pause_s=5)
    return max(seen[-3:])


def started_kb(pair: EncryptedPair) -> int:
    """Of an agent that has just started: both read the cluster in the same way, and what that leaves free is there."""
    pair.nodes["n1"].stop()
    pair.nodes["n1"].run().until_applied()
    return settled_kb(pair)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=1000)
    peers = parser.parse_args().peers
    pools = (pool("10.65.0.0/16", "Always"), pool("10.66.0.0/16", "Always"))
    with tempfile.TemporaryDirectory() as directory, encrypted_pair(Path(directory), pools) as pair:
        nodes = []
        for number in range(peers):
            made = node(f"x{number:04}", f"10.1.{number // 200}.{number % 200 + 1}/24")
            nodes.append(with_published_key(made, 4, render_public_key(os.urandom(32))))
        for start in range(0, peers, AT_ONCE):
            pair.store.put(*nodes[start : start + AT_ONCE])
        for number in range(peers):
            pair.store.put_block(f"10.66.{number // 4}.{number % 4 * 64}/26", f"x{number:04}")
        off = started_kb(pair)
        pair.make_devices("n1", "n2")
        pair.store.put(felix_default(wireguardEnabled=True))
        until(lambda: len(pair.device("n1").peers) > peers, "all are peers", 300)
        on = settled_kb(pair)
        started = started_kb(pair)
    print(f"{peers} peers: {off} kB without encryption, {started} kB with it; {on} kB after it was switched on")


if __name__ == "__main__":
    main()
