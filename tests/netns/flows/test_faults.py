"""Faults under traffic: whatever happens to the recorder and to who keeps it, verdicts stay, and no loss is silent.

Each packet is a connection of its own. What is let through lasts, so that it has exactly one flow in the end, also if
it began while nobody recorded: its label says who decided. What is denied is recorded, lost and counted, or was sent
while there was no recorder, which is said too.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cni_calico.deadline import Deadline
from cni_calico.directories import FLOW_SOCKET
from cni_calico.errors import CalicoError
from cni_calico.flows.client import ask
from cni_calico.flows.deciders import render_line
from cni_calico.flows.groups import groups_of, read_pair
from cni_calico.flows.losses import ALLOWED, AWAY, DENIED
from cni_calico.flows.query import FlowQuery
from cni_calico.kernel.netlink.decisions import DecisionReports
from cni_calico.nodeagent.policing.tables.numbers import Recording, RuleNumbers
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.regular import make_directories
from tests.bench.flows.lasting import counted
from tests.conftest import ROOT
from tests.deadlines import until
from tests.netns.wire import UPLINK, Wire, entered, open_wire
from tests.unit.policy.cluster import NODE, graph_of

pytestmark = [pytest.mark.netns, pytest.mark.never_excused]

DOCUMENTS = {
    ("WorkloadEndpoint", "a", "l1"): {
        "metadata": {"name": "l1", "namespace": "a", "labels": {}},
        "spec": {"interfaceName": "cali1", "node": NODE, "ipNetworks": ["10.0.0.1/32"], "profiles": []},
    },
    ("GlobalNetworkPolicy", "", "to-53"): {
        "metadata": {"name": "to-53"},
        "spec": {
            "selector": "all()",
            "types": ["Ingress"],
            "ingress": [{"action": "Allow", "protocol": "UDP", "destination": {"ports": [53]}}],
        },
    },
}
SAID = {53: ["ingress: to-53 rule 0"], 54: ["ingress: end of tier default (policies: to-53)"]}
UDP = {
    "source": ip_address("10.0.1.1"),
    "destination": ip_address("10.0.0.1"),
    "protocol": 17,
    "icmp": (0, 0),
}


class Node:
    """``unrecorded``: source ports of denied packets that were sent while nobody recorded them."""

    def __init__(self, wire: Wire, numbers: RuleNumbers, root: Path, seed: int) -> None:
        self.wire, self.numbers, self.root, self.random = wire, numbers, root, Random(seed)
        self.agent: subprocess.Popen[bytes] | None = None
        self.next = 1024
        self.allowed: list[int] = []
        self.denied: list[int] = []
        self.unrecorded: set[int] = set()
        self.deaths = self.counted = 0
        make_directories(f"{root}/state/flows", 0o700)
        graph = graph_of(DOCUMENTS)
        graph.flush()
        wire.apply(graph.wanted())
        wire.route({ip_address("10.0.0.1"): "cali1"})
        wire.host.set_sysctl("netfilter/nf_conntrack_udp_timeout", "3600")
        (root / "state" / "flows" / "numbers").write_text("".join(render_line(*one) for one in numbers.take_new()))

    # -- the processes ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        root = str(self.root)
        environ = {**os.environ, "CALICO_RUN_DIR": f"{root}/run", "CALICO_STATE_DIR": f"{root}/state"}
        with entered(self.wire.host):
            command = [sys.executable, "-m", "tests.fakes.recording_agent", root]
            self.agent = subprocess.Popen(command, cwd=ROOT, env=environ)
        self.until_recording()

    def close(self) -> None:
        if self.agent is not None:
            recorder = self.recorder()
            self.agent.kill()
            self.agent.wait(20)
            with suppress(ProcessLookupError):
                os.kill(recorder, signal.SIGKILL)

    def recorder(self) -> int:
        """Its process; 0 for none."""
        assert self.agent is not None
        for path in Path("/proc").iterdir():
            with suppress(OSError, IndexError):
                if path.name.isdecimal() and (path / "cmdline").read_bytes().endswith(b"\0-flow-recorder\0"):
                    fields = (path / "stat").read_text().rpartition(")")[2].split()
                    if int(fields[1]) == self.agent.pid and fields[0] != "Z":
                        return int(path.name)
        return 0

    def status(self) -> dict[str, Any] | None:
        with suppress(CalicoError):
            (found,) = ask(f"{self.root}/run/{FLOW_SOCKET}", FlowQuery(status=True), Deadline.after(10))
            return found
        return None

    def neither(self) -> dict[str, int]:
        """Packets of each kind that rules have counted, without reports that this recorder has recorded or lost."""
        status, told = until(self.status, "a reader is let in"), counted(self.wire)
        both = {ALLOWED: told["allowed"], DENIED: told["denied"]}
        return {source: both[source] - status["reports"][source] - status["lost"][source] for source in both}

    def neither_for_good(self) -> dict[str, int]:
        """When nothing is on its way."""
        found: list[dict[str, int]] = []

        def is_the_same() -> bool:
            found.append(self.neither())
            return found[-1:] == found[-2:-1]

        until(is_the_same, "nothing is on its way", pause_s=0.6)
        return found[-1]

    def until_recording(self, other_than: int = 0) -> None:
        until(lambda: (pid := self.recorder()) and pid != other_than and self.status(), "a recorder answers")
        self.follow_groups()

    def follow_groups(self) -> None:
        """As the engine does it when the keeper wakes it."""
        goal, groups = self.wire.enforcer.goal, groups_of(read_pair(f"{self.root}/run"))
        if goal.settings.recording is not None and goal.settings.recording.groups != groups:
            self.counted += counted(self.wire)["denied"]  # the rules that follow begin anew
            goal.configure(replace(goal.settings, recording=Recording(self.numbers, groups=groups)))
            self.wire.bring_about()

    # -- traffic ------------------------------------------------------------------------------------------------------

    def send(self, count: int, *, unrecorded: bool = False) -> None:
        """Of each kind; all arrive that may, and none of the others."""
        sports = range(self.next, self.next + count)
        self.next += count
        packets = [(UPLINK, "cali1", {**UDP, "sport": sport, "dport": port}) for sport in sports for port in (53, 54)]
        for at in range(0, len(packets), 500):  # what the sockets of the test have room for
            part = packets[at : at + 500]
            assert self.wire.arrivals(part) == [packet["dport"] == 53 for *_, packet in part]
        self.allowed += sports
        self.denied += sports
        if unrecorded:
            self.unrecorded.update(sports)

    # -- faults -------------------------------------------------------------------------------------------------------

    def nothing(self, count: int) -> None:
        self.send(count)

    def stop_recorder(self, count: int) -> None:
        pid, before = self.recorder(), self.neither_for_good()
        os.kill(pid, signal.SIGSTOP)
        self.send(count)
        os.kill(pid, signal.SIGCONT)
        self.send(count)
        until(lambda: self.neither() == before, "what rules have counted meanwhile is recorded or lost", pause_s=0.1)

    def kill_recorder(self, count: int) -> None:
        pid = self.recorder()
        if self.random.random() < 0.5:
            os.kill(pid, signal.SIGSTOP)  # so that it has not read what it takes along
        else:
            self.settle()
        self.send(count, unrecorded=True)
        self._end(pid)
        self.send(count, unrecorded=True)
        self.until_recording(pid)
        self.send(count)

    def _end(self, pid: int) -> None:
        """As if by somebody else."""
        os.kill(pid, signal.SIGKILL)
        self.deaths += 1

    def kill_agent(self, count: int) -> None:
        """The recorder ends by itself."""
        assert self.agent is not None
        pid = self.recorder()
        self.settle()
        self.agent.kill()
        self.agent.wait(20)
        until(lambda: not Path(f"/proc/{pid}").exists(), "the recorder has ended")
        self.deaths += 1
        self.send(count, unrecorded=True)
        self.start()
        self.send(count)

    def stop_agent(self, count: int) -> None:
        """Recording does not need it."""
        assert self.agent is not None
        os.kill(self.agent.pid, signal.SIGSTOP)
        self.send(count)
        self.settle()
        os.kill(self.agent.pid, signal.SIGCONT)

    def take_groups(self, count: int) -> None:
        """Another program listens to one of the groups when the recorder comes back: it takes two others."""
        pid, before = self.recorder(), read_pair(f"{self.root}/run")
        self.settle()
        assert self.agent is not None
        os.kill(self.agent.pid, signal.SIGSTOP)
        self._end(pid)
        group = groups_of(before)[self.random.randrange(2)]

        def taken() -> DecisionReports | None:
            with suppress(CalicoError), entered(self.wire.host):
                return DecisionReports(group, 1 << 16, Deadline.after(10))
            return None

        other = until(taken, "the recorder has left the group")
        try:
            os.kill(self.agent.pid, signal.SIGCONT)
            self.send(count, unrecorded=True)
            self.until_recording(pid)
            assert read_pair(f"{self.root}/run") != before
            self.send(count)
            self.settle()
        finally:
            other.close()

    def fill_disk(self, count: int) -> None:
        with (self.root / "state" / "full").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(1 << 16))
        self.send(count)
        self.settle()
        (self.root / "state" / "full").unlink()

    def make_read_only(self, count: int) -> None:
        """Another filesystem covers the files, on which nothing can be written. Who has begun just now and not read
        them before would have to call the rules unknown.
        """
        self.send(1)
        self.settle()
        place = str(self.root / "state" / "flows")
        subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=4k", "covers", place], check=True)
        try:
            self.send(count)
            self.settle()
        finally:
            subprocess.run(["umount", "-l", place], check=True)
        self.send(count)

    def ask_for_too_much(self, count: int) -> None:
        """Readers who say nothing, nonsense, and never what they have read; more of them than there may be."""
        with ExitStack() as opened:
            for place in range(12):
                reader = opened.enter_context(socket.socket(socket.AF_UNIX))
                reader.settimeout(20)
                with suppress(OSError):
                    reader.connect(f"{self.root}/run/{FLOW_SOCKET}")
                    words = (
                        b'{"follow": true}\n',
                        b"\xff" * 70_000,
                        b'{"nonsense": 1}\n',
                        b"",
                        b'{"aggregate": true}\n',
                    )
                    reader.sendall(words[place % len(words)])
            self.send(count)
        self.settle()

    # -- what has to be true ------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Everything that was sent is recorded, or lost and counted, but for what nobody could record."""

        def is_settled() -> bool:
            self.found = self.flows()
            lost = self.lost()
            recorded = {sport for sport, port in self.found if port == 54}
            missing = set(self.denied) - recorded - self.unrecorded
            return len(missing) <= lost["nflog-denied"] and {s for s, p in self.found if p == 53} >= set(self.allowed)

        until(is_settled, "all is recorded", pause_s=0.1)

    def flows(self) -> Counter[tuple[int, int]]:
        try:
            documents = list(ask(f"{self.root}/run/{FLOW_SOCKET}", FlowQuery(since=0.0), Deadline.after(20)))
        except CalicoError:
            return Counter()
        found = [one for one in documents if "verdict" in one]
        for one in found:
            assert [decided["said"] for decided in one["decided"]] == SAID[one["destination"]["port"]]
            assert (one["verdict"] == "denied") == (one["destination"]["port"] == 54)
        return Counter((one["source"]["port"], one["destination"]["port"]) for one in found)

    def ending(self) -> dict[str, Any] | None:
        with suppress(CalicoError):
            return list(ask(f"{self.root}/run/{FLOW_SOCKET}", FlowQuery(first=0, since=0.0), Deadline.after(20)))[-1]
        return None

    def lost(self) -> Counter[str]:
        """Reports of each source, of all that ever ran here."""
        ending = until(self.ending, "a reader is let in")
        found = Counter[str]()
        for one in ending["lost"]:
            found[AWAY if one["why"] == AWAY else one["source"]] += one["count"] or 1
        return found

    def check(self) -> None:
        self.settle()
        assert set(self.found.values()) == {1}, "each connection is one flow"
        assert {sport for sport, port in self.found if port == 53} == set(self.allowed)
        recorded, lost = {sport for sport, port in self.found if port == 54}, self.lost()
        missing = set(self.denied) - recorded
        assert len(missing - self.unrecorded) == lost["nflog-denied"], "what is lost is counted"
        assert lost[AWAY] == self.deaths, "when nobody recorded is said"
        assert self.counted + counted(self.wire)["denied"] == len(self.denied)
        status = self.status()
        assert status is not None and not status["unaccounted"] and not status["disagreed"]


@contextmanager
def running(root: Path, seed: int) -> Iterator[Node]:
    numbers = RuleNumbers()
    state = root / "state"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m,mode=0700", "flows", str(state)], check=True)
    try:
        with open_wire(FilterSettings(recording=Recording(numbers))) as wire:
            node = Node(wire, numbers, root, seed)
            try:
                node.start()
                yield node
            finally:
                node.close()
    finally:
        subprocess.run(["umount", "-l", str(state)], check=True)


FAULTS: tuple[Callable[[Node, int], None], ...] = (
    Node.nothing,
    Node.stop_recorder,
    Node.fill_disk,
    Node.make_read_only,
    Node.ask_for_too_much,
    Node.stop_agent,
    Node.kill_recorder,
    Node.take_groups,
    Node.kill_agent,
)


def test_no_fault_of_the_recorder_changes_a_verdict_or_is_silent(tmp_path: Path) -> None:
    with running(tmp_path, 1) as node:
        for fault in FAULTS:
            fault(node, 20)
        node.check()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", [2, 3])
def test_random_faults(tmp_path: Path, seed: int) -> None:
    with running(tmp_path, seed) as node:
        for turn in range(60):
            node.random.choice(FAULTS)(node, node.random.choice((0, 5, 100)))
            if turn % 10 == 9:
                node.check()
        node.stop_recorder(10_000)  # as fast as they can be sent; with most processors that is more than is recorded
        node.check()
