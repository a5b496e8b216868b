"""What one tenant writes does not delay another's policies: the engine takes turns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cni_calico.nodeagent.policing.tables.parts import PART_RULES
from tests.deadlines import until
from tests.netns.policing.lab import Lab
from tests.netns.policing.tenants import endpoint, large_policy, small_policy, terms_policy, two_pods, unrelated

pytestmark = [
    pytest.mark.netns,
    pytest.mark.unrecorded("the naive evaluator would read all tenants' rules for each packet"),
]
TENANTS, RULES = 8, 3000
HEAD, PARTS = "pi-np/t0/large", RULES * 8 // PART_RULES


def test_another_namespaces_policy_does_not_wait_for_large_ones(tmp_path: Path) -> None:
    with two_pods(tmp_path) as made:
        made.write([endpoint(number) for number in range(TENANTS)])
        made.start(FELIX_IPV6SUPPORT="false")
        made.until_in_force(endpoints=2 + TENANTS)
        assert made.passes("a", "b", 80)
        made.write([large_policy(number, RULES) for number in range(TENANTS)])
        unrelated(made, deny=True)
        made.until_passes("a", "b", 80, False)
        assert made.standing()["counts"]["policies"] < 1 + TENANTS  # most of the others are not
        said = made.until_in_force(policies=1 + TENANTS)
        assert not said["problems"] and not said["failing"]
        assert made.ruleset().count("ip saddr 10.0.0.1 ") == TENANTS


def test_the_newest_of_many_versions_is_in_force(tmp_path: Path) -> None:
    with two_pods(tmp_path) as made:
        made.write([endpoint(number) for number in range(2)])
        made.start(FELIX_IPV6SUPPORT="false")
        made.until_in_force(endpoints=4)
        for version in range(4):
            made.write([large_policy(number, RULES, version) for number in range(2)])
        made.until_in_force(policies=3)
        unrelated(made, deny=True)
        made.until_passes("a", "b", 80, False)
        made.until_in_force(policies=3)
        made.stop()
        made.start(FELIX_IPV6SUPPORT="false")  # a start takes everything before anything is in force
        made.until_in_force(policies=3)
        assert made.ruleset().count("ip saddr 10.3.0.1 ") == 2 and "ip saddr 10.2.0.1 " not in made.ruleset()


def test_between_the_parts_of_a_large_policy_others_are_served(tmp_path: Path) -> None:
    """Its rules come in several transactions. Until all of them are there nothing leads to any."""
    with two_pods(tmp_path) as made:
        made.write([endpoint(0)])
        made.start(FELIX_IPV6SUPPORT="false")
        made.until_in_force(endpoints=3)
        made.write([large_policy(0, RULES * 8)])
        until(lambda: names_there(made)[0], "the first part of the large policy")
        unrelated(made, deny=True)
        made.until_passes("a", "b", 80, False)
        there, is_in_force = names_there(made)
        assert there and not is_in_force
        made.until_in_force(policies=2)
        first, led_to = parts_of(made)
        assert len(first) == PARTS and first == led_to
        made.write([large_policy(0, RULES * 8, version=1)])
        until(lambda: names_there(made)[0] > first, "parts of both versions")
        while first:  # one of both versions is in force, and it is whole
            there, led_to = parts_of(made)
            assert len(led_to) == PARTS and led_to <= there
            first = first & there


def test_one_of_many_policies_rewrites_neither_the_others_nor_their_order(tmp_path: Path) -> None:
    """Hundreds that govern one endpoint are asked in groups: all but one of these stay as they are."""
    with two_pods(tmp_path) as made:
        made.write([endpoint(0)])
        made.start(FELIX_IPV6SUPPORT="false")
        made.until_in_force(endpoints=3)
        for numbers in (range(300), range(300, 600)):
            made.write([small_policy(0, number) for number in numbers])
        made.until_in_force(policies=1 + 600)
        first = groups_of(made)
        assert len(first) >= 4 and asked_in(first) == {f"small-{number}" for number in range(600)}
        made.write([small_policy(0, 600)])
        made.until_in_force(policies=1 + 601)
        second = groups_of(made)
        assert asked_in(second) == {f"small-{number}" for number in range(601)}
        assert 0 < len(second - first) <= 2 and len(first - second) <= 2
        made.remove("NetworkPolicy", "small-7", "t0")
        made.until_in_force(policies=600 + 1)
        assert asked_in(groups_of(made)) == {f"small-{number}" for number in range(601)} - {"small-7"}
        unrelated(made, deny=True)
        made.until_passes("a", "b", 80, False)


def test_another_namespaces_policy_does_not_wait_for_long_selectors(tmp_path: Path) -> None:
    with two_pods(tmp_path) as made:
        made.write([endpoint(number) for number in range(TENANTS)])
        made.start(FELIX_IPV6SUPPORT="false")
        made.until_in_force(endpoints=2 + TENANTS)
        made.write([terms_policy(number, 10_000, number) for number in range(TENANTS)])
        unrelated(made, deny=True)
        made.until_passes("a", "b", 80, False)
        assert made.standing()["counts"]["policies"] < 1 + TENANTS
        said = made.until_in_force(policies=1 + TENANTS)
        assert not said["problems"] and said["counts"]["sets"] == 1 + TENANTS  # the nodes, too


def groups_of(made: Lab) -> set[tuple[str, str]]:
    """The groups that a chain leads to, and their rules."""
    listed = made.ruleset()
    led_to = set(re.findall(r"jump (to//[0-9a-f]+)", listed))
    return {found for found in re.findall(r"chain (to//[0-9a-f]+) \{(.*?)\}", listed, re.DOTALL) if found[0] in led_to}


def asked_in(groups: set[tuple[str, str]]) -> set[str]:
    return {name for _, rules in groups for name in re.findall(r"jump pi-np/t0/([a-z0-9-]+)", rules)}


def names_there(made: Lab) -> tuple[set[str], bool]:
    """The policy's parts, and whether its chain is there. A listing of their rules would be repeated until nothing
    changes any more.
    """
    listed = made.host.run("nft", "list", "chains", "ip").stdout
    return set(re.findall(rf"chain ({HEAD}//[0-9a-f]+) ", listed)), f"chain {HEAD} " in listed


def parts_of(made: Lab) -> tuple[set[str], set[str]]:
    """Those that are there, and those that the policy's chain leads to."""
    listed = made.ruleset()
    return set(re.findall(rf"chain ({HEAD}//[0-9a-f]+) ", listed)), set(
        re.findall(rf"jump ({HEAD}//[0-9a-f]+)", listed)
    )
