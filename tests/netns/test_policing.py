"""The policy engine on a node of its own: what is written takes effect on packets."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.netns.namespaces import until
from tests.netns.policing import Counts, Lab, lab, traffic

pytestmark = pytest.mark.netns

TIER = {"order": 1000000, "defaultAction": "Deny"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Lab]:
    """Two workloads that may talk, and no policy."""
    with lab(tmp_path) as made:
        made.put("Tier", "default", TIER)
        made.put_profile("kns.default", **{"pcns.projectcalico.org/name": "default"})
        made.add("a", "10.65.0.1", "fd00::1", app="a")
        made.add("b", "10.65.0.2", "fd00::2", app="b")
        yield made


DENY_B = {"selector": "app == 'b'", "types": ["Ingress"], "ingress": [{"action": "Deny"}]}
ALLOW_80 = {
    "selector": "app == 'b'",
    "order": 10,
    "types": ["Ingress"],
    "ingress": [
        {
            "action": "Allow",
            "protocol": "UDP",
            "source": {"selector": "app == 'a'"},
            "destination": {"ports": [80, "8000:8010"]},
        }
    ],
}


def test_a_policy_takes_effect(node: Lab) -> None:
    node.start()
    assert node.passes("a", "b", 80)
    node.put("GlobalNetworkPolicy", "deny", DENY_B)
    node.until_passes("a", "b", 80, False)
    assert not node.passes("a", "b", 80, version=6)
    assert node.passes("b", "a", 80)
    node.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    node.until_passes("a", "b", 80)
    assert node.passes("a", "b", 8004) and node.passes("a", "b", 80, version=6)
    assert not node.passes("a", "b", 81)
    node.remove("GlobalNetworkPolicy", "deny")
    node.until_in_force(policies=1)
    assert not node.passes("a", "b", 81)  # the tier's end
    assert node.standing()["problems"] == []


def test_status_files(node: Lab) -> None:
    node.put("GlobalNetworkPolicy", "deny", DENY_B)
    directory = node.root / "endpoint-status"
    directory.mkdir()
    (directory / "k8s default%2Fgone eth0").write_text("{}")
    node.start()
    node.until_in_force(endpoints=2)
    files = {path.name: path.read_text() for path in directory.iterdir()}
    assert files == {
        "k8s default%2Fa eth0": '{"ifaceName":"calia","ipv4Nets":["10.65.0.1/32"],"ipv6Nets":["fd00::1/128"]}',
        "k8s default%2Fb eth0": '{"ifaceName":"calib","ipv4Nets":["10.65.0.2/32"],"ipv6Nets":["fd00::2/128"]}',
    }
    assert (directory / "k8s default%2Fa eth0").stat().st_mode & 0o777 == 0o644
    node.host.do("link", "set", "calia", "down")
    until(lambda: not (directory / "k8s default%2Fa eth0").exists(), "the file of an interface that is down is gone")
    node.host.do("link", "set", "calia", "up")
    until((directory / "k8s default%2Fa eth0").exists, "the file is back")
    node.remove("WorkloadEndpoint", "n1-k8s-b-eth0", "default")
    until(lambda: not (directory / "k8s default%2Fb eth0").exists(), "the file of an endpoint that is gone is gone")


def test_removed_status_files_are_made_again(node: Lab) -> None:
    node.put("GlobalNetworkPolicy", "deny", DENY_B)
    node.start()
    node.until_in_force(endpoints=2)
    directory = node.root / "endpoint-status"
    until(lambda: len(list(directory.glob("k8s*"))) == 2, "the status files of both workloads")
    shutil.rmtree(directory)
    until(lambda: len(list(directory.glob("k8s*"))) == 2, "both files again")
    assert "somebody removed the status of endpoints" in node.log()


def test_tampering_is_repaired(node: Lab) -> None:
    node.put("GlobalNetworkPolicy", "deny", DENY_B)
    node.start()
    node.until_in_force(endpoints=2)
    assert not node.passes("a", "b", 80)
    node.host.run("nft", "flush", "ruleset")
    node.until_passes("a", "b", 80, False)
    until(lambda: node.standing().get("repairs") == 1, "the repair is counted")
    assert "nft had changed them" in node.log()
    node.host.run("nft", "flush", "chain", "ip", "calico-policy", "pi-gnp/deny")
    until(lambda: node.standing().get("repairs") == 2, "the second repair is counted")
    node.host.run("nft", "add", "table", "ip", "others")
    node.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    node.until_passes("a", "b", 80)
    assert node.standing()["repairs"] == 2


def test_a_restart_changes_nothing(node: Lab) -> None:
    node.put("GlobalNetworkPolicy", "deny", DENY_B)
    node.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    node.start()
    node.until_in_force(endpoints=2)
    before = node.host.run("nft", "-a", "list", "ruleset").stdout
    assert node.stop() == 0
    assert not node.passes("a", "b", 81) and node.passes("a", "b", 80)
    node.start()
    node.until_in_force(endpoints=2)
    assert node.host.run("nft", "-a", "list", "ruleset").stdout == before  # the handles too


def test_no_policy_no_policing(node: Lab) -> None:
    """Without Kubernetes: a host whose workloads have no policy is left alone."""
    node.start()
    until(lambda: node.standing().get("ready"), "the engine has decided")
    assert not node.standing()["in_force"] and "no policy" in node.standing()["sentence"]
    assert "calico-policy" not in node.ruleset()
    node.put("GlobalNetworkPolicy", "deny", DENY_B)
    node.until_in_force()
    node.remove("GlobalNetworkPolicy", "deny")
    until(lambda: "calico-policy" not in node.ruleset(), "the tables are gone")
    assert node.passes("a", "b", 80)


def test_switched_off(node: Lab) -> None:
    node.put("GlobalNetworkPolicy", "deny", DENY_B)
    node.start(FELIX_POLICYENFORCEMENT="Disabled")
    until(lambda: node.standing().get("ready"), "the engine has decided")
    assert "FELIX_POLICYENFORCEMENT" in node.standing()["sentence"]
    assert node.passes("a", "b", 80) and "calico-policy" not in node.ruleset()
    directory = node.root / "endpoint-status"  # an ADD with policy_setup_timeout waits for nothing
    until(lambda: len(list(directory.glob("k8s*"))) == 2, "the status files of both workloads")


def test_an_unreadable_policy_stays_in_force(node: Lab) -> None:
    node.put("GlobalNetworkPolicy", "deny", DENY_B)
    node.start()
    node.until_in_force(policies=1)
    node.put("GlobalNetworkPolicy", "deny", {**DENY_B, "selector": "app == 'b"})
    until(lambda: node.standing().get("problems"), "the problem is told")
    assert not node.passes("a", "b", 80)
    assert "GlobalNetworkPolicy deny" in node.standing()["problems"][0]
    node.put("GlobalNetworkPolicy", "deny", {**DENY_B, "selector": "app == 'c'"})
    node.until_passes("a", "b", 80)
    until(lambda: node.standing()["problems"] == [], "the problem is gone")


def test_connections_of_a_workload_that_is_gone(node: Lab) -> None:
    """They are removed with it, so whoever gets the address next does not inherit them."""
    node.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    node.start()
    node.until_in_force(endpoints=2)
    assert node.passes("a", "b", 80, sport=4444)
    node.put("GlobalNetworkPolicy", "deny", {**DENY_B, "order": 1})
    node.until_in_force(policies=2)
    node.remove("WorkloadEndpoint", "n1-k8s-b-eth0", "default")
    node.until_in_force(endpoints=1)
    node.put_endpoint(node.workloads["b"], app="b")
    node.until_in_force(endpoints=2)
    assert not node.passes("a", "b", 80, sport=4444)


def test_an_interface_without_an_endpoint(node: Lab) -> None:
    node.put("GlobalNetworkPolicy", "other", {**DENY_B, "selector": "app == 'none'"})
    node.start()
    node.until_in_force(endpoints=2)
    assert node.passes("a", "b", 80)
    node.remove("WorkloadEndpoint", "n1-k8s-a-eth0", "default")
    node.until_in_force(endpoints=1)
    assert not node.passes("a", "b", 80) and not node.passes("b", "a", 80)


def _has_sent(counts: Counts, number: int) -> bool:
    return counts.sent > number


def test_a_restart_under_traffic(node: Lab) -> None:
    """Killed and started again, policies put and removed, while packets flow: none forbidden passes, none is lost."""
    node.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    node.start()
    node.until_in_force(endpoints=2)
    node.until_passes("a", "b", 81, False)
    with traffic(node, "a", "b", allowed=80, forbidden=81) as counts:
        for _ in range(3):
            node.stop(9)
            enough = counts.sent + 200
            until(partial(_has_sent, counts, enough), "packets without an engine")
            node.start()
            node.until_in_force(endpoints=2)
            for number in range(10):
                other = {**ALLOW_80, "order": 20 + number, "selector": f"has(app) && app != 'x{number}'"}
                node.put("GlobalNetworkPolicy", f"more{number}", other)
            node.until_in_force(policies=11)
            for number in range(10):
                node.remove("GlobalNetworkPolicy", f"more{number}")
            node.until_in_force(policies=1)
    assert counts.sent > 1000
    assert (counts.forbidden_arrived, counts.allowed_arrived) == (0, counts.sent)
