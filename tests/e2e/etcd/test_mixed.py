"""Upstream's plugin and ours in turn, on one node and in one cluster, with etcd."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e import mixed, served
from tests.e2e.host import EtcdNode, Reply
from tests.e2e.mixed import Turns
from tests.fakes.upstream import Container, EtcdRecords, Upstream, allocate, new_block, release, time_text
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.netns, pytest.mark.etcd]

VECTORS = Path(__file__).parents[2] / "golden" / "vectors"
BLOCK = "/calico/ipam/v2/assignment/ipv4/block/10.65.141.64-26"
POOLS = [("10.65.0.0/16", 26), ("fd00:65::/112", 122)]


def make_container(number: int, node: str = "node1") -> Container:
    return Container(hashlib.sha256(str(number).encode()).hexdigest(), node)


@pytest.fixture
def etcd_turns(on_etcd: EtcdNode) -> Turns:
    node = on_etcd
    node.overrides["ipam"] = {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"}
    [url] = node.datastore.etcd_endpoints

    def ours(command: str, container: Container, pod: Namespace | None) -> Reply:
        return served.call(node, command, container.id, "" if pod is None else pod.path)

    def check() -> None:
        command = [sys.executable, "-m", "cni_calico.ctl.main", "ipam", "check"]
        environ = {**os.environ, "DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": url}
        argv = ["nsenter", f"--net={node.host.path}", *command]
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and "found 0 problems" in done.stdout, done

    return Turns(node, Upstream(EtcdRecords(node.host, url), node.host, POOLS), ours, check, make_container)


def vectors(name: str) -> dict[str, str]:
    stored = json.loads((VECTORS / f"etcd-dump-{name}.json").read_text())["kvs"]
    return {key: kv["raw"] for key, kv in stored.items()}


def test_the_fake_writes_blocks_as_upstream_does() -> None:
    """Byte for byte: what makes 01 of nothing and 02 of 01, and what 08 has of a release by handle."""
    first, second, deleted = (
        vectors("01-first-add"),
        vectors("02-second-add"),
        json.loads(vectors("08-del-first")[BLOCK]),
    )
    attributes = [json.loads(second[BLOCK])["attributes"][i] for i in (0, 1)]
    created_ns = json.loads(first[BLOCK])["sequenceNumberForAllocation"]["0"]
    block = new_block("10.65.141.64/26", "vm", created_ns)
    for stored, attribute in zip((first, second), attributes, strict=True):
        block, _ = allocate(block, attribute["handle_id"], attribute["secondary"])
        assert json.dumps(block, separators=(",", ":")) == stored[BLOCK]
    block, freed = release(block, attributes[0]["handle_id"])
    assert freed == 1 and block["allocations"] == deleted["allocations"]
    assert block["attributes"] == deleted["attributes"] and block["unallocated"][-1] == deleted["unallocated"][-1] == 0
    assert set(block) == set(deleted) and "0" in block["sequenceNumberForAllocation"]
    assert time_text(1795176388943484342) == attributes[0]["secondary"]["timestamp"]


@pytest.mark.takes(90)
@pytest.mark.slow_on("one-shot")
def test_a_mixed_node(etcd_turns: Turns, make_pod_ns: MakeNamespace) -> None:
    mixed.take_turns(etcd_turns, make_pod_ns, seed=14)


def test_a_mixed_node_and_calls_that_are_repeated(etcd_turns: Turns, make_pod_ns: MakeNamespace) -> None:
    mixed.repeated_calls_meet(etcd_turns, make_pod_ns)


@pytest.mark.slow_on("one-shot")
def test_a_mixed_cluster_that_borrows(etcd_turns: Turns, make_pod_ns: MakeNamespace) -> None:
    mixed.borrow_from_each_other(etcd_turns, make_pod_ns)
