"""Processor time of one `calicoctl get` on each datastore.

    .venv/bin/python tests/bench/calicoctl.py [--runs 60] [--nodes 20] [--other DIR]     a minute; prints a table

The frozen executable of dist/bin, and that of DIR (another build) for comparison. Each datastore has two IP pools and
so many nodes: the embedded one, a real etcd without TLS, one that wants client certificates, and a real API server.
Every combination takes its turn in every round, because machines drift. Processor time is the kernel's count, user and
system, of the process and what it started; the wall time is from its start until it was waited for.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.contract.etcd_process import single
from tests.e2e.etcd.certificates import make_authority
from tests.e2e.kubernetes.cluster import running_cluster

BIN = Path(__file__).resolve().parents[2] / "dist" / "bin"
COMMANDS = ("get nodes", "get ippools")
POOLS = """\
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: first}
spec: {cidr: 10.65.0.0/16}
---
apiVersion: projectcalico.org/v3
kind: IPPool
metadata: {name: second}
spec: {cidr: "fd00:65::/64"}
"""
NODE = """\
---
apiVersion: projectcalico.org/v3
kind: Node
metadata: {{name: node-{number}}}
spec: {{bgp: {{ipv4Address: 10.0.{high}.{low}/24}}}}
"""


def local(undo: ExitStack, directory: Path, nodes: int) -> dict[str, str]:
    return {"DATASTORE_TYPE": "local", "DATASTORE_PATH": str(directory / "datastore.db")}


def etcd(undo: ExitStack, directory: Path, nodes: int) -> dict[str, str]:
    cluster = undo.enter_context(single())
    return {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": cluster.urls[0]}


def etcd_tls(undo: ExitStack, directory: Path, nodes: int) -> dict[str, str]:
    authority = make_authority(directory / "ca")
    certificate, key = authority.issue("server", "server", "serverAuth", "IP:127.0.0.1")
    arguments = ["--client-cert-auth", f"--cert-file={certificate}", f"--key-file={key}"]
    arguments.append(f"--trusted-ca-file={authority.certificate}")
    cluster = undo.enter_context(single(arguments=arguments, scheme="https"))
    own_certificate, own_key = authority.issue("client", "client", "clientAuth")
    return {
        "DATASTORE_TYPE": "etcdv3",
        "ETCD_ENDPOINTS": cluster.urls[0],
        "ETCD_CA_CERT_FILE": str(authority.certificate),
        "ETCD_CERT_FILE": str(own_certificate),
        "ETCD_KEY_FILE": str(own_key),
    }


def kubernetes(undo: ExitStack, directory: Path, nodes: int) -> dict[str, str]:
    cluster = undo.enter_context(running_cluster())
    cluster.apply_definitions()
    for number in range(nodes):  # Calico's nodes are Kubernetes' own
        cluster.create_node(f"node-{number}")
    return {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": cluster.kubeconfig()}


STORES = {"embedded": local, "etcd": etcd, "etcd, TLS": etcd_tls, "Kubernetes": kubernetes}


def fill(environ: Mapping[str, str], store: str, nodes: int) -> None:
    """Write the pools, and the nodes unless they are there."""
    manifest = POOLS
    if environ["DATASTORE_TYPE"] != "kubernetes":
        manifest += "".join(NODE.format(number=n, high=n // 250, low=n % 250 + 1) for n in range(nodes))
    command = [str(BIN / "calicoctl"), "apply", "-f", "-"]
    subprocess.run(command, env=environ, input=manifest, text=True, check=True, stdout=subprocess.DEVNULL)


def measure(executable: Path, command: str, environ: Mapping[str, str]) -> tuple[float, float]:
    """(processor, wall) milliseconds of one call."""
    silent = [(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
    begun = time.monotonic()
    pid = os.posix_spawn(str(executable), ["calicoctl", *command.split()], dict(environ), file_actions=silent)
    _, status, used = os.wait4(pid, 0)
    wall = time.monotonic() - begun
    if status != 0:
        raise RuntimeError(f"{executable} {command}: status {status}")
    return 1000 * (used.ru_utime + used.ru_stime), 1000 * wall


def shown(figures: list[tuple[float, float]]) -> str:
    """Median and 90th percentile of the processor time, median of the wall time."""
    processor, wall = (sorted(column) for column in zip(*figures, strict=True))
    late = processor[len(processor) * 9 // 10]
    return f"{statistics.median(processor):.1f} / {late:.1f} / {statistics.median(wall):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--other", type=Path, help="the directory of another build")
    arguments = parser.parse_args()
    builds = {"": BIN, **({"other: ": arguments.other} if arguments.other else {})}
    with ExitStack() as undo:
        root = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="cct-bench-")))
        environs = {}
        for store, start in STORES.items():
            directory = root / start.__name__
            directory.mkdir()
            environs[store] = {
                "PATH": os.environ["PATH"],
                "HOME": str(directory),
                **start(undo, directory, arguments.nodes),
            }
            fill(environs[store], store, arguments.nodes)
        found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
        load = os.getloadavg()[0]
        for round_ in range(arguments.runs + 1):
            for store, environ in environs.items():
                for command in COMMANDS:
                    for build, directory in builds.items():
                        figures = measure(directory / "calicoctl", command, environ)
                        if round_:  # the first one finds nothing in the file cache
                            found.setdefault((build, command, store), []).append(figures)
    print(f"{arguments.runs} runs each, load average at the start {load:.1f}; ms: CPU p50 / CPU p90 / wall p50\n")
    print("| | " + " | ".join(STORES) + " |\n| --- |" + " --- |" * len(STORES))
    for build in builds:
        for command in COMMANDS:
            cells = [shown(found[build, command, store]) for store in STORES]
            print(f"| {build}`calicoctl {command}` | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
