"""A policy above the budget of rules, on a node: it denies what it governs and is named; one that was in force before
there was such a budget stays, also when the node has rebooted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.nodeagent.policing.feed import starting
from cni_calico.nodeagent.policing.feed.spared import FILE
from cni_calico.nodeagent.status.policing import PolicyFigures, Standing
from cni_calico.nodeagent.status.policy_metrics import collect_policing
from tests.deadlines import until
from tests.netns.policing.lab import Lab
from tests.netns.policing.reported import denials_of
from tests.netns.policing.tenants import two_pods, unrelated

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
    with denials_of(pods) as denials:
        assert not pods.passes("a", "b", 80), "what it allows does not count"
        denials.check("ingress: large, which cannot be enforced")
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


# -- of all namespaces together ----------------------------------------------------------------------------------------

ROOM = 2000


def put_in(made: Lab, namespace: str, others: int) -> None:
    """Lets everything into the namespace's pods, with as many rules more."""
    listed = [{"action": "Allow", "source": {"nets": [f"10.1.{i >> 8}.{i & 255}/32"]}} for i in range(others)]
    rules = [{"action": "Allow", "source": {"nets": ["10.65.0.0/16"]}}, *listed]
    made.put("NetworkPolicy", "large", {"selector": "all()", "types": ["Ingress"], "ingress": rules}, namespace)


@pytest.mark.parametrize("mode", ["Auto", "Disabled"])
def test_without_room_beside_others_it_denies_until_there_is_some(tmp_path: Path, mode: str) -> None:
    """Who has room keeps it from one that needs as much, but not from one that needs much less."""
    with two_pods(tmp_path) as made:
        made.always = {"FELIX_NFTABLESMODE": mode, "FELIX_POLICYRULETOTAL": str(ROOM)}
        for i, name in enumerate("cd"):
            made.add(name, f"10.65.0.{3 + i}", namespace_name=name)
        put_in(made, "c", 1500)
        made.start()
        made.until_in_force(endpoints=4)
        made.until_passes("a", "c", 80, True)
        put_in(made, "d", 1490)
        until(lambda: made.standing()["counts"]["over_budget"] == 1, "there is no room for d's")
        assert made.passes("a", "c", 80) and not made.passes("a", "d", 80) and made.passes("a", "b", 80)
        [problem] = [text for text in made.standing()["problems"] if "NetworkPolicy d/large" in text]
        assert f"1491 rules and sets of the packet filter, and a node has room for {ROOM}" in problem
        assert problem in made.log()
        unrelated(made, deny=True)
        made.until_passes("a", "b", 80, False)
        put_in(made, "d", 1010)
        made.until_passes("a", "d", 80, True)
        made.until_passes("a", "c", 80, False)
        made.remove("NetworkPolicy", "large", "d")
        made.until_passes("a", "c", 80, True)
        until(lambda: made.standing()["counts"]["over_budget"] == 0, "nothing goes without")


@pytest.mark.parametrize("first_bytes", [starting.START_BYTES, 1 << 20])
def test_what_was_in_force_stays_when_there_is_less_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_bytes: int
) -> None:
    """Also what is so large that it has its turn only after the first round."""
    monkeypatch.setattr(starting, "START_BYTES", first_bytes)
    with two_pods(tmp_path) as made:
        made.always = {"FELIX_IPV6SUPPORT": "false"}
        for i, name in enumerate("cd"):
            made.add(name, f"10.65.0.{3 + i}", namespace_name=name)
            put_in(made, name, 1500)
        made.start()
        made.until_in_force(endpoints=4)
        for name in "cd":
            made.until_passes("a", name, 80, True)
        until(lambda: not made.standing()["problems"], "both have had their turn before")
        made.stop()
        made.start(FELIX_POLICYRULETOTAL=str(ROOM))
        made.until_in_force(endpoints=4)
        until(lambda: any("of the 2000 rules" in text for text in made.standing()["warnings"]), "one is spared")
        until(lambda: not made.standing()["problems"], "both have had their turn")
        assert made.passes("a", "c", 80) and made.passes("a", "d", 80)
        assert made.standing()["counts"]["over_budget"] == 0
