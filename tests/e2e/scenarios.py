"""What a runtime asks of the server, what it does after whatever came of it, and what must be so in the end.

Rule: a scenario runs in a process that has used no gRPC (etcd's), on a Lab of that process; ``hit`` makes every step of
its call fail and kill the server in turn. The steps are not listed here: a first call records those it passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import LAB_CACHE
from tests.e2e.host import Node, Reply
from tests.e2e.served import ForkedServer, Step, call
from tests.netns.namespaces import Namespace

DUAL = {"ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"}}
ALONE = {"plugin": "calico-ipam", **DUAL}
KEEP = {"cni.dev/valid-attachments": [{"containerID": "keep", "ifname": "eth0"}]}
NOTHING = {"cni.dev/valid-attachments": []}
ACTIONS = ("fail", "kill")


@dataclass
class Lab:
    """A node with a server, and two pods."""

    node: Node
    pod: Namespace
    other: Namespace
    server: ForkedServer
    plan: str = "no fault"
    by_python: bool = False  # calls in forks of this process, not by the executable

    @property
    def commit(self) -> str:
        return "local.commit" if self.node.datastore.type == "local" else "etcd.commit"

    def call(self, command: str, container: str, netns: str = "", **options: Any) -> Reply:
        return call(self.node, command, container, netns, by_python=self.by_python, **options)

    def ok(self, command: str, container: str, netns: str = "", **options: Any) -> Any:
        """The document of a call that must succeed."""
        reply = self.call(command, container, netns, **options)
        assert reply.ok, f"{self.plan}: {command} {container}: {reply}"
        return reply.document

    def clean(self) -> None:
        left = self.node.leftovers()
        assert not left, f"{self.plan}: {left}"
        assert self.pod.link("eth0") is None and self.other.link("eth0") is None, self.plan

    def owe(self, container: str) -> None:
        """An attachment whose DEL could only be recorded."""
        self.ok("ADD", container, self.pod.path)
        self.server.arm(f"{self.commit}:before:1:fail")
        self.ok("DEL", container, self.pod.path)
        self.server.arm("")
        assert self.node.intents(), self.plan


@contextmanager
def lab(node: Node, pod: Namespace, other: Namespace) -> Iterator[Lab]:
    """With a server that has opened and listed everything, and claimed the node's blocks."""
    with ForkedServer(node) as server:
        made = Lab(node, pod, other, server)
        for _ in range(2):
            made.ok("ADD", "warm", pod.path, **DUAL)
            made.ok("DEL", "warm", pod.path, **DUAL)
        yield made


# -- scenarios --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scenario:
    """``call(lab, container, given)`` is hit, with what ``before(lab, container)`` gave; ``after(lab, container, given,
    outcome)`` is the runtime's reaction and looks at what is left. ``also`` names a fault that comes in any case.
    """

    name: str
    call: Callable[[Lab, str, Any], Reply]
    after: Callable[[Lab, str, Any, str], None]
    before: Callable[[Lab, str], Any] = lambda lab, container: None
    setup: Callable[[Lab], Any] = lambda lab: None
    also: Callable[[Lab], str] = lambda lab: ""
    only: tuple[str, ...] = ()  # beginnings of the points to hit; none: all


def _after_add(lab: Lab, container: str, given: Any, outcome: str) -> None:
    """A runtime may repeat the ADD too."""
    if outcome == "error":
        lab.clean()
    again = lab.ok("ADD", container, lab.pod.path, **DUAL)
    lab.ok("CHECK", container, lab.pod.path, prevResult=again, **DUAL)
    assert len(lab.node.taken()) == 2, lab.plan
    _delete(lab, container, given, outcome)


def _delete(lab: Lab, container: str, given: Any, outcome: str) -> None:
    lab.ok("DEL", container, lab.pod.path, **DUAL)
    lab.clean()


def _restart(lab: Lab, container: str) -> None:
    lab.server.kill()
    lab.server.start()


def _new_store(lab: Lab, container: str) -> None:
    if lab.node.datastore.type == "local":
        lab.node.overrides["datastore_path"] = str(lab.node.root / f"new-{container}.db")


def _after_new_store(lab: Lab, container: str, given: Any, outcome: str) -> None:
    lab.ok("DEL", container)
    lab.node.overrides.pop("datastore_path", None)


def _added(lab: Lab, container: str) -> Any:
    return lab.ok("ADD", container, lab.pod.path, **DUAL)


def _after_repeated_add(lab: Lab, container: str, given: Any, outcome: str) -> None:
    """Whatever came of it: the container that lives goes on living."""
    lab.ok("CHECK", container, lab.pod.path, prevResult=given, **DUAL)
    _delete(lab, container, given, outcome)


def _after_del(lab: Lab, container: str, given: Any, outcome: str) -> None:
    if outcome.endswith("ok"):
        assert lab.pod.link("eth0") is None, lab.plan
    lab.ok("DEL", container, "", **DUAL)
    lab.clean()


def _pay(lab: Lab, container: str, given: Any, outcome: str) -> None:
    lab.ok("DEL", f"{container}x", lab.other.path)
    lab.ok("ADD", f"{container}y", lab.other.path)  # pays, had the first one not got that far
    lab.ok("DEL", f"{container}y", lab.other.path)
    lab.clean()


def _checkable(lab: Lab, container: str) -> Any:
    return _added(lab, container), lab.node.dump()


def _after_check(lab: Lab, container: str, given: Any, outcome: str) -> None:
    document, before = given
    assert lab.node.dump() == before, lab.plan
    lab.ok("CHECK", container, lab.pod.path, prevResult=document, **DUAL)
    _delete(lab, container, given, outcome)


def _lose(lab: Lab, container: str) -> None:
    """One endpoint to collect, and one address without."""
    lab.ok("ADD", container, lab.other.path)
    lab.ok("ADD", f"{container}half", lab.other.path, plugin="calico-ipam")


def _after_gc(lab: Lab, container: str, given: Any, outcome: str) -> None:
    lab.ok("GC", "", "", **KEEP)
    if lab.node.intents():  # a GC that lost its datastore in between owes, as a DEL does
        lab.ok("ADD", "payer", lab.other.path)
        lab.ok("DEL", "payer", lab.other.path)
    assert set(lab.node.taken().values()) == {"calnet.keep"} and len(lab.node.endpoints()) == 1, lab.plan
    assert lab.other.link("eth0") is None and not lab.node.intents(), lab.plan


def _stale_route(lab: Lab, container: str) -> None:
    lab.node.host.do("route", "replace", "10.65.9.10", "dev", "uplink", "proto", "80")


def _after_ipam(lab: Lab, container: str, given: Any, outcome: str) -> None:
    if outcome == "error" and given is None:
        lab.clean()
    lab.ok("DEL", container, lab.node.host.path, **ALONE)
    lab.clean()


def _ipam_added(lab: Lab, container: str) -> Any:
    return lab.ok("ADD", container, lab.node.host.path, **ALONE)


def _delegate(lab: Lab) -> None:
    lab.node.environ["CNI_PATH"] = str(LAB_CACHE / "cni" / "bin")
    directory = str(lab.node.root / "leases")
    lab.node.overrides["ipam"] = {
        "type": "host-local",
        "ranges": [[{"subnet": "10.88.0.0/24"}]],
        "dataDir": directory,
    }


def _leases(lab: Lab) -> list[str]:
    return [path.name for path in Path(lab.node.root, "leases", "calnet").glob("[0-9]*")]


def _after_delegated(lab: Lab, container: str, given: Any, outcome: str) -> None:
    if outcome == "error" and given is None:
        lab.clean()
    lab.ok("DEL", container, lab.pod.path)
    lab.clean()
    assert not _leases(lab), lab.plan


SCENARIOS = {
    each.name: each
    for each in (
        Scenario("ADD", lambda lab, c, _: lab.call("ADD", c, lab.pod.path, **DUAL), _after_add),
        Scenario(
            "the first ADD of a server",
            lambda lab, c, _: lab.call("ADD", c, lab.pod.path, **DUAL),
            _after_add,
            _restart,
            only=("local.", "etcd."),
        ),
        Scenario(
            "DEL with a new datastore",
            lambda lab, c, _: lab.call("DEL", c),
            _after_new_store,
            _new_store,
            only=("local.", "etcd."),
        ),
        Scenario("ADD again", lambda lab, c, _: lab.call("ADD", c, lab.pod.path, **DUAL), _after_repeated_add, _added),
        Scenario(
            "ADD with another address",
            lambda lab, c, _: lab.call("ADD", c, lab.pod.path, args="IP=10.65.9.9"),
            _delete,
            _added,
            only=("netlink.addr-del", "netlink.route", "local.commit", "etcd.commit"),
        ),
        Scenario(
            "ADD over a stale route",
            lambda lab, c, _: lab.call("ADD", c, lab.pod.path, args="IP=10.65.9.10"),
            _delete,
            _stale_route,
            only=("netlink.route",),
        ),
        Scenario(
            "ADD that pays for a DEL",
            lambda lab, c, _: lab.call("ADD", f"{c}x", lab.other.path),
            _pay,
            lambda lab, c: lab.owe(c),
            only=("file.", "local.commit", "etcd.commit"),
        ),
        Scenario("DEL", lambda lab, c, _: lab.call("DEL", c, lab.pod.path, **DUAL), _after_del, _added),
        Scenario(
            "DEL without a datastore",
            lambda lab, c, _: lab.call("DEL", c, lab.pod.path, **DUAL),
            _after_del,
            _added,
            also=lambda lab: f"{lab.commit}:before:1:fail",
        ),
        Scenario(
            "CHECK",
            lambda lab, c, given: lab.call("CHECK", c, lab.pod.path, prevResult=given[0], **DUAL),
            _after_check,
            _checkable,
        ),
        Scenario("STATUS", lambda lab, c, _: lab.call("STATUS", ""), lambda lab, c, _, o: lab.ok("STATUS", "")),
        Scenario(
            "GC",
            lambda lab, c, _: lab.call("GC", "", **KEEP),
            _after_gc,
            _lose,
            lambda lab: lab.ok("ADD", "keep", lab.pod.path),
        ),
        Scenario("calico-ipam ADD", lambda lab, c, _: lab.call("ADD", c, lab.node.host.path, **ALONE), _after_ipam),
        Scenario(
            "calico-ipam DEL",
            lambda lab, c, _: lab.call("DEL", c, lab.node.host.path, **ALONE),
            _after_ipam,
            _ipam_added,
        ),
        Scenario(
            "calico-ipam CHECK",
            lambda lab, c, given: lab.call("CHECK", c, lab.node.host.path, prevResult=given, **ALONE),
            _after_ipam,
            _ipam_added,
        ),
        Scenario(
            "calico-ipam GC",
            lambda lab, c, _: lab.call("GC", "", **ALONE, **NOTHING),
            _after_ipam,
            _ipam_added,
        ),
        Scenario(
            "calico-ipam STATUS",
            lambda lab, c, _: lab.call("STATUS", "", **ALONE),
            lambda lab, c, _, o: lab.ok("STATUS", "", **ALONE),
        ),
    )
}
DELEGATED = {
    each.name: each
    for each in (
        Scenario(
            "ADD with host-local",
            lambda lab, c, _: lab.call("ADD", c, lab.pod.path),
            _after_delegated,
            setup=_delegate,
            only=("process.", "netlink.link", "local.", "etcd."),
        ),
        Scenario(
            "DEL with host-local",
            lambda lab, c, _: lab.call("DEL", c, lab.pod.path),
            _after_delegated,
            lambda lab, c: lab.ok("ADD", c, lab.pod.path),
            _delegate,
            only=("process.", "netlink.link", "local.", "etcd."),
        ),
    )
}


# -- every step of one of them ----------------------------------------------------------------------------------------


@dataclass
class Report:
    """What was passed and hit, to be sent back and printed."""

    scenario: str
    steps: list[Step] = field(default_factory=list)
    hit: list[Step] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)

    @property
    def points(self) -> set[str]:
        return {point for point, _, _ in self.steps}

    def __str__(self) -> str:
        points = sorted({point for point, _, _ in self.hit})
        return (
            f"{self.scenario}: {len(self.steps)} steps passed, {sum(self.outcomes.values())} faults at {len(self.hit)} "
            f"of them: {dict(self.outcomes)}\n  {', '.join(points)}"
        )


def trace(lab: Lab, scenario: Scenario) -> Report:
    """What the server passes during the scenario's call, which succeeds."""
    scenario.setup(lab)
    given = scenario.before(lab, "c0")
    steps = lab.server.steps(lambda: scenario.call(lab, "c0", given), scenario.also(lab))
    scenario.after(lab, "c0", given, "ok")
    return Report(scenario.name, steps)


def hit(node: Node, pod: Namespace, other: Namespace, name: str, beginnings: tuple[str, ...], executed: int) -> Report:
    """Fail and kill at every step of a scenario whose point begins so; where there is none, at all of them.

    Every so many steps the calls are ``executed``: what the executable does without an answer is the same whatever the
    server was at, and starting what then serves the call takes longer than all the rest.
    """
    scenario = {**SCENARIOS, **DELEGATED}[name]
    with lab(node, pod, other) as made:
        report = trace(made, scenario)
        wanted = [step for step in report.steps if step[0].startswith(scenario.only or ("",))]
        report.hit = [step for step in wanted if step[0].startswith(beginnings or ("",))] or wanted
        for number, (point, when, nth) in enumerate(report.hit):
            made.by_python = number % executed != 0
            for action in ACTIONS:
                made.plan = f"{point}:{when}:{nth}:{action}"
                report.outcomes[_hit(made, scenario, f"c{number:03}{action}")] += 1
    return report


def _hit(lab: Lab, scenario: Scenario, container: str) -> str:
    given = scenario.before(lab, container)
    lab.server.arm(",".join(filter(None, (scenario.also(lab), lab.plan))))
    reply = scenario.call(lab, container, given)
    outcome = "ok" if reply.ok else "error"
    if not reply.ok:
        assert reply.document["msg"] and reply.document["code"] != 199, f"{lab.plan}: {reply}"
    killed = not lab.server.arm("")
    if killed:
        lab.server.start()
    outcome = f"killed, {outcome}" if killed else outcome
    scenario.after(lab, container, given, outcome)
    return outcome


def trace_all(node: Node, pod: Namespace, other: Namespace) -> set[str]:
    """The points that calls pass in the server."""
    passed: set[str] = set()
    for each in (*SCENARIOS.values(), *DELEGATED.values()):
        with lab(node, pod, other) as made:
            passed |= trace(made, each).points
            if each.name == "GC":
                made.ok("DEL", "keep", pod.path)
        node.overrides.pop("ipam", None)
    return passed
