"""Every fault point of every verb: failed, answer lost, killed. Whatever the runtime then does, nothing is left over.

The points are not listed here: a first run of each verb records those it reaches, and each of them is then hit in turn.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cni_calico import faults
from tests.e2e.calls import Node
from tests.netns.namespaces import Killed, Namespace

pytestmark = pytest.mark.netns

DUAL = {"ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"}}
REACHED: set[str] = set()


def reached(node: Node, call: Callable[[], object]) -> list[tuple[str, str, int]]:
    """(point, when, how many times so far) of everything a call passes."""
    trace = node.root / "trace"
    trace.unlink(missing_ok=True)
    node.environ["CALICO_FAULT_TRACE"] = str(trace)
    try:
        call()
    finally:
        del node.environ["CALICO_FAULT_TRACE"]
    seen: dict[str, int] = {}
    steps = []
    for line in trace.read_text().split():
        point, when = line.rsplit(":", 1)
        seen[line] = seen.get(line, 0) + 1
        steps.append((point, when, seen[line]))
        REACHED.add(point)
    return steps


def plans(steps: list[tuple[str, str, int]]) -> list[str]:
    return [f"{point}:{when}:{nth}:{action}" for point, when, nth in steps for action in ("fail", "kill")]


def attempt(node: Node, *arguments: str, **options: object) -> str:
    """ "ok", "error" (and then a proper CNI error), or "killed"."""
    try:
        reply = node.call(*arguments, **options)  # type: ignore[arg-type]
    except Killed:
        return "killed"
    if not reply.ok:
        assert reply.document["msg"] and reply.document["code"] != 199, reply
        return "error"
    return "ok"


def require_clean(node: Node, pod: Namespace, plan: str) -> None:
    left = node.leftovers()
    assert not left, f"{plan}: {left}"
    assert pod.link("eth0") is None, plan


def test_add(node: Node, pod_ns: Namespace) -> None:
    """A failed ADD leaves nothing but, where undoing was impossible too, what one DEL removes."""
    steps = reached(node, lambda: node.call("ADD", "c0", pod_ns.path, **DUAL))
    node.call("DEL", "c0", pod_ns.path, **DUAL)
    require_clean(node, pod_ns, "no fault")
    outcomes = {}
    for number, plan in enumerate(plans(steps)):
        container = f"c{number:03}x"
        outcomes[plan] = attempt(node, "ADD", container, pod_ns.path, fault=plan, **DUAL)
        if outcomes[plan] == "error":
            require_clean(node, pod_ns, plan)
        again = node.call("ADD", container, pod_ns.path, **DUAL)  # a runtime may also repeat the ADD
        assert again.ok, f"{plan}: {again}"
        checked = node.call("CHECK", container, pod_ns.path, prevResult=again.document, **DUAL)
        assert checked.ok, f"{plan}: {checked}"
        assert len(node.taken()) == 2, plan
        assert node.call("DEL", container, pod_ns.path, **DUAL).ok, plan
        require_clean(node, pod_ns, plan)
    report("ADD", steps, outcomes)


def test_add_then_del_at_once(node: Node, pod_ns: Namespace) -> None:
    """What runtimes do most: after a failed ADD one DEL."""
    steps = reached(node, lambda: node.call("ADD", "c0", pod_ns.path, **DUAL))
    node.call("DEL", "c0", pod_ns.path, **DUAL)
    outcomes = {}
    for number, plan in enumerate(plans(steps)):
        container = f"c{number:03}x"
        outcomes[plan] = attempt(node, "ADD", container, pod_ns.path, fault=plan, **DUAL)
        assert node.call("DEL", container, pod_ns.path, **DUAL).ok, plan
        require_clean(node, pod_ns, plan)
    report("ADD, then DEL", steps, outcomes)


def test_del(node: Node, pod_ns: Namespace) -> None:
    """A DEL that failed or was killed is finished by repeating it."""
    node.call("ADD", "c0", pod_ns.path, **DUAL)
    steps = reached(node, lambda: node.call("DEL", "c0", pod_ns.path, **DUAL))
    outcomes = {}
    for number, plan in enumerate(plans(steps)):
        container = f"c{number:03}x"
        assert node.call("ADD", container, pod_ns.path, **DUAL).ok
        outcomes[plan] = attempt(node, "DEL", container, pod_ns.path, fault=plan, **DUAL)
        if outcomes[plan] == "ok":
            assert pod_ns.link("eth0") is None, plan
        assert node.call("DEL", container, "", **DUAL).ok, plan
        require_clean(node, pod_ns, plan)
    report("DEL", steps, outcomes)


def report(verb: str, steps: list[tuple[str, str, int]], outcomes: dict[str, str]) -> None:
    assert outcomes and set(outcomes.values()) >= {"killed", "error"}
    counted = {outcome: list(outcomes.values()).count(outcome) for outcome in sorted(set(outcomes.values()))}
    print(f"{verb}: {len(steps)} steps, {len(outcomes)} faults: {counted}; points {sorted({s[0] for s in steps})}")


def test_every_declared_point_of_a_one_shot_call_was_reached(node: Node, pod_ns: Namespace) -> None:
    """A point that no verb passes would be one that no test covers."""
    import cni_calico.datastore.local
    import cni_calico.kernel.files
    import cni_calico.kernel.lock
    import cni_calico.kernel.sysctl
    import cni_calico.plugin.dataplane  # noqa: F401

    reached(node, lambda: node.call("ADD", "c1", pod_ns.path, **DUAL))
    reached(node, lambda: node.call("DEL", "c1", pod_ns.path, fault="local.commit:before:1:fail", **DUAL))
    reached(node, lambda: node.call("DEL", "c1", pod_ns.path, **DUAL))
    reached(node, lambda: node.call("ADD", "c2", pod_ns.path))
    reached(node, lambda: node.call("ADD", "c2", pod_ns.path, args="IP=10.65.9.9"))
    node.call("DEL", "c2", pod_ns.path)
    declared = {point for point in faults.POINTS if not point.startswith(("etcd.", "kubernetes.", "process."))}
    missing = declared - REACHED
    print(f"fault points: {len(declared)} declared, {len(declared - missing)} covered")
    assert not missing
