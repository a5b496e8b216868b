"""CNI calls against an API server that refuses, fails or does not answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cni_calico.model.access import DatastoreConfig
from tests.e2e.host import Node
from tests.e2e.kubernetes.node import Relay
from tests.fakes.scripted_http import scripted
from tests.netns.namespaces import Namespace

pytestmark = pytest.mark.netns

ARGS = "K8S_POD_NAMESPACE=space;K8S_POD_NAME=web-0;K8S_POD_UID=u1"
C1 = "c1" * 32
DENIED = 'pods "web-0" is forbidden: User "cni" cannot get resource "pods" in API group "" in the namespace "space"'


@contextmanager
def node_with(answer: Any, host: Namespace, root: Path) -> Iterator[Node]:
    """A node whose API server answers every request like that."""
    with scripted(always=answer) as server:
        relay = Relay(host, server.port)
        try:
            keys = {"datastore_type": "kubernetes", "policy": {"type": "k8s", "k8s_api_root": server.url}}
            (root / "run").mkdir(exist_ok=True)
            # an embedded store is named for the harness only: the configuration says otherwise
            yield Node(host, root, DatastoreConfig("local", path=str(root / "none.db")), overrides=keys)
        finally:
            relay.close()


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ((403, {"message": DENIED, "reason": "Forbidden"}), DENIED),
        ((401, {"message": "Unauthorized"}), "Unauthorized"),
        ((500, {"message": "etcd has no leader"}, {"retry-after": "0"}), "etcd has no leader"),
        ((503, {"message": "shutting down"}, {"retry-after": "0"}), "shutting down"),
        ((429, {"message": "too many requests"}, {"retry-after": "60"}), "too many requests"),
        ((404, b"404 page not found\n"), "does not know /apis/crd.projectcalico.org/v1/clusterinformations/default"),
        ((200, b"<html>a proxy</html>"), "the answer is not a JSON object"),
        ("close", "the server closed the connection"),
    ],
    ids=["403", "401", "500", "503", "429", "404", "html", "close"],
)
def test_an_add_says_why_and_a_del_succeeds(
    answer: Any, text: str, host_ns: Namespace, pod_ns: Namespace, tmp_path: Path
) -> None:
    with node_with(answer, host_ns, tmp_path) as node:
        failed = node.call("ADD", C1, pod_ns.path, args=ARGS)
        assert not failed.ok and text in failed.document["msg"], failed.document
        assert not [link for link in host_ns.ip("link", "show") if link["ifname"].startswith("cali")]
        deleted = node.call("DEL", C1, pod_ns.path, args=ARGS)
        assert deleted.ok, deleted.document
        assert len(node.intents()) == 1


def test_a_del_does_not_wait_for_a_server_that_hangs(host_ns: Namespace, pod_ns: Namespace, tmp_path: Path) -> None:
    with node_with("hang", host_ns, tmp_path) as node:
        started = time.monotonic()
        assert node.call("DEL", C1, pod_ns.path, args=ARGS).ok
        assert len(node.intents()) == 1
        # the budget is 5 s; the machine of the tests may be busy
        assert time.monotonic() - started < 15
