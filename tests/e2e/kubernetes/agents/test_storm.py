"""An agent that is far behind in a storm of large objects: it does not grow with the storm, and shrinks again.

It is stopped while namespaces change, so that all of it is to be read at once; two collections (namespaces and service
accounts) are one watch of profiles.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.deadlines import until
from tests.e2e.kubernetes.agent import agent
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.node import KubeNode, kube_node
from tests.netns.namespaces import Namespace
from tests.netns.startups import add_card

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

MERGE = "application/merge-patch+json"
SPACES, CHANGES, SIZE = 8, 40, 240_000  # 77 MB of events
MEGABYTE = 1024 * 1024
# the backlog of a watch, decoded, and what lies around it: far less than the storm
MAY_GROW = 25 * MEGABYTE


def memory(pid: int, what: str) -> int:
    """VmRSS or VmHWM in bytes."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1]) * 1024


def profiles(node: KubeNode) -> int:
    """As many as the agent says that it knows; -1 while it does not answer."""
    url = "http://127.0.0.1:9091/metrics"
    program = f"import urllib.request as r; print(r.urlopen('{url}', timeout=5).read().decode())"
    page = node.host.run(sys.executable, "-c", program, check=False).stdout
    found = [line for line in page.splitlines() if line.startswith("felix_cluster_num_profiles ")]
    return int(float(found[0].split()[1])) if found else -1


def test_a_storm_of_large_objects(kube: Cluster, host_ns: Namespace, tmp_path: Path) -> None:
    add_card(host_ns, "eth0", "10.0.0.5/24")
    spaces = [f"storm-{number}" for number in range(SPACES)]
    for name in (*spaces, "storm-last"):
        kube.ensure_namespace(name)
    try:
        with kube_node(kube, host_ns, tmp_path) as node, agent(node) as pid:
            until(lambda: profiles(node) > SPACES, "the agent knows the namespaces", 30)
            known, before = profiles(node), memory(pid, "VmRSS")
            os.kill(pid, signal.SIGSTOP)
            with ThreadPoolExecutor(4) as pool:
                list(pool.map(lambda name: change(kube, name), spaces))
            kube.ensure_namespace("storm-after")
            os.kill(pid, signal.SIGCONT)
            until(lambda: profiles(node) == known + 1, "the agent has seen all of it", 120)
            most = memory(pid, "VmHWM")
            assert most - before < MAY_GROW, f"{before / MEGABYTE:.0f} MB, then {most / MEGABYTE:.0f} MB"
            for name in spaces:
                annotate(kube, name, None)
            kube.ensure_namespace("storm-end")
            until(lambda: profiles(node) == known + 2, "the agent has seen that it is over", 60)
            until(
                lambda: memory(pid, "VmRSS") - before < MAY_GROW // 2,
                f"the agent shrinks: {before / MEGABYTE:.0f} MB before",
                90,
                pause_s=1,
            )
    finally:
        for name in (*spaces, "storm-last", "storm-after", "storm-end"):
            kube.kubectl("delete", "namespace", name, "--ignore-not-found", "--wait=false", check=False)
            remove(kube, name)


def annotate(kube: Cluster, name: str, text: str | None) -> None:
    body = {"metadata": {"annotations": {"large": text}}}
    kube.request("PATCH", f"/api/v1/namespaces/{name}", body, content_type=MERGE)


def change(kube: Cluster, name: str) -> None:
    for number in range(CHANGES):
        annotate(kube, name, f"{number}" + "x" * SIZE)


def remove(kube: Cluster, name: str) -> None:
    """No controller ends a namespace here."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "spec": {"finalizers": []}}
    arguments = ("replace", "--raw", f"/api/v1/namespaces/{name}/finalize", "-f", "-")
    kube.kubectl(*arguments, stdin=json.dumps(body), check=False)
