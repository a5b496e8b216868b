"""Fixtures of a node whose pods are those of a real API server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.e2e.kube import Cluster
from tests.e2e.kube_node import KubeNode, kube_node, node_on
from tests.netns.namespaces import Namespace

KINDS = [
    "kubernetes",
    "local",
    *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("kubernetes served", "etcd", "etcd served")),
]


@pytest.fixture(params=KINDS)
def any_kube_node(
    request: pytest.FixtureRequest, kube: Cluster, host_ns: Namespace, tmp_path: Path
) -> Iterator[KubeNode]:
    """Without and with a resident server, on each datastore."""
    with node_on(request.param, kube, host_ns, tmp_path) as made:
        yield made


@pytest.fixture(params=["one-shot", "served"])
def either_kube_node(
    request: pytest.FixtureRequest, kube: Cluster, host_ns: Namespace, tmp_path: Path
) -> Iterator[KubeNode]:
    """Without and with a resident server, on the Kubernetes datastore."""
    with kube_node(kube, host_ns, tmp_path) as made, made.server() if request.param == "served" else nullcontext():
        yield made
