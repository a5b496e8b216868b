"""CNI calls while a real API server refuses, conflicts, fails, is slow, or ends what it has begun: one kind at a time.

A front on loopback spoils chosen requests; the rest reaches the API server, so that what is left over is real.
"""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from tests.deadlines import until
from tests.e2e.kubernetes.node import KubeNode
from tests.e2e.kubernetes.pods import C1, C2, add
from tests.fakes.http_front import TOO_MANY, Front, passing
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

CONFLICT = (409, {"kind": "Status", "reason": "Conflict", "message": "the object has been modified", "code": 409})
NOW, LATER = {"retry-after": "0"}, {"retry-after": "60"}


def forbidden(verb: str, resource: str, user: str = "cni") -> tuple[int, dict[str, Any]]:
    text = f'{resource} is forbidden: User "{user}" cannot {verb} resource "{resource}" in API group ""'
    return 403, {"kind": "Status", "reason": "Forbidden", "message": text, "code": 403}


def spoil(front: Front, method: str, part: str, step: Any, *, times: int = 1_000_000) -> None:
    """Answer requests of a method with ``part`` in their path like that, the first so many times."""
    left = [times]

    def rule(seen: str, path: str) -> Any:
        if seen != method or part not in path or left[0] <= 0:
            return None
        left[0] -= 1
        return step

    front.rule = rule


def ends_clean(node: KubeNode, front: Front, pod_ns: Namespace) -> None:
    """Once the trouble is over everything is given back, also what an earlier DEL owes."""
    front.rule = passing
    assert node.pod_call("DEL", "web-0", C1, pod_ns.path).ok
    node.kube.create_pod(node.namespace, "next", node.nodename)
    assert node.pod_call("ADD", "next", C2, pod_ns.path).ok
    assert node.pod_call("DEL", "next", C2, pod_ns.path).ok
    until(lambda: node.leftovers() == {}, "nothing is left over", 20)


# -- a missing right --------------------------------------------------------------------------------------------------

RIGHTS = {
    "ready": ("GET", "/clusterinformations/", ("get", "clusterinformations")),
    "pod": ("GET", "/pods/", ("get", "pods")),
    "namespace": ("GET", "/api/v1/namespaces/", ("get", "namespaces")),
    "pools": ("GET", "/ippools", ("list", "ippools")),
    "reservations": ("GET", "/ipreservations", ("list", "ipreservations")),
    "configuration": ("GET", "/ipamconfigs/", ("get", "ipamconfigs")),
    "affinities": ("GET", "/blockaffinities", ("list", "blockaffinities")),
    "handle": ("POST", "/ipamhandles", ("create", "ipamhandles")),
    "block": ("POST", "/ipamblocks", ("create", "ipamblocks")),
    "affinity": ("POST", "/blockaffinities", ("create", "blockaffinities")),
    "endpoint": ("PATCH", "/pods/web-0/status", ("patch", "pods/status")),
}


@pytest.mark.parametrize("name", sorted(RIGHTS))
def test_an_add_names_the_right_that_is_missing(
    name: str, fronted_node: KubeNode, api_front: Front, pod_ns: Namespace
) -> None:
    names_the_right(name, fronted_node, api_front, pod_ns)


@pytest.mark.parametrize("name", ["pools", "handle", "endpoint"])
def test_so_does_a_server(name: str, fronted_node: KubeNode, api_front: Front, pod_ns: Namespace) -> None:
    with fronted_node.server():
        names_the_right(name, fronted_node, api_front, pod_ns)


def names_the_right(name: str, alone: KubeNode, front: Front, pod_ns: Namespace) -> None:
    method, part, (verb, resource) = RIGHTS[name]
    spoil(front, method, part, forbidden(verb, resource))
    reply = add(alone, pod_ns)
    assert not reply.ok and reply.document["code"] == 102, reply.document
    assert f'cannot {verb} resource "{resource}"' in reply.document["msg"]
    assert "the roles in the manifests allow all that is needed" in reply.document["details"]
    front.rule = passing
    assert alone.leftovers() == {}


@pytest.mark.parametrize("name", ["ready", "endpoint", "release", "handle"])
def test_a_del_without_the_right_is_owed(
    name: str, troubled_node: KubeNode, api_front: Front, pod_ns: Namespace, request: pytest.FixtureRequest
) -> None:
    """The server knows already whether the cluster is ready, and asks nobody."""
    asks = name != "ready" or "one-shot" in request.node.callspec.params.values()
    assert add(troubled_node, pod_ns).ok
    method, part, (verb, resource) = {
        **RIGHTS,
        "ready": ("GET", "", ("get", "clusterinformations")),
        "release": ("PUT", "/ipamblocks", ("update", "ipamblocks")),
        "handle": ("PUT", "/ipamhandles", ("update", "ipamhandles")),
    }[name]
    spoil(api_front, method, part, forbidden(verb, resource))
    deleted = troubled_node.pod_call("DEL", "web-0", C1, pod_ns.path)
    assert deleted.ok, deleted.document
    assert pod_ns.link("eth0") is None
    api_front.rule = passing
    assert (len(troubled_node.intents()), len(troubled_node.taken())) == (int(asks), int(asks and name != "handle"))
    ends_clean(troubled_node, api_front, pod_ns)


# -- conflicts --------------------------------------------------------------------------------------------------------

WRITES = {
    "block": ("PUT", "/ipamblocks/"),
    "handle": ("POST", "/ipamhandles"),
    "affinity": ("PUT", "/blockaffinities/"),
    "endpoint": ("PATCH", "/pods/web-0/status"),
}


@pytest.mark.parametrize("name", ["block", "affinity"])
def test_some_conflicts_are_overcome(name: str, troubled_node: KubeNode, api_front: Front, pod_ns: Namespace) -> None:
    spoil(api_front, *WRITES[name], CONFLICT, times=5)
    reply = add(troubled_node, pod_ns)
    assert reply.ok, reply.document
    assert api_front.count(*WRITES[name]) >= 5 and len(troubled_node.taken()) == len(troubled_node.handles()) == 1
    spoil(api_front, "PUT", "/ipamblocks/", CONFLICT, times=5)
    assert troubled_node.pod_call("DEL", "web-0", C1, pod_ns.path).ok
    api_front.rule = passing
    assert troubled_node.leftovers() == {}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(WRITES))
def test_a_storm_of_conflicts_ends_an_add_and_is_owed_by_a_del(
    name: str, troubled_node: KubeNode, api_front: Front, pod_ns: Namespace
) -> None:
    troubled_node.timeout_s = 90
    spoil(api_front, *WRITES[name], CONFLICT)
    started = time.monotonic()
    failed = add(troubled_node, pod_ns)
    assert not failed.ok and time.monotonic() - started < 75
    thing = {"block": "block", "handle": "handle", "affinity": "affinity", "endpoint": "WorkloadEndpoint"}[name]
    assert thing in failed.document["msg"], failed.document
    api_front.rule = passing
    if name == "block":  # giving back writes it, too: the runtime's DEL ends what the ADD has named
        assert "may still be there" in failed.document["details"]
        assert troubled_node.pod_call("DEL", "web-0", C1, pod_ns.path).ok
    until(lambda: troubled_node.leftovers() == {}, "what an ADD that failed took is given back", 20)
    assert add(troubled_node, pod_ns).ok
    spoil(api_front, *WRITES["endpoint" if name == "endpoint" else "block"], CONFLICT)
    started = time.monotonic()
    deleted = troubled_node.pod_call("DEL", "web-0", C1, pod_ns.path)
    assert deleted.ok and time.monotonic() - started < 20, deleted.document
    assert len(troubled_node.intents()) == 1
    ends_clean(troubled_node, api_front, pod_ns)


# -- failures and lost answers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["block", "handle", "endpoint"])
@pytest.mark.parametrize(
    "step",
    [
        pytest.param("lose", id="lost"),
        pytest.param((500, {"message": "etcdserver: request timed out"}), id="500", marks=pytest.mark.slow),
    ],
)
def test_a_write_of_which_nothing_is_known(
    step: Any, name: str, fronted_node: KubeNode, api_front: Front, pod_ns: Namespace
) -> None:
    """Once: found out and gone on with. For ever: the ADD fails, and nothing stays."""
    spoil(api_front, *WRITES[name], step, times=1)
    reply = add(fronted_node, pod_ns)
    assert reply.ok, reply.document
    assert len(fronted_node.taken()) == len(fronted_node.handles()) == 1
    assert fronted_node.annotations("web-0")["podIP"] == reply.document["ips"][0]["address"]
    api_front.rule = passing
    assert fronted_node.pod_call("DEL", "web-0", C1, pod_ns.path).ok
    spoil(api_front, *WRITES[name], step)
    failed = add(fronted_node, pod_ns)
    ends_clean(fronted_node, api_front, pod_ns)
    assert step == "lose" or not failed.ok


def test_an_overloaded_server_is_waited_for(troubled_node: KubeNode, api_front: Front, pod_ns: Namespace) -> None:
    """429 with Retry-After on every kind of request, once each."""
    seen: set[tuple[str, str]] = set()

    def rule(method: str, path: str) -> Any:
        kind = (method, path.partition("?")[0].rpartition("/")[0])
        if kind in seen or "watch=1" in path:
            return None
        seen.add(kind)
        return 429, TOO_MANY, NOW

    api_front.rule = rule
    reply = add(troubled_node, pod_ns)
    assert reply.ok, reply.document
    assert troubled_node.pod_call("DEL", "web-0", C1, pod_ns.path).ok
    assert len(seen) > 5
    api_front.rule = passing
    assert troubled_node.leftovers() == {}


@pytest.mark.parametrize(
    ("method", "part"),
    [("GET", "/ippools"), ("POST", "/ipamblocks"), ("POST", "/ipamhandles"), ("GET", "/ipamconfigs")],
)
def test_an_add_names_the_type_that_is_missing(
    method: str, part: str, fronted_node: KubeNode, api_front: Front, pod_ns: Namespace
) -> None:
    """One of Calico's custom resource definitions was forgotten, or removed."""
    spoil(api_front, method, part, (404, {"message": "the server could not find the requested resource"}))
    reply = add(fronted_node, pod_ns)
    assert not reply.ok and part in reply.document["msg"], reply.document
    assert "crds.yaml" in reply.document["details"]
    api_front.rule = passing
    assert fronted_node.leftovers() == {}


def test_an_add_never_guesses_which_api_the_cluster_speaks(
    fronted_node: KubeNode, api_front: Front, pod_ns: Namespace
) -> None:
    """The older group is not there, and the question which one is fails: the runtime tries again."""

    def rule(method: str, path: str) -> Any:
        if path.split("?")[0] == "/apis":
            return 503, {"message": "apiserver is shutting down"}
        return (404, {"message": "the server could not find the requested resource"}) if GROUP_PATH in path else None

    api_front.rule = rule
    reply = add(fronted_node, pod_ns)
    assert not reply.ok and reply.document["code"] == 101, reply.document
    assert "API groups" in reply.document["msg"] and "shutting down" in reply.document["msg"], reply.document
    assert pod_ns.link("eth0") is None
    api_front.rule = passing
    assert fronted_node.leftovers() == {}
    assert add(fronted_node, pod_ns).ok and fronted_node.pod_call("DEL", "web-0", C1, pod_ns.path).ok


REFUSALS = {
    "429": (429, TOO_MANY),
    "429-later": (429, TOO_MANY, LATER),
    "500": (500, {"message": "etcdserver: no space"}),
    "500-later": (500, {"message": "etcdserver: no space"}, LATER),
}


@pytest.mark.parametrize(
    ("what", "asked"),
    [
        pytest.param("429", "all"),
        pytest.param("429", "writes", marks=pytest.mark.slow),
        pytest.param("429-later", "all"),
        pytest.param("429-later", "writes"),
        pytest.param("500", "all", marks=pytest.mark.slow),
        pytest.param("500", "writes"),
        pytest.param("500-later", "all"),
        pytest.param("500-later", "writes", marks=pytest.mark.slow),
    ],
)
def test_a_server_that_keeps_refusing(
    what: str, asked: str, troubled_node: KubeNode, api_front: Front, pod_ns: Namespace, make_pod_ns: MakeNamespace
) -> None:
    """With records of a pod that had a network; with and without a word when to come back, which is too late."""

    def rule(method: str, path: str) -> Any:
        return None if asked == "writes" and method == "GET" else REFUSALS[what]

    api_front.rule = rule
    fails_in_time(troubled_node, pod_ns, what)
    api_front.rule = passing
    assert troubled_node.leftovers() == {}
    assert add(troubled_node, pod_ns).ok
    api_front.rule = rule
    started = time.monotonic()
    deleted = troubled_node.pod_call("DEL", "web-0", C1, pod_ns.path)
    assert deleted.ok and time.monotonic() - started < IN_TIME_S, deleted.document
    assert pod_ns.link("eth0") is None
    if asked == "writes":  # past what is read: an ADD finds its addresses, and a pod without a record of them
        fails_in_time(troubled_node, pod_ns, what)
    api_front.rule = passing
    assert len(troubled_node.intents()) == len(troubled_node.taken()) == 1
    another = make_pod_ns()
    troubled_node.kube.create_pod(troubled_node.namespace, "next", troubled_node.nodename)
    assert troubled_node.pod_call("ADD", "next", C2, another.path).ok
    until(lambda: troubled_node.intents() == [], "the intent is replayed", 20)
    assert list(troubled_node.taken().values()) == list(handles_of(troubled_node)) == [f"calnet.{C2}"]
    assert troubled_node.annotations("web-0")["podIP"] == ""
    assert troubled_node.pod_call("DEL", "next", C2, another.path).ok
    until(lambda: troubled_node.leftovers() == {}, "nothing is left over", 20)


def handles_of(node: KubeNode) -> list[str]:
    return [path.rpartition("/")[2] for path in node.handles()]


def fails_in_time(node: KubeNode, pod_ns: Namespace, what: str) -> None:
    """An ADD that says what was asked for, and what it was told."""
    started = time.monotonic()
    failed = add(node, pod_ns)
    assert not failed.ok and time.monotonic() - started < IN_TIME_S
    assert re.match(SOME_OBJECT, failed.document["msg"]), failed.document
    assert pod_ns.link("eth0") is None
    if what.startswith("429"):
        assert failed.document["code"] == 101 and "too many requests" in failed.document["msg"], failed.document
        assert "overloaded" in failed.document["details"] and "429" in failed.document["details"]


GROUP_PATH = "/apis/crd.projectcalico.org/"
# a DEL's time is 5 s, that of an ADD 60 s, of which these need far less; the machine of the tests may be busy
IN_TIME_S = 15
# what was being read or written, by its name
SOME_OBJECT = r"cannot (read|write|create|list|update|delete|annotate|release) \S+ ?\S*(:| of | in )"

# -- slowness ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_slow_answers_do_not_fail_an_add(troubled_node: KubeNode, api_front: Front, pod_ns: Namespace) -> None:
    api_front.rule = lambda method, path: None if "watch=1" in path else 0.1
    assert add(troubled_node, pod_ns).ok
    assert troubled_node.pod_call("DEL", "web-0", C1, pod_ns.path).ok
    ends_clean(troubled_node, api_front, pod_ns)


@pytest.mark.slow
def test_answers_after_ten_seconds(troubled_node: KubeNode, api_front: Front, pod_ns: Namespace) -> None:
    """An ADD has 60 s, and some for undoing: well below the two minutes and more that kubelet and containerd wait.

    Six answers are not enough for one that knows nothing: it fails, and says in the middle of what.
    """
    troubled_node.timeout_s = 120
    api_front.rule = lambda method, path: None if "watch=1" in path else 10
    started = time.monotonic()
    first = add(troubled_node, pod_ns)
    assert time.monotonic() - started < 80
    assert not first.ok and first.document["code"] in (11, 101), first.document
    assert re.match(SOME_OBJECT, first.document["msg"]), first.document
    assert first.document["details"][0].isalpha(), first.document
    assert pod_ns.link("eth0") is None
    owed = len(troubled_node.intents())
    started = time.monotonic()
    deleted = troubled_node.pod_call("DEL", "web-0", C1, pod_ns.path)
    assert deleted.ok and time.monotonic() - started < 20, deleted.document
    assert len(troubled_node.intents()) == 1 >= owed
    ends_clean(troubled_node, api_front, pod_ns)


# -- watches ----------------------------------------------------------------------------------------------------------


def test_watches_that_are_closed_all_the_time(
    fronted_node: KubeNode, api_front: Front, make_pod_ns: MakeNamespace
) -> None:
    api_front.rule = lambda method, path: ("cut", 0.2) if "watch=1" in path else None
    with fronted_node.server():
        for i in range(4):
            fronted_node.kube.create_pod(fronted_node.namespace, f"p{i}", fronted_node.nodename)
            assert fronted_node.pod_call("ADD", f"p{i}", f"{i}" * 64, make_pod_ns().path).ok
        assert len(fronted_node.taken()) == 4
        opened = api_front.count("GET", "watch=1")
        for i in range(4):
            assert fronted_node.pod_call("DEL", f"p{i}", f"{i}" * 64).ok
        assert fronted_node.leftovers() == {}
        assert api_front.count("GET", "watch=1") - opened < 400  # each waits longer the more often it is closed


def test_watches_that_are_too_old_are_listed_again(
    fronted_node: KubeNode, api_front: Front, make_pod_ns: MakeNamespace
) -> None:
    with fronted_node.server():
        fronted_node.kube.create_pod(fronted_node.namespace, "p0", fronted_node.nodename)
        assert fronted_node.pod_call("ADD", "p0", "0" * 64, make_pod_ns().path).ok
        until(lambda: api_front.count("GET", "/ippools?watch=1") > 0, "the pools are watched", 20)
        lists = api_front.count("GET", "/ippools?limit")
        spoil(
            api_front, "GET", "watch=1", (410, {"reason": "Expired", "message": "too old resource version"}), times=20
        )
        api_front.end_streams()
        fronted_node.apply("IPPool", "pool4", {"cidr": "10.65.0.0/16", "blockSize": 26, "disabled": True})
        fronted_node.apply("IPPool", "late", {"cidr": "10.99.0.0/16", "blockSize": 26})
        until(lambda: api_front.count("GET", "/ippools?limit") > lists, "the pools are listed again", 30)
        fronted_node.kube.create_pod(fronted_node.namespace, "p1", fronted_node.nodename)
        reply = fronted_node.pod_call("ADD", "p1", "1" * 64, make_pod_ns().path)
        assert reply.ok and reply.document["ips"][0]["address"].startswith("10.99."), reply.document
