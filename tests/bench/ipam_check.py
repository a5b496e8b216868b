"""Processor time and memory of `calicoctl ipam check`, and of long tables, on etcd with many addresses.

    .venv/bin/python tests/bench/ipam_check.py [--addresses 1000 10000 100000] [--other DIR]     minutes; prints a table

The frozen executable of dist/bin, and that of DIR (another build), in turn on a real etcd that has so many Kubernetes
pods' addresses: blocks of 64, a handle and an endpoint for each address, a hundred pods to a node. The records are
made by the product's own functions and are what as many ADDs leave behind, so nothing is found. Processor time and
peak memory are the kernel's count for the process.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cni_calico.datastore.connect import open_datastore
from cni_calico.datastore.interface import Datastore, Write
from cni_calico.deadline import Deadline
from cni_calico.errors import OutcomeUnknown
from cni_calico.ipam.block import allocate_address, new_block
from cni_calico.model.access import DatastoreConfig
from cni_calico.model.documents.codec import encode
from cni_calico.model.keys import AffinityKey, BlockKey, HandleKey, ResourceKey
from cni_calico.model.names import endpoint_name
from cni_calico.model.resources import Affinity, Handle, IPPool, Metadata, Network, Node, WorkloadEndpoint
from tests.contract.etcd_process import single

BIN = Path(__file__).resolve().parents[2] / "dist" / "bin"
POOL = ip_network("10.64.0.0/10")
BLOCK = 64
BLOCKS_OF_A_NODE = 2
COMMANDS = ("ipam check", "get wep -A", "get wep -A -o wide")
AT_ONCE = 60  # writes in one commit, the most that etcd takes
MADE = "2026-11-26 22:00:00 +0000 UTC"


def records(addresses: int) -> Iterator[Write]:
    yield Write.put(ResourceKey("IPPool", "pool"), encode(IPPool(Metadata("pool"), POOL, 26)))
    for number, cidr in zip(range(0, addresses, BLOCK), POOL.subnets(new_prefix=26), strict=False):
        node = f"worker-{number // BLOCK // BLOCKS_OF_A_NODE:04d}"
        if number // BLOCK % BLOCKS_OF_A_NODE == 0:
            yield Write.put(ResourceKey("Node", node), encode(Node(Metadata(node))))
        yield Write.put(AffinityKey(node, cidr), encode(Affinity("confirmed")))
        yield from block_of_pods(node, cidr, range(number, min(number + BLOCK, addresses)))


def block_of_pods(node: str, cidr: Network, numbers: range) -> Iterator[Write]:
    block = new_block(cidr, node, 1_700_000_000_000_000_000, "2026-11-26T22:00:00Z")
    for number, address in zip(numbers, cidr, strict=False):
        pod, container = f"frontend-7f9c6d5b8-{number:05x}", f"{number:064x}"
        handle, namespace = f"k8s-pod-network.{container}", f"team-{number % 50}"
        attributes = {"namespace": namespace, "node": node, "pod": pod, "timestamp": MADE}
        block = allocate_address(block, address, handle, attributes)
        yield Write.put(HandleKey(handle), encode(Handle({cidr: 1})))
        name = endpoint_name(node, "k8s", pod, "eth0")
        labels = {"app": "frontend", "pod-template-hash": "7f9c6d5b8", "projectcalico.org/namespace": namespace,
                  "projectcalico.org/orchestrator": "k8s", "projectcalico.org/serviceaccount": "default"}  # fmt: skip
        endpoint = WorkloadEndpoint(
            Metadata(name, namespace, f"{number:036x}", "2026-11-26T22:00:00Z", labels=labels),
            "k8s", node, "eth0", f"cali{number:011x}", container, pod, "default",
            ip_networks=(ip_network(address),), profiles=(f"kns.{namespace}", f"ksa.{namespace}.default"),
        )  # fmt: skip
        yield Write.put(ResourceKey("WorkloadEndpoint", name, namespace), encode(endpoint))
    yield Write.put(BlockKey(cidr), encode(block))


def fill(store: Datastore, addresses: int) -> None:
    gathered: list[Write] = []
    for write in records(addresses):
        gathered.append(write)
        if len(gathered) == AT_ONCE:
            put(store, gathered)
            gathered = []
    if gathered:
        put(store, gathered)


def put(store: Datastore, writes: list[Write]) -> None:
    while True:
        try:
            store.commit(writes, Deadline.after(60))
            return
        except OutcomeUnknown:
            pass  # on a busy machine; to write the same once more changes nothing


def measure(executable: Path, command: str, environ: dict[str, str]) -> tuple[float, float, float]:
    """(CPU seconds, wall seconds, peak MB)."""
    silent = [(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
    begun = time.monotonic()
    words = ["calicoctl", *command.split(), "--timeout=300"]
    pid = os.posix_spawn(str(executable), words, environ, file_actions=silent)
    _, status, used = os.wait4(pid, 0)
    if status != 0:
        raise RuntimeError(f"{executable} {command}: status {status}")
    return used.ru_utime + used.ru_stime, time.monotonic() - begun, used.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--addresses", type=int, nargs="*", default=[1000, 10_000, 100_000])
    parser.add_argument("--other", type=Path, help="the directory of another build")
    arguments = parser.parse_args()
    builds = {"": BIN, **({"other: ": arguments.other} if arguments.other else {})}
    print(f"load average {os.getloadavg()[0]:.1f}\n\n| addresses | command | CPU s | s | peak MB |")
    print("| --- | --- | --- | --- | --- |")
    for addresses in arguments.addresses:
        with single() as cluster:
            environ = {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": cluster.urls[0], "PATH": os.environ["PATH"]}
            store = open_datastore(DatastoreConfig("etcdv3", etcd_endpoints=(cluster.urls[0],)))
            try:
                fill(store, addresses)
            finally:
                store.close()
            for command in COMMANDS:
                for build, directory in builds.items():
                    processor, wall, peak = measure(directory / "calicoctl", command, environ)
                    row = f"| {build}{addresses} | `{command}` | {processor:.1f} | {wall:.1f} | {peak:.0f} |"
                    print(row, flush=True)


if __name__ == "__main__":
    main()
