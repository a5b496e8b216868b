"""How costs grow with the number of records: each figure with so many, ten times and a hundred times as many.

    .venv/bin/python tests/bench/growth.py [--only WORD]     ten minutes on a quiet machine; as root for the agent

Prints a table with two exponents each, of the first and of the second step: 0 is a constant, 1 is proportional. What
does not depend on records (an interpreter's start, modules) makes the first one small. CPU is counted, not time, so a
busy machine does not matter much; each figure is of a process of its own.

The agent is the one of the sources, on a real etcd and kernel (policy/starts.py); ``policy put`` is the calculation
alone (policy/graph.py); the controllers and the relay read a simulated API server (scale.py, relay.py); ``ipam check``
is the frozen executable on etcd (ipam_check.py). Served ADDs on nodes with many addresses are in table.py.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cni_calico.datastore.connect import open_datastore
from cni_calico.model.access import DatastoreConfig
from tests.bench import ipam_check, relay, scale
from tests.contract.etcd_process import single
from tests.e2e.relays import make_certificates

Figures = dict[str, float]
ROOT = Path(__file__).resolve().parents[2]
# a node's share stays: with the policies grow the endpoints of the node and of others
_POLICIES = """
import json, resource, sys
from tests.bench.policy.cluster import ClusterSize
from tests.bench.policy.graph import changes, start
size = ClusterSize(*map(int, sys.argv[1:]))
graph, started = start(size)
found = changes(graph, size, 40)
put, joins = found["policy put"], found["remote endpoint joins sets"]
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"start": started, "put": put, "joins": joins, "memory": memory}))
"""


def policies(times: int) -> Figures:
    """10 policies of ten rules, 3 local and 100 remote endpoints, and ten different selectors for each policy."""
    sizes = [str(each) for each in (10 * times, 3 * times, 100 * times, max(5, times // 2))]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", _POLICIES, *sizes]
    done = subprocess.run(command, env=environ, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    return {
        "policies (10, 100, 1,000): the calculation's start, CPU ms": found["start"],
        "... one is put, CPU ms": found["put"],
        "... an endpoint joins sets, CPU ms": found["joins"],
        "... memory, MB": found["memory"],
    }


def controllers(times: int) -> Figures:
    with scale.api_server(20 * times, scale.PODS_A_NODE) as url:
        found = scale.measure(ROOT, scale.JANITOR, url)
    return {
        "pods (600, 6,000, 60,000): the controllers' first pass, CPU s": found["start_cpu_s"],
        "... memory, MB": found["rss_mb"],
    }


def relays(times: int) -> Figures:
    api, port, metrics = relay.free_port(), relay.free_port(), relay.free_port()
    url, simulation = f"http://127.0.0.1:{api}", str(ROOT / "tests" / "bench" / "api_simulation.py")
    with tempfile.TemporaryDirectory() as directory:
        make_certificates(Path(directory))
        with relay.process(sys.executable, simulation, str(api), str(30 * times), "10", "Never"):
            relay.seconds_until(lambda: relay.answers(url), "the simulation")
            running = relay.start_relay(url, port, Path(directory), metrics)
            try:
                return {
                    "nodes of ten pods (30, 300, 3,000): a relay has read all, CPU s": relay.cpu_s(running.pid),
                    "... memory, MB": relay.rss_kb(running.pid) / 1024,
                }
            finally:
                running.kill()
                running.wait()


def addresses(times: int) -> Figures:
    with single() as cluster:
        environ = {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": cluster.urls[0], "PATH": os.environ["PATH"]}
        store = open_datastore(DatastoreConfig("etcdv3", etcd_endpoints=(cluster.urls[0],)))
        try:
            ipam_check.fill(store, 1000 * times)
        finally:
            store.close()
        spent, _, peak = ipam_check.measure(ipam_check.BIN / "calicoctl", "ipam check", environ)
    return {"addresses (1,000, 10,000, 100,000): `ipam check`, CPU s": spent, "... memory, MB": peak}


def agent(times: int) -> Figures:
    from tests.bench.policy import changes, starts

    found = starts.measure(10 * times, 2, {"agent": changes.AGENT}, "etcd")["agent"]
    return {
        "policies, endpoints (10, 25; 100, 1,025; 1,000, 10,250): the agent's start, CPU ms": min(found["cold CPU ms"]),
        "... a warm one": min(found["warm CPU ms"]),
    }


KINDS: tuple[Callable[[int], Figures], ...] = (policies, controllers, relays, addresses, agent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=", ".join(kind.__name__ for kind in KINDS))
    arguments = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}\n\n| | x 1 | x 10 | x 100 | exponents |\n|---|---|---|---|---|")
    for kind in KINDS:
        if arguments.only in ("", kind.__name__):
            found = [kind(times) for times in (1, 10, 100)]
            for name in found[0]:
                values = [one[name] for one in found]
                steps = ", ".join(f"{math.log10(b / a):.2f}" for a, b in pairwise(values))
                print(f"| {name} | " + " | ".join(f"{value:.3g}" for value in values) + f" | {steps} |", flush=True)


if __name__ == "__main__":
    main()
