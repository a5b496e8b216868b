"""Every fault point of every verb: failed, answer lost, killed. Whatever the runtime then does, nothing is left over.

The points are not listed here: a first run of each verb records those it reaches, and each of them is then hit in turn,
without a server, on both datastores. A call that hangs is a failure too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cni_calico import faults
from tests.conftest import LAB_CACHE, SUMMARY
from tests.e2e.host import Node
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Killed, Namespace

pytestmark = [pytest.mark.netns, pytest.mark.takes(12)]
SLOW_ON_ETCD = pytest.mark.slow_on("etcd")  # there in short: an ADD and then a DEL, a DEL, CHECK, STATUS

DUAL = {"ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"}}
NOTHING_VALID: dict[str, Any] = {"cni.dev/valid-attachments": []}
ACTIONS = ("fail", "kill")
Step = tuple[str, str, int]
HIT: dict[str, set[str]] = {"local": set(), "etcdv3": set()}  # where a process was really killed


@pytest.fixture
def slow(request: pytest.FixtureRequest) -> bool:
    return bool(request.config.getoption("--slow"))


@dataclass
class Runner:
    """Hits the steps of one call in turn and counts what came of it."""

    node: Node
    what: str
    everything: bool = False

    def steps(self, call: Callable[[], object]) -> list[Step]:
        """(point, before or after, how many times so far) of everything a call passes."""
        trace = self.node.root / "trace"
        trace.unlink(missing_ok=True)
        self.node.environ["CALICO_FAULT_TRACE"] = str(trace)
        try:
            call()
        finally:
            del self.node.environ["CALICO_FAULT_TRACE"]
        seen: dict[str, int] = {}
        steps = []
        for line in trace.read_text().split():
            point, when = line.rsplit(":", 1)
            seen[line] = seen.get(line, 0) + 1
            steps.append((point, when, seen[line]))
        return steps

    def own(self, steps: list[Step]) -> list[Step]:
        """On etcd, where calls take their time: the steps in which it differs from the embedded store, unless slow
        tests are wanted.
        """
        if self.node.datastore.type == "local" or self.everything:
            return steps
        return [step for step in steps if step[0].startswith(("etcd.", "file."))]

    def hit(self, steps: list[Step], scenario: Callable[[str, str], str]) -> None:
        """``scenario(container, plan)`` for every step failed and killed; it says how the call ended."""
        plans = [f"{point}:{when}:{nth}:{action}" for point, when, nth in steps for action in ACTIONS]
        outcomes = [scenario(f"c{number:04}", plan) for number, plan in enumerate(plans)]
        ends = zip(plans, outcomes, strict=True)
        HIT[self.node.datastore.type] |= {plan.partition(":")[0] for plan, outcome in ends if outcome == "killed"}
        assert "killed" in outcomes and len(outcomes) == len(steps) * len(ACTIONS)
        counted = {outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))}
        print(f"{self.what} on {self.node.datastore.type}: {len(steps)} steps, {len(plans)} faults: {counted}")
        print("  " + ", ".join(sorted({point for point, _, _ in steps})))


def attempt(node: Node, *arguments: str, **options: Any) -> str:
    """ "ok", "error" (and then a proper CNI error), or "killed"."""
    try:
        reply = node.call(*arguments, **options)
    except Killed as e:
        assert "9" in str(e), f"{arguments} {options}: {e}"
        return "killed"
    if not reply.ok:
        assert reply.document["msg"] and reply.document["code"] != 199, reply
        return "error"
    return "ok"


def require_clean(node: Node, plan: str, *pods: Namespace) -> None:
    left = node.leftovers()
    assert not left, f"{plan}: {left}"
    for pod in pods:
        assert pod.link("eth0") is None, plan


def require_ok(node: Node, plan: str, *arguments: str, **options: Any) -> Any:
    reply = node.call(*arguments, **options)
    assert reply.ok, f"{plan}: {reply}"
    return reply


# -- what a runtime does after an ADD that failed ---------------------------------------------------------------------


def retry(node: Node, pod: Namespace, container: str, plan: str, **conf: Any) -> None:
    """The same ADD again: it ends in one whole attachment."""
    again = require_ok(node, plan, "ADD", container, pod.path, **conf)
    require_ok(node, plan, "CHECK", container, pod.path, prevResult=again.document, **conf)
    assert len(node.taken()) == len(again.document["ips"]), plan
    require_ok(node, plan, "DEL", container, pod.path, **conf)


def delete(node: Node, pod: Namespace, container: str, plan: str, **conf: Any) -> None:
    require_ok(node, plan, "DEL", container, pod.path, **conf)


def collect(node: Node, pod: Namespace, container: str, plan: str, **conf: Any) -> None:
    """The runtime has forgotten the container: a GC does not name it."""
    require_ok(node, plan, "GC", "", "", **conf, **NOTHING_VALID)


@pytest.mark.parametrize(
    "reaction",
    [pytest.param(retry, marks=SLOW_ON_ETCD), delete, pytest.param(collect, marks=SLOW_ON_ETCD)],
)
def test_add(forking_node: Node, pod_ns: Namespace, reaction: Callable[..., None], slow: bool) -> None:
    """A failed ADD leaves nothing; a killed one what the runtime's reaction removes."""
    runner = Runner(forking_node, f"ADD, then {reaction.__name__}", slow)
    steps = runner.steps(lambda: forking_node.call("ADD", "c0", pod_ns.path, **DUAL))
    require_ok(forking_node, "no fault", "DEL", "c0", pod_ns.path, **DUAL)

    def scenario(container: str, plan: str) -> str:
        outcome = attempt(forking_node, "ADD", container, pod_ns.path, fault=plan, **DUAL)
        if outcome == "error":
            require_clean(forking_node, plan, pod_ns)
        reaction(forking_node, pod_ns, container, plan, **DUAL)
        require_clean(forking_node, plan, pod_ns)
        return outcome

    runner.hit(steps if reaction is delete else runner.own(steps), scenario)


@SLOW_ON_ETCD
def test_add_takes_back_what_a_del_owes(forking_node: Node, pod_ns: Namespace, slow: bool) -> None:
    """A DEL could not reach the datastore, the runtime adds the same container again: the intent must never release
    what is alive.
    """
    commit = "local.commit" if forking_node.datastore.type == "local" else "etcd.commit"
    runner = Runner(forking_node, "ADD with an intent", slow)

    def owe(container: str) -> None:
        require_ok(forking_node, "no fault", "ADD", container, pod_ns.path)
        require_ok(forking_node, "no fault", "DEL", container, pod_ns.path, fault=f"{commit}:before:1:fail")
        assert forking_node.intents()

    owe("c0")
    steps = runner.steps(lambda: forking_node.call("ADD", "c0", pod_ns.path))
    require_ok(forking_node, "no fault", "DEL", "c0", pod_ns.path)

    def scenario(container: str, plan: str) -> str:
        owe(container)
        outcome = attempt(forking_node, "ADD", container, pod_ns.path, fault=plan)
        if outcome == "ok":
            assert not forking_node.intents(), plan
        retry(forking_node, pod_ns, container, plan)
        require_clean(forking_node, plan, pod_ns)
        return outcome

    quick = [step for step in steps if step[0].startswith("file.") or step[1] == "after"]
    runner.hit(steps if slow else runner.own(quick), scenario)


# -- the other verbs --------------------------------------------------------------------------------------------------


def test_del(forking_node: Node, pod_ns: Namespace) -> None:
    """A DEL that failed or was killed is finished by repeating it."""
    runner = Runner(forking_node, "DEL")
    require_ok(forking_node, "no fault", "ADD", "c0", pod_ns.path, **DUAL)
    steps = runner.steps(lambda: forking_node.call("DEL", "c0", pod_ns.path, **DUAL))

    def scenario(container: str, plan: str) -> str:
        require_ok(forking_node, plan, "ADD", container, pod_ns.path, **DUAL)
        outcome = attempt(forking_node, "DEL", container, pod_ns.path, fault=plan, **DUAL)
        if outcome == "ok":
            assert pod_ns.link("eth0") is None, plan
        require_ok(forking_node, plan, "DEL", container, "", **DUAL)
        require_clean(forking_node, plan, pod_ns)
        return outcome

    runner.hit(steps, scenario)


def test_del_without_a_datastore(forking_node: Node, pod_ns: Namespace) -> None:
    """What is owed is recorded, or the DEL fails; repeated with the datastore back nothing is left, of it either."""
    runner = Runner(forking_node, "DEL without a datastore")
    dead = "local.read:before:1:fail" if forking_node.datastore.type == "local" else "etcd.read:before:1:fail"
    require_ok(forking_node, "no fault", "ADD", "c0", pod_ns.path)
    steps = runner.steps(lambda: forking_node.call("DEL", "c0", pod_ns.path, fault=dead))
    assert forking_node.intents()
    require_ok(forking_node, "no fault", "DEL", "c0", "")

    def scenario(container: str, plan: str) -> str:
        require_ok(forking_node, plan, "ADD", container, pod_ns.path)
        outcome = attempt(forking_node, "DEL", container, pod_ns.path, fault=f"{dead},{plan}")
        if outcome == "ok":
            assert forking_node.intents() and pod_ns.link("eth0") is None, plan
        require_ok(forking_node, plan, "DEL", container, "")
        require_clean(forking_node, plan, pod_ns)
        return outcome

    runner.hit([step for step in steps if not step[0].endswith(".read")], scenario)


@SLOW_ON_ETCD
def test_an_add_that_pays_what_a_del_owes(
    forking_node: Node, pod_ns: Namespace, make_pod_ns: MakeNamespace, slow: bool
) -> None:
    """The datastore is back: the next ADD releases what an earlier DEL recorded, or a later call does."""
    commit = "local.commit" if forking_node.datastore.type == "local" else "etcd.commit"
    runner, other = Runner(forking_node, "replay", slow), make_pod_ns("other")

    def owe(container: str) -> None:
        require_ok(forking_node, "no fault", "ADD", container, pod_ns.path)
        require_ok(forking_node, "no fault", "DEL", container, pod_ns.path, fault=f"{commit}:before:1:fail")

    plain = runner.steps(lambda: forking_node.call("ADD", "c0", other.path))
    require_ok(forking_node, "no fault", "DEL", "c0", other.path)
    owe("c1")
    steps = runner.steps(lambda: forking_node.call("ADD", "c0", other.path))
    assert not forking_node.intents() and len(steps) > len(plain)
    require_ok(forking_node, "no fault", "DEL", "c0", other.path)

    def scenario(container: str, plan: str) -> str:
        owe(container)
        outcome = attempt(forking_node, "ADD", f"{container}x", other.path, fault=plan)
        require_ok(forking_node, plan, "DEL", f"{container}x", other.path)
        require_ok(forking_node, plan, "ADD", f"{container}y", other.path)  # pays, had the first one not got that far
        require_ok(forking_node, plan, "DEL", f"{container}y", other.path)
        require_clean(forking_node, plan, pod_ns, other)
        return outcome

    runner.hit(runner.own(steps[len(plain) :]), scenario)


def test_check_changes_nothing(forking_node: Node, pod_ns: Namespace) -> None:
    runner = Runner(forking_node, "CHECK")
    added = require_ok(forking_node, "no fault", "ADD", "c0", pod_ns.path, **DUAL)
    check = ("CHECK", "c0", pod_ns.path)
    steps = runner.steps(lambda: forking_node.call(*check, prevResult=added.document, **DUAL))
    before = forking_node.dump()

    def scenario(container: str, plan: str) -> str:
        outcome = attempt(forking_node, *check, prevResult=added.document, fault=plan, **DUAL)
        require_ok(forking_node, plan, *check, prevResult=added.document, **DUAL)
        assert forking_node.dump() == before, plan
        return outcome

    runner.hit(steps, scenario)


def test_status_changes_nothing(forking_node: Node) -> None:
    runner = Runner(forking_node, "STATUS")
    before = forking_node.dump()
    steps = runner.steps(lambda: forking_node.call("STATUS", "", "", **DUAL))
    synced = forking_node.root / "run" / "cni-synced"
    assert synced.exists()

    def scenario(container: str, plan: str) -> str:
        if synced.exists():
            synced.rmdir()
        outcome = attempt(forking_node, "STATUS", "", "", fault=plan, **DUAL)
        require_ok(forking_node, plan, "STATUS", "", "", **DUAL)
        assert forking_node.dump() == before, plan
        require_clean(forking_node, plan)
        return outcome

    runner.hit(steps, scenario)


@SLOW_ON_ETCD
def test_gc(forking_node: Node, pod_ns: Namespace, make_pod_ns: MakeNamespace) -> None:
    """One endpoint to collect and one address without; a valid attachment comes through whole."""
    runner, lost = Runner(forking_node, "GC"), make_pod_ns("lost")
    added = require_ok(forking_node, "no fault", "ADD", "keep", pod_ns.path)
    valid = {"cni.dev/valid-attachments": [{"containerID": "keep", "ifname": "eth0"}]}

    def lose(container: str) -> None:
        require_ok(forking_node, "no fault", "ADD", container, lost.path)
        require_ok(forking_node, "no fault", "ADD", f"{container}half", lost.path, plugin="calico-ipam")

    lose("c0")
    steps = runner.steps(lambda: forking_node.call("GC", "", "", **valid))

    def scenario(container: str, plan: str) -> str:
        lose(container)
        outcome = attempt(forking_node, "GC", "", "", fault=plan, **valid)
        require_ok(forking_node, plan, "GC", "", "", **valid)
        if forking_node.intents():  # a GC that lost its datastore in between owes, as a DEL does
            require_ok(forking_node, plan, "ADD", "payer", lost.path)
            require_ok(forking_node, plan, "DEL", "payer", lost.path)
        assert set(forking_node.taken().values()) == {"calnet.keep"} and len(forking_node.endpoints()) == 1, plan
        assert lost.link("eth0") is None and not forking_node.intents(), plan
        return outcome

    runner.hit(steps, scenario)
    require_ok(forking_node, "afterwards", "CHECK", "keep", pod_ns.path, prevResult=added.document)


@pytest.mark.parametrize("reaction", ["DEL", "GC"])
def test_the_ipam_plugin_alone(forking_node: Node, reaction: str) -> None:
    runner, plugin = Runner(forking_node, f"calico-ipam ADD, then {reaction}"), {"plugin": "calico-ipam", **DUAL}
    netns = forking_node.host.path
    steps = runner.steps(lambda: forking_node.call("ADD", "c0", netns, **plugin))
    require_ok(forking_node, "no fault", "DEL", "c0", netns, **plugin)

    def scenario(container: str, plan: str) -> str:
        outcome = attempt(forking_node, "ADD", container, netns, fault=plan, **plugin)
        if outcome == "error":
            require_clean(forking_node, plan)
        extra = {} if reaction == "DEL" else NOTHING_VALID
        require_ok(forking_node, plan, reaction, container if reaction == "DEL" else "", "", **plugin, **extra)
        require_clean(forking_node, plan)
        return outcome

    runner.hit(steps, scenario)


@pytest.mark.cnitool
def test_a_delegated_ipam(forking_node: Node, pod_ns: Namespace, tmp_path: Path) -> None:
    """The other plugin's lease is given back, whatever of ours fails."""
    runner = Runner(forking_node, "ADD with host-local")
    forking_node.environ["CNI_PATH"] = str(LAB_CACHE / "cni" / "bin")
    forking_node.overrides["ipam"] = {
        "type": "host-local",
        "ranges": [[{"subnet": "10.88.0.0/24"}]],
        "dataDir": str(tmp_path / "leases"),
    }

    def leases() -> list[str]:
        return [path.name for path in (tmp_path / "leases" / "calnet").iterdir() if path.name[0].isdigit()]

    steps = runner.steps(lambda: forking_node.call("ADD", "c0", pod_ns.path))
    require_ok(forking_node, "no fault", "DEL", "c0", "")
    assert not leases()

    def scenario(container: str, plan: str) -> str:
        outcome = attempt(forking_node, "ADD", container, pod_ns.path, fault=plan)
        if outcome == "error":
            require_clean(forking_node, plan, pod_ns)
            if not plan.startswith("process.start"):  # the undo needs the other plugin as well
                assert not leases(), plan
        require_ok(forking_node, plan, "DEL", container, pod_ns.path)
        require_clean(forking_node, plan, pod_ns)
        assert not leases(), plan
        return outcome

    wanted = ("process.", "netlink.link", "local.", "etcd.")
    runner.hit([step for step in steps if step[0].startswith(wanted)], scenario)


# -- and that was all of them -----------------------------------------------------------------------------------------


def test_every_point_that_a_one_shot_call_can_reach_is_hit(
    forking_node: Node, pod_ns: Namespace, record_property: Callable[[str, object], None]
) -> None:
    """A point that no verb passes would be one that no test covers. What the tests above have not hit is hit here, a
    repeated ADD with another address and a route of somebody else among it; without them, everything.
    """
    assert forking_node.forks is not None
    runner = Runner(forking_node, "the rest")
    dead = "local.read:before:1:fail" if forking_node.datastore.type == "local" else "etcd.read:before:1:fail"
    path, overrides = pod_ns.path, dict(forking_node.overrides)
    forking_node.environ["CNI_PATH"] = "/bin"

    def add(container: str, plan: str = "", **options: Any) -> str:
        return attempt(forking_node, "ADD", container, path, fault=plan, **options)

    def with_delegate(container: str, plan: str) -> str:
        return attempt(forking_node, "STATUS", "", "", fault=plan, ipam={"type": "true"})

    def without_datastore(container: str, plan: str) -> str:
        return attempt(forking_node, "DEL", container, path, fault=",".join(filter(None, (dead, plan))))

    def delete_again(container: str, plan: str) -> str:
        return attempt(forking_node, "DEL", container, path, fault=plan)

    def owe(container: str) -> None:
        add(container)
        without_datastore(container, "")

    def beside_a_route(container: str, plan: str) -> str:
        forking_node.host.do("route", "replace", "10.65.9.10", "dev", "uplink", "proto", "80")
        return add(container, plan, args="IP=10.65.9.10")

    # what is there before the call that is hit, and the call
    calls: tuple[tuple[Callable[[str], object], Callable[[str, str], str]], ...] = (
        (lambda container: None, add),
        (add, without_datastore),
        (owe, delete_again),
        (lambda container: None, with_delegate),
        (add, lambda container, plan: add(container, plan, args="IP=10.65.9.9")),
        (lambda container: None, beside_a_route),
        (add, lambda container, plan: attempt(forking_node, "GC", "", "", fault=plan, **NOTHING_VALID)),
    )
    for number, (before, call) in enumerate(calls):

        def scenario(container: str, plan: str, before: Any = before, call: Any = call) -> str:
            before(container)
            outcome = call(container, plan)
            require_ok(forking_node, plan, "DEL", container, path)
            forking_node.host.run("ip", "route", "del", "10.65.9.10", check=False)
            require_clean(forking_node, plan, pod_ns)
            return outcome

        before(f"first{number}")
        steps = runner.steps(partial(call, f"first{number}", ""))
        require_ok(forking_node, "no fault", "DEL", f"first{number}", path)
        forking_node.host.run("ip", "route", "del", "10.65.9.10", check=False)
        first: dict[str, Step] = {}
        for step in steps:
            if step[0] not in HIT[forking_node.datastore.type]:
                first.setdefault(step[0], step)
        if first:
            runner.hit(list(first.values()), scenario)
    assert forking_node.overrides == overrides
    declared = forking_node.forks.call(declared_points, forking_node.datastore.type)
    missing = declared - HIT[forking_node.datastore.type]
    text = f"{len(declared)} declared, {len(declared - missing)} hit: {', '.join(sorted(declared))}"
    record_property(SUMMARY, f"fault points of one-shot calls on {forking_node.datastore.type}: {text}")
    assert len(declared) > 12 and not missing


def declared_points(datastore: str) -> set[str]:
    """Everything that the modules of the one-shot path declare, less the other datastores' points."""
    own = "local." if datastore == "local" else "etcd."
    others = tuple(prefix for prefix in ("local.", "etcd.", "kubernetes.") if prefix != own)
    return {point for point in faults.POINTS if not point.startswith(others)}
