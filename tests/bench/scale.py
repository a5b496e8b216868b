"""What a large cluster costs one process of ours: an agent's view of it, and the janitor's.

    python tests/bench/scale.py [--source DIR] [--nodes 1000 5000] [--pods 150000]       a few minutes; prints a table

A simulated API server (api_simulation.py) has the cluster; real objects would need one of 64 GB. Each figure is of a
process of its own that runs the code in DIR (another checkout, to compare). "told" is how often the agent's loop was
woken: without a change that concerns it, one wake-up is one pass. The agent is measured twice: with a pool whose routes
are BIRD's, where it follows no other node's blocks, and with VXLAN, where it follows all.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HEARTBEATS = 2000
CHANGES = 2000  # of blocks
PODS_A_NODE = 30

_COMMON = """
import json, os, resource, sys, time, urllib.request
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.deadline import Deadline
from cni_calico.model.access import KubernetesAccess
url = sys.argv[1]
store = KubernetesStore(KubernetesAccess(api_root=url))
cpu = lambda: time.process_time()
def rss():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return [int(lines[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM")]
"""

AGENT = (
    _COMMON
    + """
from cni_calico.nodeagent.view.sources import Sources
told = [0]
def count():
    told[0] += 1
before, begun, (empty, _) = cpu(), time.monotonic(), rss()
options = {"brief": True}
try:
    from cni_calico.nodeagent.context.felix import FelixSettings
    from cni_calico.nodeagent.dataplane.routes import makes_routes
    options["routed"] = lambda pools, node, default: makes_routes(pools, FelixSettings(), "bird")
except ImportError:
    pass
while True:
    try:
        sources = Sources(store, "node-00000.example.internal", count, **options)
        break
    except TypeError:
        options.popitem()
sources.wait_synced(Deadline.after(600))
snapshot = sources.snapshot()
out = {"start_cpu_s": cpu() - before, "start_s": time.monotonic() - begun, "nodes": len(snapshot.nodes)}
del snapshot
out["rss_mb"], out["peak_mb"] = rss()
out["empty_mb"] = empty
while sources._nodes._watch is None:
    time.sleep(0.02)
before, told_before = cpu(), told[0]
count = int(sys.argv[2])
last = int(urllib.request.urlopen(f"{url}/bench/heartbeats?count={count}").read())
while int(str(sources._nodes.revision).split("@")[0].split("/")[0]) < last:
    time.sleep(0.02)
out["event_cpu_ms"] = (cpu() - before) / count * 1000
out["told"] = told[0] - told_before
ask = lambda what: int(urllib.request.urlopen(url + "/bench/" + what).read())
before, told_before, sent, count = cpu(), told[0], ask("sent"), int(sys.argv[3])
last = ask(f"blocks?count={count}")
everything = ("BlockList(family=0, cidr=None)", "BlockList(family=0)")
for cache in [cache for cache in sources._kept.all if str(cache.listing) in everything]:
    while int(str(cache.revision).split("@")[0].split("/")[0]) < last:
        time.sleep(0.02)
out["block_cpu_ms"] = (cpu() - before) / count * 1000
out["block_told"], out["block_bytes"] = told[0] - told_before, (ask("sent") - sent) / count
print(json.dumps(out), flush=True)
os._exit(0)
"""
)

JANITOR = (
    _COMMON
    + """
from cni_calico.controllers.cluster import Cluster
from cni_calico.controllers.janitor.caches import JanitorCaches
from cni_calico.ipam.lost.suspects import Suspects
from cni_calico.log import Log
before, begun, (empty, _) = cpu(), time.monotonic(), rss()
caches = JanitorCaches(Cluster(store, Log("error"), store, True))
while not caches.healthy:
    time.sleep(0.1)
out = {"empty_mb": empty, "lists_cpu_s": cpu() - before, "lists_rss_mb": rss()[0], "lists_peak_mb": rss()[1]}
suspects, seen = Suspects(caches.state), 0
everything = sum(len(cache._known.entries) for cache in caches._caches if cache is not caches._pools)
while seen < everything:  # as the janitor does
    changed = tuple(caches.changes.take())
    seen += len(changed)
    suspects.refresh(changed, time.monotonic())
    time.sleep(0.02)
del changed
out["start_cpu_s"], out["start_s"] = cpu() - before, time.monotonic() - begun
out["rss_mb"], out["peak_mb"] = rss()
out["suspects"] = len(suspects.all)
out["pods"] = len(caches.state._caches.pods.items())
print(json.dumps(out), flush=True)
os._exit(0)
"""
)


@contextmanager
def api_server(nodes: int, pods: int, vxlan_mode: str = "Never") -> Iterator[str]:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [sys.executable, str(Path(__file__).with_name("api_simulation.py"))]
    command += [str(port), str(nodes), str(pods), vxlan_mode]
    with subprocess.Popen(command) as process:
        url = f"http://127.0.0.1:{port}"
        try:
            while True:
                try:
                    urllib.request.urlopen(f"{url}/bench/heartbeats?count=0").read()
                    break
                except OSError:
                    time.sleep(0.05)
            yield url
        finally:
            process.kill()


def measure(source: Path, code: str, *arguments: str) -> dict[str, Any]:
    """Raises CalledProcessError."""
    environ = {**os.environ, "PYTHONPATH": str(source)}
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, env=environ, cwd=source, stdout=subprocess.PIPE, check=True, timeout=3600)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=ROOT, help="the checkout whose code is measured")
    parser.add_argument("--nodes", type=int, nargs="*", default=[1000, 5000])
    parser.add_argument("--pods", type=int, nargs="*", default=[150_000], help="of the janitor's cluster")
    options = parser.parse_args()
    for nodes, mode in ((nodes, mode) for nodes in options.nodes for mode in ("Never", "Always")):
        with api_server(nodes, PODS_A_NODE, mode) as url:
            found = measure(options.source, AGENT, url, str(HEARTBEATS), str(CHANGES))
        heartbeats = f"{found['event_cpu_ms']:.2f} ms CPU a heartbeat, {found['told']} wake-ups for {HEARTBEATS}"
        print(
            f"agent, {nodes} nodes, vxlanMode {mode}: start {found['start_cpu_s']:.1f} s CPU, memory "
            f"{found['empty_mb']:.0f} -> {found['rss_mb']:.0f} MB (peak {found['peak_mb']:.0f}), "
            f"{heartbeats}; a changed block of another node: "
            f"{found['block_bytes']:.0f} bytes, {found['block_cpu_ms']:.2f} ms CPU, {found['block_told']} wake-ups for "
            f"{CHANGES}",
            flush=True,
        )
    for pods in options.pods:
        with api_server(pods // PODS_A_NODE, PODS_A_NODE) as url:
            found = measure(options.source, JANITOR, url)
        print(
            f"janitor, {found['pods']} pods with their blocks and handles: {found['start_cpu_s']:.0f} s CPU, memory "
            f"{found['empty_mb']:.0f} -> {found['lists_rss_mb']:.0f} MB read, {found['rss_mb']:.0f} MB judged (peak "
            f"{found['peak_mb']:.0f}), {found['suspects']} suspects",
            flush=True,
        )


if __name__ == "__main__":
    main()
