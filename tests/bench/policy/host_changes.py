#!/usr/bin/env python3
"""How soon changes are in force on a host that is policed itself, while connection tracking forgets its connections.

    host_changes.py [--changes 60] [--kubernetes]

An engine on etcd, both behind host endpoint ``*``, which allows only failsafe ports; or on a real API server, which it
reaches by a relay behind that host endpoint. Before each change of a policy the entries of connection tracking are
removed, in turns by a flush and, on etcd, by a workload that leaves and had the host's address, or stay. Printed is the
time from the server's answer to the write until the engine says that the change is in force: median, 90th percentile
and the longest, in milliseconds. Needs root, nft, conntrack, etcd and kube-apiserver (tests/setup/lab.sh).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from cni_calico.log import Log
from cni_calico.model.access import DatastoreConfig
from cni_calico.nodeagent.context.agent import Context
from tests.deadlines import until
from tests.e2e.etcd.test_policed_host import POLICY, forget_all, workload_leaves
from tests.e2e.forks import forks_in
from tests.e2e.host import EtcdNode, etcd_in
from tests.e2e.kubernetes.agents.test_policed_host import behind_relay, put_policy
from tests.e2e.kubernetes.cluster import shared_cluster
from tests.netns.namespaces import host_namespace
from tests.netns.policing.lab import NODE, Lab, private_settings

Losses = Mapping[str, Callable[[], object]]


def on_etcd(stack: ExitStack, root: Path, changes: int) -> dict[str, list[float]]:
    host = stack.enter_context(host_namespace())
    etcd = stack.enter_context(etcd_in(host, root))
    node = EtcdNode(host, root, DatastoreConfig("etcdv3", etcd_endpoints=(etcd.client_url,)), etcd=etcd)

    def open_context(log: Log) -> Context:
        from cni_calico.datastore.etcd.config import EtcdConfig
        from cni_calico.datastore.etcd.store import EtcdStore

        store = EtcdStore(EtcdConfig(endpoints=(etcd.client_url,)))
        return Context(private_settings(root), store, log, lambda _: True)

    lab = Lab(host, root, stack)
    lab.open_context = open_context
    lab.limit_s = 900
    lab.start()
    stack.callback(lab.stop)
    until(lab.standing, "the engine has decided", 60)
    node.forks = stack.enter_context(forks_in(host))
    node.apply("HostEndpoint", "all", {"node": NODE, "interfaceName": "*"})
    losses = {
        "nothing lost": lambda: None,
        "flushed": lambda: forget_all(host),
        "a workload left": lambda: workload_leaves(node),
    }
    return measure(lab, losses, lambda name: node.apply("GlobalNetworkPolicy", name, POLICY), changes)


def on_kubernetes(stack: ExitStack, root: Path, changes: int) -> dict[str, list[float]]:
    kube = shared_cluster()
    kube.empty()
    host = stack.enter_context(host_namespace())
    lab = stack.enter_context(behind_relay(kube, host, root))
    losses = {"nothing lost": lambda: None, "flushed": lambda: forget_all(host)}
    return measure(lab, losses, lambda name: put_policy(kube, name), changes)


def measure(lab: Lab, losses: Losses, put: Callable[[str], object], changes: int) -> dict[str, list[float]]:
    lab.until_in_force(hosts=1)
    found: dict[str, list[float]] = {name: [] for name in losses}
    for number in range(changes):
        name = list(losses)[number % len(losses)]
        losses[name]()
        put(f"p{number}")
        begun = time.perf_counter()
        count = number + 1
        until(lambda count=count: lab.standing().get("counts", {}).get("policies") == count, name, 120, pause_s=0.005)
        found[name].append(1000 * (time.perf_counter() - begun))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=60)
    parser.add_argument("--kubernetes", action="store_true")
    chosen = parser.parse_args()
    on = on_kubernetes if chosen.kubernetes else on_etcd
    print(f"load average {os.getloadavg()[0]:.1f}", file=sys.stderr)
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cct-host-changes-")))
        for name, times in on(stack, root, chosen.changes).items():
            tenths = statistics.quantiles(times, n=10)
            print(f"{name:16} {statistics.median(times):8.0f} {tenths[-1]:8.0f} {max(times):8.0f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
