"""The records of upstream's vectors: all of them are understood, and every verdict is the naive evaluator's."""

import json
from pathlib import Path

import pytest

from cni_calico.policy.explain import decide
from tests.unit.policy import cluster
from tests.unit.policy.naive import Naive, packet

VECTORS = sorted((Path(__file__).resolve().parents[2] / "golden" / "policy").glob("*.input.json"))
ADDRESSES = ["10.65.0.1", "10.65.0.2", "10.65.1.1", "10.65.1.2", "10.65.1.3", "192.0.2.1", "192.0.2.7", "192.0.2.200"]
ADDRESSES += ["203.0.113.5", "198.51.100.1", "172.31.0.1", "172.31.0.2", "8.8.8.8", "fd00::1", "2001:db8::1"]
PORTS = [(6, 22), (6, 80), (6, 443), (6, 8005), (6, 8080), (6, 9000), (17, 53), (17, 5353), (132, 80)]
TYPES = [(8, 0), (8, 1), (0, 0), (3, 4), (128, 0)]


def documents_of(path):
    found = {}
    for document in json.loads(path.read_text())["resources"]:
        metadata = document["metadata"]
        found[document["kind"], metadata.get("namespace", ""), metadata["name"]] = document
    return {key: document for key, document in found.items() if key[0] not in ("Node", "IPPool")}


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.name.partition(".")[0])
def test_verdicts(path, monkeypatch):
    monkeypatch.setattr(cluster, "NODE", "n1")
    documents = documents_of(path)
    graph, naive = cluster.graph_of(documents), Naive(documents)
    graph.flush()
    assert not graph.problems
    wanted = graph.wanted()
    assert {key.name for key in wanted.endpoints} == {"n1-k8s-a-eth0", "n1-k8s-b-eth0"}
    verdicts = set()
    for key in wanted.endpoints:
        own = ["10.65.0.1" if "-a-" in key.name else "10.65.0.2"]
        for other in ADDRESSES:
            for direction in ("ingress", "egress"):
                first, second = (own[0], other) if direction == "egress" else (other, own[0])
                if ":" in other:
                    first, second = ("fd00::1", other) if direction == "egress" else (other, "fd00::1")
                tries = [packet(first, second, protocol, dport=port) for protocol, port in PORTS]
                tries += [packet(first, second, 58 if ":" in other else 1, 0, 0, icmp) for icmp in TYPES]
                for raw in tries:
                    found = decide(wanted, key, direction, cluster.as_packet(raw)).verdict == "Allow"
                    verdicts.add(found)
                    assert found is naive.verdict((key.kind, key.namespace, key.name), direction, raw), (key, raw)
    assert True in verdicts
