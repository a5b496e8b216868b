#!/usr/bin/env python3
"""What it costs that ADD waits for the endpoint's policy: containers of podman's netavark plugin, with and without.

    waiting.py [--runs 60] [--bin DIR] [--other DIR] [--flows]

Hosts with the embedded datastore, an agent, its CNI server, and a policy, where a container is set up and taken down by
``calico-netavark`` in turn: with the default wait, with none (``policy_setup_timeout_seconds`` 0) and, with
``--other``, by another build, with ``--flows`` where the agent records flows. Prints medians in ms, the processor time
of the agent for a container (ms, with its children), and the wait's as the median of what the default takes longer
than none in the same turn; for flows the median of the ratios to the default in the same turn. Needs root and frozen
executables.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from cni_calico.datastore.interface import Write
from cni_calico.model.keys import ResourceKey
from tests.bench.flows.lasting import processor_s
from tests.deadlines import until
from tests.netns.agents import Store
from tests.netns.namespaces import namespace
from tests.netns.nodes import Node
from tests.netns.startups import add_card

ROOT = Path(__file__).resolve().parents[3]
POLICY = {
    "kind": "GlobalNetworkPolicy",
    "apiVersion": "projectcalico.org/v3",
    "metadata": {"name": "web", "uid": "w"},
    "spec": {"selector": "all()", "types": ["Ingress"], "ingress": [{"action": "Allow"}]},
}
_WARM = 3  # calls before those that count
DEFAULT, NONE, OTHER, FLOWS = "waits", "does not wait", "the other build", "records flows"


def connection(node: Node, number: int, **options: str) -> str:
    """What podman hands to the plugin."""
    return json.dumps(
        {
            "container_id": f"c{number:063}",
            "container_name": "web",
            "port_mappings": None,
            "network": {
                "name": "pods",
                "id": "2f25",
                "driver": "calico",
                "options": {"datastore_path": str(node.store.path), "nodename": node.name, **options},
            },
            "network_options": {"interface_name": "eth0"},
        }
    )


def call(node: Node, plugin: Path, *words: str, document: str) -> float:
    """ms"""
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "CALICO_RUN_DIR": f"{node.root}/run"}
    environ["CALICO_STATE_DIR"] = f"{node.root}/lib"
    begun = time.perf_counter()
    argv = ["nsenter", f"--net={node.ns.path}", str(plugin), *words]
    done = subprocess.run(argv, input=document, env=environ, capture_output=True, text=True, timeout=120)
    took = (time.perf_counter() - begun) * 1000
    if done.returncode:
        raise SystemExit(f"{plugin} {words}: {done.stdout}{done.stderr}")
    return took


def host(stack: ExitStack, executables: Path, **environ: str) -> Node:
    """With its agent, and the policy in force."""
    root = Path(stack.enter_context(TemporaryDirectory()))
    ns = stack.enter_context(namespace("host"))
    add_card(ns, "eth0", "10.0.0.1/24")
    node = Node(ns, "n1", root / "n1", Store(root / "store.db"), bin_dir=executables)
    node.more = {"CALICO_NETWORKING_BACKEND": "none", "CALICO_IPV4POOL_VXLAN": "Never", **environ}
    node.store.write(Write.put(ResourceKey("GlobalNetworkPolicy", "web"), POLICY))
    stack.callback(node.end)
    node.run()
    until(lambda: (node.status().get("policing") or {}).get("in_force"), "the policy is in force", 120)
    return node


def tree_ms(pid: int) -> float:
    """Of the processor, by a process and those below it that live."""
    below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return sum(processor_s(pid)) * 1000 + sum(tree_ms(int(child)) for child in below)


def agent_ms(node: Node) -> float:
    """Since it began, with its CNI server and its recorder."""
    assert node.process is not None
    return tree_ms(node.process.pid)


def measure(ways: Mapping[str, tuple[Node, dict[str, str]]], runs: int) -> dict[str, list[float]]:
    took: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(_WARM + runs):
        for name, (node, options) in ways.items():
            with namespace("bench") as container:
                assert node.bin_dir is not None
                document, plugin = connection(node, number, **options), node.bin_dir / "calico-netavark"
                took[name].append(call(node, plugin, "setup", container.path, document=document))
                call(node, plugin, "teardown", container.path, document=document)
    return {name: times[_WARM:] for name, times in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--bin", type=Path, default=ROOT / "dist" / "bin")
    parser.add_argument("--other", type=Path)
    parser.add_argument("--flows", action="store_true")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        # a host each: an agent that has just lost a container still works while the next one comes
        ways = {
            DEFAULT: (host(stack, arguments.bin), {}),
            NONE: (host(stack, arguments.bin), {"policy_setup_timeout_seconds": "0"}),
        }
        if arguments.other is not None:
            ways[OTHER] = (host(stack, arguments.other), {})
        if arguments.flows:
            ways[FLOWS] = (host(stack, arguments.bin, FELIX_FLOWS="Enabled"), {})
        before = {name: agent_ms(node) for name, (node, _) in ways.items()}
        took = measure(ways, arguments.runs)
        work = {name: (agent_ms(node) - before[name]) / (_WARM + arguments.runs) for name, (node, _) in ways.items()}
    for name, times in took.items():
        slow = sorted(times)[int(0.9 * len(times))]
        print(f"{name:16} {statistics.median(times):6.1f} ms (p90 {slow:.1f}), agent {work[name]:5.1f} ms")
    waits = [a - b for a, b in zip(took[DEFAULT], took[NONE], strict=True)]
    print(f"the wait         {statistics.median(waits):6.1f} ms")
    if arguments.flows:
        ratios = [a / b for a, b in zip(took[FLOWS], took[DEFAULT], strict=True)]
        print(f"with flows       {statistics.median(ratios):6.3f} of without; agent {work[FLOWS] / work[DEFAULT]:.3f}")


if __name__ == "__main__":
    main()
