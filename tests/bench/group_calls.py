"""ADD and DEL through the frozen server, on projectcalico.org/v3 and on crd.projectcalico.org/v1 in turns.

``python -m tests.bench.group_calls [PAIRS]``: two real API servers, two hosts with a server each, and dist/bin. Of
each verb: wall time of the executable, processor time of it and of the server, and what the server asks of the API
server. On a machine that does other things too, the processor's time and the requests say more than the wall's.
``agents [ROUNDS]``: resident memory of an agent that is ready, in turns, from sources.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from cni_calico.model.access import CRD_ROOT
from tests.conftest import ROOT
from tests.deadlines import until
from tests.e2e.kubernetes.agent import agent
from tests.e2e.kubernetes.cluster import NATIVE_ROOT, running_cluster
from tests.e2e.kubernetes.node import KubeNode, kube_node
from tests.e2e.kubernetes.pods import known_pods
from tests.netns.namespaces import host_namespace, namespace

BIN = ROOT / "dist" / "bin"
WARM = 6


@dataclass
class Side:
    """One of the two; ``wall`` and ``client``: milliseconds of each call, by verb; ``server``: of all of them."""

    node: KubeNode
    server: subprocess.Popen[bytes]
    wall: dict[str, list[float]] = field(default_factory=lambda: {"ADD": [], "DEL": []})
    client: dict[str, list[float]] = field(default_factory=lambda: {"ADD": [], "DEL": []})
    served: dict[str, float] = field(default_factory=lambda: {"ADD": 0.0, "DEL": 0.0})
    asked: Counter[str] = field(default_factory=Counter)


def execute(path: Path, environ: Mapping[str, str], stdin: bytes) -> tuple[int, bytes, float, float]:
    """Exit status, output, wall time and processor time in ms; called in the host's namespace."""
    began = time.perf_counter()
    process = subprocess.Popen([path], env=dict(environ), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(stdin)
    process.stdin.close()
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = (time.perf_counter() - began) * 1000
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, out, wall, (usage.ru_utime + usage.ru_stime) * 1000


def cpu_ms(pid: int) -> float:
    """Of all its threads, also those that have ended (the clock that clock_getcpuclockid names)."""
    return time.clock_gettime_ns(~pid << 3 | 2) / 1e6


def call(side: Side, verb: str, pod: str, container: str, netns: str, *, counts: bool) -> None:
    node = side.node
    uid = node.kube.read_pod(node.namespace, pod)["metadata"]["uid"]
    args = (
        f"IgnoreUnknown=1;K8S_POD_NAMESPACE={node.namespace};K8S_POD_NAME={pod};K8S_POD_INFRA_CONTAINER_ID={container}"
    )
    environ = {k: v for k, v in node.env(verb, container, netns, "eth0", f"{args};K8S_POD_UID={uid}").items() if v}
    before, since = cpu_ms(side.server.pid), len(node.kube.audited())
    stdin = json.dumps(node.conf()).encode()
    code, out, wall, client = node.host.call(execute, BIN / "calico", environ, stdin, timeout_s=60)
    assert code == 0, out
    if counts:
        side.wall[verb].append(wall)
        side.client[verb].append(client)
        side.served[verb] += cpu_ms(side.server.pid) - before
        events = [
            each for each in node.kube.audited(since) if "calico" in each["userAgent"] and each["verb"] != "watch"
        ]
        side.asked[verb] += len(events)


def agent_memory(rounds: int) -> None:
    found: dict[str, list[float]] = {"v1": [], "v3": []}
    with ExitStack() as undo:
        clusters = {}
        for name, root in (("v1", CRD_ROOT), ("v3", NATIVE_ROOT)):
            clusters[name] = undo.enter_context(running_cluster())
            clusters[name].apply_definitions(root)
        for number in range(rounds):
            for name in ("v1", "v3") if number % 2 else ("v3", "v1"):
                cluster, root = clusters[name], CRD_ROOT if name == "v1" else NATIVE_ROOT
                cluster.empty(root)
                with (
                    tempfile.TemporaryDirectory(prefix="cct-groups-") as directory,
                    host_namespace() as host,
                    kube_node(cluster, host, Path(directory)) as node,
                    agent(node) as pid,
                ):
                    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                    found[name] += [int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:")]
    for name, sizes in found.items():
        print(f"agent {name}: {statistics.median(sizes):.1f} MiB (least {min(sizes):.1f}, most {max(sizes):.1f})")


def main(pairs: int) -> None:
    with ExitStack() as undo:
        sides = {}
        for name, root in (("v1", CRD_ROOT), ("v3", NATIVE_ROOT)):
            directory = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="cct-groups-")))
            kube = undo.enter_context(running_cluster())
            kube.apply_definitions(root)
            host = undo.enter_context(host_namespace())
            node = undo.enter_context(kube_node(kube, host, directory))
            node.bin_dir = BIN
            server = undo.enter_context(node.server(program=[str(BIN / "calico-node"), "-cni-server"]))
            sides[name] = Side(node, server)
        spaces = {name: undo.enter_context(namespace("pod")) for name in sides}
        for number in range(WARM + pairs):
            pod, container = f"p{number}", f"{number:04x}" * 16
            for side in sides.values():
                side.node.kube.create_pod(side.node.namespace, pod, side.node.nodename)
            for side in sides.values() if number else ():
                until(lambda side=side: known_pods(side.node) > 0, "the server knows the pods", 30)
            order = list(sides.items()) if number % 2 else list(reversed(sides.items()))
            for verb in ("ADD", "DEL"):
                for name, side in order:
                    call(side, verb, pod, container, spaces[name].path, counts=number >= WARM)
            for side in sides.values():
                side.node.kube.delete_pod(side.node.kube.read_pod(side.node.namespace, pod))
        for verb in ("ADD", "DEL"):
            for name, side in sides.items():
                wall, client = side.wall[verb], side.client[verb]
                cpu = statistics.mean(client) + side.served[verb] / pairs
                print(
                    f"{verb} {name}: wall {statistics.median(wall):.1f} ms (least {min(wall):.1f}); processor "
                    f"{cpu:.1f} ms, of that the server {side.served[verb] / pairs:.1f}; "
                    f"{side.asked[verb] / pairs:.2f} requests"
                )


if __name__ == "__main__":
    words = sys.argv[1:]
    if words[:1] == ["agents"]:
        agent_memory(int(words[1]) if len(words) > 1 else 5)
    else:
        main(int(words[0]) if words else 40)
