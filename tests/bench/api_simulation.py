"""An API server's lists and watches, made up: as many nodes, blocks, handles and pods as are asked for, of real sizes.

    python tests/bench/api_simulation.py PORT NODES PODS_A_NODE [VXLAN_MODE [REVIEW_MS]]

Speaks what the agent and the janitor ask for: lists in pages or, with resourceVersion 0, in one answer, metadata alone
where that is accepted, and watches. ``/bench/heartbeats?count=N`` sends that many heartbeats of nodes to all watches;
its answer is the resourceVersion of the last, and with ``&change=1`` each changes a label, to the time at which it was
sent; ``/bench/watches`` says how many watches are open; ``/bench/blocks?count=N`` the same with changed blocks, and
``/bench/sent`` says how many bytes of events were sent. Every token is an agent's, and its review (TokenReview) takes
REVIEW_MS, 2 unless said; ``/bench/reviews`` says how many there were. There is one pool, without a tunnel unless
VXLAN_MODE says so. Sizes: a Node 13 kB (30 images), a block of 30 addresses 10 kB, a pod of one container 8.6 kB.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from urllib.parse import parse_qs, urlsplit

CRD = "/apis/crd.projectcalico.org/v1"
AGENT = "system:serviceaccount:kube-system:calico-node"
AT = 1_000_000  # the resourceVersion of every list
_PADDING = "registry.example.org/a-team/a-service-of-some-name@sha256:" + "0123456789abcdef" * 4


def node_cidr(number: int) -> str:
    return f"10.{64 + number // 1024}.{number // 4 % 256}.{number % 4 * 64}"


def pod_address(node: int, pod: int) -> str:
    head, _, last = node_cidr(node).rpartition(".")
    return f"{head}.{int(last) + pod}"


def container(node: int, pod: int) -> str:
    return f"{node:032x}{pod:032x}"


def metadata(name: str, uid: int, *, managed: int, **more: object) -> dict[str, object]:
    fields = [{"manager": f"manager-{i}", "operation": "Update", "fieldsV1": {"f:x": _PADDING}} for i in range(managed)]
    return {
        "name": name,
        "uid": f"{uid:08x}-0000-4000-8000-000000000000",
        "resourceVersion": str(AT - 1),
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "managedFields": fields,
        **more,
    }


def node(number: int, beat: int = 0) -> dict[str, object]:
    name = f"node-{number:05}.example.internal"
    address = f"172.{16 + number // 65536}.{number // 256 % 256}.{number % 256}"
    annotations = {
        "projectcalico.org/IPv4Address": f"{address}/12",
        "projectcalico.org/IPv4VXLANTunnelAddr": node_cidr(number),
        "node.alpha.kubernetes.io/ttl": "0",
        "volumes.kubernetes.io/controller-managed-attach-detach": "true",
    }
    labels = {f"label-{i}.example.org/of-some-length": f"value-{i}" for i in range(8)}
    images = [{"names": [_PADDING + str(i), _PADDING[:50] + str(i)], "sizeBytes": 123456789} for i in range(30)]
    conditions = [
        {"type": kind, "status": "False", "reason": "KubeletHasSufficient" + kind, "lastHeartbeatTime": f"beat {beat}"}
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    ]
    return {
        "metadata": metadata(name, number, managed=16, labels=labels, annotations=annotations),
        "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24"]},
        "status": {
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "capacity": {"cpu": "16", "memory": "64Gi", "pods": "110"},
            "conditions": conditions,
            "images": images,
            "nodeInfo": {"kernelVersion": "6.1", "osImage": "Debian", "machineID": "0" * 32},
        },
    }


def pool(vxlan_mode: str) -> dict[str, object]:
    return {
        "apiVersion": "crd.projectcalico.org/v1",
        "kind": "IPPool",
        "metadata": metadata("pool", 1, managed=1),
        "spec": {"cidr": "10.64.0.0/10", "blockSize": 26, "vxlanMode": vxlan_mode, "ipipMode": "Never"},
    }


def block(number: int, pods: int) -> dict[str, object]:
    name, cidr = f"node-{number:05}.example.internal", node_cidr(number)
    attributes = [
        {
            "handle_id": f"k8s-pod-network.{container(number, pod)}",
            "secondary": {
                "namespace": f"namespace-{pod}",
                "node": name,
                "pod": f"a-deployment-{number}-{pod}-7d4b9c6f5d-x2x{pod}",
                "timestamp": "2026-01-01 00:00:00.000000000 +0000 UTC",
            },
        }
        for pod in range(pods)
    ]
    spec = {
        "cidr": f"{cidr}/26",
        "affinity": f"host:{name}",
        "strictAffinity": False,
        "allocations": [*range(pods), *[None] * (64 - pods)],
        "unallocated": list(range(pods, 64)),
        "attributes": attributes,
        "deleted": False,
        "sequenceNumber": pods,
        "sequenceNumberForAllocation": {str(pod): pod for pod in range(pods)},
    }
    return {
        "apiVersion": "crd.projectcalico.org/v1",
        "kind": "IPAMBlock",
        "metadata": metadata(cidr.replace(".", "-") + "-26", number, managed=1),
        "spec": spec,
    }


def affinity(number: int) -> dict[str, object]:
    name, cidr = f"node-{number:05}.example.internal", node_cidr(number)
    return {
        "apiVersion": "crd.projectcalico.org/v1",
        "kind": "BlockAffinity",
        "metadata": metadata(f"{name}-{cidr.replace('.', '-')}-26", number, managed=1),
        "spec": {"cidr": f"{cidr}/26", "node": name, "state": "confirmed", "type": "host", "deleted": "false"},
    }


def handle(number: int, pod: int) -> dict[str, object]:
    identity = f"k8s-pod-network.{container(number, pod)}"
    return {
        "apiVersion": "crd.projectcalico.org/v1",
        "kind": "IPAMHandle",
        "metadata": metadata(identity, number * 64 + pod, managed=1),
        "spec": {"handleID": identity, "block": {f"{node_cidr(number)}/26": 1}, "deleted": False},
    }


def pod(number: int, which: int) -> dict[str, object]:
    name = f"node-{number:05}.example.internal"
    pod_name = f"a-deployment-{number}-{which}-7d4b9c6f5d-x2x{which}"
    address = pod_address(number, which)
    environment = [{"name": f"VARIABLE_{i}", "value": _PADDING} for i in range(10)]
    annotations = {
        "cni.projectcalico.org/containerID": container(number, which),
        "cni.projectcalico.org/podIP": f"{address}/32",
        "cni.projectcalico.org/podIPs": f"{address}/32",
    }
    labels = {f"label-{i}": f"value-{i}" for i in range(5)}
    return {
        "metadata": metadata(
            pod_name,
            number * 64 + which,
            managed=20,
            namespace=f"namespace-{which}",
            labels=labels,
            annotations=annotations,
        ),
        "spec": {
            "nodeName": name,
            "serviceAccountName": "default",
            "containers": [{"name": "main", "image": _PADDING, "env": environment, "ports": [{"containerPort": 8080}]}],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}] * 4,
        },
        "status": {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": f"type-{i}", "status": "True", "reason": _PADDING} for i in range(6)],
        },
    }


class Simulation:
    """``nodes`` nodes with ``pods`` pods each."""

    def __init__(self, nodes: int, pods: int, vxlan_mode: str = "Never", review_ms: float = 2.0) -> None:
        self.nodes, self.pods = nodes, pods
        self.reviews = 0
        self._review_s = review_ms / 1000
        self._never = threading.Event()
        self.at = AT
        self.sent = 0
        self.open = 0
        self._past: list[tuple[int, str, dict[str, object]]] = []
        self._watches: list[tuple[str, bool, SimpleQueue[bytes]]] = []
        self._guard = threading.Lock()
        self.lists: dict[str, tuple[str, int, Callable[[int], dict[str, object]]]] = {
            "/api/v1/nodes": ("NodeList", nodes, node),
            f"{CRD}/ippools": ("IPPoolList", 1, lambda i: pool(vxlan_mode)),
            f"{CRD}/ipamblocks": ("IPAMBlockList", nodes, lambda i: block(i, pods)),
            f"{CRD}/blockaffinities": ("BlockAffinityList", nodes, affinity),
            f"{CRD}/ipamhandles": ("IPAMHandleList", nodes * pods, lambda i: handle(*divmod(i, pods))),
            "/api/v1/pods": ("PodList", nodes * pods, lambda i: pod(*divmod(i, pods))),
        }

    def page(self, path: str, query: dict[str, list[str]], *, brief: bool) -> Iterator[bytes]:
        kind, count, make = self.lists.get(path, ("List", 0, node))
        if "fieldSelector" in query or "labelSelector" in query:
            count = min(count, 1 if path.endswith("nodes") else self.pods)
        cached = query.get("resourceVersion") == ["0"]
        first = int(query.get("continue", ["0"])[0])
        last = count if cached or "limit" not in query else min(count, first + int(query["limit"][0]))
        more = {"continue": str(last)} if last < count else {}
        head = {"kind": kind, "metadata": {"resourceVersion": str(self.at), **more}}
        yield json.dumps(head).encode()[:-1] + b', "items": ['
        for number in range(first, last):
            yield (b"," if number > first else b"") + reduced(make(number), brief=brief)
        yield b"]}"

    def beat(self, count: int, *, change: bool = False) -> int:
        with self._guard:
            for _ in range(count):
                self.at += 1
                obj = node(1 + self.at % (self.nodes - 1), self.at)
                if change:
                    obj["metadata"]["labels"]["sent-at"] = f"{time.time():.4f}"
                self._tell("/api/v1/nodes", obj)
            return self.at

    def write_blocks(self, count: int) -> int:
        """A pod starts or ends on another node, each time on another one."""
        with self._guard:
            for _ in range(count):
                self.at += 1
                self._tell(f"{CRD}/ipamblocks", block(1 + self.at % (self.nodes - 1), self.pods + self.at % 2))
            return self.at

    def _tell(self, path: str, obj: dict[str, object]) -> None:
        obj["metadata"]["resourceVersion"] = str(self.at)
        self._past = [*self._past[-1000:], (self.at, path, obj)]
        for followed, brief, queue in self._watches:
            if followed == path:
                event = {"type": "MODIFIED", "object": json.loads(reduced(obj, brief=brief))}
                queue.put(json.dumps(event).encode() + b"\n")

    def review(self, review: dict[str, dict[str, object]]) -> bytes:
        """The answer to a TokenReview."""
        self._never.wait(self._review_s)
        with self._guard:
            self.reviews += 1
        status = {"authenticated": True, "user": {"username": AGENT}, "audiences": review["spec"].get("audiences", [])}
        return json.dumps({**review, "status": status}).encode()

    def past(self, path: str, since: int) -> bytes:
        """What a watch of a few seconds is told: what has happened, and a bookmark."""
        with self._guard:
            found = [{"type": "MODIFIED", "object": obj} for at, p, obj in self._past if at > since and p == path]
            bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self.at)}}}
            return b"".join(json.dumps(event).encode() + b"\n" for event in (*found, bookmark))

    def follow(self, path: str, *, brief: bool) -> SimpleQueue[bytes]:
        queue: SimpleQueue[bytes] = SimpleQueue()
        with self._guard:
            self._watches.append((path, brief, queue))
        return queue


def reduced(obj: dict[str, object], *, brief: bool) -> bytes:
    return json.dumps({"metadata": obj["metadata"]} if brief else obj).encode()


def handler(simulation: Simulation) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # as the API server does

        def log_message(self, *arguments: object) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self._whole(simulation.review(json.loads(body)), 201)

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query)
            if parts.path == "/bench/heartbeats":
                self._whole(str(simulation.beat(int(query["count"][0]), change="change" in query)).encode())
                return
            if parts.path == "/bench/watches":
                self._whole(str(simulation.open).encode())
                return
            if parts.path == "/bench/blocks":
                self._whole(str(simulation.write_blocks(int(query["count"][0]))).encode())
                return
            if parts.path == "/bench/reviews":
                self._whole(str(simulation.reviews).encode())
                return
            if parts.path == "/bench/sent":
                self._whole(str(simulation.sent).encode())
                return
            brief = "PartialObjectMetadata" in self.headers.get("Accept", "")
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            if int(query.get("timeoutSeconds", ["300"])[0]) < 10:
                self._chunk(simulation.past(parts.path, int(query["resourceVersion"][0])))
                self._chunk(b"")
                return
            if "watch" in query:
                # one block by its name: of the agent's own node, on which nothing happens here
                self._watch("" if "fieldSelector" in query else parts.path, brief=brief)
                return
            pieces, size = [], 0
            for piece in simulation.page(parts.path, query, brief=brief):
                pieces.append(piece)
                size += len(piece)
                if size > 60_000:
                    self._chunk(b"".join(pieces))
                    pieces, size = [], 0
            self._chunk(b"".join(pieces))
            self._chunk(b"")

        def _watch(self, path: str, *, brief: bool) -> None:
            queue = simulation.follow(path, brief=brief)
            simulation.open += 1
            try:
                while True:
                    event = queue.get()
                    self._chunk(event)
                    simulation.sent += len(event)
            except OSError:
                return  # it is gone
            finally:
                simulation.open -= 1

        def _chunk(self, data: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

        def _whole(self, body: bytes, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return Handler


def main() -> None:
    port, nodes, pods = map(int, sys.argv[1:4])
    review_ms = (float(text) for text in sys.argv[5:6])
    server = ThreadingHTTPServer(("127.0.0.1", port), handler(Simulation(nodes, pods, *sys.argv[4:5], *review_ms)))
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
