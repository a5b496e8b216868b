"""Where the time of a served ADD and DEL goes on etcd, beside the floor of each part, and ptp, all in one run.

    .venv/bin/python tests/bench/served_phases.py [--runs 100]           as root; a minute on a quiet machine

The server is of the sources, with a clock around the functions of PHASES; the executable is the frozen native one. One
call at a time, in turns with ptp + host-local and with two floors: an executable that does nothing but start (VERSION),
and a transaction of one key. The third floor is what the kernel itself takes, for the veth, its addresses and routes
and their end: `RequestSocket._exchange`, from the request's first byte to the answer's last. Medians in ms of the wall
clock, and of the CPU of the thread that works. A phase that is part of another one is counted there, too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cni_calico.datastore.connect import open_datastore
from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.kernel import netns
from cni_calico.model.keys import HandleKey
from tests.bench import contest
from tests.bench.bench_cni import spawn
from tests.bench.policy.timed_agent import wrap
from tests.bench.table import NODES
from tests.e2e.host import Node
from tests.netns.namespaces import namespace

PHASES = (
    ("server.run", "CniServer._serve_connection"),
    ("server.connections", "read_request"),
    ("plugin.call.serve", "run_call"),
    ("cni.netconf", "parse_netconf"),
    ("plugin.add", "add"),
    ("plugin.add", "_Addition._set_up"),
    ("plugin.add", "_Addition._assign_calico_addresses"),
    ("plugin.add", "_Addition._make_links"),
    ("server.resident", "ResidentServices.begin"),
    ("plugin.call.ready", "require_ready"),
    ("plugin.call.services", "Services.attachment_lock"),
    ("plugin.endpoints", "read_recorded"),
    ("plugin.ipam.addresses", "assign"),
    ("datastore.etcd.store", "EtcdStore.commit"),
    ("plugin.network.setup", "create_links"),
    ("plugin.network.setup", "apply_addresses"),
    ("plugin.endpoints", "apply_endpoint"),
    ("plugin.former_connections", "remove_former_connections"),
    ("plugin.delete", "Removal._read"),
    ("plugin.delete", "Removal._remove_network"),
    ("plugin.delete", "Removal._remove_endpoint"),
    ("plugin.delete", "Removal._release_addresses"),
    ("kernel.netlink.socket", "RequestSocket._exchange"),
    ("kernel.netlink.socket", "RequestSocket._dump"),
    ("server.connections", "send_answer"),
)
SERVE = "--serve"
Told = list[tuple[str, float, float, float]]


def serve(file: str) -> int:
    """Be the server, with clocks; writes what they showed when it ends."""
    told: Told = []
    lock = threading.Lock()

    def tell(name: str, wall: float, cpu: float) -> None:
        now = time.monotonic()
        with lock:
            told.append((name, wall, now - wall, time.thread_time() - cpu))

    main = import_module("cni_calico.nodeagent.main").main
    for module, _ in PHASES:
        import_module(f"cni_calico.{module}")
    for module, path in PHASES:
        wrap(sys.modules[f"cni_calico.{module}"], path, tell)
    sys.argv = ["calico-node", "-cni-server"]
    try:
        return int(main())
    finally:
        Path(file).write_text(json.dumps(told))


@contextmanager
def timed_server(node: Node) -> Iterator[Path]:
    file = node.root / "phases.json"
    with node.server(program=(sys.executable, str(Path(__file__)), SERVE, str(file))):
        yield file


def measure(runs: int) -> tuple[dict[str, list[float]], Told, dict[str, list[tuple[float, float]]]]:
    """(wall ms of each contestant's verb and floor, what the clocks told, when each verb of ours ran)."""
    walls: dict[str, list[float]] = {}
    spans: dict[str, list[tuple[float, float]]] = {"ADD": [], "DEL": []}

    with ExitStack() as stack:
        node = stack.enter_context(NODES["etcd"]())
        pod, other = (stack.enter_context(namespace(name)) for name in ("ours", "ptp"))
        who = {"ours": (contest.ours(node), pod, "calico"), "ptp": (contest.references(node.root)[0], other, "ptp")}
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        netns.enter(os.open(node.host.path, os.O_RDONLY))
        stack.callback(netns.enter, here)
        store = open_datastore(node.datastore)
        stack.callback(store.close)
        with timed_server(node) as file:
            for number in range(runs):
                for verb in ("ADD", "DEL"):
                    for name, (contestant, where, program) in who.items():
                        conf = json.loads(contestant.conf.read_text())
                        stdin = {**conf["plugins"][0], "name": conf["name"], "cniVersion": conf["cniVersion"]}
                        environ = node.env(verb, f"{number:064x}", where.path, "eth0", "")
                        environ["CNI_PATH"] = str(contestant.directory)
                        begun = time.monotonic()
                        path = str(contestant.directory / program)
                        result = spawn(path, [path], environ, json.dumps(stdin).encode())
                        if result.rc:
                            raise SystemExit(f"{name}: {verb} failed: {result.out!r} {result.err!r}")
                        walls.setdefault(f"{name} {verb}", []).append(result.ms)
                        if name == "ours" and number:  # the first one opens what the others find open
                            spans[verb].append((begun, time.monotonic()))
                version = {**node.env("VERSION", "", "", "", ""), "CNI_COMMAND": "VERSION"}
                path = str(contest.BIN / "calico")
                walls.setdefault("floor: a process", []).append(
                    spawn(path, [path], version, b'{"cniVersion":"1.0.0"}').ms
                )
                write = Write.put(HandleKey("floor"), {"handleID": "floor", "block": {}, "deleted": False})
                begun = time.perf_counter()
                store.commit([write], Deadline.after(10))
                walls.setdefault("floor: one transaction", []).append(1000 * (time.perf_counter() - begun))
        told: Told = json.loads(file.read_text())
    return walls, told, spans


def show(walls: dict[str, list[float]], told: Told, spans: dict[str, list[tuple[float, float]]]) -> None:
    ptp = {verb: statistics.median(walls[f"ptp {verb}"]) for verb in ("ADD", "DEL")}
    print("| | ms | of ptp's ADD | of ptp's DEL |\n|---|---|---|---|")
    for name, values in walls.items():
        median = statistics.median(values)
        print(f"| {name} | {median:.2f} | {median / ptp['ADD']:.2f} | {median / ptp['DEL']:.2f} |")
    for verb, when in spans.items():
        print(f"\n| {verb}, {len(when)} calls | wall ms | CPU ms | times |\n|---|---|---|---|")
        sums: dict[str, list[tuple[float, float, int]]] = {path: [] for _, path in PHASES}
        for begun, ended in when:
            inside = [one for one in told if begun <= one[1] < ended]
            for path, found in sums.items():
                mine = [one for one in inside if one[0] == path]
                if mine:
                    found.append((sum(one[2] for one in mine), sum(one[3] for one in mine), len(mine)))
        for path, found in sums.items():
            if len(found) > len(when) / 2:
                wall, cpu, count = (statistics.median(each) for each in zip(*found, strict=True))
                print(f"| `{path}` | {1000 * wall:.2f} | {1000 * cpu:.2f} | {count:.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}", file=sys.stderr)
    show(*measure(options.runs))


if __name__ == "__main__":
    if sys.argv[1:2] == [SERVE]:
        sys.exit(serve(sys.argv[2]))
    main()
