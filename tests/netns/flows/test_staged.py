"""What staged policies would do to real packets: said of each, counted, and never done."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cni_calico.ctl.main import run
from cni_calico.daemon.stopping import Stopping
from cni_calico.daemon.supervisor import own_command
from cni_calico.datastore.local.store import LocalStore
from cni_calico.flows.host_parameters import HostParameters
from cni_calico.log import Log
from cni_calico.nodeagent.context.recording import WantedRecording
from cni_calico.nodeagent.policing.report.in_force import RulesListener
from cni_calico.nodeagent.recording.keeper import RecorderKeeper
from cni_calico.nodeagent.recording.rules import RulesTeller
from cni_calico.nodeagent.recording.staged import StagedRules
from cni_calico.nodeagent.recording.staging import StagedFollower
from cni_calico.nodeagent.status.flow_metrics import collect_flows
from tests.conftest import ROOT
from tests.deadlines import until
from tests.netns.flows.test_judging import Judged, policy
from tests.netns.policing.lab import NODE, lab

pytestmark = [pytest.mark.netns]
NAME = "StagedGlobalNetworkPolicy p"


def beside(
    root: Path, hosts: HostParameters | None = None
) -> Callable[[Callable[[], None], threading.Event], RulesListener]:
    """What follows staged policies, and the recorder's keeper, in the engine's process, as in the agent."""
    (root / "run").mkdir(exist_ok=True)

    def start(wake: Callable[[], None], stopping: Stopping) -> RulesListener:
        log = Log("debug", str(root / "recorder.log"), stderr=False)
        staged = StagedRules(NODE, log, wake)
        rules = RulesTeller(wake, staged=staged)
        follower = StagedFollower(LocalStore(str(root / "store.db")), staged, stored=False)
        environ = {**os.environ, "CALICO_RUN_DIR": str(root / "run"), "CALICO_STATE_DIR": str(root / "state")}

        def start_thread(work: Callable[[], None]) -> None:
            threading.Thread(target=work, daemon=True).start()

        keeper = RecorderKeeper(
            NODE, str(root / "run"), log, own_command(), environ, start_thread, stopping, rules=rules, staged=follower
        )
        keeper.use(WantedRecording("Enabled"), (), hosts=hosts)
        return rules

    return start


@pytest.fixture
def staging(tmp_path: Path) -> Iterator[Judged]:
    with lab(tmp_path) as made:
        made.put_profile("kns.default")
        made.add("a", "10.77.0.1", "fd00:77::1", app="a")
        made.add("b", "10.77.0.2", "fd00:77::2", app="b")
        made.put("GlobalNetworkPolicy", "p", policy(80))
        made.beside = beside(tmp_path)
        made.start(FELIX_FLOWS="Enabled")
        made.until_in_force(policies=1, endpoints=2)
        one = Judged(made, tmp_path)
        one.until("the recorder knows the rules", lambda said: said.get("judges", False))
        yield one


def documented(begin: str, end: str) -> str:
    """What docs/flows.md shows there, in the names and numbers that it has here, in one line."""
    text = (ROOT / "docs" / "flows.md").read_text()
    found = text[text.index(begin) :].split(end, 1)[0]
    names = {"shop/database": "p", "shop/close-db": "close-db", "kns.shop": "kns.default"}
    for there, here in {**names, "StagedNetworkPolicy": NAME.split()[0]}.items():
        found = found.replace(there, here)
    return " ".join(re.sub(r"\b(7|1204) (x )?", lambda one: "" if one[2] else "1 ", found).split())


def says_what_is_documented(
    seen: Judged, capsys: pytest.CaptureFixture[str], said: str, verdict: str, port: str = "80"
) -> None:
    asked = ["--staged", "changed", "--aggregate", "--since", "1h", *(("--port", port) if port else ())]
    assert run(["flows", *asked], {"CALICO_RUN_DIR": str(seen.root / "run")}) == 0
    shown = capsys.readouterr()
    (line,) = (one for one in shown.out.splitlines() if f" {verdict} " in one)
    at_destination = line.split("ingress: ", 1)[1]  # both sides are of this node here
    assert f"ingress: {at_destination}" in said and shown.err.splitlines()[0] in said


def flows(seen: Judged, capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert run(["flows", "-o", "jsonl", *words], {"CALICO_RUN_DIR": str(seen.root / "run")}) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_what_would_be_is_said_and_is_not(staging: Judged, capsys: pytest.CaptureFixture[str]) -> None:
    lab, seen = staging.lab, staging
    lab.put("StagedGlobalNetworkPolicy", "p", {**policy(81), "stagedAction": "Set"})
    seen.until("the recorder knows the staged policy", lambda said: said.get("staged_policies") == 1)
    assert lab.passes("a", "b", 80, sport=3001) and not lab.passes("a", "b", 81, sport=3002)  # what is enforced stays
    expected = {"allow": 1, "deny": 1, "changed": 2}
    seen.until("both are counted", lambda said: said["staged"].get(NAME) == expected)
    found = {one["destination"]["port"]: one for one in flows(seen, capsys, "--staged", "changed", "--since", "1h")}
    assert {port: (one["verdict"], one["staged"]["verdict"]) for port, one in found.items()} == {
        80: ("allowed", "denied"),
        81: ("denied", "allowed"),
    }
    assert found[81]["staged"]["decided"][-1]["said"] == "ingress: staged p rule 0"
    assert [one["destination"]["port"] for one in flows(seen, capsys, "--verdict", "AUDIT", "--since", "1h")] == [80]
    said = documented("calicoctl apply -f close-db.yaml", "What would be if a policy were not there")
    said = said.replace("close-db", "p").replace("profile kns.default rule 0", "p rule 0")  # it takes that one's place
    says_what_is_documented(seen, capsys, said, "allowed", port="80")
    samples = {
        tuple(sample.labels.values()): sample.value
        for family in collect_flows(str(seen.root / "run"))
        for sample in family.samples
        if sample.name == "calico_flows_staged_total"
    }
    assert samples == {(NAME, result): float(count) for result, count in expected.items()}
    # what would be without the policy: the profile decides
    lab.put("StagedGlobalNetworkPolicy", "p", {"stagedAction": "Delete"})

    def is_deleted() -> bool:
        (one,) = flows(seen, capsys, "--port", "81", "--staged", "--since", "1h")
        return one["staged"]["decided"][-1]["said"] == "ingress: profile kns.default rule 0"

    until(is_deleted, "removing the policy would let the profile decide", pause_s=0.1)
    says_what_is_documented(seen, capsys, documented("# open-db.yaml", "`--staged` shows it"), "DENIED", port="")
    lab.remove("StagedGlobalNetworkPolicy", "p")
    seen.until("nothing is staged", lambda said: not said.get("staged_policies"))
    assert all("staged" not in one for one in flows(seen, capsys, "--staged", "--since", "1h"))


def test_what_a_change_would_have_done_to_what_the_recorder_has(
    staging: Judged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """replay and recommend ask the recorder that runs."""
    lab = staging.lab
    assert lab.passes("a", "b", 80, sport=3001) and not lab.passes("a", "b", 81, sport=3002)
    staging.until("both sides are recorded", lambda said: (said["allowed"], said["denied"]) >= (1, 1))
    document = {"apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkPolicy", "metadata": {"name": "p"}}
    (tmp_path / "new.yaml").write_text(json.dumps({**document, "spec": policy(81)}))
    store = {"DATASTORE_TYPE": "local", "DATASTORE_PATH": str(tmp_path / "store.db")}
    environ = {**store, "CALICO_RUN_DIR": str(tmp_path / "run")}
    asked = ["--since", "1h", "--host", "-o", "json"]
    assert run(["policy", "replay", "--with", str(tmp_path / "new.yaml"), "--any", *asked], environ) == 1
    found = {one["traffic"]: one for one in json.loads(capsys.readouterr().out)["changes"]}
    assert found["udp/80"]["after"].startswith("DENIED") and found["udp/81"]["after"].startswith("allowed")
    assert {one["connections"] for one in found.values()} == {1}
    expected = str(tmp_path / "expected.yaml")
    assert run(["flows", "--host", "--since", "1h", "--expectations", expected], environ) == 0
    assert run(["policy", "test", expected], environ) == 0
    assert run(["policy", "test", expected, "--with", str(tmp_path / "new.yaml")], environ) == 1
    capsys.readouterr()
    assert run(["policy", "recommend", *asked], environ) == 0
    (made,) = (one for one in json.loads(capsys.readouterr().out)["policies"] if "'b'" in one["spec"]["selector"])
    (rule,) = made["spec"]["ingress"]
    assert (rule["source"], rule["destination"], rule["protocol"]) == (
        {"selector": "app == 'a'"},
        {"ports": [80]},
        "UDP",
    )
