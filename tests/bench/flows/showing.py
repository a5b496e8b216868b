"""From a packet to its line in ``calicoctl flows -f``, and how long the newest 100 take, of a node and of 50.

    nice -n -15 .venv/bin/python -m tests.bench.flows.showing [PACKETS [NODES]]

The recorder and calicoctl are processes of their own; packets come at random times, 1 to 200 ms apart. Nodes are pods
of a real API server, each with a kubelet's exec that answers at once with 100 flows: what a command costs there it
costs on that node's processors. Figures are of the wall clock, and of calicoctl's processor time.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from ipaddress import ip_address
from pathlib import Path
from random import Random
from typing import Any, BinaryIO

from cni_calico.nodeagent.policing.tables.numbers import Recording, RuleNumbers
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from tests.bench.flows.lasting import recorder
from tests.bench.flows.packets import ALLOWED_PORT, SIDES, documents
from tests.e2e.kubernetes.cluster import Cluster, running_cluster
from tests.fakes.kubelet import Kubelet, receive, send
from tests.fakes.recorder import address, flow, pod, rule
from tests.netns.wire import Wire, frame, open_wire
from tests.unit.policy.cluster import graph_of

CALICOCTL = [sys.executable, "-c", "import sys; from cni_calico.ctl.main import main; sys.exit(main())", "flows"]
_SHOWN = 100


class AnsweringKubelet(Kubelet):
    """``answers``: the lines of each pod's recorder."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self.answers: dict[str, bytes] = {}
        super().__init__(certificate, key, {})

    def _run(self, connection: socket.socket, stream: BinaryIO, target: str, headers: dict[str, str]) -> None:
        name, _ = self.begin(connection, target, headers)
        asked: bytes | None = b""
        while asked is not None and b"\n" not in asked:
            asked = receive(stream)
        lock = threading.Lock()
        for at in range(0, len(self.answers[name]), 32 << 10):
            send(connection, 1, self.answers[name][at : at + (32 << 10)], lock)
        send(connection, 3, b'{"metadata":{},"status":"Success"}', lock)
        connection.sendall(b"\x88\x02\x03\xe8")


def told_ms(times: Sequence[float]) -> str:
    ordered = sorted(times)
    middle, late = ordered[len(ordered) // 2], ordered[int(0.99 * len(ordered))]
    return f"median {1000 * middle:.0f} ms, p99 {1000 * late:.0f} ms, worst {1000 * ordered[-1]:.0f} ms"


def follow(wire: Wire, environ: dict[str, str], packets: int) -> list[float]:
    """Seconds from a packet to its line."""
    incoming, source = SIDES["both sides"]
    packet = {"source": ip_address(source), "destination": ip_address("10.0.0.1"), "protocol": 17, "icmp": (0, 0)}
    random, sent, shown = Random(1), dict[int, float](), dict[int, float]()
    command = [*CALICOCTL, "--host", "-f", "-o", "jsonl"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as following:
        assert following.stdout is not None
        lines = following.stdout

        def read() -> None:
            for line in lines:
                shown.setdefault(json.loads(line)["source"]["port"], time.monotonic())

        reading = threading.Thread(target=read)
        reading.start()
        sport = 1023
        while len(shown) < packets:
            sport += 1
            data = frame({**packet, "sport": sport, "dport": ALLOWED_PORT}, 0)
            sent[sport] = time.monotonic()
            wire.outer[incoming].send(data)
            time.sleep(random.uniform(0.001, 0.2))  # the first ones are sent before it follows, and are not shown
        following.terminate()
        reading.join()
    return [shown[one] - sent[one] for one in shown]


def asked(environ: dict[str, str], *words: str, times: int = 9) -> str:
    """How long the whole command takes."""
    found, used = list[float](), sum(os.times()[2:4])
    for _ in range(times):
        begun = time.monotonic()
        done = subprocess.run([*CALICOCTL, "--last", str(_SHOWN), *words], env=environ, capture_output=True, text=True)
        found.append(time.monotonic() - begun)
        assert done.returncode == 0 and done.stdout.count("\n") == _SHOWN + 1, done
    return f"{told_ms(found)}, processor {1000 * (sum(os.times()[2:4]) - used) / times:.0f} ms"


def make_nodes(kube: Cluster, kubelet: AnsweringKubelet, count: int) -> None:
    """Each with 100 flows of its own, of which half are known to the next one too."""
    merge = "application/strategic-merge-patch+json"
    for number in range(count):
        name, agent = f"node-{number:03}", f"calico-node-{number:03}"
        kube.create_node(name)
        status: dict[str, Any] = {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}
        status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": kubelet.port}}
        kube.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, content_type=merge)
        spec = {"containers": [{"name": "calico-node", "image": "none"}]}
        kube.create_pod("kube-system", agent, name, spec=spec, labels={"k8s-app": "calico-node"})
        running = {"status": {"phase": "Running"}}
        kube.request("PATCH", f"/api/v1/namespaces/kube-system/pods/{agent}/status", running, content_type=merge)
        lines = []
        for i in range(_SHOWN):
            here, there = f"10.65.{number}.9", f"10.65.{(number + 1) % count}.9"
            when = f"2026-11-26T14:{i % 60:02}:{number % 60:02}.400+00:00"
            if i % 2:
                ends = pod("shop", f"web-{number}", here, 40000 + i), address(there, 5432)
                decided = rule("egress", "shop", "web", 0)
            else:
                ends = address(f"10.65.{(number - 1) % count}.9", 40001 + i), pod("shop", f"db-{number}", here, 5432)
                decided = rule("ingress", "shop", "db", 1)
            lines.append(flow(*ends, decided, start=when, last=when, node=name))
        ending = {"end": True, "node": name, "lost": []}
        kubelet.answers[agent] = b"".join(json.dumps(one).encode() + b"\n" for one in (*lines, ending))


def main(packets: int, nodes: int) -> None:
    numbers = RuleNumbers()
    with tempfile.TemporaryDirectory() as root, open_wire(FilterSettings(recording=Recording(numbers))) as wire:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        graph = graph_of(documents())
        graph.flush()
        wire.apply(graph.wanted())
        wire.route({ip_address("10.0.0.1"): "cali1", ip_address("10.0.0.2"): "calil3"})
        environ = {**os.environ, "CALICO_RUN_DIR": f"{root}/run"}
        with recorder(wire, root, graph.wanted(), numbers):
            print(f"a packet's line: {told_ms(follow(wire, environ, max(packets, _SHOWN)))}")
            print(f"the newest {_SHOWN} of this node: {asked(environ, '--host')}")
    with ExitStack() as opened:
        kube = opened.enter_context(running_cluster())
        kubelet = AnsweringKubelet(kube.directory / "server.crt", kube.directory / "server.key")
        opened.callback(kubelet.close)
        make_nodes(kube, kubelet, nodes)
        environ = dict(os.environ)
        print(f"the newest {_SHOWN} of {nodes} nodes: {asked(environ, '--kubeconfig', kube.kubeconfig())}")
    with open("/proc/loadavg") as file:
        print(f"load {file.read().split()[0]}")


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    main(*given, *(200, 50)[len(given) :])
