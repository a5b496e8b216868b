"""The engine on legacy iptables and IP sets: because NFTablesMode says so."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deadlines import until
from tests.netns.policing.lab import ALLOW_80, DENY_B, Lab, lab

pytestmark = pytest.mark.netns

LEGACY = {"FELIX_NFTABLESMODE": "Disabled"}


@pytest.fixture
def legacy_lab(tmp_path: Path) -> Iterator[Lab]:
    """Two workloads that may talk, and no policy."""
    with lab(tmp_path) as made:
        made.put("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})
        made.put_profile("kns.default")
        made.add("a", "10.65.0.1", "fd00::1", app="a")
        made.add("b", "10.65.0.2", "fd00::2", app="b")
        yield made


def saved(of: Lab) -> str:
    """Everything of ours in the kernel, without counters."""
    programs = ("iptables-legacy-save", "ip6tables-legacy-save")
    text = "".join(of.host.run(program).stdout for program in programs) + of.host.run("ipset", "save").stdout
    lines = (re.sub(r"\[\d+:\d+\]|hashsize \d+|initval \S+", "", line) for line in text.splitlines())
    return "\n".join(sorted(line for line in lines if "cali" in line))


def test_a_policy_takes_effect_and_a_restart_changes_nothing(legacy_lab: Lab) -> None:
    legacy_lab.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    legacy_lab.start(**LEGACY)
    said = legacy_lab.until_in_force(policies=1)
    assert said["by"] == "iptables" and said["sentence"].endswith("(by legacy iptables and IP sets)")
    assert any("enforced with legacy iptables" in text for text in said["warnings"])
    lacking = [text for text in said["problems"] if "proxy ARP" in text and "not in force" in text]
    assert lacking and set(lacking) < set(said["notes"])  # it is no policy
    assert (
        legacy_lab.passes("a", "b", 80)
        and legacy_lab.passes("a", "b", 8010)
        and legacy_lab.passes("a", "b", 80, version=6)
    )
    assert (
        not legacy_lab.passes("a", "b", 81)
        and not legacy_lab.passes("a", "b", 8011, version=6)
        and legacy_lab.passes("b", "a", 81)
    )
    legacy_lab.put("GlobalNetworkPolicy", "deny", {**DENY_B, "order": 1})
    legacy_lab.until_passes("a", "b", 80, False)
    legacy_lab.until_in_force(policies=2)
    before = saved(legacy_lab)
    assert "cali40p-" in before and "cali-p-FORWARD" in before
    legacy_lab.stop(signal.SIGKILL)
    assert not legacy_lab.passes("a", "b", 80)  # what is in force stays
    legacy_lab.start(**LEGACY)
    legacy_lab.until_in_force(policies=2)
    assert saved(legacy_lab) == before
    legacy_lab.remove("GlobalNetworkPolicy", "deny")
    legacy_lab.until_passes("a", "b", 80)
    legacy_lab.remove("GlobalNetworkPolicy", "allow")  # the last one: only standing rules stay
    until(lambda: "workloads" not in saved(legacy_lab), "the policies' rules and sets are gone")
    assert "cali-p-spoofing" in saved(legacy_lab)


@pytest.mark.parametrize(
    "command",
    [
        "iptables-legacy -F FORWARD",
        "iptables-legacy -I FORWARD -j ACCEPT",
        "iptables-legacy -F cali-p-to-workloads",
        "iptables-legacy -F",
    ],
)
def test_tampering_is_repaired(legacy_lab: Lab, command: str) -> None:
    legacy_lab.put("GlobalNetworkPolicy", "deny", DENY_B)
    legacy_lab.start(**LEGACY)
    legacy_lab.until_in_force(policies=1)
    legacy_lab.host.run(*command.split())
    until(lambda: "repaired the policies' tables" in legacy_lab.log(), "it is repaired")
    assert not legacy_lab.passes("a", "b", 80)
    rules = [
        line
        for line in legacy_lab.host.run("iptables-legacy-save").stdout.splitlines()
        if line.startswith("-A FORWARD")
    ]
    assert rules[0].endswith("-j cali-p-FORWARD")


@pytest.mark.parametrize("fault", ["", "legacy.apply:before:1:fail"])
def test_from_nftables_and_back(legacy_lab: Lab, fault: str) -> None:
    """What the other packet filter had goes once this one's rules are in force, also if it cannot at the first try."""
    legacy_lab.put("GlobalNetworkPolicy", "deny", DENY_B)
    legacy_lab.start()
    legacy_lab.until_in_force(policies=1)
    assert "calico-policy" in legacy_lab.ruleset()
    legacy_lab.stop()
    legacy_lab.start(**LEGACY)
    legacy_lab.until_in_force(policies=1)
    until(lambda: "calico-policy" not in legacy_lab.ruleset(), "the tables of nf_tables are gone")
    assert not legacy_lab.passes("a", "b", 80)
    legacy_lab.stop()
    legacy_lab.start(CALICO_FAULT=fault)
    legacy_lab.until_in_force(policies=1)
    until(lambda: saved(legacy_lab) == "", "our rules of iptables are gone")
    assert not legacy_lab.passes("a", "b", 80)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", ["legacy.sets", "legacy.apply"])
def test_a_step_that_fails_is_taken_again(legacy_lab: Lab, point: str, when: str) -> None:
    """Whether or not the kernel did it."""
    legacy_lab.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    legacy_lab.start(**LEGACY, CALICO_FAULT=f"{point}:{when}:1:fail")
    legacy_lab.until_in_force(policies=1)
    assert f"injected fault at {point} ({when})" in legacy_lab.log()
    assert legacy_lab.passes("a", "b", 80) and not legacy_lab.passes("a", "b", 81)


def test_what_cannot_be_expressed_is_found_beside_what_can(legacy_lab: Lab) -> None:
    """In one change with a policy whose sets are new: "+" stands for the rest of a name."""
    legacy_lab.put_endpoint(legacy_lab.connect("c", "cali+", "10.65.0.3", "fd00::3"), app="c")
    legacy_lab.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    legacy_lab.start(**LEGACY)
    said = legacy_lab.until_in_force(policies=1)
    assert any(text.startswith("the endpoint at cali+ is denied everything") for text in said["problems"])
    assert legacy_lab.passes("a", "b", 80) and not legacy_lab.passes("a", "b", 81)
    assert not legacy_lab.passes("a", "c", 80) and not legacy_lab.passes("a", "c", 80, version=6)
    assert legacy_lab.passes("b", "a", 80)
