"""What the agents' watches of nodes and blocks cost a real API server: bytes and CPU for heartbeats and pods.

    .venv/bin/python tests/bench/watches.py [--agents 300] [--nodes 100] [--changes 200]     minutes; prints three lines

Two watches an agent, as it asked for them before it read other nodes as metadata ("all"), as it does with VXLAN, and as
it does where BIRD makes the routes. The nodes and blocks are those of api_simulation.py. Every change is delivered to
every agent before the next line is measured; what is left of kube-apiserver's CPU is the writes themselves, which the
line "nobody watches" has.
"""

from __future__ import annotations

import argparse
import os
import selectors
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.datastore.kubernetes.layout import Collection, select_collections
from cni_calico.deadline import Deadline
from cni_calico.model.keys import AffinityList, BlockList, ListKey, ResourceList
from cni_calico.model.kubernetes.groups import CUSTOM
from tests.bench import api_simulation as simulation
from tests.e2e.kubernetes.cluster import Cluster, running_cluster

NODES, BLOCKS = "/api/v1/nodes", f"{simulation.CRD}/ipamblocks"
WAYS: dict[str, tuple[ListKey, ...]] = {
    "nobody watches": (),
    "all": (ResourceList("Node"), BlockList()),
    "VXLAN": (ResourceList("Node", brief=True), BlockList()),
    "BIRD": (ResourceList("Node", brief=True), AffinityList()),
}


class Agents:
    """Open watches, read by one thread; ``received`` counts bytes."""

    def __init__(self, kube: Cluster, listings: tuple[ListKey, ...], count: int, version: str) -> None:
        self.received = 0
        self._selector = selectors.DefaultSelector()
        context = ssl.create_default_context(cafile=kube.ca)
        for _ in range(count):
            for listing in listings:
                [collection] = select_collections(CUSTOM, listing)
                self._open(kube, context, collection, version)

    def _open(self, kube: Cluster, context: ssl.SSLContext, collection: Collection, version: str) -> None:
        path = collection.url(watch="true", resourceVersion=version)
        accept = collection.accept_watch or "application/json"
        wire = context.wrap_socket(socket.create_connection(("127.0.0.1", kube.port)), server_hostname="127.0.0.1")
        request = f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nAuthorization: Bearer admin-token\r\n\r\n"
        wire.sendall(request.encode())
        wire.setblocking(False)
        self._selector.register(wire, selectors.EVENT_READ)

    def drain(self, quiet_s: float) -> None:
        """Read until nothing has come for so long."""
        while ready := self._selector.select(quiet_s):
            for key, _ in ready:
                wire: Any = key.fileobj
                try:
                    while data := wire.recv(1 << 18):
                        self.received += len(data)
                except ssl.SSLWantReadError:
                    continue

    def close(self) -> None:
        for key in list(self._selector.get_map().values()):
            wire: Any = key.fileobj
            wire.close()
        self._selector.close()


def cpu_s(kube: Cluster) -> float:
    fields = Path(f"/proc/{kube.processes['kube-apiserver'].pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def populated(nodes: int) -> Iterator[Cluster]:
    with running_cluster() as kube:
        kube.apply_definitions()
        for number in range(nodes):
            node: dict[str, Any] = simulation.node(number)
            status = {name: value for name, value in node.pop("status").items() if name != "conditions"}
            made = kube.request("POST", NODES, {**plain(node), "kind": "Node", "apiVersion": "v1"})
            kube.request("PUT", f"{NODES}/{made['metadata']['name']}/status", {**made, "status": status})
            kube.request("POST", BLOCKS, plain(simulation.block(number, 30)))
        yield kube


def plain(obj: dict[str, Any]) -> dict[str, Any]:
    """Without what only the server sets."""
    kept = ("name", "labels", "annotations")
    return {**obj, "metadata": {name: value for name, value in obj["metadata"].items() if name in kept}}


def change(kube: Cluster, nodes: int, count: int, begun: int) -> None:
    """Alternately a heartbeat and a pod's address, with everything else as it is."""
    api = kube.api()
    for number in range(begun, begun + count):
        which = number // 2 % nodes
        if number % 2:
            path = f"{BLOCKS}/{simulation.node_cidr(which).replace('.', '-')}-26"
            body: dict[str, Any] = {"spec": {"sequenceNumber": 1000 + number}}
        else:
            path = f"{NODES}/node-{which:05}.example.internal/status"
            beat = {"type": "Ready", "status": "True", "reason": "x", "message": str(number)}
            body = {"status": {"conditions": [beat]}}
        merge = "application/merge-patch+json"
        api.send(ApiRequest("PATCH", path, f"PATCH {path}", body=body, content_type=merge), Deadline.after(30))
    api.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=300)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--changes", type=int, default=200, help="half of them heartbeats, half blocks")
    options = parser.parse_args()
    with populated(options.nodes) as kube:
        begun = 0
        for way, listings in WAYS.items():
            version = kube.request("GET", f"{BLOCKS}?limit=1")["metadata"]["resourceVersion"]
            agents = Agents(kube, listings, options.agents, version)
            agents.drain(2.0)
            before, received, at = cpu_s(kube), agents.received, time.monotonic()
            change(kube, options.nodes, options.changes, begun)
            agents.drain(2.0)
            used, got = cpu_s(kube) - before, agents.received - received
            begun += options.changes
            print(
                f"{way}: {len(listings) * options.agents} watches; {got / options.changes / 1000:.0f} kB sent and "
                f"{1000 * used / options.changes:.1f} ms of kube-apiserver's CPU a change "
                f"({time.monotonic() - at:.0f} s)",
                flush=True,
            )
            agents.close()


if __name__ == "__main__":
    main()
