"""Processor time of each reading command of calicoctl on etcd with many records.

    .venv/bin/python tests/bench/ctl_commands.py [--records 1000] [--runs 7] [--bin DIR] [--other DIR]     a minute

The frozen executable of dist/bin on a real etcd with so many addresses of pods (a handle and an endpoint each,
ipam_check.py), as many policies of three rules, network sets of ten networks, and host endpoints. Medians of the
kernel's count for the process, user and system. DIR of ``--other`` is another build, called in turn.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cni_calico.datastore.connect import open_datastore
from cni_calico.model.access import DatastoreConfig
from tests.bench.ipam_check import BIN, fill
from tests.contract.etcd_process import single

POD = "frontend-7f9c6d5b8-00000"
COMMANDS = (
    "version", "get nodes", "get ippools", "get wep -A", "get wep -A -o wide", "get wep -A -o json",
    "get wep -A -o yaml", "get networkpolicies -A", "get networkpolicies -A -o yaml", "get networksets -A",
    "get hostendpoints",
    "ipam show", "ipam show --show-blocks", "ipam show --ip=10.64.0.5", "ipam check",
    "ipam check --show-all-ips", "cluster status", "policy show --all", f"policy show -n team-0 {POD}",
    "policy explain --from 10.64.0.1 --to 10.64.0.2 --port 80", "show",
)  # fmt: skip


def manifest(records: int) -> str:
    items = []
    for number in range(records):
        rules = [
            {"action": "Allow", "protocol": "TCP", "source": {"selector": f"role == 'r{number % 40}'"},
             "destination": {"ports": [80 + port]}}
            for port in range(3)
        ]  # fmt: skip
        space = {"namespace": f"team-{number % 50}"}
        spec = {"selector": f"app == 'a{number % 100}'", "types": ["Ingress"], "ingress": rules}
        items.append({"kind": "NetworkPolicy", "metadata": {"name": f"p{number}", **space}, "spec": spec})
        networks = [f"198.18.{number % 256}.{at}/32" for at in range(10)]
        metadata = {"name": f"s{number}", **space}
        items.append({"kind": "NetworkSet", "metadata": metadata, "spec": {"nets": networks}})
        address = f"10.1.{number // 250}.{number % 250}"
        host = {"node": f"host-{number}", "interfaceName": "eth0", "expectedIPs": [address]}
        items.append({"kind": "HostEndpoint", "metadata": {"name": f"h{number}"}, "spec": host})
    return json.dumps([{"apiVersion": "projectcalico.org/v3", **item} for item in items])


def measure(command: list[str], environ: dict[str, str]) -> tuple[float, int]:
    """(CPU seconds, exit status)."""
    silent = [(os.POSIX_SPAWN_OPEN, fd, "/dev/null", os.O_WRONLY, 0) for fd in (1, 2)]
    pid = os.posix_spawn(command[0], command, environ, file_actions=silent)
    _, status, used = os.wait4(pid, 0)
    return used.ru_utime + used.ru_stime, os.waitstatus_to_exitcode(status)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--bin", type=Path, default=BIN)
    parser.add_argument("--other", type=Path, help="the directory of another build")
    arguments = parser.parse_args()
    with single() as cluster:
        environ = {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": cluster.urls[0], "PATH": os.environ["PATH"]}
        store = open_datastore(DatastoreConfig("etcdv3", etcd_endpoints=(cluster.urls[0],)))
        try:
            fill(store, arguments.records)
        finally:
            store.close()
        calicoctl = str(arguments.bin / "calicoctl")
        text = manifest(arguments.records)
        made = subprocess.run([calicoctl, "apply", "-f", "-"], env=environ, input=text, text=True, capture_output=True)
        if made.returncode:
            raise RuntimeError(made.stderr[-2000:])
        builds = {"": arguments.bin, **({"other: ": arguments.other} if arguments.other else {})}
        found: dict[str, list[float]] = {f"{build}{command}": [] for command in COMMANDS for build in builds}
        statuses = {}
        for _ in range(arguments.runs):
            for command in COMMANDS:
                for build, directory in builds.items():
                    called = [str(directory / "calicoctl"), *command.split()]
                    spent, statuses[f"{build}{command}"] = measure(called, environ)
                    found[f"{build}{command}"].append(spent)
    print(f"{arguments.records} records, {arguments.runs} runs, load average {os.getloadavg()[0]:.1f}\n")
    print("| command | CPU s | lowest | exit status |\n| --- | --- | --- | --- |")
    for command, spent in sorted(found.items(), key=lambda item: -statistics.median(item[1])):
        print(f"| `{command}` | {statistics.median(spent):.3f} | {min(spent):.3f} | {statuses[command]} |")


if __name__ == "__main__":
    main()
