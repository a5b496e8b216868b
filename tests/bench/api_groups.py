"""What projectcalico.org/v3 costs beside crd.projectcalico.org/v1, on two real API servers, in turns.

``python -m tests.bench.api_groups [RUNS]``: processor time of ``calicoctl get ippools -o yaml``, how often these
processes asked which groups there are, and requests and time of what an ADD and a DEL do to addresses. Nothing says
which group it is: asking is part of it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.ipam.allocator import Allocator
from cni_calico.ipam.assign import AssignRequest
from cni_calico.model.access import CRD_ROOT
from cni_calico.model.keys import ResourceKey
from tests.e2e.kubernetes.cluster import NATIVE_ROOT, Cluster, running_cluster

POOL = {"metadata": {"name": "p"}, "spec": {"cidr": "10.65.0.0/16", "blockSize": 26}}


def cpu_ms(cluster: Cluster) -> float:
    command = [sys.executable, "-m", "cni_calico.ctl.main", "get", "ippools", "-o", "yaml"]
    environ = {**os.environ, "DATASTORE_TYPE": "kubernetes", "KUBECONFIG": cluster.kubeconfig()}
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return (usage.ru_utime + usage.ru_stime) * 1000


def questions(cluster: Cluster, since: int) -> int:
    """How often the list of API groups was asked for."""
    return sum(event["requestURI"].partition("?")[0] == "/apis" for event in cluster.audited(since))


def pair_ms(allocator: Allocator, number: int) -> float:
    began = time.perf_counter()
    allocator.assign(AssignRequest("n1", f"net.c{number}", {}, num4=1), Deadline.after(60))
    allocator.release_handle(f"net.c{number}", Deadline.after(60))
    return (time.perf_counter() - began) * 1000


def main(runs: int) -> None:
    with running_cluster() as older, running_cluster() as newer:
        clusters = {"v1": (older, CRD_ROOT), "v3": (newer, NATIVE_ROOT)}
        allocators = {}
        for name, (cluster, root) in clusters.items():
            cluster.apply_definitions(root)
            cluster.create_node("n1")
            store = cluster.store()
            store.commit([Write.create(ResourceKey("IPPool", "p"), POOL)], Deadline.after(60))
            allocators[name] = Allocator(store)
        cpu: dict[str, list[float]] = {name: [] for name in clusters}
        pairs: dict[str, list[float]] = {name: [] for name in clusters}
        since = {name: len(cluster.audited()) for name, (cluster, _) in clusters.items()}
        for number in range(runs):
            for name, (cluster, _) in clusters.items():
                cpu[name].append(cpu_ms(cluster))
                pairs[name] += [pair_ms(allocators[name], number * 10 + i) for i in range(10)]
        for name, (cluster, _) in clusters.items():
            asked = questions(cluster, since[name])
            trips = allocators[name].store.round_trips
            before = (trips.reads, trips.writes)
            pair_ms(allocators[name], runs * 10)
            requests = f"{trips.reads - before[0]} reads, {trips.writes - before[1]} writes"
            cpu_text = f"{statistics.median(cpu[name]):.0f} ms of a processor (least {min(cpu[name]):.0f})"
            cpu_text += f", {asked} questions in {runs} processes"
            print(
                f"{name}: calicoctl get {cpu_text}; "
                f"assign and release {statistics.median(pairs[name]):.1f} ms (least {min(pairs[name]):.1f}), {requests}"
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
