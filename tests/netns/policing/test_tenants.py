"""What one tenant writes does not delay another's policies: the engine takes turns."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.netns.policing.tenants import endpoint, large_policy, two_pods, unrelated

pytestmark = pytest.mark.netns
TENANTS, RULES = 8, 3000


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
