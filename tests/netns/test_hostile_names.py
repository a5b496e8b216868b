"""Whatever records are called and say: nothing breaks out of the packet filter's objects, comments and log prefixes.

What the kernel holds is listed by nft, loaded into another namespace and listed again: a text that ended its quotes or
its name would make something else of it. And the JSON listing has the very comments and prefixes that were meant.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cni_calico.deadline import Deadline
from cni_calico.kernel.filter.nf_tables.filter import NfTables
from cni_calico.log import SILENT
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Resource, WorkloadEndpoint
from cni_calico.netfilter.rules import LogPacket
from cni_calico.netfilter.tables import NftTable, TableId
from cni_calico.nodeagent.policing.enforce.enforcer import Enforcer
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.policy.graph import Graph
from tests.netns.namespaces import Namespace, namespace
from tests.unit.nodeagent.policing.tables.worlds import goal_of

pytestmark = pytest.mark.netns

NASTY = [
    '"; flush ruleset; "',
    "}\n}\ntable ip x {\n",
    "../../etc/passwd",
    "a\0b",
    "%2F..%2f",
    "$var @set #comment \\",
    "\ud800\udcff",
    "\u202etxt\x1b[31m\r\n",
    "x" * 400,
    "é" * 90,
    "*",
    "-",
    "drop",
    "'; echo $(id)'",
    "%t %k %n %p %s %n%n",
]
TEXT = st.one_of(st.sampled_from(NASTY), st.text(max_size=300), st.text(st.characters(categories=None), max_size=40))
NAME = TEXT.filter(bool)


@st.composite
def records(draw: Any) -> list[tuple[ResourceKey, Resource | WorkloadEndpoint]]:
    """One workload, and policies of all kinds that apply to it."""
    found: list[tuple[ResourceKey, Resource | WorkloadEndpoint]] = []

    def resource(kind: str, name: str, spec: dict[str, Any], namespace: str = "", **labels: str) -> None:
        found.append(
            (ResourceKey(kind, name, namespace), Resource(kind, Metadata(name, namespace, labels=labels), spec))
        )

    tier, home, profile, value = draw(NAME), draw(NAME), draw(NAME), draw(TEXT)
    resource("Tier", tier, {"order": 1, "defaultAction": draw(st.sampled_from(["Pass", "Deny"]))})
    rule = {
        "action": draw(st.sampled_from(["Allow", "Deny", "Pass", "Log"])),
        "protocol": "TCP",
        "source": {"selector": f"has({draw(st.sampled_from(['a', 'b']))})"},
        "destination": {"ports": [80, "web"]},
        "metadata": {"annotations": draw(st.dictionaries(TEXT, TEXT, max_size=3))},
    }
    log = {"action": "Log", "metadata": {"annotations": {draw(TEXT): draw(TEXT)}}}
    spec = {"tier": tier, "types": ["Ingress", "Egress"], "ingress": [log, rule], "egress": [rule]}
    resource("GlobalNetworkPolicy", draw(NAME), spec)
    resource("NetworkPolicy", draw(NAME), spec, home)
    resource("KubernetesNetworkPolicy", draw(NAME), spec, home)
    resource("Profile", profile, {"ingress": [log, rule], "egress": [], "labelsToApply": {draw(TEXT): draw(TEXT)}})
    resource("GlobalNetworkSet", draw(NAME), {"nets": ["10.0.0.0/8", "192.0.2.1/32"]}, a=value)
    key = ResourceKey("WorkloadEndpoint", draw(NAME), home)
    metadata = Metadata(key.name, home, labels={"b": draw(TEXT)})
    texts = {name: draw(TEXT) for name in ("pod", "workload", "mac", "container_id", "service_account")}
    found.append(
        (
            key,
            WorkloadEndpoint(
                metadata,
                draw(NAME),
                "n1",
                draw(NAME),
                draw(st.sampled_from(["cali0", "cali}", "cali;x", "cali$(id)", "cali#", "cali'x"])),
                ip_networks=(ip_network("10.65.0.1/32"),),
                profiles=(profile,),
                **texts,
            ),
        )
    )
    return found


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Namespace, Namespace]]:
    with namespace("names") as first, namespace("again") as second:
        yield first, second


def _enforce(settings_: FilterSettings, given_: list[tuple[ResourceKey, Any]]) -> dict[TableId, NftTable]:
    graph = Graph(lambda endpoint: endpoint.node == "n1")
    for key, record in given_:
        graph.put(key, record)
    graph.flush()
    assert not graph.problems
    goal = goal_of(graph.wanted(), settings_)
    with NfTables() as kernel:
        enforcer = Enforcer(kernel, goal, SILENT)
        enforcer.bring_about(Deadline.after(10))
        assert not goal.problems and not goal.lacking, (goal.problems, goal.lacking)
        enforcer.doubt()
        assert enforcer.bring_about(Deadline.after(10)) == 0  # what is read back is what was wanted
        return enforcer.held


def _nft(ns: Namespace, *arguments: str, given_: str = "") -> str:
    command = ["nsenter", f"--net={ns.path}", "nft", *arguments]
    done = subprocess.run(command, input=given_, text=True, capture_output=True, timeout=60)
    assert done.returncode == 0, f"{done.stderr}\n{given_}"
    return done.stdout


@given(records(), TEXT)
@settings(
    max_examples=25,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_nothing_breaks_out(
    both: tuple[Namespace, Namespace], given_: list[tuple[ResourceKey, Any]], prefix: str
) -> None:
    first, second = both
    for ns in both:
        _nft(ns, "flush", "ruleset")
    held = first.call(_enforce, FilterSettings(log_prefix=prefix), given_)
    chains = held[TableId("ip", "calico-policy")].chains
    assert any(name.startswith("pi-gnp/") for name in chains) and any(name.startswith("po-knp/") for name in chains)
    text = _nft(first, "list", "ruleset")
    _nft(second, "-f", "-", given_=text)
    assert _nft(second, "list", "ruleset") == text
    listed: list[dict[str, Any]] = json.loads(_nft(first, "-j", "list", "ruleset"))["nftables"]
    tables = {TableId(item["table"]["family"], item["table"]["name"]) for item in listed if "table" in item}
    assert tables == set(held)
    for table, content in held.items():
        its = [item for item in listed if next(iter(item.values())).get("table") == table.name]
        its = [item for item in its if next(iter(item.values()))["family"] == table.family]
        assert {item["chain"]["name"] for item in its if "chain" in item} == set(content.chains)
        rules = [rule for chain in content.chains.values() for rule in chain.rules]
        comments = sorted(item["rule"]["comment"] for item in its if "comment" in item.get("rule", ()))
        assert comments == sorted(rule.comment for rule in rules if rule.comment)
        expressions = [e for item in its if "rule" in item for e in item["rule"]["expr"]]
        prefixes = sorted(e["log"]["prefix"] for e in expressions if "log" in e)
        assert prefixes == sorted(e.prefix for rule in rules for e in rule.actions if isinstance(e, LogPacket))
