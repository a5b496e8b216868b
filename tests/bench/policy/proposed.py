"""What ``calicoctl policy diff``, ``replay``, ``recommend`` and ``test`` take without their reading: CPU and memory.

    .venv/bin/python tests/bench/policy/proposed.py diff [--policies 1000] [--endpoints 10000] [--change one|all]

No root, no datastore. The cluster: label app = e mod A, role = (e div A) mod 10 with A = endpoints / 200; ten rules a
policy, each for one app and role, a port and a range.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from cni_calico.ctl.flows.recommend import CheckedRecommendation
from cni_calico.ctl.policy.changed_rows import changed_rows
from cni_calico.ctl.policy.expectations import KIND, VERSION, parse_expectations
from cni_calico.ctl.policy.proposed import ProposedChange, compared
from cni_calico.ctl.policy.recommended import Recommender
from cni_calico.ctl.policy.records import PolicyRecords
from cni_calico.ctl.policy.replayed import Replay
from cni_calico.ctl.policy.test import ExpectationTester
from cni_calico.ctl.policy.told_labels import told_labels_for
from cni_calico.model.documents.codec import decode_endpoint
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Resource
from cni_calico.policy.graph import Graph
from cni_calico.policy.judge.unused import unused_rules
from cni_calico.policy.judge.worlds import WorldPair
from cni_calico.policy.nodes import GraphRecord

TAKEN = [0.0]  # s, where not everything counts


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


def replay(policies: int, endpoints: int, flows: int) -> str:
    """All policies changed; what is taken is that of reading and judging lines, not of making them."""
    records = PolicyRecords(records=dict(cluster(policies, endpoints)))
    graph = Graph(lambda _: True, lambda _: True, alone=False)
    for key, record in records.records.items():
        graph.put(key, record)
    graph.flush()
    before = graph.wanted()
    for number in range(policies):
        graph.put(*policy(number, policies, max(5, endpoints // 200), 8100))
    graph.flush()
    change = ProposedChange(records, before, graph.wanted(), ())
    found = Replay(records, before, change.after, None, told_labels_for(change))
    for line in lines(flows, endpoints):
        started = time.process_time()
        found.add(json.loads(line))
        TAKEN[0] += time.process_time() - started
    known = sum(row.connections for row in (*found.changed.values(), *found.drifted.values())) + found.same
    return f"replay of {flows} flows, {policies} policies, {endpoints} endpoints: {known} connections"


def lines(flows: int, endpoints: int) -> Iterator[str]:
    """Sums of flows between any two workloads."""
    chosen, apps = random.Random(36), max(5, endpoints // 200)
    for number in range(flows):
        ends: list[dict[str, Any]] = []
        for one in (1 + chosen.randrange(endpoints) for _ in range(2)):
            labels = {"app": f"a{one % apps}", "role": f"r{one // apps % 10}"}
            ends.append(
                {"kind": "pod", "namespace": "default", "name": f"p{one}", "ip": address(one), "labels": labels}
            )
        ends[1]["port"] = 8000 + chosen.randrange(12)
        yield json.dumps(
            {
                **{"last": "2026-11-26T14:02:11.403+00:00", "reporter": "dst", "protocol": "tcp", "connections": 3},
                **{"verdict": "denied" if number % 10 else "allowed", "source": ends[0], "destination": ends[1]},
                "decided": [{"direction": "ingress", "action": "Deny"}],
            }
        )


def recommend(policies: int, endpoints: int, flows: int) -> str:
    """What is taken is that of reading lines, learning, and the check of what was learnt."""
    records = PolicyRecords(records=dict(cluster(policies, endpoints)))
    now = compared(records, {}, (), [], ())
    listed = list(lines(flows, endpoints))
    started = time.process_time()
    learner = Recommender(records, now.after, "default", include_denied=True)
    documents = [json.loads(line) for line in listed]
    for document in documents:
        learner.add(document)
    made = list(learner.policies("NetworkPolicy"))
    checked = CheckedRecommendation(now, made, documents, argparse.Namespace(namespace="default", warn=print))
    TAKEN[0] = time.process_time() - started
    rules = sum(len(its) for one in made for its in one.rules.values())
    return (
        f"recommend of {flows} flows, {policies} policies, {endpoints} endpoints: {len(made)} policies, {rules} rules, "
        f"{len(checked.denied)} would be denied, {len(checked.opened)} opened"
    )


def expectations(policies: int, endpoints: int, count: int) -> str:
    """Between labels that twenty workloads have each; what is taken is that of judging, with the cells."""
    records = PolicyRecords(records=dict(cluster(policies, endpoints)))
    graph = Graph(lambda _: True, lambda _: True, alone=False)
    for key, record in records.records.items():
        graph.put(key, record)
    graph.flush()
    wanted = graph.wanted()
    chosen, apps = random.Random(36), max(5, endpoints // 200)
    ends = [
        {"labels": {"app": f"a{chosen.randrange(apps)}", "role": f"r{chosen.randrange(10)}"}} for _ in range(2 * count)
    ]
    listed = [
        {"from": one, "to": other, "port": 8000 + chosen.randrange(12), "expect": "denied"}
        for one, other in zip(ends[::2], ends[1::2], strict=True)
    ]
    started = time.process_time()
    document = {"apiVersion": VERSION, "kind": KIND, "namespace": "default", "expectations": listed}
    tester = ExpectationTester(ProposedChange(records, wanted, wanted, ()))
    failed = sum(1 for one in parse_expectations(document, "bench") if any(tester.whys(one)))
    TAKEN[0] = time.process_time() - started
    return f"test of {count} expectations, {policies} policies, {endpoints} endpoints: {failed} do not hold"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("diff", "recommend", "replay", "test"))
    parser.add_argument("--policies", type=int, default=1000)
    parser.add_argument("--endpoints", type=int, default=10000)
    parser.add_argument("--change", choices=("one", "all"), default="all")
    parser.add_argument("--flows", type=int, default=1_000_000)
    parser.add_argument("--expectations", type=int, default=1000)
    arguments = parser.parse_args()
    size = arguments.policies, arguments.endpoints
    if arguments.what == "test":
        found = expectations(*size, arguments.expectations)
    elif arguments.what == "recommend":
        found = recommend(*size, arguments.flows)
    else:
        found = diff(*size, arguments.change) if arguments.what == "diff" else replay(*size, arguments.flows)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(f"{found}; {TAKEN[0] or time.process_time():.1f} s of CPU, {peak:.0f} MB\n")


if __name__ == "__main__":
    main()
