"""CNI calls whose caller has a proxy before the API server: served or not, the caller's environment counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import until
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.node import KubeNode, Relay, kube_node
from tests.fakes.connect_proxy import ConnectProxy, connect_proxy
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

C1 = "c1" * 32


@pytest.fixture
def http_proxy(kube: Cluster) -> Iterator[ConnectProxy]:
    with connect_proxy(("127.0.0.1", kube.port)) as made:
        yield made


@pytest.fixture
def proxied_node(kube: Cluster, host_ns: Namespace, tmp_path: Path, http_proxy: ConnectProxy) -> Iterator[KubeNode]:
    """A node that has no way to the API server but the proxy; a name that nobody else resolves leads there."""
    with kube_node(kube, host_ns, tmp_path) as made:
        relay = Relay(host_ns, http_proxy.port)
        try:
            document = json.loads(Path(kube.kubeconfig()).read_text())
            cluster: dict[str, Any] = document["clusters"][0]["cluster"]
            cluster |= {"server": "https://kube.example:6443", "tls-server-name": "127.0.0.1"}
            path = tmp_path / "kubeconfig"
            path.write_text(json.dumps(document))
            made.overrides["kubernetes"] = {"kubeconfig": str(path)}
            kube.create_pod(made.namespace, "web-0", made.nodename)
            yield made
        finally:
            relay.close()


@pytest.mark.parametrize("served", [False, True], ids=["one-shot", "served"])
def test_calls_go_through_the_callers_proxy(
    served: bool, proxied_node: KubeNode, http_proxy: ConnectProxy, pod_ns: Namespace
) -> None:
    with proxied_node.server() if served else nullcontext():
        proxied_node.environ["https_proxy"] = http_proxy.url
        added = proxied_node.pod_call("ADD", "web-0", C1, pod_ns.path)
        assert added.ok, added.document
        assert set(http_proxy.asked) == {"kube.example:6443"}
        assert proxied_node.pod_call("DEL", "web-0", C1, pod_ns.path).ok
    # where an answer came too late the release is owed, and paid by the next call
    until(lambda: proxied_node.leftovers() == {} or _deletes_again(proxied_node, pod_ns), "nothing is left", 120)


def _deletes_again(node: KubeNode, pod_ns: Namespace) -> bool:
    return node.pod_call("DEL", "web-0", C1, pod_ns.path).ok and node.leftovers() == {}


def test_what_no_proxy_names_is_not_asked_of_the_proxy(
    proxied_node: KubeNode, http_proxy: ConnectProxy, pod_ns: Namespace
) -> None:
    proxied_node.environ |= {"HTTPS_PROXY": http_proxy.url, "NO_PROXY": ".other, kube.example"}
    failed = proxied_node.pod_call("ADD", "web-0", C1, pod_ns.path, uid="")
    assert not failed.ok and "kube.example" in failed.document["msg"], failed.document
    assert http_proxy.asked == []
