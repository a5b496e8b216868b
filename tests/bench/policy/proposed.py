"""What ``calicoctl policy diff``, ``replay`` and ``test`` take without their reading: CPU seconds and memory.

    .venv/bin/python tests/bench/policy/proposed.py diff [--policies 1000] [--endpoints 10000] [--change one|all]

No root, no datastore. The cluster: label app = e mod A, role = (e div A) mod 10 with A = endpoints / 200; ten rules a
policy, each for one app and role, a port and a range.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from cni_calico.ctl.policy.changed_rows import changed_rows
from cni_calico.model.documents.codec import decode_endpoint
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Resource
from cni_calico.policy.graph import Graph
from cni_calico.policy.judge.unused import unused_rules
from cni_calico.policy.judge.worlds import WorldPair
from cni_calico.policy.nodes import GraphRecord


def address(number: int) -> str:
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"


def endpoint(number: int, apps: int) -> tuple[ResourceKey, GraphRecord]:
    key = ResourceKey("WorkloadEndpoint", f"n-k8s-p{number}-eth0", "default")
    spec = {"orchestrator": "k8s", "node": "n", "pod": f"p{number}", "endpoint": "eth0"}
    spec |= {"interfaceName": f"cali{number}"}
    labels = {"app": f"a{number % apps}", "role": f"r{number // apps % 10}"}
    more: dict[str, Any] = {"ipNetworks": [f"{address(number)}/32"], "profiles": ["kns.default"]}
    return key, decode_endpoint(key, {"metadata": {"labels": labels}, "spec": {**spec, **more}})


def policy(number: int, policies: int, apps: int, port: int = 8000) -> tuple[ResourceKey, Resource]:
    each = max(1, policies // apps)
    rules = [
        {
            **{"action": "Allow", "protocol": "TCP"},
            "source": {"selector": f"app == 'a{(number // each + r + number) % apps}' && role == 'r{r}'"},
            "destination": {"ports": [port + r, f"{9000 + 10 * r}:{9005 + 10 * r}"]},
        }
        for r in range(10)
    ]
    spec = {"order": 100 + number, "selector": f"app == 'a{number // each % apps}'", "types": ["Ingress"]}
    name = f"p{number}"
    return ResourceKey("GlobalNetworkPolicy", name), Resource(
        "GlobalNetworkPolicy", Metadata(name), {**spec, "ingress": rules}
    )


def cluster(policies: int, endpoints: int) -> Iterator[tuple[ResourceKey, GraphRecord]]:
    apps = max(5, endpoints // 200)
    yield ResourceKey("Tier", "default"), Resource("Tier", Metadata("default"), {"order": 1000000})
    allow = [{"action": "Allow"}]
    profile = Resource("Profile", Metadata("kns.default"), {"ingress": allow, "egress": allow})
    yield ResourceKey("Profile", "kns.default"), profile
    for number in range(1, endpoints + 1):
        yield endpoint(number, apps)
    for number in range(policies):
        yield policy(number, policies, apps)


def diff(policies: int, endpoints: int, change: str) -> str:
    graph = Graph(lambda _: True, lambda _: True, alone=False)
    for key, record in cluster(policies, endpoints):
        graph.put(key, record)
    graph.flush()
    before = graph.wanted()
    for number in range(policies) if change == "all" else [3]:
        graph.put(*policy(number, policies, max(5, endpoints // 200), 8100))
    graph.flush()
    worlds = WorldPair(before, graph.wanted())
    rows = changed_rows(worlds)
    unused = sum(1 for _ in unused_rules(worlds, worlds.changed_policies))
    return f"diff, {change} of {policies} policies changed, {endpoints} endpoints: {len(rows)} lines, {unused} unused"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("diff",))
    parser.add_argument("--policies", type=int, default=1000)
    parser.add_argument("--endpoints", type=int, default=10000)
    parser.add_argument("--change", choices=("one", "all"), default="all")
    arguments = parser.parse_args()
    found = diff(arguments.policies, arguments.endpoints, arguments.change)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(f"{found}; {time.process_time():.1f} s of CPU, {peak:.0f} MB\n")


if __name__ == "__main__":
    main()
