"""Policies without nf_tables: run by test_user_mode_kernel.py in a user-mode kernel that has none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from tests.netns.policing.lab import DENY_B, Lab, lab
from tests.netns.policing.test_boot_table import check_by_iptables
from tests.netns.test_host_verdicts import check_hosts, open_hosts
from tests.netns.test_verdicts import check_verdicts
from tests.netns.wire import open_wire

pytestmark = pytest.mark.timeout(3000)


def require_iptables(two_workloads: Lab) -> None:
    """It is chosen by the kernel, said, and in force."""
    two_workloads.put("GlobalNetworkPolicy", "deny", DENY_B)
    two_workloads.start()
    said = two_workloads.until_in_force(policies=1)
    assert said["by"] == "iptables"
    assert any("this kernel has no nf_tables" in text for text in said["warnings"])
    assert not two_workloads.passes("a", "b", 80) and not two_workloads.passes("a", "b", 80, version=6)
    assert two_workloads.passes("b", "a", 80)


def test_it_is_chosen_where_there_is_nothing_else(two_workloads: Lab) -> None:
    require_iptables(two_workloads)


def test_the_boot_table(tmp_path: Path) -> None:
    with lab(tmp_path) as made:
        check_by_iptables(tmp_path, made)


def test_verdicts() -> None:
    """All examples that are tried with nf_tables."""
    with open_wire(FilterSettings(), legacy=True) as wire:
        check_verdicts(wire)


def test_verdicts_about_hosts(tmp_path: Path) -> None:
    with open_hosts(tmp_path, legacy=True, has_nftables=False) as hosts:
        check_hosts(hosts)


def test_it_is_chosen_where_nf_tables_takes_no_rules(two_workloads: Lab) -> None:
    """The last test: the module, which was built without any family of tables, cannot be removed."""
    subprocess.run(["busybox", "modprobe", "nf_tables"], check=True)
    assert two_workloads.ruleset() == ""  # it answers
    require_iptables(two_workloads)
