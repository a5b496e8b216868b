"""The policy engine on a node of its own: what is written takes effect on packets."""

from __future__ import annotations

import ctypes
import errno
import platform
import shutil
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from cni_calico.datastore.local.store import LocalStore
from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.filter.nf_tables.filter import NfTables
from cni_calico.kernel.netlink import filter_events
from cni_calico.kernel.netlink.filter_events import FilterMonitor
from cni_calico.kernel.netlink.nfnetlink import Nfnetlink, general
from cni_calico.log import SILENT, Log
from cni_calico.netfilter.tables import NftTable
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.felix import parse_felix
from cni_calico.nodeagent.policing import engine as engines
from cni_calico.nodeagent.policing.enforce import connections
from cni_calico.nodeagent.policing.enforce.departures import FILE
from cni_calico.nodeagent.policing.engine import PolicyEngine
from cni_calico.nodeagent.policing.report.status_files import StatusFiles
from cni_calico.nodeagent.policing.schedule import LOOK_S
from cni_calico.nodeagent.policing.tables.touched import TABLES
from cni_calico.nodeagent.policing.tables.tunnels import Tunnels
from cni_calico.nodeagent.view import last_valid
from tests.conftest import SUMMARY
from tests.deadlines import until
from tests.netns.policing.lab import ALLOW_80, DENY_B, NODE, Counts, Lab, lab, private_settings, traffic
from tests.netns.policing.reported import denials_of

pytestmark = pytest.mark.netns

TIER = {"order": 1000000, "defaultAction": "Deny"}


@pytest.fixture
def lab_of_two(tmp_path: Path) -> Iterator[Lab]:
    """Two workloads that may talk, and no policy."""
    with lab(tmp_path) as made:
        made.put("Tier", "default", TIER)
        made.put_profile("kns.default", **{"pcns.projectcalico.org/name": "default"})
        made.add("a", "10.65.0.1", "fd00::1", app="a")
        made.add("b", "10.65.0.2", "fd00::2", app="b")
        yield made


def test_a_policy_takes_effect(lab_of_two: Lab) -> None:
    """And each packet that it drops is reported once, with its rule, or the end of its tier."""
    lab_of_two.start()
    assert lab_of_two.passes("a", "b", 80)
    with denials_of(lab_of_two) as denials:
        lab_of_two.put("GlobalNetworkPolicy", "deny", DENY_B)
        lab_of_two.until_passes("a", "b", 80, False)
        assert not lab_of_two.passes("a", "b", 80, version=6)
        assert lab_of_two.passes("b", "a", 80)
        denials.check(*["ingress: deny rule 0"] * 2)
    lab_of_two.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    lab_of_two.until_passes("a", "b", 80)
    with denials_of(lab_of_two) as denials:
        assert lab_of_two.passes("a", "b", 8004) and lab_of_two.passes("a", "b", 80, version=6)
        assert not lab_of_two.passes("a", "b", 81)
        denials.check("ingress: deny rule 0")
        lab_of_two.remove("GlobalNetworkPolicy", "deny")
        lab_of_two.until_in_force(policies=1)
        assert not lab_of_two.passes("a", "b", 81)  # the tier's end
        denials.check("ingress: end of tier default (policies: allow)")
    assert lab_of_two.standing()["problems"] == []


def test_status_files(lab_of_two: Lab) -> None:
    lab_of_two.put("GlobalNetworkPolicy", "deny", DENY_B)
    directory = lab_of_two.root / "endpoint-status"
    directory.mkdir()
    (directory / "k8s default%2Fgone eth0").write_text("{}")
    lab_of_two.start()
    lab_of_two.until_in_force(endpoints=2)
    files = {path.name: path.read_text() for path in directory.iterdir()}
    assert files == {
        "k8s default%2Fa eth0": '{"ifaceName":"calia","ipv4Nets":["10.65.0.1/32"],"ipv6Nets":["fd00::1/128"]}',
        "k8s default%2Fb eth0": '{"ifaceName":"calib","ipv4Nets":["10.65.0.2/32"],"ipv6Nets":["fd00::2/128"]}',
    }
    assert (directory / "k8s default%2Fa eth0").stat().st_mode & 0o777 == 0o644
    lab_of_two.host.do("link", "set", "calia", "down")
    until(lambda: not (directory / "k8s default%2Fa eth0").exists(), "the file of an interface that is down is gone")
    lab_of_two.host.do("link", "set", "calia", "up")
    until((directory / "k8s default%2Fa eth0").exists, "the file is back")
    lab_of_two.remove("WorkloadEndpoint", "n1-k8s-b-eth0", "default")
    until(lambda: not (directory / "k8s default%2Fb eth0").exists(), "the file of an endpoint that is gone is gone")


def test_removed_status_files_are_made_again(lab_of_two: Lab) -> None:
    lab_of_two.put("GlobalNetworkPolicy", "deny", DENY_B)
    lab_of_two.start()
    lab_of_two.until_in_force(endpoints=2)
    directory = lab_of_two.root / "endpoint-status"
    until(lambda: len(list(directory.glob("k8s*"))) == 2, "the status files of both workloads")
    directory.rename(lab_of_two.root / "removed")  # in one step: the agent writes again what goes one by one
    until(lambda: len(list(directory.glob("k8s*"))) == 2, "both files again")
    assert "another program removed the status of endpoints" in lab_of_two.log()


def test_a_full_disk_for_status_files(lab_of_two: Lab, tmp_path: Path) -> None:
    """Policies do not wait for it, and the files come when there is room."""
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(small)], check=True)
    try:
        filler = small / "filler"
        filler.write_bytes(b"x" * 4096)
        lab_of_two.put("GlobalNetworkPolicy", "deny", DENY_B)
        lab_of_two.start(FELIX_ENDPOINTSTATUSPATHPREFIX=str(small))
        lab_of_two.until_in_force(endpoints=2)
        assert not lab_of_two.passes("a", "b", 80)
        until(lambda: "cannot write the status of endpoints" in lab_of_two.log(), "it is said")
        lab_of_two.put("GlobalNetworkPolicy", "allow", ALLOW_80)
        lab_of_two.until_passes("a", "b", 80)
        filler.unlink()
        until(lambda: list((small / "endpoint-status").glob("k8s*")), "a file, now that there is room")
    finally:
        lab_of_two.stop()
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.unrecorded("packets pass while another program has emptied the tables")
def test_more_notifications_than_a_socket_holds(lab_of_two: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was lost counts as a change of everything: tampering in the middle of a flood is repaired."""
    monkeypatch.setattr(filter_events, "_BUFFER_BYTES", 1)  # the kernel makes that its smallest
    lab_of_two.put("GlobalNetworkPolicy", "deny", DENY_B)
    lab_of_two.start()
    lab_of_two.until_in_force(endpoints=2)
    flood = [f"add table ip f{i}; add chain ip f{i} c; delete table ip f{i}" for i in range(300)]
    for command in ("flush chain ip calico-policy to-workloads", "delete table ip calico-policy", "flush ruleset"):
        lab_of_two.host.run("nft", "; ".join([*flood[:150], command, *flood[150:]]))
        lab_of_two.until_passes("a", "b", 80, False)
    until(lambda: lab_of_two.standing().get("repairs", 0) >= 3, "the repairs are counted")


TAMPERING: dict[str, str] = {
    "flush ruleset": "flush ruleset",
    "delete a table": "delete table ip calico-policy",
    "put a table to sleep": "add table ip calico-policy { flags dormant; }",
    "flush a stage": "flush chain ip calico-policy to-workloads",
    "flush a policy": "flush chain ip calico-policy pi-gnp/deny",
    "accept everything first": "insert rule ip calico-policy to-workloads accept",
    "make a stage drop": "add chain ip calico-policy to-workloads { policy drop; }",
    "take an endpoint's entry": 'delete element ip calico-policy to-workloads { "calib" }',
    "lead an endpoint elsewhere": (
        'add chain ip calico-policy open; delete element ip calico-policy to-workloads { "calib" }; '
        'add element ip calico-policy to-workloads { "calib" : jump open }'
    ),
    "add a member": "add element ip calico-policy SET { 10.65.0.77 }",
    "empty a set": "flush set ip calico-policy SET",
    "add a chain of their own": "add chain ip calico-policy theirs",
    "make the table anew": "delete table ip calico-policy; add table ip calico-policy",
}


def test_tampering_is_repaired(lab_of_two: Lab, record_property: pytest.RecordProperty) -> None:
    """Every kind, at once: the comparison from time to time is switched off. How long it took is a line at the end."""
    lab_of_two.put("GlobalNetworkPolicy", "deny", DENY_B)
    lab_of_two.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    lab_of_two.start(FELIX_NFTABLESREFRESHINTERVAL="0")
    lab_of_two.until_in_force(endpoints=2, policies=2)
    before, took = lab_of_two.host.call(_tables), {}
    (found,) = {word for word in lab_of_two.ruleset().split() if word.startswith("s-app")}
    for number, (what, commands) in enumerate(TAMPERING.items(), 1):
        begun = time.monotonic()
        lab_of_two.host.run("nft", commands.replace("SET", found))
        until(lambda: lab_of_two.host.call(_tables) == before, f"{what}: repaired", pause_s=0.001)
        took[what] = time.monotonic() - begun
        until(lambda number=number: lab_of_two.standing().get("repairs") == number, "the repair is counted")
        assert lab_of_two.passes("a", "b", 80) and not lab_of_two.passes("a", "b", 81), what
    slowest = max(took, key=lambda what: took[what])
    figures = f"flush ruleset {took['flush ruleset'] * 1000:.0f} ms, slowest {took[slowest] * 1000:.0f} ms ({slowest})"
    record_property(SUMMARY, f"tampering with policies' tables, from the command to a listing as before: {figures}")
    assert "nft had changed them" in lab_of_two.log()
    lab_of_two.host.run("nft", "add", "table", "ip", "others")
    lab_of_two.put("GlobalNetworkPolicy", "deny", {**DENY_B, "order": 1})
    lab_of_two.until_passes("a", "b", 80, False)
    assert lab_of_two.standing()["repairs"] == len(TAMPERING)


def _tables() -> list[NftTable | None]:
    with NfTables() as kernel:
        return [kernel.read_table(table, Deadline.after(10)) for table in TABLES]


def test_the_comparison_in_slices_finds_what_nobody_told(lab_of_two: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FilterMonitor, "watch_rules", lambda self: None)
    lab_of_two.put("GlobalNetworkPolicy", "deny", DENY_B)
    lab_of_two.start(FELIX_NFTABLESREFRESHINTERVAL="1")
    lab_of_two.until_in_force(endpoints=2)
    assert not lab_of_two.passes("a", "b", 80)
    tampering = (("flush", "chain", "ip", "calico-policy", "to-workloads"), ("delete", "table", "ip", "calico-policy"))
    for number, command in enumerate(tampering, 1):
        lab_of_two.host.run("nft", *command)
        until(lambda number=number: lab_of_two.standing().get("repairs") == number, "the repair is counted")
        assert not lab_of_two.passes("a", "b", 80)


def test_an_engine_that_hangs_is_no_sign_of_life(lab_of_two: Lab) -> None:
    """Its thread is at the same thing for ever; the agent's liveness goes by that."""
    lab_of_two.put("GlobalNetworkPolicy", "deny", DENY_B)
    assert lab_of_two.host.call(_hang, str(lab_of_two.root)) == "moves, hangs, moves"


def _hang(root: str) -> str:
    context = Context(private_settings(Path(root)), LocalStore(f"{root}/store.db"), SILENT, lambda _: True)
    engine, stopping, hanging, go_on = PolicyEngine(context, NODE), Event(), Event(), Event()
    written = StatusFiles.update

    def update(files: StatusFiles) -> bool:
        if hanging.is_set():
            go_on.wait()
        return written(files)

    assert engine.stalled_s() == 0
    engine.use(parse_felix({"FELIX_ENDPOINTSTATUSPATHPREFIX": root}).settings, Tunnels())
    StatusFiles.update = update
    thread = Thread(target=engine.run, args=(stopping,))
    thread.start()
    said = []
    try:
        until(lambda: engine.standing.in_force and 0 < engine.stalled_s() < LOOK_S, "it moves")
        said.append("moves")
        hanging.set()
        shutil.rmtree(f"{root}/endpoint-status")
        until(lambda: engine.stalled_s() > 3 * LOOK_S, "it hangs")
        said.append("hangs")
        go_on.set()
        until(lambda: engine.stalled_s() < LOOK_S, "it moves again")
        said.append("moves")
    finally:
        go_on.set()
        stopping.set()
        engine.wake()
        thread.join(10)
    return ", ".join(said)


# of the kernel's interface for filters of system calls
SET_SECCOMP, BY_FILTER = 22, 2
LOAD, JUMP_EQUAL, ANSWER = 0x20, 0x15, 0x06
ALLOWED, ERROR = 0x7FFF0000, 0x00050000
SOCKET = {"x86_64": 41, "aarch64": 198}
NETLINK_NETFILTER = 12


def lose_packet_filter() -> None:
    """From now on the kernel answers this thread as one that was built without netfilter's interface."""
    lines = [
        (LOAD, 0, 0, 0),  # the system call
        (JUMP_EQUAL, 0, 5, SOCKET[platform.machine()]),
        (LOAD, 0, 0, 16),  # its first argument
        (JUMP_EQUAL, 0, 3, socket.AF_NETLINK),
        (LOAD, 0, 0, 32),  # its third
        (JUMP_EQUAL, 0, 1, NETLINK_NETFILTER),
        (ANSWER, 0, 0, ERROR | errno.EPROTONOSUPPORT),
        (ANSWER, 0, 0, ALLOWED),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(lines), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(SET_SECCOMP, BY_FILTER, program, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot install a filter of system calls")


def test_a_kernel_that_has_no_packet_filter(lab_of_two: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said and tried again, the node is not ready, and upstream's rules, if there are any, stay."""
    monkeypatch.setattr(engines, "KERNEL_AGAIN_S", 0.1)
    as_usual = lab_of_two.open_context

    def without(log: Log) -> Context:
        lose_packet_filter()
        return as_usual(log)

    lab_of_two.open_context = without
    lab_of_two.put("GlobalNetworkPolicy", "deny", DENY_B)
    lab_of_two.start()
    until(lambda: lab_of_two.log().count("packet filter cannot be used: ") >= 3, "it is said again and again")
    said = lab_of_two.standing()
    assert "no policy is enforced on this node: this kernel's packet filter cannot be used: " in said["sentence"]
    assert "Protocol not supported" in said["sentence"]
    assert not said["in_force"] and not said["ready"]
    assert not list((lab_of_two.root / "endpoint-status").glob("k8s*"))
    assert lab_of_two.stop() == 0
    lab_of_two.open_context = as_usual
    lab_of_two.start()
    lab_of_two.until_passes("a", "b", 80, False)


def test_a_restart_changes_nothing(lab_of_two: Lab) -> None:
    lab_of_two.put("GlobalNetworkPolicy", "deny", DENY_B)
    lab_of_two.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    lab_of_two.start()
    lab_of_two.until_in_force(endpoints=2)
    before = lab_of_two.host.run("nft", "-a", "-s", "list", "ruleset").stdout
    assert lab_of_two.stop() == 0
    assert not lab_of_two.passes("a", "b", 81) and lab_of_two.passes("a", "b", 80)
    lab_of_two.start()
    lab_of_two.until_in_force(endpoints=2)
    assert lab_of_two.host.run("nft", "-a", "-s", "list", "ruleset").stdout == before  # the handles too
    assert lab_of_two.log().count("this node enforces policies from now on, for 2 workloads") == 1
    assert "default/b: ingress: tier default (GlobalNetworkPolicy allow, GlobalNetworkPolicy deny" in lab_of_two.log()


def test_no_policy_no_policing(lab_of_two: Lab) -> None:
    """Without Kubernetes: a host whose workloads have no policy is left alone."""
    lab_of_two.start()
    until(lambda: lab_of_two.standing().get("ready"), "the engine has decided")
    assert not lab_of_two.standing()["in_force"] and "no policy" in lab_of_two.standing()["sentence"]
    assert "to-workloads" not in lab_of_two.ruleset()
    lab_of_two.put("GlobalNetworkPolicy", "deny", DENY_B)
    lab_of_two.until_in_force()
    lab_of_two.remove("GlobalNetworkPolicy", "deny")
    until(lambda: "to-workloads" not in lab_of_two.ruleset(), "the tables are gone")
    assert lab_of_two.passes("a", "b", 80)


def test_switched_off(lab_of_two: Lab) -> None:
    lab_of_two.put("GlobalNetworkPolicy", "deny", DENY_B)
    lab_of_two.start(FELIX_POLICYENFORCEMENT="Disabled")
    until(lambda: lab_of_two.standing().get("ready"), "the engine has decided")
    assert "FELIX_POLICYENFORCEMENT" in lab_of_two.standing()["sentence"]
    assert lab_of_two.passes("a", "b", 80) and "to-workloads" not in lab_of_two.ruleset()
    directory = lab_of_two.root / "endpoint-status"  # an ADD with policy_setup_timeout waits for nothing
    until(lambda: len(list(directory.glob("k8s*"))) == 2, "the status files of both workloads")


def test_an_unreadable_policy_stays_in_force(lab_of_two: Lab) -> None:
    lab_of_two.put("GlobalNetworkPolicy", "deny", DENY_B)
    lab_of_two.start()
    lab_of_two.until_in_force(policies=1)
    lab_of_two.put("GlobalNetworkPolicy", "deny", {**DENY_B, "selector": "app == 'b"})
    until(lambda: lab_of_two.standing().get("problems"), "the problem is told")
    assert not lab_of_two.passes("a", "b", 80)
    assert "GlobalNetworkPolicy deny" in lab_of_two.standing()["problems"][0]
    lab_of_two.put("GlobalNetworkPolicy", "deny", {**DENY_B, "selector": "app == 'c'"})
    lab_of_two.until_passes("a", "b", 80)
    until(lambda: lab_of_two.standing()["problems"] == [], "the problem is gone")


def test_an_unreadable_policy_stays_in_force_over_a_restart(lab_of_two: Lab) -> None:
    """Also over a second one, until it is valid again or gone; one that was never valid is absent. Both are said."""
    lab_of_two.put("GlobalNetworkPolicy", "deny", DENY_B)
    lab_of_two.start()
    lab_of_two.until_in_force(policies=1)
    broken = {**DENY_B, "selector": "app == 'b"}
    lab_of_two.put("GlobalNetworkPolicy", "deny", broken)
    lab_of_two.put("GlobalNetworkPolicy", "never", {**broken, "order": 1})
    until(lambda: len(lab_of_two.standing().get("problems", ())) == 2, "the problems are told")
    for how in (signal.SIGKILL, signal.SIGTERM):
        lab_of_two.stop(how)
        lab_of_two.start()
        said = lab_of_two.until_in_force(policies=1)["problems"]
        assert said[0].startswith("GlobalNetworkPolicy deny: ") and said[0].endswith("version stays in force")
        assert said[1].startswith("GlobalNetworkPolicy never: ") and said[1].endswith("it counts as absent")
        assert not lab_of_two.passes("a", "b", 80)
    file = lab_of_two.root / "state" / last_valid.FILE
    assert file.stat().st_mode & 0o777 == 0o600
    lab_of_two.stop(signal.SIGKILL)
    lab_of_two.put("GlobalNetworkPolicy", "deny", {**DENY_B, "selector": "app == 'c'"})  # valid again meanwhile
    lab_of_two.remove("GlobalNetworkPolicy", "never")
    lab_of_two.start()
    lab_of_two.until_passes("a", "b", 80)
    until(lambda: lab_of_two.standing().get("problems") == [], "nothing is wrong")
    until(lambda: not file.exists(), "nothing is kept")


def test_a_damaged_file_of_last_valid_versions(lab_of_two: Lab) -> None:
    """It is not trusted, and said: the policy is absent, everything else in force."""
    lab_of_two.put("GlobalNetworkPolicy", "deny", DENY_B)
    lab_of_two.put("GlobalNetworkPolicy", "other", {**DENY_B, "selector": "app == 'a'"})
    lab_of_two.start()
    lab_of_two.until_in_force(policies=2)
    lab_of_two.put("GlobalNetworkPolicy", "deny", {**DENY_B, "selector": "app == 'b"})
    until(lambda: lab_of_two.standing().get("problems"), "the problem is told")
    lab_of_two.stop(signal.SIGKILL)
    file = lab_of_two.root / "state" / last_valid.FILE
    file.write_text(file.read_text().replace('"Deny"', '"Allow"'))
    lab_of_two.start()
    said = lab_of_two.until_in_force(policies=1)
    assert said["problems"][0].endswith("it counts as absent")
    assert [text for text in said["warnings"] if "cannot be used: its digest" in text]
    assert lab_of_two.passes("a", "b", 80) and not lab_of_two.passes("b", "a", 80)


def test_a_policy_that_is_removed_and_made_again(lab_of_two: Lab) -> None:
    """What comes under an old name inherits nothing: neither the old rules, nor their last good version."""
    lab_of_two.put("GlobalNetworkPolicy", "other", {**DENY_B, "selector": "app == 'none'"})
    lab_of_two.put("GlobalNetworkPolicy", "deny", DENY_B)
    lab_of_two.start()
    lab_of_two.until_in_force(policies=1)
    for _ in range(20):
        lab_of_two.remove("GlobalNetworkPolicy", "deny")
        lab_of_two.put("GlobalNetworkPolicy", "deny", ALLOW_80)
        lab_of_two.until_passes("a", "b", 80)
        lab_of_two.until_passes("a", "b", 81, False)
        lab_of_two.remove("GlobalNetworkPolicy", "deny")
        lab_of_two.put("GlobalNetworkPolicy", "deny", {**DENY_B, "selector": "app == 'b"})
        lab_of_two.until_passes("a", "b", 81)
        until(lambda: lab_of_two.standing().get("problems"), "the problem is told")
        lab_of_two.put("GlobalNetworkPolicy", "deny", DENY_B)
        lab_of_two.until_passes("a", "b", 80, False)
        until(lambda: lab_of_two.standing()["problems"] == [], "the problem is gone")


def test_rules_that_look_at_http(lab_of_two: Lab) -> None:
    """They allow by addresses and ports alone, as upstream's do in the kernel, and the policy is named."""
    lab_of_two.add("c", "10.65.0.3", app="c")
    by_method = {"action": "Allow", "source": {"selector": "app == 'a'"}, "http": {"methods": ["GET"]}}
    lab_of_two.put(
        "GlobalNetworkPolicy", "web", {"selector": "app == 'b'", "types": ["Ingress"], "ingress": [by_method]}
    )
    lab_of_two.start()
    lab_of_two.until_in_force(policies=1, endpoints=3)
    assert lab_of_two.passes("a", "b", 80) and not lab_of_two.passes("c", "b", 80)
    said = "GlobalNetworkPolicy web: nobody checks its http matches on this node, because policySyncPathPrefix is"
    assert [text for text in lab_of_two.standing()["warnings"] if text.startswith(said)]
    assert said in lab_of_two.log()
    lab_of_two.put("GlobalNetworkPolicy", "web", {"selector": "app == 'b'", "types": ["Ingress"]})
    lab_of_two.until_passes("a", "b", 80, False)
    until(lambda: lab_of_two.standing()["warnings"] == [], "nothing is ignored any more")


def test_a_policy_in_a_tier_that_does_not_exist(lab_of_two: Lab) -> None:
    """It comes last and denies what it leaves undecided, so nothing opens because a tier is lost; it is named."""
    lab_of_two.put("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})
    lab_of_two.put("GlobalNetworkPolicy", "lost", {**ALLOW_80, "tier": "nowhere", "types": ["Ingress"]})
    lab_of_two.start()
    lab_of_two.until_in_force(policies=1, endpoints=2)
    assert lab_of_two.passes("a", "b", 80) and not lab_of_two.passes("a", "b", 81)
    said = "GlobalNetworkPolicy lost: its tier nowhere does not exist: it comes after all tiers that do, "
    assert [text for text in lab_of_two.standing()["warnings"] if text.startswith(said)]
    assert said in lab_of_two.log()
    # what a tier that exists decides comes first
    lab_of_two.put("GlobalNetworkPolicy", "deny", DENY_B)
    lab_of_two.until_passes("a", "b", 80, False)
    # the tier is there: the policy has the place that it asked for
    lab_of_two.put("Tier", "nowhere", {"order": 1, "defaultAction": "Pass"})
    lab_of_two.until_passes("a", "b", 80)
    until(lambda: lab_of_two.standing()["warnings"] == [], "nothing is missing any more")
    lab_of_two.remove("Tier", "nowhere")
    lab_of_two.until_passes("a", "b", 80, False)


def test_what_policies_do_not_reach_is_said(lab_of_two: Lab) -> None:
    """kube-proxy in mode ipvs with too few marks, while its interface is there; a way of enforcing them that is not
    there any more.
    """
    lab_of_two.put("GlobalNetworkPolicy", "deny", DENY_B)
    lab_of_two.host.do("link", "add", "kube-ipvs0", "type", "bridge")
    lab_of_two.start(FELIX_NFTABLESMARKMASK="0x3f0000")
    lab_of_two.until_in_force(endpoints=2)
    [said] = lab_of_two.standing()["warnings"]
    assert "kube-proxy runs in mode ipvs" in said and "NftablesMarkMask has too few bits" in said
    assert said in lab_of_two.log() and "ipvs-" not in lab_of_two.ruleset()
    lab_of_two.host.do("link", "del", "kube-ipvs0")
    until(lambda: lab_of_two.standing()["warnings"] == [], "it is gone")
    lab_of_two.host.do("link", "add", "kube-ipvs0", "type", "bridge")
    until(lambda: lab_of_two.standing()["warnings"] == [said], "it is back")
    lab_of_two.stop()
    lab_of_two.host.do("link", "del", "kube-ipvs0")
    lab_of_two.start(FELIX_NFTABLESMODE="Disabled")
    [said] = lab_of_two.until_in_force(endpoints=2)["warnings"]
    assert "NFTablesMode is Disabled" in said and not lab_of_two.passes("a", "b", 80)


def test_connections_of_a_workload_that_is_gone(lab_of_two: Lab) -> None:
    """They are removed with it, so whoever gets the address next does not inherit them."""
    lab_of_two.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    lab_of_two.start()
    lab_of_two.until_in_force(endpoints=2)
    assert lab_of_two.passes("a", "b", 80, sport=4444)
    lab_of_two.put("GlobalNetworkPolicy", "deny", {**DENY_B, "order": 1})
    lab_of_two.until_in_force(policies=2)
    lab_of_two.remove("WorkloadEndpoint", "n1-k8s-b-eth0", "default")
    lab_of_two.until_in_force(endpoints=1)
    lab_of_two.put_endpoint(lab_of_two.workloads["b"], app="b")
    lab_of_two.until_in_force(endpoints=2)
    assert not lab_of_two.passes("a", "b", 80, sport=4444)


@pytest.mark.parametrize("by_status_files", [False, True])
def test_connections_of_a_workload_that_went_while_the_agent_was_down(lab_of_two: Lab, by_status_files: bool) -> None:
    """Of both families; those of an address that has an owner again stay. The first list is made of status files."""
    lab_of_two.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    lab_of_two.add("c", "10.65.0.3", app="b")
    lab_of_two.start()
    lab_of_two.until_in_force(endpoints=3)
    status = lab_of_two.root / "endpoint-status"
    until(lambda: len(list(status.glob("k8s*"))) == 3, "the status files of all")
    assert lab_of_two.passes("a", "b", 80, sport=4444) and lab_of_two.passes("a", "b", 80, sport=4444, version=6)
    assert lab_of_two.passes("a", "c", 80, sport=4445)
    lab_of_two.stop(signal.SIGKILL)
    listed = lab_of_two.root / "run" / FILE
    assert listed.stat().st_mode & 0o777 == 0o600
    if by_status_files:
        listed.unlink()
    else:
        shutil.rmtree(status)
    lab_of_two.remove("WorkloadEndpoint", "n1-k8s-b-eth0", "default")
    lab_of_two.remove("WorkloadEndpoint", "n1-k8s-c-eth0", "default")
    lab_of_two.workloads["d"] = replace(lab_of_two.workloads["c"], name="d", document={})
    lab_of_two.put_endpoint(lab_of_two.workloads["d"], app="b")  # it has c's address
    assert lab_of_two.host.call(_has_connections, "10.65.0.2") and lab_of_two.host.call(_has_connections, "fd00::2")
    lab_of_two.start()
    lab_of_two.until_in_force(endpoints=2)
    for gone in ("10.65.0.2", "fd00::2"):
        until(lambda gone=gone: not lab_of_two.host.call(_has_connections, gone), "its connections are gone")
    assert lab_of_two.host.call(_has_connections, "10.65.0.3")
    until(lambda: {"10.65.0.2", "fd00::2"}.isdisjoint(listed.read_text().split()), "they are not owed any more")
    assert set(listed.read_text().split()) == {"10.65.0.1", "fd00::1", "10.65.0.3"}
    lab_of_two.put("GlobalNetworkPolicy", "deny", {**DENY_B, "order": 1})
    lab_of_two.until_in_force(policies=2)
    lab_of_two.put_endpoint(lab_of_two.workloads["b"], app="b")  # whoever gets the address inherits nothing
    lab_of_two.until_in_force(endpoints=3)
    assert not lab_of_two.passes("a", "b", 80, sport=4444)


def test_connections_that_an_agent_died_about(lab_of_two: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """They could not be removed yet when it ended: the next one does it."""
    lab_of_two.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    with monkeypatch.context() as patch:
        patch.setattr(connections, "remove_entries", lambda *_: False)
        patch.setattr(connections, "remove_listed", _cannot_list)
        lab_of_two.start()
        lab_of_two.until_in_force(endpoints=2)
        assert lab_of_two.passes("a", "b", 80, sport=4444)
        lab_of_two.remove("WorkloadEndpoint", "n1-k8s-b-eth0", "default")
        lab_of_two.until_in_force(endpoints=1)
        lab_of_two.stop(signal.SIGKILL)
    assert lab_of_two.host.call(_has_connections, "10.65.0.2")
    lab_of_two.start()
    until(lambda: not lab_of_two.host.call(_has_connections, "10.65.0.2"), "its connections are gone")


def _cannot_list(*_: object) -> None:
    raise KernelError("cannot list connection tracking entries: no buffer space")


def test_connections_on_a_kernel_that_cannot_choose_them(lab_of_two: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are listed beside the engine's thread, at last also after failures."""
    failing = [KernelError("cannot list connection tracking entries: no buffer space")] * 2
    listed = connections.remove_listed

    def remove_listed(*arguments: Any) -> None:
        if failing:
            raise failing.pop()
        listed(*arguments)

    monkeypatch.setattr(connections, "remove_entries", lambda *_: False)
    monkeypatch.setattr(connections, "remove_listed", remove_listed)
    monkeypatch.setattr(connections, "AGAIN_FIRST_S", 0.01)
    lab_of_two.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    lab_of_two.start()
    lab_of_two.until_in_force(endpoints=2)
    assert lab_of_two.passes("a", "b", 80, sport=4444)
    lab_of_two.put("GlobalNetworkPolicy", "deny", {**DENY_B, "order": 1})
    lab_of_two.until_in_force(policies=2)
    assert lab_of_two.host.call(_has_connections, "10.65.0.2")
    lab_of_two.remove("WorkloadEndpoint", "n1-k8s-b-eth0", "default")
    until(lambda: not lab_of_two.host.call(_has_connections, "10.65.0.2"), "its connections are gone")
    assert lab_of_two.host.call(_has_connections, "10.65.0.1") is False  # it had only these


def _has_connections(address: str) -> bool:
    packed = ip_address(address).packed
    with Nfnetlink() as netlink:
        family = "ip" if len(packed) == 4 else "ip6"
        return any(
            packed in payload for payload in netlink.dump(1 << 8 | 1, general(family), "list", Deadline.after(5))
        )


def test_an_interface_without_an_endpoint(lab_of_two: Lab) -> None:
    lab_of_two.put("GlobalNetworkPolicy", "other", {**DENY_B, "selector": "app == 'none'"})
    lab_of_two.start()
    lab_of_two.until_in_force(endpoints=2)
    assert lab_of_two.passes("a", "b", 80)
    lab_of_two.remove("WorkloadEndpoint", "n1-k8s-a-eth0", "default")
    lab_of_two.until_in_force(endpoints=1)
    assert not lab_of_two.passes("a", "b", 80) and not lab_of_two.passes("b", "a", 80)


def _has_sent(counts: Counts, number: int) -> bool:
    return counts.sent > number


def test_a_restart_under_traffic(lab_of_two: Lab) -> None:
    """Killed and started again, policies put and removed, while packets flow: none forbidden passes, none is lost."""
    lab_of_two.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    lab_of_two.start()
    lab_of_two.until_in_force(endpoints=2)
    lab_of_two.until_passes("a", "b", 81, False)
    with traffic(lab_of_two, "a", "b", allowed=80, forbidden=81) as counts:
        for _ in range(3):
            lab_of_two.stop(9)
            enough = counts.sent + 200
            until(partial(_has_sent, counts, enough), "packets without an engine")
            lab_of_two.start()
            lab_of_two.until_in_force(endpoints=2)
            for number in range(10):
                other = {**ALLOW_80, "order": 20 + number, "selector": f"has(app) && app != 'x{number}'"}
                lab_of_two.put("GlobalNetworkPolicy", f"more{number}", other)
            lab_of_two.until_in_force(policies=11)
            for number in range(10):
                lab_of_two.remove("GlobalNetworkPolicy", f"more{number}")
            lab_of_two.until_in_force(policies=1)
    assert counts.sent > 1000
    assert (counts.forbidden_arrived, counts.allowed_arrived) == (0, counts.sent)
