"""Kernels that lack what most have: which packet filter is chosen, what is said of it, and that policies are in force.

Rule: only in a machine of tests/kernels, from whose kernel modules can be taken.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.deadlines import until
from tests.netns.policing.lab import DENY_B, Lab

pytestmark = [pytest.mark.netns, pytest.mark.never_excused, pytest.mark.kernel("machine")]

CONFIGURATION = Path("/etc/modprobe.d/small.conf")
NF_TABLES, IP_SETS, REPORTS = "nf_tables", "ip_set", "nfnetlink_log"


def unload(module: str) -> None:
    """With everything that uses it."""
    for line in Path("/proc/modules").read_text().splitlines():
        name, _, _, users, *_ = line.split()
        if name == module:
            for user in filter(None, users.strip("-").split(",")):
                unload(user)
            subprocess.run(["rmmod", module], check=False, capture_output=True)


@contextmanager
def without(*modules: str) -> Iterator[None]:
    """The kernel asks for them in vain."""
    CONFIGURATION.write_text("".join(f"install {module} /bin/false\n" for module in modules))
    for module in modules:
        unload(module)
    loaded = {line.split()[0] for line in Path("/proc/modules").read_text().splitlines()}
    assert not loaded & set(modules)
    try:
        yield
    finally:
        CONFIGURATION.unlink()


@pytest.fixture
def small_lab(two_workloads: Lab) -> Lab:
    two_workloads.put("GlobalNetworkPolicy", "deny", DENY_B)
    return two_workloads


@pytest.mark.parametrize(
    ("lacking", "mode", "by", "why"),
    [
        ([NF_TABLES], "Auto", "iptables", "this kernel has no nf_tables"),
        pytest.param([NF_TABLES], "Enabled", "iptables", "this kernel has no nf_tables", marks=pytest.mark.slow),
        pytest.param([IP_SETS], "Auto", "nftables", "", marks=pytest.mark.slow),
        ([IP_SETS], "Disabled", "nftables", "but policies are enforced with nftables all the same, because"),
    ],
)
def test_the_other_packet_filter_is_chosen(small_lab: Lab, lacking: list[str], mode: str, by: str, why: str) -> None:
    with without(*lacking):
        small_lab.start(FELIX_NFTABLESMODE=mode)
        said = small_lab.until_in_force(policies=1)
        assert said["by"] == by
        assert any(why in text for text in said["notes"]) if why else not said["notes"]
        for version in (4, 6):
            assert not small_lab.passes("a", "b", 80, version=version)
            assert small_lab.passes("b", "a", 80, version=version)
        small_lab.stop()


def test_what_cannot_be_reported_is_not_recorded_and_that_is_said(small_lab: Lab) -> None:
    """By default: policies are in force all the same, and nobody is told to start a recorder."""
    with without(REPORTS):
        small_lab.start(FELIX_FLOWS="Auto")
        said = small_lab.until_in_force(policies=1)
        assert [text for text in said["notes"] if "flows are not recorded: this kernel lacks" in text]
        assert not said["reports"] and "log" not in small_lab.ruleset()
        assert not small_lab.passes("a", "b", 80) and small_lab.passes("b", "a", 80)
        small_lab.stop()


def test_without_any_nothing_is_enforced_and_that_is_said(small_lab: Lab) -> None:
    with without(NF_TABLES, IP_SETS):
        small_lab.start()
        said = until(lambda: small_lab.standing().get("failing") and small_lab.standing(), "it says why", 60)
        assert not said["in_force"] and not said["ready"]
        assert "there is no packet filter for policies" in said["failing"] and "nf_tables" in said["failing"]
        assert small_lab.passes("a", "b", 80)
        small_lab.stop()
