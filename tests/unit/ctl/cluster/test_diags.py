"""``cluster diags`` on Kubernetes: which pods' logs are taken, and what the API server is asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from cni_calico.ctl.cluster.diags import LOG_BYTES, _kubernetes, containers_of, select_pods
from cni_calico.ctl.command_line.arguments import parse_arguments
from cni_calico.ctl.session import Session
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.deadline import Deadline
from cni_calico.model.access import KubernetesAccess
from tests.fakes.scripted_http import Scripted

NONE: tuple[int, Any] = (200, {"items": []})


def pod(name: str, node: str, app: str = "calico-node") -> dict[str, Any]:
    spec = {"nodeName": node, "initContainers": [{"name": "install"}], "containers": [{"name": "main"}]}
    return {"metadata": {"name": name, "namespace": "kube-system", "labels": {"k8s-app": app}}, "spec": spec}


PODS = [
    pod("a", "n1"),
    pod("b", "n2"),
    pod("c", "n3"),
    pod("k", "n3", "calico-kube-controllers"),
    pod("x", "n1", "web"),
]


def names(pods: list[Any]) -> list[str]:
    return [each["metadata"]["name"] for each in pods]


@pytest.mark.parametrize(
    ("focus", "most", "chosen"),
    [
        ([""], 5, ["a", "b", "c", "k"]),
        ([""], 1, ["a", "k"]),
        (["n3"], 1, ["c", "k"]),
        (["n3", "n2"], 2, ["b", "c", "k"]),
        (["n2"], 5, ["b", "a", "c", "k"]),
        (["n2"], 0, []),
        (["n2"], -1, []),
    ],
)
def test_so_many_of_each_name_those_on_the_named_nodes_first(focus: list[str], most: int, chosen: list[str]) -> None:
    assert names(select_pods(PODS, focus, most)) == chosen


def test_a_pod_without_labels_or_node_is_no_failure() -> None:
    bare = {"metadata": {"name": "z", "labels": {"k8s-app": "calico-typha"}}}
    assert names(select_pods([{"metadata": {"name": "y"}}, bare], ["n1"], 5)) == ["z"]


def test_the_containers_of_a_pod() -> None:
    assert containers_of(PODS[0]) == ["install", "main"]
    assert containers_of({"spec": {"initContainers": None}}) == containers_of({}) == []


@pytest.fixture
def server() -> Iterator[Scripted]:
    made = Scripted([*[NONE] * 6, (200, {"items": PODS})], always=(200, b"a line\n"))
    yield made
    made.close()


def logs_asked(server: Scripted, *options: str) -> dict[str, dict[str, list[str]]]:
    """The queries for logs by "pod/container", after the archive's files have been checked."""
    session = Session(
        KubernetesStore(KubernetesAccess(api_root=server.url, token="t")), Deadline.after(30), lambda: "", lambda: ""
    )
    files = dict(_kubernetes(session, parse_arguments(["cluster", "diags", *options])))
    found = {}
    for method, path, _, _ in server.requests:
        url = urlsplit(path)
        if url.path.endswith("/log"):
            query = parse_qs(url.query)
            name = url.path.removeprefix("/api/v1/namespaces/kube-system/pods/").removesuffix("/log")
            found[f"{name}/{query.pop('container')[0]}"] = query
            assert method == "GET"
    assert {file for file in files if file.startswith("logs/")} == {f"logs/{each}.log" for each in found}
    return found


def test_all_logs_up_to_a_size(server: Scripted) -> None:
    asked = logs_asked(server)
    assert asked.keys() == {f"{name}/{container}" for name in "abck" for container in ("install", "main")}
    assert all(query == {"limitBytes": [str(LOG_BYTES)]} for query in asked.values())


@pytest.mark.parametrize(("since", "seconds"), [("2h", "7200"), ("90s", "90"), ("100ms", "1")])
def test_logs_since(server: Scripted, since: str, seconds: str) -> None:
    asked = logs_asked(server, f"--since={since}")
    assert len(asked) == 8 and all(query["sinceSeconds"] == [seconds] for query in asked.values())


def test_the_options_choose_the_pods(server: Scripted) -> None:
    asked = logs_asked(server, "--max-logs=1", "--focus-nodes=n2,n9", "--max-parallelism=1", "--skip-temp-dir-cleanup")
    assert list(asked) == ["b/install", "b/main", "k/install", "k/main"]  # one after the other


@pytest.mark.parametrize("most", [1, 2, 4, 8])
def test_so_many_logs_are_fetched_at_once(server: Scripted, most: int) -> None:
    """No answer comes before that many have asked; never do more ask at the same time."""
    together, lock = threading.Barrier(most), threading.Lock()
    asking, highest = 0, 0

    def answer() -> tuple[int, bytes]:
        nonlocal asking, highest
        with lock:
            asking += 1
            highest = max(highest, asking)
        together.wait(30)
        with lock:
            asking -= 1
        return 200, b"a line\n"

    server.always = answer
    assert len(logs_asked(server, f"--max-parallelism={most}")) == 8
    assert highest == most
