"""Fills a node with the addresses of many pods: blocks, handles, endpoints, and a route for each, but no veth.

    python tests/bench/fill.py STORE NODE FROM TO        in the host's namespace; STORE as tests.e2e.records encodes it

Rule: what is stored is computed by the product (a block is claimed by its allocator, the rest by its batches) and is
what as many ADDs would have left behind; only the interfaces are missing, for thousands of them take the kernel
minutes. The routes point to one spare interface.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cni_calico.datastore.connect import open_datastore
from cni_calico.datastore.interface import Datastore, Write
from cni_calico.deadline import Deadline
from cni_calico.ipam.allocator import Allocator, AssignRequest
from cni_calico.ipam.batch import Assigned, Assignment, plan_batch
from cni_calico.model.access import DatastoreConfig
from cni_calico.model.documents.codec import decode, encode
from cni_calico.model.keys import BlockKey, IPAMConfigKey, ResourceKey
from cni_calico.model.resources import Block, Metadata, Network, WorkloadEndpoint

NETWORK = "calnet"
DEVICE = "fill0"
AT_ONCE = 25  # assignments in one commit: a handle and an endpoint each, and the block, within etcd's limit


def container(number: int) -> str:
    return f"fill{number:060x}"


def let_node_hold_many(store: Datastore) -> None:
    """More than the twenty blocks that are the default."""
    config = {"auto_allocate_blocks": True, "maxBlocksPerHost": 200}
    store.commit([Write.put(IPAMConfigKey(), config)], Deadline.after(10))


def fill(store: Datastore, node: str, first: int, end: int) -> Iterator[Assigned]:
    """Addresses for pods ``first`` to ``end``; a block at a time."""
    allocator = Allocator(store)
    number = first
    while number < end:
        request = AssignRequest(node, f"{NETWORK}.{container(number)}", {"node": node}, num4=1)
        [claimed] = allocator.assign(request, Deadline.after(60))
        store.commit([endpoint_write(node, number, claimed)], Deadline.after(60))
        yield claimed
        number += 1
        for given in fill_block(store, node, claimed.block, range(number, end)):
            yield given
            number += 1


def fill_block(store: Datastore, node: str, cidr: Network, numbers: range) -> Iterator[Assigned]:
    """So many of the pods as the block has addresses for."""
    key = BlockKey(cidr)
    while numbers:
        found = store.get(key, Deadline.after(10))
        assert found is not None
        block = decode(key, found.value)
        assert isinstance(block, Block)
        now = numbers[: min(AT_ONCE, len(block.unallocated))]
        if not now:
            return
        assignments = [Assignment(f"{NETWORK}.{container(n)}", {"node": node}, num4=1) for n in now]
        plan = plan_batch({cidr: block}, dict.fromkeys([each.handle_id for each in assignments]), assignments)
        writes = [Write.update(found, encode(s.record)) for s in plan.steps if s.key == key and s.record]
        writes += [Write.create(s.key, encode(s.record)) for s in plan.steps if s.key != key and s.record]
        given = [outcome[0] for outcome in plan.outcomes if isinstance(outcome, tuple)]
        writes += [endpoint_write(node, n, each) for n, each in zip(now, given, strict=True)]
        store.commit(writes, Deadline.after(60))
        yield from given
        numbers = numbers[len(now) :]


def endpoint_write(node: str, number: int, given: Assigned) -> Write:
    name = f"{node.replace('-', '--')}-cni-{container(number)}-eth0"
    record = WorkloadEndpoint(
        Metadata(name, "default"),
        "cni",
        node,
        "eth0",
        f"cali{number:011x}",
        container_id=container(number),
        ip_networks=(type(given.block)(given.address),),
        profiles=(NETWORK,),
    )
    return Write.create(ResourceKey("WorkloadEndpoint", name, "default"), encode(record))


def add_routes(addresses: list[Any]) -> None:
    link = ["ip", "link", "add", DEVICE, "type", "veth", "peer", "name", f"{DEVICE}b"]
    subprocess.run(link, stderr=subprocess.DEVNULL)  # it may be there
    lines = [f"link set {DEVICE} up", *(f"route replace {address} dev {DEVICE} scope link" for address in addresses)]
    subprocess.run(["ip", "-batch", "-"], input="\n".join(lines).encode(), check=True)


def main() -> None:
    values = json.loads(sys.argv[1])
    values["etcd_endpoints"] = tuple(values["etcd_endpoints"])
    store = open_datastore(DatastoreConfig(**values))
    try:
        let_node_hold_many(store)
        addresses = [given.address for given in fill(store, sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))]
    finally:
        store.close()
    add_routes(addresses)


if __name__ == "__main__":
    main()
