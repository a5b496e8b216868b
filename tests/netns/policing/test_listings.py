"""What the kernel holds for the records of upstream's vectors, as nft lists it: tests/golden/policy/NN.listing; and
with legacy iptables, as its programs save it: NN.saved.

Written again with: python -m tests.netns.policing.test_listings
"""

from __future__ import annotations

import json
import re
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from cni_calico.deadline import Deadline
from cni_calico.kernel.filter.legacy.filter import LegacyFilter
from cni_calico.kernel.filter.legacy.matches import Marks
from cni_calico.kernel.filter.nf_tables.filter import NfTables
from cni_calico.log import Log
from cni_calico.nodeagent.context.felix import parse_felix
from cni_calico.nodeagent.policing.enforce.enforcer import Enforcer
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.optional import OptionalFeature
from cni_calico.nodeagent.policing.tables.settings import filter_settings
from cni_calico.policy.graph import Graph
from tests.netns.namespaces import namespace
from tests.unit.nodeagent.policing.tables.worlds import goal_of
from tests.unit.policy.cluster import put

pytestmark = pytest.mark.netns

MARKS = Marks(0x40000, 0x80000)
VECTORS = sorted((Path(__file__).resolve().parents[2] / "golden" / "policy").glob("*.input.json"))


INTERFACES = {
    "eth0": frozenset((ip_address("172.31.0.1").packed,)),
    "eth1": frozenset((ip_address("172.30.0.1").packed,)),
}


def _goal(text: str) -> Goal:
    vector: Any = json.loads(text)
    graph = Graph(lambda endpoint: endpoint.node == "n1", lambda host: host.node == "n1")
    for document in vector["resources"]:
        metadata = document["metadata"]
        put(graph, (document["kind"], metadata.get("namespace", ""), metadata["name"]), document)
    graph.flush()
    assert not graph.problems
    goal = goal_of(graph.wanted(), filter_settings(parse_felix(vector["felix"]).settings, ()), INTERFACES)
    assert not goal.problems
    return goal


def _enforce(text: str) -> None:
    goal = _goal(text)
    with NfTables() as kernel:
        enforcer = Enforcer(kernel, goal, Log("none"))
        enforcer.bring_about(Deadline.after(30))
        assert enforcer.held == goal.tables.of
        enforcer.doubt()
        assert enforcer.bring_about(Deadline.after(30)) == 0  # what is read back is what was wanted


def _enforce_legacy(text: str) -> None:
    with LegacyFilter(MARKS, 5) as kernel:
        enforcer = Enforcer(kernel, _goal(text), Log("none"))
        enforcer.bring_about(Deadline.after(30))
        enforcer.doubt()
        assert enforcer.bring_about(Deadline.after(30)) == 0  # what is read back is recognised
        assert set(enforcer.goal.lacking) == {OptionalFeature.ARP_ANSWERS}
        assert not enforcer.goal.problems


def saved(path: Path) -> str:
    """Chains in the order of their names, without tags and counters."""
    with namespace("saved") as ns:
        ns.call(_enforce_legacy, path.read_text())
        rules = {f"{name}tables": ns.run(f"{name}tables-legacy-save").stdout for name in ("ip", "ip6")}
        sets = ns.run("ipset", "save", "-sorted").stdout
    lines = []
    for program, text in rules.items():
        text = re.sub(r"-m comment --comment \"?cali:[0-9a-f]+\"? | \[\d+:\d+\]", "", text)
        for table in sorted(re.findall(r"(?ms)^\*(.*?)^COMMIT$", text)):
            name, *rest = table.splitlines()
            chains = sorted(line for line in rest if line[0] == ":" and "cali" in line)
            lines += [
                f"{program} {name}",
                *chains,
                *sorted((r for r in rest if r[0] == "-"), key=lambda r: r.split()[1]),
            ]
    created = re.sub(r" (hashsize|maxelem|bucketsize|initval) \S+", "", sets)
    return "\n".join([*lines, "ipset", *created.splitlines(), ""])


def listing(path: Path) -> str:
    """Sorted by object, because the kernel lists them in the order in which they were made."""
    with namespace("listing") as ns:
        ns.call(_enforce, path.read_text())
        text = ns.run("nft", "list", "ruleset").stdout
    tables = []
    for table in text.split("\n}\n"):
        if table.strip():
            head, _, rest = table.strip("\n").partition("\n")
            tables.append("\n\n".join([head, *sorted(part.strip("\n") for part in rest.split("\n\n"))]) + "\n}\n")
    return "".join(sorted(tables))


def golden(path: Path, suffix: str = ".listing") -> Path:
    return path.with_name(path.name.replace(".input.json", suffix))


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.name.partition(".")[0])
def test_listing(path: Path) -> None:
    assert listing(path) == golden(path).read_text()


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.name.partition(".")[0])
def test_saved_by_legacy_iptables(path: Path) -> None:
    assert saved(path) == golden(path, ".saved").read_text()


if __name__ == "__main__":
    for vector in VECTORS:
        golden(vector).write_text(listing(vector))
        golden(vector, ".saved").write_text(saved(vector))
