"""What settings of upstream's that nobody has set cost in an agent's memory: the modules that are loaded all the same.

    .venv/bin/python tests/bench/parity_off.py          a minute; no root

Each is imported once more, in a process of its own that has everything it imports: what Python's allocator then has in
addition is the module's, its code and tables. Of settings that nobody has set an agent holds nothing else.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# limits of bandwidth; floating IPs; checksums; BGP with workloads; ip_vs; flannel's annotations; Felix's fields without
# effect, selector-scoped configurations, overridden features; virtual machines' and sticky addresses
ROOMS = (
    *("kernel.netlink.qdiscs", "kernel.shaping", "model.quantities", "model.qos"),
    *("nodeagent.dataplane.bandwidth", "nodeagent.dataplane.parts.bandwidth"),
    *("nodeagent.dataplane.floating", "nodeagent.dataplane.parts.floating"),
    *("nodeagent.view.floating", "nodeagent.view.floating_holders"),
    "nodeagent.dataplane.parts.checksums",
    *("nodeagent.bgp.config.workloads", "nodeagent.bgp.local_workloads", "kernel.link_addresses"),
    "nodeagent.policing.tables.hosts.ipvs",
    "model.kubernetes.flannel",
    *("nodeagent.context.unused", "nodeagent.context.configurations", "nodeagent.context.features"),
    *("model.lasting", "nodeagent.dataplane.moving"),
)
MEASURE = """
import gc, importlib, sys, tracemalloc
import cni_calico.nodeagent.felix, cni_calico.nodeagent.parts
name = sys.argv[1]
importlib.import_module(name)
del sys.modules[name]
gc.collect()
tracemalloc.start()
kept = importlib.import_module(name)
gc.collect()
print(tracemalloc.get_traced_memory()[0])
"""


def main() -> None:
    total = 0
    for room in ROOMS:
        command = [sys.executable, "-OO", "-c", MEASURE, f"cni_calico.{room}"]
        size = int(subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT).stdout)
        total += size
        print(f"{room:45} {size / 1000:6.0f} kB")
    print(f"{'together':45} {total / 1000:6.0f} kB")


if __name__ == "__main__":
    main()
