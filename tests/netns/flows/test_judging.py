"""Packets that the kernel has decided about, judged again by the recorder while policies change."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cni_calico.ctl.main import run
from cni_calico.daemon.stopping import Stopping
from cni_calico.daemon.supervisor import own_command
from cni_calico.deadline import Deadline
from cni_calico.directories import FLOW_SOCKET
from cni_calico.errors import CalicoError
from cni_calico.flows.client import ask
from cni_calico.flows.deciders import ALLOWED_GROUP, DENIED_GROUP
from cni_calico.flows.groups import groups_of
from cni_calico.flows.query import FlowQuery
from cni_calico.kernel.netlink.decisions import DecisionReports
from cni_calico.log import Log
from cni_calico.nodeagent.context.recording import WantedRecording
from cni_calico.nodeagent.policing.report.in_force import RulesListener
from cni_calico.nodeagent.recording.keeper import RecorderKeeper
from cni_calico.nodeagent.recording.rules import RulesTeller
from tests.deadlines import until
from tests.netns.policing.lab import NODE, Lab, lab
from tests.netns.wire import entered

pytestmark = [pytest.mark.netns]


def beside(root: Path) -> Callable[[Callable[[], None], threading.Event], RulesListener]:
    """The recorder's keeper in the engine's process, as in the agent."""

    def start(wake: Callable[[], None], stopping: Stopping) -> RulesListener:
        rules = RulesTeller(wake)
        log = Log("debug", str(root / "recorder.log"), stderr=False)
        with open(root / "said", "wb") as said:
            os.dup2(said.fileno(), 2)  # where children of this process write
        environ = {**os.environ, "CALICO_RUN_DIR": str(root / "run"), "CALICO_STATE_DIR": str(root / "state")}

        def start_thread(work: Callable[[], None]) -> None:
            threading.Thread(target=work, daemon=True).start()

        keeper = RecorderKeeper(
            NODE, str(root / "run"), log, own_command(), environ, start_thread, stopping, rules=rules
        )
        keeper.use(WantedRecording("Enabled"), ())
        return rules

    return start


class Judged:
    def __init__(self, lab: Lab, root: Path) -> None:
        self.lab, self.root, self.count = lab, root, 0

    def says(self) -> dict[str, Any]:
        try:
            return next(ask(str(self.root / "run" / FLOW_SOCKET), FlowQuery(status=True), Deadline.after(10)), {})
        except CalicoError:
            return {}

    def until(self, what: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def reached() -> bool:
            found.update(self.says())
            return bool(found) and condition(found)

        try:
            until(reached, what)
        except AssertionError as e:
            raise AssertionError(f"{e}: {found}\n{(self.root / 'recorder.log').read_text()[-2000:]}") from None
        return found

    def send(self, *ports: int) -> None:
        for port in ports:
            for version in (4, 6):
                self.count += 1
                self.lab.passes("a", "b", port, version=version, sport=2000 + self.count)

    @property
    def said(self) -> str:
        return (self.root / "said").read_text()

    @property
    def log(self) -> str:
        return (self.root / "recorder.log").read_text()


@pytest.fixture
def seen(tmp_path: Path) -> Iterator[Judged]:
    with lab(tmp_path) as made:
        made.put_profile("kns.default")
        made.add("a", "10.77.0.1", "fd00:77::1", app="a")
        made.add("b", "10.77.0.2", "fd00:77::2", app="b")
        made.beside = beside(tmp_path)
        made.put("GlobalNetworkPolicy", "p", policy(80))
        made.start(FELIX_FLOWS="Enabled")
        made.until_in_force(policies=1, endpoints=2)
        one = Judged(made, tmp_path)
        one.until("the recorder knows the rules", lambda said: said.get("judges", False))
        yield one


def policy(port: int, **spec: Any) -> dict[str, Any]:
    allow = {
        "action": "Allow",
        "protocol": "UDP",
        "destination": {"ports": [port]},
        "source": {"selector": "app == 'a'"},
    }
    return {"selector": "app == 'b'", "types": ["Ingress"], "ingress": [allow], **spec}


def test_what_the_kernel_decides_is_what_the_rules_say(seen: Judged) -> None:
    """Policies, tiers, sets and profiles change under the packets; and the recorder is killed and begun anew."""
    lab, random = seen.lab, Random(3)
    lab.put("Tier", "first", {"order": 1})
    for turn in range(12):
        port = random.choice((80, 81, 82))
        rules = policy(port)["ingress"]
        passing = {"action": "Pass", "protocol": "UDP", "destination": {"ports": ["80:81"]}}
        lab.put("GlobalNetworkPolicy", "p", policy(port, order=random.random()))
        if turn % 3 == 0:
            lab.put("GlobalNetworkPolicy", "first.q", policy(0, tier="first", ingress=[passing, *rules]))
        elif turn % 3 == 1:
            lab.remove("GlobalNetworkPolicy", "first.q")
        lab.put_endpoint(lab.workloads["a"], app=random.choice(("a", "c")))
        seen.send(80, 81, 82)
    sent = 2 * seen.count  # reports: on the way out, and on the way in
    said = seen.until("all are judged", lambda said: said["agreed"] + said["unjudged"] + said["disagreed"] >= sent)
    assert said["disagreed"] == 0 and said["agreed"] > sent // 2, said
    pid = int(seen.log.rpartition("(process ")[2].split(")")[0])
    os.kill(pid, signal.SIGKILL)
    said = seen.until("another one knows the rules", lambda said: said.get("judges", False) and not said["agreed"])
    seen.send(80, 81, 82)
    said = seen.until("they are judged", lambda said: said["agreed"] + said["unjudged"] >= 12)
    assert (said["agreed"], said["disagreed"]) == (12, 0), said


def test_what_passed_on_before_is_shown(seen: Judged, capsys: pytest.CaptureFixture[str]) -> None:
    lab = seen.lab
    lab.put("Tier", "first", {"order": 1})
    passing = {"action": "Pass", "protocol": "UDP", "destination": {"ports": ["80:81"]}}
    lab.put("GlobalNetworkPolicy", "first.q", policy(0, tier="first", ingress=[passing]))
    lab.until_in_force(policies=2, endpoints=2)
    environ = {"CALICO_RUN_DIR": str(seen.root / "run")}

    def shown() -> str:
        seen.send(80, 81)
        assert run(["flows", "--verdict", "denied", "--last", "1", "-v"], environ) == 0
        found = capsys.readouterr().out
        return found if "passes on" in found else ""

    lines = until(shown, "it is shown", pause_s=0.1).splitlines()
    assert lines[1].endswith("ingress: end of tier default (policies: p)") and "DENIED" in lines[1]
    assert lines[2] == "  egress: profile kns.default rule 0"
    assert lines[3] == "  first.q rule 0 passes on, ingress: end of tier default (policies: p)"
    assert run(["flows", "--verdict", "allowed", "--last", "1", "-o", "jsonl"], environ) == 0
    out, into = json.loads(capsys.readouterr().out)["decided"]
    assert out["passed"] == [] and [step["said"] for step in into["passed"]] == ["first.q rule 0 passes on"]


def test_a_report_that_the_rules_do_not_explain_is_found(seen: Judged) -> None:
    """Here it is another table that reports, under the number of a rule of ours."""
    lab = seen.lab
    seen.send(80)
    seen.until("they are judged", lambda said: said["agreed"] >= 4)
    lines = map(json.loads, (seen.root / "state" / "flows" / "numbers").read_text().splitlines())
    (number,) = (one["number"] for one in lines if one["name"] == "p" and one["index"] == 0)
    rule = f'add rule ip other f udp dport 83 log prefix "{number:08x}" group 61790 snaplen 64'
    lab.host.run("nft", f"add table ip other; add chain ip other f {{ type filter hook forward priority -9; }}; {rule}")

    def is_found() -> bool:
        seen.send(83)  # until the rules are old enough
        return bool(seen.says().get("disagreed"))

    until(is_found, "it differs", pause_s=0.2)
    assert lab.passes("a", "b", 80) and not lab.passes("a", "b", 83)
    until(lambda: "ingress: p rule 0 (Allow), and not the end of tier default" in seen.said, "the log says so")


def test_rules_report_to_where_nobody_else_listens(tmp_path: Path) -> None:
    with ExitStack() as stack:
        made = stack.enter_context(lab(tmp_path))
        with entered(made.host):
            other = stack.enter_context(DecisionReports(DENIED_GROUP, 1 << 16, Deadline.after(10)))
        made.put_profile("kns.default")
        made.add("a", "10.77.0.1", "fd00:77::1", app="a")
        made.add("b", "10.77.0.2", "fd00:77::2", app="b")
        made.beside = beside(tmp_path)
        made.put("GlobalNetworkPolicy", "p", policy(80))
        made.start(FELIX_FLOWS="Enabled")
        made.until_in_force(policies=1, endpoints=2)
        seen = Judged(made, tmp_path)
        said = seen.until("the recorder knows the rules", lambda said: said.get("judges", False))
        assert said["groups"] == list(groups_of(1))

        def follow() -> bool:
            rules = made.ruleset()
            return f"group {ALLOWED_GROUP + 3}" in rules and f"group {DENIED_GROUP}" not in rules

        until(follow, "the rules report to where the recorder listens")
        other.take(1000)  # what came before
        seen.send(80, 81)
        seen.until("both are recorded", lambda said: (said["allowed"], said["denied"]) == (2, 2))
        assert other.take(1000) == []
        assert f"another program listens to groups {ALLOWED_GROUP} and {DENIED_GROUP}, or one of them" in seen.log
