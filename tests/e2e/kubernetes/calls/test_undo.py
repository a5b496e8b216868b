"""An ADD that fails on Kubernetes and cannot undo what it has written, for the API server stays away: who cleans up.

The runtime's DEL does; without it what is recorded as owed, a GC, or the agents' janitor once the pod is gone. What
somebody who was killed has sent may come even later.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import until
from tests.e2e import front
from tests.e2e.janitors import JanitorProcess
from tests.e2e.kubernetes.node import KubeNode
from tests.e2e.kubernetes.pods import C1, C2, add
from tests.fakes.http_front import TOO_MANY, Front, passing
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

# the request after which nothing goes through any more, and whether its own answer is lost too
MOMENTS = {
    "handle": ("POST", "/ipamhandles", None),
    "block": ("PUT", "/ipamblocks/", None),
    "lost block": ("PUT", "/ipamblocks/", "lose"),
    "lost endpoint": ("PATCH", "/pods/web-0/status", "lose"),
}
# the ADD has recorded what it owes, and the next call that succeeds pays it
OWED = {"block", "lost endpoint"}
TROUBLES = {"down": "close", "overloaded": (429, TOO_MANY), "slow": 70}
IN_TIME_S = 80  # 60 s for the call, and some for undoing
DUAL = {"type": "calico-ipam", "assign_ipv6": "true"}

every_moment = pytest.mark.parametrize("moment", sorted(MOMENTS))


def fail(node: KubeNode, front: Front, pod_ns: Namespace, moment: str, trouble: str = "down") -> None:
    """An ADD in a block that the node has, of which something is left."""
    _warm_up(node, pod_ns)
    method, part, own_step = MOMENTS[moment]
    broken: list[str] = []

    def rule(seen: str, path: str) -> Any:
        if broken:
            return TROUBLES[trouble]
        if seen == method and part in path:
            broken.append(path)
            return own_step
        return None

    front.rule = rule
    started = time.monotonic()
    failed = add(node, pod_ns)
    assert not failed.ok and broken and time.monotonic() - started < IN_TIME_S, failed.document
    front.rule = passing
    assert pod_ns.link("eth0") is None
    left = node.leftovers()
    assert left.keys() & {"addresses", "handles"} and not left.keys() & {"links", "routes"}, left


def _warm_up(node: KubeNode, pod_ns: Namespace) -> None:
    """A pod that comes and goes; it also pays what is owed."""
    if "warm" not in {pod["metadata"]["name"] for pod in node.kube.request("GET", "/api/v1/pods")["items"]}:
        node.kube.create_pod(node.namespace, "warm", node.nodename)
    assert node.pod_call("ADD", "warm", C2, pod_ns.path).ok
    assert node.pod_call("DEL", "warm", C2, pod_ns.path).ok


@every_moment
def test_the_runtimes_del_cleans_up(
    moment: str,
    troubled_node: KubeNode,
    api_front: Front,
    pod_ns: Namespace,
) -> None:
    for ipam in ({"type": "calico-ipam"}, DUAL):
        troubled_node.overrides["ipam"] = ipam
        fail(troubled_node, api_front, pod_ns, moment)
        assert troubled_node.pod_call("DEL", "web-0", C1, pod_ns.path).ok
        assert troubled_node.leftovers() == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "trouble"), [*((moment, "overloaded") for moment in sorted(MOMENTS)), ("block", "slow")]
)
def test_so_it_does_after_an_add_that_took_its_time(
    moment: str,
    trouble: str,
    troubled_node: KubeNode,
    api_front: Front,
    pod_ns: Namespace,
) -> None:
    troubled_node.timeout_s = 120
    fail(troubled_node, api_front, pod_ns, moment, trouble)
    assert troubled_node.pod_call("DEL", "web-0", C1, pod_ns.path).ok
    assert troubled_node.leftovers() == {}


@every_moment
def test_without_a_del_the_next_call_pays_or_a_gc_finds_it(
    moment: str,
    troubled_node: KubeNode,
    api_front: Front,
    pod_ns: Namespace,
) -> None:
    fail(troubled_node, api_front, pod_ns, moment)
    assert len(troubled_node.intents()) == (moment in OWED)
    if moment in OWED:
        _warm_up(troubled_node, pod_ns)
        until(lambda: troubled_node.leftovers() == {}, "what is owed is paid", 20)
    else:
        collected = troubled_node.call("GC", "", **{"cni.dev/valid-attachments": []})
        assert collected.ok, collected.document
        # of a handle that has got no address GC knows nothing: it is the janitor's
        assert troubled_node.leftovers().keys() == ({"handles"} if moment == "handle" else set())
    assert troubled_node.annotations("web-0").get("podIP", "") == ""


@pytest.mark.parametrize(
    "moment",
    [pytest.param(m, marks=() if m in ("handle", "lost block") else pytest.mark.slow) for m in sorted(MOMENTS)],
)
def test_without_any_call_the_janitor_does(
    moment: str,
    fronted_node: KubeNode,
    api_front: Front,
    pod_ns: Namespace,
    tmp_path: Path,
) -> None:
    """Once the pod is gone; a recorded debt is then paid in vain."""
    fail(fronted_node, api_front, pod_ns, moment)
    fronted_node.kube.delete_pod(fronted_node.kube.read_pod(fronted_node.namespace, "web-0"))
    environ = {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": fronted_node.kube.kubeconfig()}
    janitor = JanitorProcess("node1", environ, tmp_path)
    try:
        until(lambda: not fronted_node.leftovers().keys() - {"intents"}, "the janitor releases it", 40)
    finally:
        janitor.kill()
    _warm_up(fronted_node, pod_ns)
    until(lambda: fronted_node.leftovers() == {}, "nothing is owed any more", 20)


def test_a_write_that_comes_after_the_undo_has_found_nothing(
    troubled_node: KubeNode, api_front: Front, pod_ns: Namespace
) -> None:
    """Somebody between the node and the API server holds the endpoint's write back; what the ADD owes finds it."""
    node = troubled_node
    _warm_up(node, pod_ns)

    def rule(method: str, path: str) -> Any:
        return "keep" if method == "PATCH" and "/pods/web-0/status" in path else None

    api_front.rule = rule
    failed = add(node, pod_ns)
    assert not failed.ok and pod_ns.link("eth0") is None, failed
    api_front.rule = passing
    assert node.annotations("web-0").get("podIP", "") == "" and len(node.intents()) == 1
    delivered = api_front.deliver()
    assert 200 in delivered and node.annotations("web-0")["podIP"], delivered

    def is_paid() -> bool:  # within a second of a call, or not yet
        _warm_up(node, pod_ns)
        return not node.intents()

    until(is_paid, "what is owed is paid", 90)
    assert node.leftovers() == {}
    assert node.annotations("web-0").get("podIP", "") == ""


@contextmanager
def killed(node: KubeNode, api_front: Front, pod_ns: Namespace, way: str, moment: str) -> Iterator[threading.Event]:
    """An ADD whose process is killed while a request of it is on its way; once the event is set it goes on."""
    method, part, _ = MOMENTS[moment]
    came, goes_on = threading.Event(), threading.Event()

    def rule(seen: str, path: str) -> Any:
        if seen == method and part in path and not came.is_set():
            came.set()
            goes_on.wait(120)

    uid = node.kube.read_pod(node.namespace, "web-0")["metadata"]["uid"]
    args = f"IgnoreUnknown=1;K8S_POD_NAMESPACE={node.namespace};K8S_POD_NAME=web-0;K8S_POD_UID={uid}"
    environ = {name: value for name, value in node.env("ADD", C1, pod_ns.path, "eth0", args).items() if value}

    def begin() -> subprocess.Popen[bytes]:
        argv = ["nsenter", f"--net={node.host.path}", str(front.executables() / "calico")]
        calling = subprocess.Popen(argv, env=environ, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert calling.stdin is not None
        calling.stdin.write(json.dumps(node.conf()).encode())
        calling.stdin.close()
        api_front.rule = rule
        assert came.wait(60)
        return calling

    try:
        if way == "served":
            with node.server() as server:
                _warm_up(node, pod_ns)
                calling = begin()
                calling.kill()  # first: without a server it would do the work itself
                server.kill()
        else:
            _warm_up(node, pod_ns)
            calling = begin()
            calling.kill()
        calling.wait()
        yield goes_on
    finally:
        goes_on.set()
        api_front.rule = passing


@pytest.mark.parametrize("way", ["one-shot", "served"])
@pytest.mark.parametrize("moment", ["handle", "block"])
def test_a_request_of_somebody_killed_comes_after_the_del_has_found_nothing(
    moment: str,
    way: str,
    fronted_node: KubeNode,
    api_front: Front,
    pod_ns: Namespace,
    tmp_path: Path,
) -> None:
    """A handle stays, without addresses, until the janitor removes it; an address is not taken any more."""
    node, part = fronted_node, MOMENTS[moment][1]
    with killed(node, api_front, pod_ns, way, moment) as goes_on:
        assert node.pod_call("DEL", "web-0", C1, pod_ns.path).ok
        assert node.leftovers() == {}
        answered = len(api_front.answers)
        goes_on.set()
        until(lambda: len(api_front.answers) > answered, "the API server has carried it out")
    method, path, status = api_front.answers[answered]
    assert (method, part in path) == (MOMENTS[moment][0], True)
    if moment == "block":
        assert status == 409 and node.leftovers() == {}
        return
    assert status == 201 and node.leftovers().keys() == {"handles"}
    environ = {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": node.kube.kubeconfig()}
    janitor = JanitorProcess("node1", environ, tmp_path)
    try:
        until(lambda: node.leftovers() == {}, "the janitor removes it", 60)
    finally:
        janitor.kill()
