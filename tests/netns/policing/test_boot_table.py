"""The boot table: from the host's start until the engine has decided, no packet enters or leaves a workload."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from cni_calico import directories
from cni_calico.kernel.files import Files
from cni_calico.kernel.filter.boot_table import (
    CHAIN,
    IPTABLES,
    NFTABLES,
    ensure_boot_table,
    read_boot_table,
    remove_boot_table,
)
from cni_calico.log import SILENT
from cni_calico.nodeagent import boot_table as loading
from cni_calico.plugin.policy_decision import UNDECIDED, read_decision
from tests.deadlines import SOON, until
from tests.netns.namespaces import Namespace, host_namespace
from tests.netns.policing.lab import ALLOW_80, DENY_B, Lab, lab, socket_in, traffic

pytestmark = [pytest.mark.netns, pytest.mark.never_excused]

TABLE = "table inet calico-boot"


def host(root: Path, made: Lab) -> None:
    """Two workloads whose records and policies an earlier run of the host has left."""
    made.put("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})
    made.put_profile("kns.default")
    made.add("a", "10.65.0.1", "fd00::1", app="a")
    made.add("b", "10.65.0.2", "fd00::2", app="b")
    (root / "run").mkdir()


def load(root: Path, made: Lab, **environ: str) -> str:
    """calico-node -boot-table, as its unit runs it; what it says."""
    given = {"CALICO_RUN_DIR": str(root / "run"), "PATH": os.environ["PATH"], **environ}
    variables = [f"{name}={value}" for name, value in given.items()]
    argv = ("env", "-i", *variables, sys.executable, "-m", "cni_calico.nodeagent.main", "-boot-table")
    return made.host.run(*argv).stderr


def reaches_host(made: Lab, name: str, version: int) -> bool:
    """Whether a workload's packet comes in on the host itself."""
    family, address = ((socket.AF_INET, "192.0.2.10"), (socket.AF_INET6, "2001:db8::10"))[version == 6]
    with socket_in(made.host, family, socket.SOCK_DGRAM) as server:
        server.bind((address, 5353))
        server.setblocking(False)
        for ns, word in ((made.workloads[name].ns, b"workload"), (made.host, b"own")):
            with socket_in(ns, family, socket.SOCK_DGRAM) as client:
                client.sendto(word, (address, 5353))
        server.settimeout(10)
        return server.recv(100) == b"workload"


def test_nothing_forbidden_passes_while_the_host_starts(tmp_path: Path) -> None:
    """Workloads that are there before the engine, and a packet every half millisecond."""
    with lab(tmp_path) as made:
        host(tmp_path, made)
        made.put("GlobalNetworkPolicy", "allow", ALLOW_80)
        assert made.passes("a", "b", 81) and reaches_host(made, "a", 4), "as it was without the table"
        assert "cali*: closed by nftables" in load(tmp_path, made)
        marker = tmp_path / "run" / directories.BOOT_TABLE
        assert marker.read_text() == "nftables\n" and TABLE in made.ruleset()
        for version in (4, 6):
            assert not made.passes("a", "b", 80, version=version) and not reaches_host(made, "a", version)
        with traffic(made, "a", "b", allowed=80, forbidden=81) as counts:
            until(lambda: counts.sent > 20, "packets under way")
            before = counts.sent, counts.allowed_arrived
            made.start()
            made.until_in_force(policies=1)
            until(lambda: TABLE not in made.ruleset(), "the table is taken away")
            at = counts.sent
            until(lambda: counts.sent > at + 200, "more packets")
        assert before[1] == 0 and counts.allowed_arrived > 0 and counts.forbidden_arrived == 0
        assert made.passes("a", "b", 80, version=6) and not made.passes("a", "b", 81, version=6)
        assert "the boot table is gone" in made.log() and not marker.exists()
        assert "not closed: calico-node runs, and has decided already" in load(tmp_path, made)
        assert TABLE not in made.ruleset() and not marker.exists()


@pytest.mark.parametrize("environ", [{}, {"FELIX_POLICYENFORCEMENT": "Disabled"}], ids=["none exists", "disabled"])
def test_it_goes_when_no_policy_is_due(tmp_path: Path, environ: dict[str, str]) -> None:
    with lab(tmp_path) as made:
        host(tmp_path, made)
        if environ:
            made.put("GlobalNetworkPolicy", "deny", DENY_B)
        load(tmp_path, made)
        assert not made.passes("a", "b", 80)
        made.start(**environ)
        made.until_passes("a", "b", 80)
        until(lambda: made.standing().get("ready"), "the engine says so")
        assert not made.standing()["in_force"]


def test_it_stays_while_nothing_can_be_decided(tmp_path: Path) -> None:
    """The rules that need no records are in force, and the policies are not known yet."""
    with lab(tmp_path) as made:
        host(tmp_path, made)
        load(tmp_path, made)
        made.tunnels = None  # nothing has been read
        made.start()
        until(lambda: "calico-policy" in made.ruleset(), "the early rules are in force")
        assert not made.passes("a", "b", 80)
        assert made.host.call(remove_boot_table, SOON), "calicoctl node boot-table off"
        assert made.passes("a", "b", 80)


def test_an_agent_that_decides_while_it_is_loaded_leaves_nothing_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It found no table when it looked for one, and looks no more."""
    with lab(tmp_path) as made:
        host(tmp_path, made)
        made.start()
        until(lambda: made.standing().get("ready"), "the engine has decided")
        monkeypatch.setattr(loading, "_needless", lambda *_: "")  # asked before
        environ = {"CALICO_RUN_DIR": str(tmp_path / "run")}
        loaded = made.host.call(loading.load_boot_table, environ, SILENT)
        assert (loaded.by, loaded.why_not) == ("", "calico-node runs, and has decided already")
        assert TABLE not in made.ruleset() and not (tmp_path / "run" / directories.BOOT_TABLE).exists()
        assert made.passes("a", "b", 80)


def test_rules_that_are_in_force_are_seen_while_a_new_agent_is_undecided(tmp_path: Path) -> None:
    """It has started again, and cannot read yet what it has to decide about."""
    with lab(tmp_path) as made:
        host(tmp_path, made)
        made.put("GlobalNetworkPolicy", "allow", ALLOW_80)
        made.start()
        made.until_in_force(policies=1)
        made.stop()
        made.tunnels = None
        made.start()
        path = tmp_path / "run" / directories.POLICY_DECISION
        until(
            lambda: (found := read_decision(Files(), str(path))).lives and found.state == UNDECIDED, "it is undecided"
        )
        assert "not closed: calico-node's own rules are in force already" in load(tmp_path, made)
        assert made.passes("a", "b", 80) and not made.passes("a", "b", 81)


def test_the_prefixes_are_those_of_the_agent(tmp_path: Path) -> None:
    with lab(tmp_path) as made:
        host(tmp_path, made)
        assert "tap*, eni*: closed" in load(tmp_path, made, FELIX_INTERFACEPREFIX="tap,eni")
        assert made.passes("a", "b", 80)
        assert 'iifname "tap*"' in made.ruleset() and 'oifname "eni*"' in made.ruleset()
        assert "cali*: closed" in load(tmp_path, made), "in the place of the first"
        assert not made.passes("a", "b", 80) and '"tap*"' not in made.ruleset()


def test_it_is_not_loaded_where_another_agent_works(tmp_path: Path) -> None:
    with lab(tmp_path) as made:
        host(tmp_path, made)
        assert "not closed: another agent" in load(tmp_path, made, CALICO_DISABLE_FELIX="true")
        assert made.passes("a", "b", 80)


def test_loading_and_removing_it_again_and_again() -> None:
    with host_namespace() as ns:
        check_repeated(ns, NFTABLES)


def check_repeated(ns: Namespace, by: str) -> None:
    """By this kernel's packet filter."""
    assert ns.call(read_boot_table, SOON) == () and not ns.call(remove_boot_table, SOON)
    for _ in range(2):
        assert ns.call(ensure_boot_table, ("cali", "tap"), SOON) == by
        assert ns.call(read_boot_table, SOON) == (by,)
    listed = ns.run("nft", "list", "ruleset").stdout if by == NFTABLES else ns.run("iptables-legacy-save").stdout
    assert listed.count(TABLE if by == NFTABLES else f"-j {CHAIN}") == (1 if by == NFTABLES else 2)
    assert ns.call(remove_boot_table, SOON) and not ns.call(remove_boot_table, SOON)
    assert ns.call(read_boot_table, SOON) == ()


def check_by_iptables(root: Path, made: Lab) -> None:
    """Where the kernel has no nf_tables: both families, and the engine takes it away."""
    host(root, made)
    made.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    check_repeated(made.host, IPTABLES)
    assert "closed by legacy iptables" in load(root, made)
    for version in (4, 6):
        assert not made.passes("a", "b", 80, version=version) and not reaches_host(made, "a", version)
    made.start()
    made.until_in_force(policies=1)
    until(lambda: made.host.call(read_boot_table, SOON) == (), "the table is taken away")
    for version in (4, 6):
        assert made.passes("a", "b", 80, version=version) and not made.passes("a", "b", 81, version=version)
