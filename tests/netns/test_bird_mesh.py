"""The full mesh: real BIRDs, rendered configurations, kernels' routes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.netns.bird_cluster import Lab, can_ping, make_lab
from tests.unit.nodeagent.bird.clusters import document, node

pytestmark = [pytest.mark.netns, pytest.mark.bird]

POOL4 = document("IPPool", "p4", cidr="10.65.0.0/16")
POOL6 = document("IPPool", "p6", cidr="fd65::/64")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with make_lab(tmp_path) as made:
        yield made


def block(i: int) -> str:
    return f"10.65.{i}.0/26"


def block6(i: int) -> str:
    return f"fd65::{i}00/122"


def build_mesh(lab: Lab, count: int = 3, *, dual: bool = False) -> list[dict]:
    documents = [POOL4, POOL6]
    for i in range(1, count + 1):
        addresses = [f"172.31.0.{i}/24"] + ([f"fd31::{i}/64"] if dual else [])
        lab.node(f"n{i}", *addresses, blocks=[block(i), *([block6(i)] if dual else [])])
        documents.append(node(f"n{i}", *addresses))
    return documents


def expected(count: int, i: int) -> dict[str, str]:
    return {block(j): f"172.31.0.{j}" for j in range(1, count + 1) if j != i}


def test_every_node_reaches_every_other(lab: Lab) -> None:
    documents = build_mesh(lab)
    lab.apply_all(documents)
    lab.await_routes({f"n{i}": expected(3, i) for i in (1, 2, 3)})
    pods = {i: lab.nodes[f"n{i}"].add_pod(f"p{i}", f"10.65.{i}.2", make=lab.namespace) for i in (1, 2, 3)}
    for i in (1, 2, 3):
        for j in (1, 2, 3):
            assert can_ping(pods[i], f"10.65.{j}.2"), f"pod {i} -> pod {j}"
    # no pod's own route has left its node, and the kernel has the metric that the announcing node had
    routes = lab.nodes["n1"].ns.ip("route", "show", "proto", "bird")
    assert {route["dst"]: route.get("metric") for route in routes} == {block(1): None, block(2): 1024, block(3): 1024}
