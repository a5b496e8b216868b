#!/usr/bin/env python3
"""How long ADD and DEL take in a burst of pods on one node of a real API server, and what they ask of it.

    .venv/bin/python -m tests.bench.pod_burst [pods] [rounds] [milliseconds]

The third number delays every answer by so much, as an API server does that is not on this machine.

All calls of a round start at once, as the kubelet does it, straight to the resident server's socket: what is measured
is the server and the API server (both on this machine), not the start of executables.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from cni_calico.plugin.call.client import call_server
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import CNI_USER, running_cluster
from tests.e2e.kubernetes.node import KubeNode, Relay, kube_node
from tests.e2e.kubernetes.roles import every_right
from tests.fakes.http_front import front_of
from tests.netns.namespaces import host_namespace, namespace


def timed_call(node: KubeNode, verb: str, pod: str, uid: str, container: str, netns: str) -> float:
    args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE={node.namespace};K8S_POD_NAME={pod};K8S_POD_UID={uid}"
    environ = node.env(verb, container, netns, "eth0", args)
    stdin = json.dumps(node.conf()).encode()
    begun = time.monotonic()
    answer = call_server(str(node.root / "run" / "cni.sock"), "calico", environ, stdin)
    taken = time.monotonic() - begun
    if answer is None or answer[0] != 0:
        raise SystemExit(f"{verb} {pod}: {answer}")
    return taken


def requests_since(node: KubeNode, since: int) -> Counter[str]:
    return Counter(
        f"{event['verb']} {event['objectRef']['resource']}"
        for event in node.kube.audited(since)
        if event["user"]["username"] == CNI_USER and event["verb"] != "watch"
    )


def report(verb: str, times: list[float], asked: Counter[str]) -> None:
    each = asked.total() / len(times)
    p90 = quantiles(times, n=10)[-1]
    print(
        f"{verb}: p50 {median(times):.3f} s, p90 {p90:.3f} s, max {max(times):.3f} s, {each:.2f} requests each",
        *(f"{name} {count}" for name, count in sorted(asked.items())),
        sep="  ",
    )


def known(node: KubeNode) -> float:
    return sum(value for name, value in node.metrics().items() if name.startswith("calico_kubernetes_pods"))


def one_round(node: KubeNode, spaces: list[str], number: int) -> None:
    names = [f"r{number}-p{i}" for i in range(len(spaces))]
    uids = [node.kube.create_pod(node.namespace, name, node.nodename)["metadata"]["uid"] for name in names]
    until(lambda: known(node) >= len(names), "the server knows the pods", 30)
    for verb in ("ADD", "DEL"):
        since = len(node.kube.audited())
        calls = [
            (node, verb, name, uid, f"{number:02x}{i:02x}" * 16, space)
            for i, (name, uid, space) in enumerate(zip(names, uids, spaces, strict=True))
        ]
        with ThreadPoolExecutor(len(calls)) as pool:
            times = list(pool.map(lambda call: timed_call(*call), calls))
        report(verb, times, requests_since(node, since))
    for name in names:
        node.kube.delete_pod(node.kube.read_pod(node.namespace, name))


def delay(node: KubeNode, undo: ExitStack, seconds: float) -> None:
    """Put a front that waits between the plugin and the API server."""
    front = undo.enter_context(front_of("127.0.0.1", node.kube.port, node.kube.ca))
    undo.callback(Relay(node.host, front.port).close)
    front.rule = lambda method, path: None if "watch=1" in path else seconds
    path = node.root / "kubeconfig"
    document = json.loads(Path(node.kube.kubeconfig(node.token)).read_text())
    document["clusters"][0]["cluster"] = {"server": front.url}
    path.write_text(json.dumps(document))
    node.overrides["kubernetes"] = {"kubeconfig": str(path)}


def main(pods: int = 30, rounds: int = 3, milliseconds: int = 0) -> None:
    with ExitStack() as undo:
        root = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="cct-bench-")))
        host = undo.enter_context(host_namespace())
        spaces = [undo.enter_context(namespace("pod")).path for _ in range(pods)]
        cluster = undo.enter_context(running_cluster())
        cluster.apply_definitions()
        undo.enter_context(every_right(cluster))
        node = undo.enter_context(kube_node(cluster, host, root))
        node.token = "cni-token"
        if milliseconds:
            delay(node, undo, milliseconds / 1000)
        undo.enter_context(node.server())
        warm: Any = cluster.create_pod(node.namespace, "warm", node.nodename)
        timed_call(node, "ADD", "warm", warm["metadata"]["uid"], "f" * 64, spaces[0])
        timed_call(node, "DEL", "warm", warm["metadata"]["uid"], "f" * 64, spaces[0])
        for number in range(rounds):
            one_round(node, spaces, number)
        if node.leftovers():
            raise SystemExit(f"left over: {node.leftovers()}")
        print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} CPUs")


if __name__ == "__main__":
    main(*(int(text) for text in sys.argv[1:]))
