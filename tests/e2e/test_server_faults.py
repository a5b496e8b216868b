"""Every fault point that a served call passes, failed and killed: whatever the runtime then does, nothing is left over.

The points are not listed here: a first run of each verb records those it reaches (the server's own threads pass some
as well), and each of them is then hit in turn.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from cni_calico.ipam.consistency import Records, check_records
from cni_calico.model.codec import decode
from cni_calico.model.keys import AffinityKey, BlockKey, HandleKey, ResourceKey, parse_path
from tests.e2e.calls import Node, Reply
from tests.e2e.served import ForkedServer, call
from tests.netns.namespaces import Namespace, until

pytestmark = pytest.mark.netns
DUAL = {"ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"}}


@pytest.fixture
def server(plain_node: Node):
    with ForkedServer(plain_node) as made:
        yield made


def steps_of(server: ForkedServer, serve: Callable[[], Reply]) -> list[tuple[str, str, int]]:
    """(point, before or after, how many times so far) of everything the server passes during a call."""
    trace = server.node.root / "trace"
    trace.touch()
    server.arm("", str(trace))
    assert serve().ok
    server.arm("")
    seen: Counter[str] = Counter()
    steps = []
    for line in trace.read_text().split():
        seen[line] += 1
        point, when = line.rsplit(":", 1)
        steps.append((point, when, seen[line]))
    trace.unlink()
    return steps


def each_fault(server: ForkedServer, steps: list[tuple[str, str, int]]):
    """(plan, a container's name of its own), with a server that lives and is unarmed after each."""
    for number, (point, when, nth) in enumerate(steps):
        for action in ("fail", "kill"):
            yield f"{point}:{when}:{nth}:{action}", f"c{number:03}{action}"
            if server.alive():
                server.arm("")
            else:
                server.start()


def require_clean(node: Node, pod: Namespace, plan: str) -> None:
    left = node.leftovers()
    assert not left, f"{plan}: {left}"
    assert pod.link("eth0") is None, plan


def warm(server: ForkedServer, pod: Namespace) -> None:
    """The first calls of a server open and list, and claim the node's blocks."""
    for _ in range(2):
        assert call(server.node, "ADD", "warm", pod.path, **DUAL).ok
        assert call(server.node, "DEL", "warm", pod.path, **DUAL).ok


def proper(reply: Reply, plan: str) -> str:
    if reply.ok:
        return "ok"
    assert reply.document["msg"] and reply.document["code"] != 199, f"{plan}: {reply}"
    return "error"


def test_add(server: ForkedServer, pod_ns: Namespace) -> None:
    node = server.node
    warm(server, pod_ns)
    steps = steps_of(server, lambda: call(node, "ADD", "c0", pod_ns.path, **DUAL))
    assert call(node, "DEL", "c0", pod_ns.path, **DUAL).ok
    outcomes: Counter[str] = Counter()
    for plan, container in each_fault(server, steps):
        server.arm(plan)
        outcome = proper(call(node, "ADD", container, pod_ns.path, **DUAL), plan)
        if outcome == "error":
            require_clean(node, pod_ns, plan)
        outcomes[outcome if server.alive() else "killed, " + outcome] += 1
        again = call(node, "ADD", container, pod_ns.path, **DUAL)  # a runtime may also repeat the ADD
        assert again.ok, f"{plan}: {again}"
        checked = call(node, "CHECK", container, pod_ns.path, prevResult=again.document, **DUAL)
        assert checked.ok, f"{plan}: {checked}"
        assert len(node.taken()) == 2, plan
        assert call(node, "DEL", container, pod_ns.path, **DUAL).ok, plan
        require_clean(node, pod_ns, plan)
    report("ADD", steps, outcomes)


def test_del(server: ForkedServer, pod_ns: Namespace) -> None:
    node = server.node
    warm(server, pod_ns)
    assert call(node, "ADD", "c0", pod_ns.path, **DUAL).ok
    steps = steps_of(server, lambda: call(node, "DEL", "c0", pod_ns.path, **DUAL))
    outcomes: Counter[str] = Counter()
    for plan, container in each_fault(server, steps):
        assert call(node, "ADD", container, pod_ns.path, **DUAL).ok, plan
        server.arm(plan)
        outcome = proper(call(node, "DEL", container, pod_ns.path, **DUAL), plan)
        if outcome == "ok":
            assert pod_ns.link("eth0") is None, plan
        outcomes[outcome if server.alive() else "killed, " + outcome] += 1
        if server.alive():
            server.arm("")
        assert call(node, "DEL", container, "", **DUAL).ok, plan
        require_clean(node, pod_ns, plan)
    report("DEL", steps, outcomes)


def report(verb: str, steps: list[tuple[str, str, int]], outcomes: Counter[str]) -> None:
    print(f"{verb}: {len(steps)} steps, {sum(outcomes.values())} faults: {dict(outcomes)}")
    assert sum(count for outcome, count in outcomes.items() if outcome.startswith("killed")) > len(steps) // 2


# -- killed and restarted under fire ----------------------------------------------------------------------------------


def check_store(node: Node) -> list[str]:
    """What ``calicoctl ipam check`` would find."""
    found: dict[str, dict] = {"blocks": {}, "handles": {}, "affinities": {}}
    others: dict[str, list] = {"endpoints": [], "pools": []}
    for path, document in node.dump().items():
        key = parse_path(path)
        record = decode(key, document) if key is not None else None
        if isinstance(key, BlockKey):
            found["blocks"][key.cidr] = record
        elif isinstance(key, HandleKey):
            found["handles"][key.handle_id] = record
        elif isinstance(key, AffinityKey):
            found["affinities"][key] = record
        elif isinstance(key, ResourceKey) and key.kind == "WorkloadEndpoint":
            others["endpoints"].append(record)
        elif isinstance(key, ResourceKey) and key.kind == "IPPool":
            others["pools"].append(record)
    report = check_records(Records(**found, **others))
    return [f"{item.problem}: {item.text}" for item in report.findings if item.problem != "affinity of an unknown node"]


@pytest.mark.parametrize("seed", [1, 2])
def test_two_hundred_calls_with_the_server_killed_at_random(server: ForkedServer, make_pod_ns, seed: int) -> None:
    node, rng = server.node, random.Random(seed)
    pods = [make_pod_ns() for _ in range(10)]
    held: dict[str, set[str]] = {}
    guard, done = threading.Lock(), threading.Event()
    kills = 0

    def work(number: int) -> Counter[str]:
        pod, outcomes = pods[number], Counter()
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

    with ThreadPoolExecutor(10) as pool:
        futures = [pool.submit(work, number) for number in range(10)]
        while not all(future.done() for future in futures):
            done.wait(rng.uniform(0.02, 0.2))
            server.kill()
            kills += 1
            done.wait(rng.uniform(0.0, 0.05))
            server.start()
        outcomes = sum((future.result() for future in futures), Counter())
    print(f"{sum(outcomes.values())} calls, {kills} kills: {dict(outcomes)}")
    assert sum(outcomes.values()) == 200 and kills >= 5
    until(lambda: not node.intents() or call(node, "DEL", "nobody", "").ok, "what is owed is paid")
    assert check_store(node) == []
    assert not node.leftovers()
    assert all(pod.link("eth0") is None for pod in pods)
