"""Memory of what runs on a node and once in a cluster, and has nothing to do: agent, CNI server, controllers, relay.

    .venv/bin/python -m tests.bench.idle_memory [--other DIR] [--rounds 3] [--seconds 20]     as root; prints tables

The frozen executables of dist/bin, and those of DIR (another build), in turns beside one real API server without pods.
Each is looked at so many seconds after the agent, which is started first, is ready. Resident memory is the kernel's
count (VmRSS); Pss (smaps_rollup) is what a process has to itself and a share of what others have too, and Uss only what
it has to itself. The second table says what the memory is of: pages of its own outside of files (objects, code, what
OpenSSL has), those that files were mapped for and the process has written to, and the other pages of files.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from cni_calico.model.access import CRD_ROOT
from cni_calico.nodeagent.status.file import read_status, since_boot, why_not_ready
from tests.bench.contest import BIN
from tests.bench.relay import free_port
from tests.deadlines import until
from tests.e2e.kubernetes.agent import vxlan_agent
from tests.e2e.kubernetes.cluster import Cluster, running_cluster
from tests.e2e.kubernetes.node import kube_node
from tests.e2e.relays import make_certificates
from tests.netns.namespaces import host_namespace

LIMIT_S = 300  # on a busy machine
PROGRAMS = ("agent", "CNI server", "controllers", "relay")


FIGURES = ("resident", "Pss", "Uss", "own memory", "written pages of files", "pages of files")
Sizes = dict[str, float]  # by FIGURES, in MB


def sizes_mb(pid: int) -> Sizes:
    smaps = Path(f"/proc/{pid}/smaps").read_text()
    found = dict.fromkeys(FIGURES, 0.0)
    file = False
    for line in smaps.splitlines():
        name, *values = line.split()
        if not name.endswith(":"):  # a mapping's address, ..., and its path if it has one
            file = values[-1].startswith("/")
            continue
        kb = int(values[0]) if values[0].isdecimal() else 0
        if name == "Rss:":
            found["resident"] += kb
            found["pages of files"] += kb if file else 0
        elif name == "Pss:":
            found["Pss"] += kb
        elif name in ("Private_Clean:", "Private_Dirty:"):
            found["Uss"] += kb
        elif name == "Anonymous:":
            found["written pages of files" if file else "own memory"] += kb
            found["pages of files"] -= kb if file else 0
    return {name: kb / 1024 for name, kb in found.items()}


def relay_environment(kube: Cluster, certificates: Path) -> dict[str, str]:
    return {
        "KUBECONFIG": kube.kubeconfig(),
        "TYPHA_SERVERHOST": "127.0.0.1",
        "TYPHA_SERVERPORT": str(free_port()),
        "TYPHA_SERVERCERTFILE": str(certificates / "server.crt"),
        "TYPHA_SERVERKEYFILE": str(certificates / "server.key"),
        "TYPHA_CAFILE": str(certificates / "ca.crt"),
        "TYPHA_CLIENTCN": "typha-client",
        "TYPHA_HEALTHENABLED": "false",
        "TYPHA_LOGSEVERITYSCREEN": "error",
    }


def measure(kube: Cluster, directory: Path, seconds: float) -> dict[str, Sizes]:
    """Of each program of the executables in ``directory``."""
    kube.empty(CRD_ROOT)
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cct-idle-")))
        host = stack.enter_context(host_namespace())
        node = stack.enter_context(kube_node(kube, host, root))
        make_certificates(root)
        running: dict[str, subprocess.Popen[bytes]] = {}

        def start(name: str, environ: Mapping[str, str], *command: str) -> None:
            argv = [str(directory / command[0]), *command[1:]]
            if name in PROGRAMS[:2]:
                argv = ["nsenter", f"--net={host.path}", *argv]
            process = subprocess.Popen(argv, env={"PATH": os.environ["PATH"], **environ}, stderr=subprocess.DEVNULL)
            running[name] = process
            stack.callback(process.wait)
            stack.callback(process.terminate)

        agent = vxlan_agent(node) | {"FELIX_LOGSEVERITYSCREEN": "error"}
        start("startup", agent, "calico-node", "-startup")
        if running.pop("startup").wait(LIMIT_S):
            raise SystemExit("the agent's start-up failed")
        start("agent", agent, "calico-node", "-felix")
        start("CNI server", {"CALICO_RUN_DIR": f"{root}/run"}, "calico-node", "-cni-server")
        cluster = {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": kube.kubeconfig(), "LOG_LEVEL": "error"}
        start("controllers", cluster, "calico-kube-controllers")
        start("relay", relay_environment(kube, root), "calico-typha")
        until(lambda: not why_not_ready(read_status(f"{root}/run"), since_boot()), "the agent is ready", LIMIT_S)
        threading.Event().wait(seconds)
        ended = [name for name, process in running.items() if process.poll() is not None]
        if ended:
            raise SystemExit(f"ended by itself: {', '.join(ended)}")
        return {name: sizes_mb(process.pid) for name, process in running.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", type=Path, help="directory of another build's executables")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20)
    options = parser.parse_args()
    builds = [BIN, *filter(None, [options.other])]
    found: dict[Path, list[dict[str, Sizes]]] = {build: [] for build in builds}
    with running_cluster() as kube:
        kube.apply_definitions(CRD_ROOT)
        for turn in range(options.rounds):
            for build in builds[:: 1 if turn % 2 == 0 else -1]:
                found[build].append(measure(kube, build, options.seconds))
                told = ", ".join(f"{name} {each['resident']:.1f}" for name, each in found[build][-1].items())
                print(f"{build}: {told}", file=sys.stderr, flush=True)
    names = {build: str(build) for build in builds}
    for figures in (FIGURES[:3], FIGURES[3:]):
        print(f"| MB: {', '.join(figures)} | {' | '.join(names.values())} |\n|---|{'---|' * len(builds)}")
        together = {build: dict.fromkeys(figures, 0.0) for build in builds}
        for program in PROGRAMS:
            cells = []
            for build in builds:
                values = [statistics.median(one[program][figure] for one in found[build]) for figure in figures]
                for figure, value in zip(figures, values, strict=True):
                    together[build][figure] += value
                cells.append(", ".join(f"{value:.1f}" for value in values))
            print(f"| {program} | {' | '.join(cells)} |")
        sums = [", ".join(f"{value:.1f}" for value in each.values()) for each in together.values()]
        print(f"| together | {' | '.join(sums)} |")
        if len(builds) > 1:
            first, last = (together[build] for build in builds)
            print(f"| of the other's | {', '.join(f'{first[one] / last[one]:.3f}' for one in figures)} | |")
        print(flush=True)


if __name__ == "__main__":
    main()
