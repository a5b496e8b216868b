"""Who is measured against whom, and one run of bench_cni.py among them in a node's namespace.

Rule: contestants take turns call by call (one at a time) or round by round (bursts), so that all see the same machine;
a run in which a call failed or left something is no result.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import LAB_CACHE
from tests.e2e.host import Node, datastore_keys

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "tests" / "bench" / "bench_cni.py"
BIN = ROOT / "dist" / "bin"
REFERENCE = LAB_CACHE / "cni" / "bin"


class NoResult(Exception):
    """Calls failed, or left something behind."""


@dataclass(frozen=True)
class Contestant:
    name: str
    directory: Path  # of plugins
    conf: Path  # a .conflist


@dataclass(frozen=True)
class Figures:
    """Milliseconds of one contestant's verb; CPU is of the plugin and what it waited for, and a server's share."""

    median: float
    p99: float
    cpu: float


def ours(node: Node) -> Contestant:
    plugin = {
        "type": "calico",
        "nodename": node.nodename,
        "mtu": 1450,
        "log_level": "error",
        "ipam": {"type": "calico-ipam"},
        **datastore_keys(node.datastore),
    }
    return Contestant("ours", BIN, write_conf(node.root, "calnet", plugin))


def references(root: Path) -> list[Contestant]:
    """The reference plugins with host-local: a veth with routes like ours, and a bridge."""

    def ipam(number: int) -> dict[str, Any]:
        return {"type": "host-local", "subnet": f"10.{200 + number}.0.0/16", "dataDir": str(root / f"leases{number}")}

    ptp = {"type": "ptp", "ipMasq": False, "ipam": ipam(1)}
    bridge = {"type": "bridge", "bridge": "bench0", "isGateway": True, "ipMasq": False, "ipam": ipam(2)}
    return [
        Contestant("ptp", REFERENCE, write_conf(root, "ptp", ptp)),
        Contestant("bridge", REFERENCE, write_conf(root, "bridge", bridge)),
    ]


def write_conf(root: Path, name: str, plugin: dict[str, Any]) -> Path:
    path = root / f"{name}.conflist"
    path.write_text(json.dumps({"cniVersion": "1.0.0", "name": name, "plugins": [plugin]}))
    return path


def bench(node: Node, first: Contestant, *arguments: str, others: Sequence[Contestant] = ()) -> dict[str, Any]:
    """bench_cni's answer. Raises NoResult."""
    command = ["nsenter", f"--net={node.host.path}", sys.executable, str(BENCH), *arguments]
    command += ["--bin-dir", str(first.directory), "--conf", str(first.conf)]
    for other in others:
        command += ["--alt-bin-dir", str(other.directory), "--alt-conf", str(other.conf)]
    for name, directory in (("CALICO_RUN_DIR", "run"), ("CALICO_STATE_DIR", "state")):
        command += ["--env", f"{name}={node.root}/{directory}"]
    done = subprocess.run(command, stdout=subprocess.PIPE)
    if done.returncode:
        raise NoResult(f"bench_cni.py ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    for part in (found, *found.get("alts", ())):
        if part["add"]["failed"] or part["del"]["failed"] or found["verify_failures"]:
            raise NoResult(f"{part['add']['errors']} {part['del']['errors']} {found['verify_samples']}")
    return found


def in_turn(node: Node, who: Sequence[Contestant], runs: int, server_pid: int = 0) -> dict[str, dict[str, Figures]]:
    """verb -> contestant -> figures, with one call at a time, so many runs each. The first one's server is counted."""
    arguments = ["--runs", str(runs * len(who)), *(["--server-pid", str(server_pid)] if server_pid else [])]
    found = bench(node, who[0], *arguments, others=who[1:])
    served = {who[0].name: found.get("server_cpu_ms_per_pair", 0.0) / 2}
    parts = [found, *found["alts"]]
    return {
        verb: {
            each.name: _figures(part[verb], served.get(each.name, 0.0)) for each, part in zip(who, parts, strict=True)
        }
        for verb in ("add", "del")
    }


def _figures(part: dict[str, Any], served: float) -> Figures:
    wall = part["wall_ms"]
    return Figures(wall["median"], wall["p99"], part["cpu_total_ms"]["median"] + served)


def burst(node: Node, who: Sequence[Contestant], rounds: int, *, runs: int = 64) -> dict[str, tuple[float, float]]:
    """contestant -> (ADDs a second, p99 of an ADD in ms) with 32 at once, the median of the rounds. Raises NoResult."""
    rates: dict[str, list[tuple[float, float]]] = {each.name: [] for each in who}
    for _ in range(rounds):
        for each in who:
            found = bench(node, each, "--batch", "--concurrency", "32", "--runs", str(runs))
            rates[each.name].append((found["adds_per_s"], found["add"]["wall_ms"]["p99"]))
    return {
        name: (statistics.median(rate for rate, _ in each), statistics.median(p99 for _, p99 in each))
        for name, each in rates.items()
    }


def peak_memory_mb(node: Node, who: Contestant) -> float:
    """The most that all processes of one ADD had in memory, each by itself at its peak."""
    found = bench(node, who, "--runs", "1", "--rss", "5")
    return sum(found["rss_add"]["vmhwm_kb"].values()) / 1024


def version_ms(executables: Sequence[Path], runs: int = 100) -> list[float]:
    """Median time of each to answer VERSION."""
    found = []
    for path in executables:
        command = ["env", "CNI_COMMAND=VERSION", sys.executable, str(BENCH), "--exec", str(path), "--runs", str(runs)]
        answer = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        found.append(float(answer["exec"]["wall_ms"]["median"]))
    return found
