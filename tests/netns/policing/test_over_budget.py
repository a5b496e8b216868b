"""A policy above the budget of rules, on a node: it denies what it governs and is named; one that was in force before
there was such a budget stays, also when the node has rebooted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.nodeagent.policing.feed.spared import FILE
from cni_calico.nodeagent.status.policing import PolicyFigures, Standing
from cni_calico.nodeagent.status.policy_metrics import collect_policing
from tests.deadlines import until
from tests.netns.policing.lab import Lab
from tests.netns.policing.tenants import two_pods

pytestmark = [pytest.mark.netns, pytest.mark.never_excused]
NAME = "GlobalNetworkPolicy large"


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Lab]:
    with two_pods(tmp_path) as made:
        made.add("c", "10.65.0.3", app="c")
        put_large(made, 3)
        yield made


def put_large(made: Lab, others: int) -> None:
    """Lets everything into b, with as many rules more."""
    listed = [{"action": "Allow", "source": {"nets": [f"10.1.0.{i}/32"]}} for i in range(others)]
    rules = [{"action": "Allow", "source": {"nets": ["10.65.0.0/16"]}}, *listed]
    made.put("GlobalNetworkPolicy", "large", {"selector": "app == 'b'", "types": ["Ingress"], "ingress": rules})


def empty(made: Lab, mode: str) -> None:
    """As a reboot does."""
    if mode == "Auto":
        made.host.run("nft", "flush", "ruleset")
        return
    for program in ("iptables-legacy", "ip6tables-legacy"):
        for table in ("raw", "mangle", "filter"):
            made.host.run(program, "-t", table, "-F")
            made.host.run(program, "-t", table, "-X")
    made.host.run("ipset", "destroy")


def start(made: Lab, budget: int) -> None:
    made.start(FELIX_POLICYRULEBUDGET=str(budget))
    made.until_in_force(endpoints=3)


@pytest.mark.parametrize("mode", ["Auto", "Disabled"])
def test_it_denies_and_is_named(pods: Lab, mode: str) -> None:
    pods.always = {"FELIX_NFTABLESMODE": mode}
    pods.remove("NetworkPolicy", "small", "default")
    start(pods, 3)
    assert not pods.passes("a", "b", 80), "what it allows does not count"
    assert pods.passes("a", "c", 80), "and nobody else is concerned"
    said = pods.standing()
    [problem] = [text for text in said["problems"] if NAME in text]
    assert (
        "denies what it governs: its rules may need 4 rules and sets of the packet filter, and a policy may need 3"
        in problem
    )
    families = collect_policing(Standing(counts=said["counts"]), PolicyFigures())
    assert next(f for f in families if f.name == "calico_policy_over_budget").samples[0].value == 1
    assert problem in pods.log()
    put_large(pods, 2)
    pods.until_passes("a", "b", 80, True)
    until(lambda: pods.standing()["counts"]["over_budget"] == 0, "it counts again")


@pytest.mark.parametrize("mode", ["Auto", "Disabled"])
def test_one_that_was_in_force_stays_over_restarts_and_a_reboot(pods: Lab, mode: str, tmp_path: Path) -> None:
    pods.always = {"FELIX_NFTABLESMODE": mode}
    pods.remove("NetworkPolicy", "small", "default")
    file = tmp_path / "state" / FILE
    start(pods, 65536)
    assert pods.passes("a", "b", 80) and not file.exists()
    for reboot in (False, True, False):
        pods.stop()
        if reboot:
            empty(pods, mode)
        start(pods, 3)
        assert pods.passes("a", "b", 80)
        assert any(f"{NAME} is above the budget of 3 rules" in text for text in pods.standing()["warnings"])
        assert pods.standing()["counts"]["over_budget"] == 0 and file.stat().st_mode & 0o777 == 0o600
    put_large(pods, 4)  # larger than it was
    pods.until_passes("a", "b", 80, False)
    until(lambda: not any("is above the budget" in text for text in pods.standing()["warnings"]), "it is not spared")
    put_large(pods, 3)
    pods.until_passes("a", "b", 80, True)
    pods.remove("GlobalNetworkPolicy", "large")
    until(lambda: not file.exists(), "the exception goes with the policy")
