"""The engine on legacy iptables and IP sets: because NFTablesMode says so."""

from __future__ import annotations

import re
import signal

import pytest

from tests.deadlines import until
from tests.netns.policing.lab import ALLOW_80, DENY_B, Lab, saved_by

pytestmark = pytest.mark.netns

LEGACY = {"FELIX_NFTABLESMODE": "Disabled"}


def saved(of: Lab) -> str:
    """Everything of ours in the kernel, without counters."""
    programs = ("iptables-legacy-save", "ip6tables-legacy-save")
    text = "".join(saved_by(of.host, program) for program in programs) + of.host.run("ipset", "save").stdout
    lines = (re.sub(r"\[\d+:\d+\]|hashsize \d+|initval \S+", "", line) for line in text.splitlines())
    return "\n".join(sorted(line for line in lines if "cali" in line))


def test_a_policy_takes_effect_and_a_restart_changes_nothing(two_workloads: Lab) -> None:
    two_workloads.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    two_workloads.start(**LEGACY)
    said = two_workloads.until_in_force(policies=1)
    assert said["by"] == "iptables" and said["sentence"].endswith("(by legacy iptables and IP sets)")
    assert any("enforced with legacy iptables" in text for text in said["warnings"])
    lacking = [text for text in said["problems"] if "proxy ARP" in text and "not in force" in text]
    assert lacking and set(lacking) < set(said["notes"])  # it is no policy
    assert (
        two_workloads.passes("a", "b", 80)
        and two_workloads.passes("a", "b", 8010)
        and two_workloads.passes("a", "b", 80, version=6)
    )
    assert (
        not two_workloads.passes("a", "b", 81)
        and not two_workloads.passes("a", "b", 8011, version=6)
        and two_workloads.passes("b", "a", 81)
    )
    two_workloads.put("GlobalNetworkPolicy", "deny", {**DENY_B, "order": 1})
    two_workloads.until_passes("a", "b", 80, False)
    two_workloads.until_in_force(policies=2)
    before = saved(two_workloads)
    assert "cali40p-" in before and "cali-p-FORWARD" in before
    two_workloads.stop(signal.SIGKILL)
    assert not two_workloads.passes("a", "b", 80)  # what is in force stays
    two_workloads.start(**LEGACY)
    two_workloads.until_in_force(policies=2)
    assert saved(two_workloads) == before
    two_workloads.remove("GlobalNetworkPolicy", "deny")
    two_workloads.until_passes("a", "b", 80)
    two_workloads.remove("GlobalNetworkPolicy", "allow")  # the last one: only standing rules stay
    until(lambda: "workloads" not in saved(two_workloads), "the policies' rules and sets are gone")
    assert "cali-p-spoofing" in saved(two_workloads)


@pytest.mark.parametrize(
    "command",
    [
        "iptables-legacy -F FORWARD",
        "iptables-legacy -I FORWARD -j ACCEPT",
        "iptables-legacy -F cali-p-to-workloads",
        "iptables-legacy -F",
    ],
)
def test_tampering_is_repaired(two_workloads: Lab, command: str) -> None:
    two_workloads.put("GlobalNetworkPolicy", "deny", DENY_B)
    two_workloads.start(**LEGACY)
    two_workloads.until_in_force(policies=1)
    two_workloads.host.run(*command.split())
    until(lambda: "repaired the policies' tables" in two_workloads.log(), "it is repaired")
    assert not two_workloads.passes("a", "b", 80)
    rules = [
        line
        for line in two_workloads.host.run("iptables-legacy-save").stdout.splitlines()
        if line.startswith("-A FORWARD")
    ]
    assert rules[0].endswith("-j cali-p-FORWARD")


@pytest.mark.parametrize("fault", ["", "legacy.apply:before:1:fail"])
def test_from_nftables_and_back(two_workloads: Lab, fault: str) -> None:
    """What the other packet filter had goes once this one's rules are in force, also if it cannot at the first try."""
    two_workloads.put("GlobalNetworkPolicy", "deny", DENY_B)
    two_workloads.start()
    two_workloads.until_in_force(policies=1)
    assert "calico-policy" in two_workloads.ruleset()
    two_workloads.stop()
    two_workloads.start(**LEGACY)
    two_workloads.until_in_force(policies=1)
    until(lambda: "calico-policy" not in two_workloads.ruleset(), "the tables of nf_tables are gone")
    assert not two_workloads.passes("a", "b", 80)
    two_workloads.stop()
    two_workloads.start(CALICO_FAULT=fault)
    two_workloads.until_in_force(policies=1)
    until(lambda: saved(two_workloads) == "", "our rules of iptables are gone")
    assert not two_workloads.passes("a", "b", 80)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", ["legacy.sets", "legacy.apply"])
def test_a_step_that_fails_is_taken_again(two_workloads: Lab, point: str, when: str) -> None:
    """Whether or not the kernel did it."""
    two_workloads.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    two_workloads.start(**LEGACY, CALICO_FAULT=f"{point}:{when}:1:fail")
    two_workloads.until_in_force(policies=1)
    assert f"injected fault at {point} ({when})" in two_workloads.log()
    assert two_workloads.passes("a", "b", 80) and not two_workloads.passes("a", "b", 81)


@pytest.mark.unrecorded("an interface that is refused is dropped by a map, which reports nothing (docs/flows.md)")
def test_what_cannot_be_expressed_is_found_beside_what_can(two_workloads: Lab) -> None:
    """In one change with a policy whose sets are new: "+" stands for the rest of a name."""
    two_workloads.put_endpoint(two_workloads.connect("c", "cali+", "10.65.0.3", "fd00::3"), app="c")
    two_workloads.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    two_workloads.start(**LEGACY)
    said = two_workloads.until_in_force(policies=1)
    assert any(text.startswith("the endpoint at cali+ is denied everything") for text in said["problems"])
    assert two_workloads.passes("a", "b", 80) and not two_workloads.passes("a", "b", 81)
    assert not two_workloads.passes("a", "c", 80) and not two_workloads.passes("a", "c", 80, version=6)
    assert two_workloads.passes("b", "a", 80)
