"""A network that loses 2 % of the packets and delays the rest by 50 ms: no forbidden one arrives, whatever happens."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.deadlines import until
from tests.netns.policing.agents import ROOT, agent
from tests.netns.policing.lab import ALLOW_80, DENY_B, NODE, Lab, traffic

pytestmark = [pytest.mark.netns, pytest.mark.never_excused, pytest.mark.kernel("netem")]

ALLOWED, FORBIDDEN = 80, 81
ROUNDS = 5


@pytest.fixture
def lossy(two_workloads: Lab) -> Lab:
    """What a sends is lost or late before it comes to the host; no engine is started."""
    two_workloads.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    netem = "qdisc add dev eth0 root netem limit 100000 loss 2% delay 50ms"
    two_workloads.workloads["a"].ns.run("tc", *netem.split())
    return two_workloads


@pytest.fixture
def slow_lab(lossy: Lab) -> Lab:
    lossy.start()
    lossy.until_in_force(policies=1)
    return lossy


def test_changes_of_policies(slow_lab: Lab) -> None:
    with traffic(slow_lab, "a", "b", allowed=ALLOWED, forbidden=FORBIDDEN) as counts:
        for i in range(ROUNDS):
            slow_lab.put("GlobalNetworkPolicy", "other", {**DENY_B, "order": 2000 + i})
            slow_lab.until_in_force(policies=2)
            slow_lab.put("GlobalNetworkPolicy", "allow", {**ALLOW_80, "order": 10 + i})
            slow_lab.remove("GlobalNetworkPolicy", "other")
            slow_lab.until_in_force(policies=1)
    assert counts.forbidden_arrived == 0 and 0 < counts.allowed_arrived < counts.sent


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL])
def test_a_takeover(slow_lab: Lab, number: signal.Signals) -> None:
    """Another agent takes over what the one before it left."""
    with traffic(slow_lab, "a", "b", allowed=ALLOWED, forbidden=FORBIDDEN) as counts:
        for _ in range(2):
            slow_lab.stop(number)
            slow_lab.start()
            slow_lab.until_in_force(policies=1)
    assert counts.forbidden_arrived == 0 and 0 < counts.allowed_arrived < counts.sent


@pytest.mark.slow
def test_an_upgrade_from_the_version_before(lossy: Lab, earlier: Path) -> None:
    """By the whole agent of each version."""
    lossy.put("Node", NODE, {"bgp": {"ipv4Address": "192.0.2.1/24"}})
    with ExitStack() as stack:
        end = stack.enter_context(agent(lossy, earlier))
        with traffic(lossy, "a", "b", allowed=ALLOWED, forbidden=FORBIDDEN) as counts:
            until(lambda: counts.sent > 200, "packets beside the version before")
            end()
            stack.enter_context(agent(lossy, ROOT))
            sent = counts.sent
            until(lambda: counts.sent > sent + 200, "packets beside this version")
        assert counts.forbidden_arrived == 0 and 0 < counts.allowed_arrived < counts.sent


@pytest.mark.slow
def test_from_one_packet_filter_to_the_other(slow_lab: Lab) -> None:
    """And back; the one that leaves goes once the other one's rules are in force."""
    with traffic(slow_lab, "a", "b", allowed=ALLOWED, forbidden=FORBIDDEN) as counts:
        for mode, by in (("Disabled", "iptables"), ("Auto", "nftables")):
            slow_lab.stop()
            slow_lab.start(FELIX_NFTABLESMODE=mode)
            until(lambda by=by: slow_lab.until_in_force(policies=1)["by"] == by, f"policies by {by}", 60)
            until(lambda by=by: others_rules(slow_lab, by) == "", "the other one's rules are gone", 60)
    assert counts.forbidden_arrived == 0 and 0 < counts.allowed_arrived < counts.sent


def others_rules(slow_lab: Lab, by: str) -> str:
    """What the packet filter that is not used has of ours."""
    if by == "iptables":
        return "\n".join(
            line for line in slow_lab.host.run("nft", "list", "tables").stdout.splitlines() if "calico" in line
        )
    saved = slow_lab.host.run("iptables-legacy-save").stdout
    return "\n".join(line for line in saved.splitlines() if "cali-p-" in line)
