"""Measures this build against ptp + host-local in one run and prints the table of BENCHMARKS.md.

    .venv/bin/python tests/bench/table.py [--runs 100] [--quick]

As root, on a quiet machine. Everything happens in namespaces and a temporary directory of its own. Figures are
milliseconds of wall time unless said; "x P" is the ratio to ptp + host-local measured in turn with ours.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from cni_calico.datastore.client import Write  # noqa: E402
from cni_calico.datastore.connect import open_datastore  # noqa: E402
from cni_calico.deadline import Deadline  # noqa: E402
from cni_calico.ipam.allocator import Allocator, AssignRequest  # noqa: E402
from cni_calico.model.keys import IPAMConfigKey  # noqa: E402
from cni_calico.model.settings import DatastoreConfig  # noqa: E402
from tests.conftest import LAB_CACHE  # noqa: E402
from tests.e2e.calls import EtcdNode, Node, datastore_keys, etcd_in  # noqa: E402
from tests.netns.namespaces import host_namespace  # noqa: E402

BENCH = ROOT / "tests" / "bench" / "bench_cni.py"
BIN = ROOT / "dist" / "bin"
REFERENCE = LAB_CACHE / "cni" / "bin"


class Table:
    """Runs the benchmark for one node and keeps rows."""

    def __init__(self, node: Node, runs: int) -> None:
        self.node = node
        self.runs = runs
        self.ours = node.root / "ours.conflist"
        self.ptp = node.root / "ptp.conflist"
        plugin = {
            "type": "calico",
            "nodename": node.nodename,
            "mtu": 1450,
            "log_level": "error",
            "ipam": {"type": "calico-ipam"},
            **datastore_keys(node.datastore),
        }
        self.ours.write_text(json.dumps({"cniVersion": "1.0.0", "name": "calnet", "plugins": [plugin]}))
        ipam = {"type": "host-local", "subnet": "10.201.0.0/16", "dataDir": str(node.root / "leases")}
        self.ptp.write_text(
            json.dumps(
                {"cniVersion": "1.0.0", "name": "p", "plugins": [{"type": "ptp", "ipMasq": False, "ipam": ipam}]}
            )
        )

    def bench(self, *arguments: str) -> dict[str, Any]:
        command = ["nsenter", f"--net={self.node.host.path}", sys.executable, str(BENCH), *arguments]
        command += [
            "--env",
            f"CALICO_RUN_DIR={self.node.root}/run",
            "--env",
            f"CALICO_STATE_DIR={self.node.root}/state",
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def ours_and_ptp(self, label: str, server: subprocess.Popen[bytes] | None = None) -> None:
        """One at a time, every other call ptp's."""
        extra = ["--server-pid", str(server.pid)] if server is not None else []
        both = ["--alt-bin-dir", str(REFERENCE), "--alt-conf", str(self.ptp)]
        found = self.bench("--bin-dir", str(BIN), "--conf", str(self.ours), *both, "--runs", str(2 * self.runs), *extra)
        self.require_good(found)
        served = found.get("server_cpu_ms_per_pair", 0.0) / 2
        for verb in ("add", "del"):
            ours, ptp = found[verb], found[f"{verb}_alt"]
            wall, base = ours["wall_ms"], ptp["wall_ms"]
            cpu, base_cpu = ours["cpu_total_ms"]["median"] + served, ptp["cpu_total_ms"]["median"]
            row(
                f"{label}: {verb.upper()}",
                f"{wall['median']:.1f}",
                f"{base['median']:.1f}",
                f"{wall['median'] / base['median']:.2f} x P",
                f"p99/median {wall['p99'] / wall['median']:.2f} (P {base['p99'] / base['median']:.2f}), "
                f"CPU {cpu:.1f} against {base_cpu:.1f} = {cpu / base_cpu:.2f} x P",
            )

    def burst(self, label: str) -> None:
        """32 at once, three rounds each, in turn."""
        rates: dict[str, list[float]] = {"ours": [], "ptp": []}
        p99: dict[str, list[float]] = {"ours": [], "ptp": []}
        for _ in range(3):
            for who, directory, conf in (("ours", BIN, self.ours), ("ptp", REFERENCE, self.ptp)):
                found = self.bench(
                    "--bin-dir", str(directory), "--conf", str(conf), "--batch", "--concurrency", "32", "--runs", "128"
                )
                self.require_good(found)
                rates[who].append(found["adds_per_s"])
                p99[who].append(found["add"]["wall_ms"]["p99"])
        ours, ptp = sorted(rates["ours"])[1], sorted(rates["ptp"])[1]
        row(
            f"{label}: 32 ADDs at once, ADDs/s",
            f"{ours:.0f}",
            f"{ptp:.0f}",
            f"{ours / ptp:.2f} x P",
            f"ADD p99 {sorted(p99['ours'])[1]:.0f} ms against {sorted(p99['ptp'])[1]:.0f} ms",
        )

    def memory(self, label: str) -> None:
        found = self.bench("--bin-dir", str(BIN), "--conf", str(self.ours), "--runs", "1", "--rss", "5")
        peak = max(found["rss_add"]["vmhwm_kb"].values()) / 1024
        row(f"{label}: peak memory of one ADD", f"{peak:.1f} MB", "", "", "VmHWM of the plugin's process")

    def require_good(self, found: dict[str, Any]) -> None:
        failed = found["add"]["failed"] + found["del"]["failed"] + found["verify_failures"]
        assert not failed, (found["add"]["errors"], found["del"]["errors"], found["verify_samples"])


def row(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |", flush=True)


@contextmanager
def server(node: Node) -> Iterator[subprocess.Popen[bytes]]:
    with node.server() as process:
        yield process


def prefill(node: Node, count: int, have: int) -> None:
    """Addresses of other pods on the node: ``count`` in all."""
    store = open_datastore(node.datastore)
    try:
        allocator = Allocator(store)
        for i in range(have, count):
            request = AssignRequest(node.nodename, f"calnet.fill{i}", {"node": node.nodename}, num4=1)
            allocator.assign(request, Deadline.after(30))
    finally:
        store.close()


def growth(node: Node, table: Table, sizes: tuple[int, ...]) -> None:
    """ADD with more and more addresses on the node."""
    store = open_datastore(node.datastore)
    store.commit(
        [Write.put(IPAMConfigKey(), {"auto_allocate_blocks": True, "maxBlocksPerHost": 200})], Deadline.after(10)
    )
    store.close()
    have, first = 0, 0.0
    for size in sizes:
        prefill(node, size, have)
        have = size
        with server(node):
            found = table.bench("--bin-dir", str(BIN), "--conf", str(table.ours), "--runs", str(table.runs))
        table.require_good(found)
        median = found["add"]["wall_ms"]["median"]
        first = first or median
        row(f"local, served: ADD with {size} addresses on the node", f"{median:.1f}", "", f"{median / first:.2f} x", "")


def version() -> None:
    for name in ("calico", "calico-ipam"):
        environ = {**os.environ, "CNI_COMMAND": "VERSION"}
        command = [sys.executable, str(BENCH), "--exec", str(BIN / name), "--runs", "100"]
        found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environ).stdout)
        command = [sys.executable, str(BENCH), "--exec", str(REFERENCE / "ptp"), "--runs", "100"]
        base = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environ).stdout)
        ours, ptp = found["exec"]["wall_ms"]["median"], base["exec"]["wall_ms"]["median"]
        row(f"{name} answering VERSION", f"{ours:.1f}", f"{ptp:.1f}", f"{ours / ptp:.1f} x P", "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="no growth with 5000 addresses")
    options = parser.parse_args()
    subprocess.run([str(ROOT / "build" / "build.sh")], check=True, stdout=subprocess.DEVNULL)
    row("what", "ours", "P (ptp + host-local)", "ratio", "also")
    row("---", "---", "---", "---", "---")
    version()
    with ExitStack() as stack:
        host = stack.enter_context(host_namespace())
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cct-bench-")))
        (root / "run").mkdir()
        local = Node(host, root, DatastoreConfig("local", path=str(root / "datastore.db")))
        local.apply_pools()
        table = Table(local, options.runs)
        table.ours_and_ptp("local, one-shot")
        with server(local) as process:
            table.ours_and_ptp("local, served", process)
            table.burst("local, served")
            table.memory("local, served")
        etcd_root = root / "etcd"
        (etcd_root / "run").mkdir(parents=True)
        member = stack.enter_context(etcd_in(host, etcd_root))
        config = DatastoreConfig("etcdv3", etcd_endpoints=(member.client_url,))
        etcd = EtcdNode(host, etcd_root, config, nodename="node2", etcd=member)
        etcd.apply_pools()
        table = Table(etcd, options.runs)
        table.ours_and_ptp("etcd, one-shot")
        with server(etcd) as process:
            table.ours_and_ptp("etcd, served", process)
            table.burst("etcd, served")
        growth(local, Table(local, options.runs), (1, 100, 1000) if options.quick else (1, 100, 1000, 5000))


if __name__ == "__main__":
    main()
