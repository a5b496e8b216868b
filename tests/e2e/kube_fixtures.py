"""Fixtures on a real API server; import them into a test module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cni_calico.datastore.kubernetes.store import KubernetesStore
from tests.e2e.kube import Cluster, shared_cluster

NAMESPACE = "space"


@pytest.fixture(scope="session")
def running() -> Cluster:
    cluster = shared_cluster()
    cluster.ensure_namespace(NAMESPACE)
    return cluster


@pytest.fixture
def kube(running: Cluster) -> Cluster:
    """The API server without any record of Calico's, node or pod."""
    running.empty()
    return running


@pytest.fixture
def store(kube: Cluster) -> Iterator[KubernetesStore]:
    opened = kube.store()
    yield opened
    opened.close()
