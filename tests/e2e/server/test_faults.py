"""Every fault point that a served call passes, failed and killed, on both datastores; and a server that is killed under
fire. Whatever the runtime then does, nothing is left over and nothing is given twice.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from tests.conftest import ROOT, SUMMARY
from tests.deadlines import until
from tests.e2e.forks import Forking, Forks, forks_in
from tests.e2e.host import Node, Reply
from tests.e2e.scenarios import ACTIONS, DELEGATED, DUAL, SCENARIOS, Report, hit, trace_all
from tests.e2e.served import ForkedServer, call
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.netns, pytest.mark.takes(5)]

# points that no CNI call passes in the server, and the tests that hit them
ELSEWHERE = {
    "bird.": "tests/netns/bird/test_lifecycle.py",
    "child.": "tests/netns/bird/test_lifecycle.py",
    "conntrack.": "tests/netns/test_conntrack.py",
    "ctl.rename-file": "tests/unit/ctl/output/test_files.py",
    "ctl.write-archive": "tests/unit/ctl/node/test_commands.py",
    "ctl.write-file": "tests/unit/ctl/output/test_files.py",
    "dataplane.": "tests/e2e/calls/test_external_dataplane.py",
    "etcd.host-status": "tests/contract/test_host_status.py",
    "etcd.take-lease": "tests/contract/test_election.py",
    "install.": "tests/unit/install/test_copies.py",
    "ipset.": "tests/netns/agent/test_faults.py",
    "iptables.": "tests/netns/agent/test_faults.py",
    "kubernetes.": "tests/unit/datastore/kubernetes/test_api.py",
    "legacy.": "tests/netns/policing/test_legacy.py",
    "nfnetlink.": "tests/contract/test_packet_filter.py",
    "netlink.filter-": "tests/netns/agent/test_bandwidth.py",
    "netlink.qdisc-": "tests/netns/agent/test_bandwidth.py",
    "netlink.fdb": "tests/netns/agent/test_faults.py",
    "netlink.wireguard-set": "tests/contract/test_wireguard.py",
    "netlink.neigh-del": "tests/netns/agent/test_faults.py",
    "netlink.rule-": "tests/netns/encryption/test_faults.py",
    "netlink.tunnel": "tests/netns/agent/test_faults.py",
    "netns.": "tests/netns/test_named_netns.py",
    "nft.": "tests/netns/agent/test_faults.py",
}

SLOW = "the first ADD of a server"
HIT: dict[str, dict[str, set[str]]] = {}  # datastore -> scenario -> points


@dataclass
class Place:
    """A node, and a process that has used no gRPC to work on it in."""

    node: Node
    forks: Forks
    pods: list[Namespace]

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self.forks.call(function, self.node, *arguments, timeout_s=600)


APART = "local, a server with mounts of its own"
PLACES = ["local", pytest.param("etcd", marks=pytest.mark.etcd), pytest.param(APART, marks=pytest.mark.slow)]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, make_pod_ns: MakeNamespace) -> Iterator[Place]:
    made: Node = request.getfixturevalue("etcd_node" if request.param == "etcd" else "plain_node")
    node = Node(made.host, made.root, made.datastore, forks=Forking(made.host), apart=request.param == APART)
    with forks_in(made.host) as forks:
        yield Place(node, forks, [make_pod_ns() for _ in range(10)])


@pytest.mark.parametrize("name", [*SCENARIOS, *(pytest.param(name, marks=pytest.mark.cnitool) for name in DELEGATED)])
@pytest.mark.slow_on(SLOW)
@pytest.mark.slow_on("etcd", but=("ADD", "DEL", "GC"))  # the others end in the same writes to it
def test_every_step_of(request: pytest.FixtureRequest, place: Place, name: str) -> None:
    if place.node.apart and name in DELEGATED:
        pytest.skip("backend: other IPAM plugins are run by the callers there")
    slow = bool(request.config.getoption("--slow"))
    # on etcd, where calls take their time: the steps in which it differs from the embedded store
    own = () if place.node.datastore.type == "local" or slow else ("etcd.", "file.")
    report: Report = place.run(hit, *place.pods[:2], name, own, 1 if slow else 5)
    print(f"served {report}")
    HIT.setdefault(place.node.datastore.type, {})[name] = {point for point, _, _ in report.hit}
    assert report.hit and sum(report.outcomes.values()) == len(report.hit) * len(ACTIONS)
    killed = sum(count for outcome, count in report.outcomes.items() if outcome.startswith("killed"))
    assert killed > len(report.hit) // 2


@pytest.mark.cnitool
def test_every_point_that_a_served_call_can_reach_was_passed(
    place: Place, record_property: Callable[[str, object], None]
) -> None:
    """The tests above hit what their calls pass; a point that none of them passes would be one that nothing covers.

    Where all of them have run, with all their steps, everything that is passed was hit too.
    """
    if place.node.apart:
        pytest.skip("backend: other IPAM plugins are run by the callers there")
    passed = place.run(trace_all, *place.pods[:2])
    sources = "".join(path.read_text() for path in (ROOT / "cni_calico").rglob("*.py"))
    declared = set(re.findall(r'faults\.declare\("([^"]+)"\)', sources))
    other = ("etcd.",) if place.node.datastore.type == "local" else ("local.",)
    elsewhere = {point for point in declared if point.startswith((*ELSEWHERE, *other))}
    missing = declared - passed - elsewhere
    of_each = HIT.get(place.node.datastore.type, {})
    struck = set().union(*of_each.values())
    text = f"{len(passed)} passed, {len(passed & struck)} hit: {', '.join(sorted(passed))}"
    record_property(SUMMARY, f"fault points of served calls on {place.node.datastore.type}: {text}")
    if of_each.keys() >= SCENARIOS.keys() - {SLOW} and place.node.datastore.type == "local":
        assert not passed - struck
    print(f"{len(elsewhere)} are other suites': {', '.join(sorted(elsewhere))}")
    assert len(passed) > 15 and not missing
    assert not passed & elsewhere
    assert all(prefix in (ROOT / path).read_text() for prefix, path in ELSEWHERE.items())


# -- killed and restarted under fire ----------------------------------------------------------------------------------


def ipam_check(node: Node) -> str:
    """What ``calicoctl ipam check`` says, the node being one that the cluster knows."""
    place = node.datastore
    environ = {"DATASTORE_TYPE": place.type, "DATASTORE_PATH": place.path}
    if place.type == "etcdv3":
        environ = {"DATASTORE_TYPE": place.type, "ETCD_ENDPOINTS": ",".join(place.etcd_endpoints)}
    command = ["nsenter", f"--net={node.host.path}", sys.executable, "-m", "cni_calico.ctl.main"]
    record = {"apiVersion": "projectcalico.org/v3", "kind": "Node", "metadata": {"name": node.nodename}, "spec": {}}
    env = {**os.environ, **environ}
    subprocess.run([*command, "apply", "-f", "-"], input=json.dumps(record), env=env, cwd=ROOT, text=True, check=True)
    done = subprocess.run([*command, "ipam", "check"], env=env, cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def storm(node: Node, pods: list[Namespace], seed: int) -> tuple[Counter[str], int]:
    """200 calls of ten containers at a time, with the server killed at random moments; (outcomes, kills)."""
    rng = random.Random(seed)
    held: dict[str, set[str]] = {}
    guard, done = threading.Lock(), threading.Event()
    kills = 0

    def work(number: int) -> Counter[str]:
        pod, outcomes = pods[number], Counter[str]()
        for step in range(10):
            container = f"w{number}x{step}"
            added = call(node, "ADD", container, pod.path, **DUAL)
            outcomes[proper(added, container)] += 1
            if added.ok:
                addresses = {item["address"] for item in added.document["ips"]}
                with guard:
                    taken = [other for other, theirs in held.items() if theirs & addresses]
                    assert not taken, f"{container} got {addresses}, which {taken} has"
                    held[container] = addresses
                assert pod.addresses("eth0") == addresses
            with guard:
                held.pop(container, None)
            deleted = call(node, "DEL", container, pod.path, **DUAL)
            outcomes[proper(deleted, container)] += 1
            if not deleted.ok:
                assert call(node, "DEL", container, "", **DUAL).ok
        return outcomes

    with ForkedServer(node) as server, ThreadPoolExecutor(10) as pool:
        futures = [pool.submit(work, number) for number in range(10)]
        while not all(future.done() for future in futures):
            done.wait(rng.uniform(0.02, 0.2))
            server.kill()
            kills += 1
            done.wait(rng.uniform(0.0, 0.05))
            server.start()
        outcomes = sum((future.result() for future in futures), Counter[str]())
        until(lambda: not node.intents() or call(node, "DEL", "nobody", "").ok, "what is owed is paid")
    assert "found 0 problems" in ipam_check(node)
    assert not node.leftovers()
    assert all(pod.link("eth0") is None for pod in pods)
    return outcomes, kills


def proper(reply: Reply, what: str) -> str:
    if reply.ok:
        return "ok"
    assert reply.document["msg"] and reply.document["code"] != 199, f"{what}: {reply}"
    return "error"


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.slow_on("etcd")
def test_two_hundred_calls_with_the_server_killed_at_random(place: Place, seed: int) -> None:
    outcomes, kills = place.run(storm, place.pods, seed)
    print(f"seed {seed} on {place.node.datastore.type}: {outcomes.total()} calls, {kills} kills: {dict(outcomes)}")
    assert outcomes.total() == 200 and kills >= 5
