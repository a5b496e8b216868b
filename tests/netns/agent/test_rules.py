"""Masquerading, forwarding and taking over with the real programs: nft, iptables-nft, iptables-legacy."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPSet

from cni_calico.errors import KernelError
from cni_calico.kernel.filter import ipsets, iptables
from cni_calico.kernel.filter import nft as nftables
from cni_calico.kernel.filter.programs import find_program
from cni_calico.log import Log
from cni_calico.nodeagent.context.felix import FelixSettings, parse_felix
from cni_calico.nodeagent.dataplane.apply import Pass
from cni_calico.nodeagent.dataplane.desired import Desired, Nat
from cni_calico.nodeagent.dataplane.forward_rules import plan_forward, plan_takeover
from cni_calico.nodeagent.dataplane.masquerade_rules import (
    render_iptables,
    render_iptables_removal,
    render_nftables,
    select_own,
)
from cni_calico.nodeagent.dataplane.parts.forwarding import Forwarding
from cni_calico.nodeagent.dataplane.parts.masquerade import Masquerade
from cni_calico.nodeagent.dataplane.parts.takeover import Takeover
from tests.deadlines import SOON, soon
from tests.netns.namespaces import Namespace, namespace

pytestmark = pytest.mark.netns

NAT = {
    4: Nat(
        4, (ip_network("10.65.0.0/16"),), (ip_network("10.65.0.0/16"), ip_network("10.66.0.0/16")), ports=(1000, 2000)
    ),
    6: Nat(6, (ip_network("fd65::/64"),), (ip_network("fd65::/64"),), out_interface="eth+"),
}
UPSTREAM = """\
*raw
:cali-PREROUTING - [0:0]
:cali-OUTPUT - [0:0]
-A PREROUTING -m comment --comment "cali:6gwbT8clXdHdC1b1" -j cali-PREROUTING
-A OUTPUT -m comment --comment "cali:tVnHkvAo15HuiPy0" -j cali-OUTPUT
-A cali-PREROUTING -i cali+ -j MARK --set-xmark 0x40000/0x40000
COMMIT
*mangle
:cali-PREROUTING - [0:0]
:cali-POSTROUTING - [0:0]
-A PREROUTING -m comment --comment "cali:6gwbT8clXdHdC1b1" -j cali-PREROUTING
-A POSTROUTING -m comment --comment "cali:O3lYWMrLQYEMJtB5" -j cali-POSTROUTING
-A POSTROUTING -o lo -m comment --comment "of somebody in mangle" -j ACCEPT
COMMIT
*filter
:cali-FORWARD - [0:0]
:cali-from-wl - [0:0]
-A FORWARD -m comment --comment "cali:wUHhoiAYhphO9Mso" -j cali-FORWARD
-A FORWARD -i lo -m comment --comment "of somebody" -j ACCEPT
-A FORWARD -m comment --comment "cali:mp77cMpurHhyjLrM" -j MARK --set-xmark 0x10000/0x10000
-A cali-FORWARD -g cali-from-wl
-A cali-from-wl -m set --match-set {v}0s:deny src -j DROP
-A cali-from-wl -j DROP
COMMIT
*nat
:cali-POSTROUTING - [0:0]
-A POSTROUTING -j cali-POSTROUTING
COMMIT
"""
SETS = {4: ["cali40s:deny", "cali40masq-ipam-pools", "cali4t0"], 6: ["cali60s:deny", "cali60all-ipam-pools"]}


@pytest.fixture
def host_without_rules() -> Iterator[Namespace]:
    with namespace("rules") as ns:
        yield ns


def _apply(nat: Nat) -> Any:
    nftables.apply_script(render_nftables(nat), soon())
    return nftables.read_table("ip" if nat.family == 4 else "ip6", "calico", soon())


@pytest.mark.parametrize("family", [4, 6])
def test_nftables(host_without_rules: Namespace, family: int) -> None:
    assert host_without_rules.call(nftables.usable, soon())
    name = "ip" if family == 4 else "ip6"
    assert host_without_rules.call(nftables.read_table, name, "calico", soon()) is None
    first = host_without_rules.call(_apply, NAT[family])
    assert first == host_without_rules.call(_apply, NAT[family])  # the same rules read the same
    sets = {item["set"]["name"]: item["set"] for item in first if "set" in item}
    assert sets["nat-sources"]["elem"]
    assert sum("rule" in item for item in first) == (2 if family == 4 else 1)
    host_without_rules.run("nft", "flush", "table", name, "calico")
    assert host_without_rules.call(nftables.read_table, name, "calico", soon()) != first
    host_without_rules.call(_apply, NAT[family])
    assert host_without_rules.call(_apply, Nat(family)) is None
    assert host_without_rules.call(_apply, Nat(family)) is None


def _bring(rules: Masquerade, nat: Nat, felix: FelixSettings) -> tuple[Any, list[str]]:
    """What is there after a full pass, and what failed in it."""
    done = Pass()
    rules.apply(Desired(nat=(nat,)), felix, soon(), done, True)
    if felix.iptables_backend != "legacy" and felix.nftables_mode != "Disabled":
        return nftables.read_table("ip", "calico", soon()), done.failed
    return select_own(iptables.read_rules(nat.family, "legacy", soon())), done.failed


@pytest.mark.parametrize("variant", ["auto", "legacy"])
def test_while_a_pool_cannot_be_read_the_rules_stay(host_without_rules: Namespace, variant: str) -> None:
    """Also for an agent that begins, and knows nothing of what was there before."""
    felix, silent, nothing_known = FelixSettings(iptables_backend=variant), Log("none", stderr=False), Nat(4)
    first = host_without_rules.call(_bring, Masquerade(silent), NAT[4], felix)
    assert first[0] and not first[1]
    again = Masquerade(silent)
    for partial in (replace(nothing_known, partial=True), replace(NAT[4], partial=True, exclusions=())):
        assert host_without_rules.call(_bring, again, partial, felix) == first
    if variant == "auto":  # what somebody else took away is made of what can be read
        host_without_rules.run("nft", "flush", "table", "ip", "calico")
        repaired, failed = host_without_rules.call(_bring, again, replace(NAT[4], partial=True), felix)
        assert repaired == first[0] and not failed
    assert host_without_rules.call(_bring, again, nothing_known, felix) in ((None, []), ([], []))
    assert host_without_rules.call(_bring, again, replace(NAT[4], partial=True), felix) == first


def test_nftables_mode_disabled_masquerades_with_iptables(host_without_rules: Namespace) -> None:
    """As policies do; and back."""
    auto, disabled = FelixSettings(), FelixSettings(nftables_mode="Disabled")
    rules = Masquerade(Log("none", stderr=False))
    first, failed = host_without_rules.call(_bring, rules, NAT[4], auto)
    assert first and not failed
    there, failed = host_without_rules.call(_bring, rules, NAT[4], disabled)
    assert any("MASQUERADE" in line for line in there) and not failed
    assert host_without_rules.call(nftables.read_table, "ip", "calico", soon()) is None
    assert host_without_rules.call(_bring, Masquerade(Log("none", stderr=False)), NAT[4], auto) == (first, [])
    assert select_own(host_without_rules.call(iptables.read_rules, 4, "legacy", soon())) == []


def test_a_script_is_applied_whole_or_not_at_all(host_without_rules: Namespace) -> None:
    host_without_rules.call(_apply, NAT[4])
    with pytest.raises(KernelError, match=r"cannot run .*nft"):
        host_without_rules.call(nftables.apply_script, "delete table ip calico\nadd rule ip nowhere x accept\n", soon())
    assert host_without_rules.call(nftables.read_table, "ip", "calico", soon()) is not None


def test_upstreams_table_of_that_name_is_replaced(host_without_rules: Namespace) -> None:
    host_without_rules.run(
        "nft",
        "add table ip calico; add chain ip calico filter-cali-FORWARD; add rule ip calico filter-cali-FORWARD drop",
    )
    table = host_without_rules.call(_apply, NAT[4])
    assert [item["chain"]["name"] for item in table if "chain" in item] == ["nat-outgoing"]


def _iptables(family: int, variant: str, script: str) -> str:
    if script:
        iptables.apply_rules(family, variant, script, soon())
    return iptables.read_rules(family, variant, soon())


@pytest.mark.parametrize("variant", ["nft", "legacy"])
@pytest.mark.parametrize("family", [4, 6])
def test_masquerading_with_iptables(host_without_rules: Namespace, family: int, variant: str) -> None:
    def own(script: str) -> list[str]:
        return select_own(host_without_rules.call(_iptables, family, variant, script))

    first = own(render_iptables(NAT[family], jump_is_there=False, insert=True))
    assert "-A POSTROUTING -j calico-nat-outgoing" in first and len(first) >= 5
    assert own(render_iptables(NAT[family], jump_is_there=True, insert=True)) == first
    saved = host_without_rules.call(_iptables, family, variant, "")
    assert own(render_iptables_removal(saved)) == []


@pytest.mark.parametrize("variant", ["nft", "legacy"])
def test_forwarding_is_accepted_where_docker_drops_it(host_without_rules: Namespace, variant: str) -> None:
    saved = host_without_rules.call(
        _iptables, 4, variant, "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -i docker0 -j ACCEPT\nCOMMIT\n"
    )
    after = host_without_rules.call(_iptables, 4, variant, plan_forward(saved, ("cali",)))
    rules = [line.split(" -m ")[0] for line in after.splitlines() if line.startswith("-A FORWARD")]
    assert set(rules[:2]) == {"-A FORWARD -i cali+", "-A FORWARD -o cali+"} and len(rules) == 3
    assert plan_forward(after, ("cali",)) == ""
    opened = host_without_rules.call(_iptables, 4, variant, "*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n")
    closed = host_without_rules.call(_iptables, 4, variant, plan_forward(opened, ("cali",)))
    assert "cali+" not in closed


def _change(part: Forwarding | Takeover, felix: FelixSettings) -> list[str]:
    """What a full pass of a part has changed."""
    done = Pass()
    part.apply(Desired(forward_prefixes=("cali",)), felix, soon(), done, True)
    return done.changed


def _make_sets(*names: str) -> None:
    with IPSet() as sets:
        for name in names:
            sets.create(name, family=socket.AF_INET6 if name.startswith("cali6") else socket.AF_INET)
            for number in range(2000 if name == "cali40masq-ipam-pools" else 0):  # more than one message holds
                sets.add(name, f"10.{number >> 8}.{number & 255}.1")


def _take_over(takeover: Takeover, full: bool = True, without: bool = False) -> tuple[Takeover, Pass]:
    done = Pass()
    takeover.apply(Desired(), FelixSettings(takeover_without_policies=without), soon(), done, full)
    return takeover, done


@pytest.mark.parametrize("variant", ["nft", "legacy"])
@pytest.mark.parametrize("family", [4, 6])
def test_upstreams_chains_and_sets_go_and_others_stay(host_without_rules: Namespace, family: int, variant: str) -> None:
    host_without_rules.call(_make_sets, *SETS[family], "cali-of-mine")
    script = UPSTREAM.format(v=f"cali{family}")
    saved = host_without_rules.call(_iptables, family, variant, script)
    assert saved.count("\n:cali-") == 7 and saved.count("cali:") == 6
    first, done = host_without_rules.call(_take_over, Takeover(Log("none", stderr=False)))
    after = host_without_rules.call(_iptables, family, variant, "")
    assert "cali" not in after
    assert "of somebody in mangle" in after and '"of somebody"' in after
    assert host_without_rules.call(ipsets.read_ipsets, SOON) == ["cali-of-mine"]
    assert plan_takeover(after) == ""
    assert done.changed == [
        f"removed 7 chains of upstream's agent (IPv{family}, {variant})",
        f"removed {len(SETS[family])} IP sets of upstream's agent",
    ]
    assert host_without_rules.call(_take_over, first)[1].changed == []


def test_upstreams_arp_table_goes_and_others_stay(host_without_rules: Namespace) -> None:
    for name in ("calico-arp", "of-somebody"):
        host_without_rules.run("nft", f"add table arp {name}")
    host_without_rules.run("nft", "add chain arp calico-arp replies")
    first, done = host_without_rules.call(_take_over, Takeover(Log("none", stderr=False)))
    assert host_without_rules.run("nft", "list", "tables").stdout.split() == ["table", "arp", "of-somebody"]
    assert done.changed == ["removed table arp calico-arp of upstream's agent"]
    assert host_without_rules.call(_take_over, first)[1].changed == []


def _rules(saved: str) -> list[str]:
    """Without comments, which have the time."""
    return [line for line in saved.splitlines() if not line.startswith("#")]


def _only_upstream() -> list[str]:
    return ["what GlobalNetworkPolicy deny says about HostEndpoint eth0"]


@pytest.mark.parametrize("variant", ["nft", "legacy"])
def test_policies_that_only_upstream_enforces_keep_its_rules(host_without_rules: Namespace, variant: str) -> None:
    """Until they are gone, or it is said that they may go; and masquerading does not take upstream's table over."""
    host_without_rules.call(_make_sets, *SETS[4])
    saved = host_without_rules.call(_iptables, 4, variant, UPSTREAM.format(v="cali4"))
    takeover, done = host_without_rules.call(_take_over, Takeover(Log("none", stderr=False), _only_upstream))
    assert _rules(host_without_rules.call(_iptables, 4, variant, "")) == _rules(saved)
    assert sorted(host_without_rules.call(ipsets.read_ipsets, SOON)) == sorted(SETS[4])
    assert not takeover.done and done.changed == []
    (text,) = done.refused
    for words in (*_only_upstream(), "FELIX_TAKEOVERWITHOUTPOLICIES=true", "docs/from-calico.md"):
        assert words in text
    told = host_without_rules.call(_take_over, takeover, True, True)[1]
    assert told.refused == [] and "cali" not in host_without_rules.call(_iptables, 4, variant, "")


def test_upstreams_nftables_chains_are_kept_too(host_without_rules: Namespace) -> None:
    host_without_rules.run("nft", "add table ip calico")
    host_without_rules.run("nft", "add chain ip calico filter-cali-FORWARD")
    takeover, done = host_without_rules.call(_take_over, Takeover(Log("none", stderr=False), _only_upstream))
    assert done.refused and not takeover.done
    host_without_rules.run("nft", "delete table ip calico")
    takeover, done = host_without_rules.call(_take_over, takeover)
    assert not done.refused and takeover.done


def test_where_upstream_left_nothing_nothing_is_refused(host_without_rules: Namespace) -> None:
    takeover, done = host_without_rules.call(_take_over, Takeover(Log("none", stderr=False), _only_upstream))
    assert takeover.done and done.refused == []


def test_a_set_that_somebody_elses_rule_uses_is_told_and_tried_again(
    host_without_rules: Namespace, tmp_path: Path
) -> None:
    rule = ["INPUT", "-m", "set", "--match-set", "cali40mine", "src", "-j", "ACCEPT"]
    host_without_rules.call(_make_sets, "cali40mine", "cali40other")
    host_without_rules.run("iptables-legacy", "-A", *rule)
    log = tmp_path / "log"
    takeover, done = host_without_rules.call(_take_over, Takeover(Log("info", str(log), stderr=False)))
    assert host_without_rules.call(ipsets.read_ipsets, SOON) == ["cali40mine"]
    assert done.changed == ["removed 1 IP sets of upstream's agent"] and done.failed == []
    takeover, _ = host_without_rules.call(_take_over, takeover)
    assert log.read_text().count("cannot remove IP set cali40mine: a rule or another set uses it") == 1
    host_without_rules.run("iptables-legacy", "-D", *rule)
    takeover, done = host_without_rules.call(_take_over, takeover, False)
    assert done.changed == [] and takeover.kept  # not in every pass
    takeover, done = host_without_rules.call(_take_over, takeover)
    assert host_without_rules.call(ipsets.read_ipsets, SOON) == [] and takeover.kept == ()


def test_the_lock_is_waited_for_as_long_as_felix_says(
    host_without_rules: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "iptables-legacy-restore"
    wrapper, called = tmp_path / name, tmp_path / "called"
    wrapper.write_text(f'#!/bin/sh\necho "$@" >>{called}\nexec {find_program(name)} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    felix = parse_felix({"FELIX_IPTABLESLOCKTIMEOUTSECS": "37", "FELIX_IPTABLESBACKEND": "legacy"}).settings
    waited = {"--noflush -w 37"}
    rules, failed = host_without_rules.call(_bring, Masquerade(Log("none", stderr=False)), NAT[4], felix)
    assert rules and not failed
    assert set(called.read_text().splitlines()) == waited
    dropping = "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -i docker0 -j ACCEPT\n:cali-FORWARD - [0:0]\nCOMMIT\n"
    host_without_rules.call(_iptables, 4, "legacy", dropping)
    parts = ((Forwarding(), "accepted forwarding"), (Takeover(Log("none", stderr=False)), "removed 1 chains"))
    for part, said in parts:
        called.write_text("")
        changed = host_without_rules.call(_change, part, felix)
        assert [text for text in changed if text.startswith(said)], changed
        assert set(called.read_text().splitlines()) == waited, part


def test_legacy_tables_are_not_made_by_looking(host_without_rules: Namespace) -> None:
    assert not host_without_rules.call(iptables.in_use, 4, "legacy")
    host_without_rules.call(_iptables, 4, "legacy", "*filter\n-A INPUT -j ACCEPT\nCOMMIT\n")
    assert host_without_rules.call(iptables.in_use, 4, "legacy")
