"""Which of several workloads that name one interface has it, by what is known of the interface."""

from __future__ import annotations

import pytest

from cni_calico.model.names import owner_text, signed_alias
from cni_calico.policy.endpoints import PresentInterface
from cni_calico.policy.graph import Graph
from tests.unit.policy.cluster import NODE, document, graph_of, put

SPACES = ("a", "b")  # each has a pod "p" that names "cali1"
SIGNED = {space: signed_alias("0" * 40, owner_text("k8s", space, "p")) for space in SPACES}


def put_pod(graph: Graph, space: str, interface: str = "cali1", name: str = "p") -> None:
    spec = {"orchestrator": "k8s", "node": NODE, "pod": "p", "endpoint": name, "interfaceName": interface}
    put(graph, ("WorkloadEndpoint", space, name), document({**spec, "ipNetworks": ["10.0.0.1/32"]}))


def gone(graph: Graph, space: str) -> None:
    put(graph, ("WorkloadEndpoint", space, "p"), None)


def has(graph: Graph) -> list[str]:
    graph.flush()
    return sorted(f"{key.namespace}/{one.interface}" for key, one in graph.wanted().endpoints.items())


def said(graph: Graph) -> list[str]:
    return [str(dispute) for dispute in graph.disputes()]


def see(graph: Graph, alias: str = "", *, up: bool = True) -> None:
    graph.see(NODE, {"cali1": PresentInterface(up, alias)})


def test_the_alias_decides_whenever_it_comes() -> None:
    graph = graph_of({})
    for space in reversed(SPACES):
        put_pod(graph, space)
    assert has(graph) == [] and said(graph) == [
        "interface cali1 is closed: a/p and b/p name it, and nothing shows whose it is"
    ]
    for space, other in (SPACES, SPACES[::-1]):
        see(graph, SIGNED[space])
        assert has(graph) == [f"{space}/cali1"]
        assert said(graph) == [f"{other}/p has no network policy and no network: interface cali1 is {space}/p's"]
    gone(graph, "b")
    assert has(graph) == [] and said(graph) == ["interface cali1 is closed: it is b/p's, and a/p names it"]
    see(graph, SIGNED["a"])
    assert has(graph) == ["a/cali1"] and said(graph) == []


@pytest.mark.parametrize("alias", ["", "cni-calico:" + "0" * 40, "somebody's"])
def test_without_a_proof_one_has_it_and_two_have_not(alias: str) -> None:
    graph = graph_of({})
    see(graph, alias)
    put_pod(graph, "b")
    assert has(graph) == ["b/cali1"]
    put_pod(graph, "a")
    assert has(graph) == [] and graph.disputes()[0].pods == (("a", "p"), ("b", "p"))
    put_pod(graph, "a", "cali2")
    assert has(graph) == ["a/cali2", "b/cali1"] and graph.disputes() == ()
    gone(graph, "b")
    assert has(graph) == ["a/cali2"]


def test_one_workload_with_two_records() -> None:
    graph = graph_of({})
    for name in ("q", "p"):
        put_pod(graph, "a", name=name)
    graph.flush()
    assert [key.name for key in graph.wanted().endpoints] == ["p"] and graph.disputes() == ()


def test_records_that_anybody_may_write_wait_for_the_interface() -> None:
    """It is known whose it is when it is up or has its alias; a name that is free again is nobody's."""
    graph = graph_of({})
    graph.require_present()
    put_pod(graph, "a")
    assert has(graph) == []
    see(graph, up=False)
    assert has(graph) == []
    see(graph, SIGNED["a"], up=False)
    assert has(graph) == ["a/cali1"]
    see(graph)
    assert has(graph) == ["a/cali1"]
    graph.see(NODE, {"cali1": None})
    assert has(graph) == [] and graph.disputes() == ()
