"""The recorder beside the policy engine, as the agent starts it: what calicoctl shows of packets that were sent."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from fcntl import ioctl
from ipaddress import ip_address
from pathlib import Path
from termios import TIOCOUTQ
from typing import Any

import pytest

from cni_calico.ctl.flows.page.stream import follow_flows
from cni_calico.ctl.flows.places import HostFlows
from cni_calico.ctl.main import run
from cni_calico.ctl.policy.seen import describe_seen
from cni_calico.daemon.stopping import Stopping
from cni_calico.daemon.supervisor import own_command
from cni_calico.deadline import Deadline
from cni_calico.directories import FLOW_SOCKET
from cni_calico.errors import CalicoError
from cni_calico.flows.client import ask
from cni_calico.flows.deciders import ALLOWED_GROUP
from cni_calico.flows.export.wanted import SOCKET as FLOWS_SOCKET
from cni_calico.flows.query import Condition, FlowQuery
from cni_calico.flows.services import SERVICES, ServiceLine, ServicePort, render_service
from cni_calico.kernel.netlink.decisions import DecisionReports
from cni_calico.kernel.netlink.nfnetlink import CTNETLINK, Nfnetlink, general
from cni_calico.log import SILENT, Log
from cni_calico.model.documents.codec import decode_endpoint
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.nodeagent.context.felix import parse_felix
from cni_calico.nodeagent.context.recording import WantedRecording
from cni_calico.nodeagent.recording.exporting import ExportTeller
from cni_calico.nodeagent.recording.keeper import RecorderKeeper
from cni_calico.policy.explain import Packet
from tests.deadlines import until
from tests.netns.policing.lab import ALLOW_80, NODE, Lab, lab, socket_in
from tests.netns.wire import entered

pytestmark = [pytest.mark.netns]


class Recorded:
    """A node whose flows are recorded."""

    def __init__(self, lab: Lab, root: Path) -> None:
        self.lab, self.root = lab, root
        self.environ = {**os.environ, "CALICO_RUN_DIR": str(root / "run"), "CALICO_STATE_DIR": str(root / "state")}
        self.stopping, self.threads = Stopping(), list[threading.Thread]()
        log = Log("debug", str(root / "recorder.log"), stderr=False)
        command = own_command()
        self.keeper = RecorderKeeper(
            NODE, str(root / "run"), log, command, self.environ, self._start_thread, self.stopping
        )

    def _start_thread(self, work: Callable[[], None]) -> None:
        def inside() -> None:
            with entered(self.lab.host):
                work()

        self.threads.append(threading.Thread(target=inside))
        self.threads[-1].start()

    def close(self) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join()

    def endpoints(self) -> list[WorkloadEndpoint]:
        return [
            decode_endpoint(
                ResourceKey("WorkloadEndpoint", f"{NODE}-k8s-{name}-eth0", "default"),
                {"metadata": {"name": f"{NODE}-k8s-{name}-eth0", "namespace": "default"}, "spec": workload.document},
            )
            for name, workload in self.lab.workloads.items()
        ]

    def record(self) -> None:
        self.keeper.use(WantedRecording("Enabled"), self.endpoints())
        until(lambda: (self.root / "run" / FLOW_SOCKET).exists(), "the recorder listens")

    @property
    def pid(self) -> int:
        found = re.findall(r"process (\d+)", (self.root / "recorder.log").read_text())
        return int(found[-1])

    def ask(self, query: FlowQuery | None = None) -> list[dict[str, Any]]:
        try:
            return list(ask(str(self.root / "run" / FLOW_SOCKET), query or FlowQuery(), Deadline.after(10)))
        except CalicoError:
            return []  # it is being started again

    def until(self, count: int, **conditions: str) -> list[dict[str, Any]]:
        """The flows that meet the conditions, once there are so many."""
        query = FlowQuery(tuple(Condition(field, (value,)) for field, value in conditions.items()))
        found: list[dict[str, Any]] = []

        def enough() -> bool:
            found[:] = [one for one in self.ask(query) if "verdict" in one]
            return len(found) >= count

        until(enough, f"{count} flows with {conditions}")
        return found

    def calicoctl(self, *arguments: str) -> int:
        return run(["flows", *arguments], self.environ)


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    with lab(tmp_path) as made:
        made.put_profile("kns.default")
        made.add("a", "10.77.0.1", "fd00:77::1", app="a")
        made.add("b", "10.77.0.2", "fd00:77::2", app="b")
        made.put("GlobalNetworkPolicy", "to-b", ALLOW_80)
        made.start(FELIX_FLOWS="Enabled")
        made.until_in_force(policies=1, endpoints=2)
        node = Recorded(made, tmp_path)
        try:
            node.record()
            yield node
        finally:
            node.close()


def decided(document: dict[str, Any]) -> list[str]:
    return [one["said"] for one in document["decided"]]


def unacknowledged(connection: socket.socket) -> int:
    """Bytes."""
    return int.from_bytes(ioctl(connection, TIOCOUTQ, bytes(4)), sys.byteorder)


ALLOWED_BY = ["egress: profile kns.default rule 0", "ingress: to-b rule 0"]
DENIED_BY = [ALLOWED_BY[0], "ingress: end of tier default (policies: to-b)"]


def test_each_connection_is_one_flow_with_the_rules_that_decided(
    recorded: Recorded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket_in(recorded.lab.host, socket.AF_INET, socket.SOCK_DGRAM) as probe:  # as kubelet's: nobody decides
        probe.sendto(b"probe", ("10.77.0.2", 81))
    for version in (4, 6):
        assert recorded.lab.passes("a", "b", 80, version=version, sport=1000)
        assert not recorded.lab.passes("a", "b", 81, version=version, sport=1001)
    recorded.until(2, verdict="denied")
    flows = sorted(recorded.until(4), key=lambda one: (":" in one["source"]["ip"], one["source"]["port"]))
    assert [(one["verdict"], one["destination"]["port"]) for one in flows] == [("allowed", 80), ("denied", 81)] * 2
    assert [decided(one) for one in flows] == [ALLOWED_BY, DENIED_BY] * 2
    ends = {(one["source"]["name"], one["destination"]["name"], one["node"]) for one in flows}
    assert ends == {("a", "b", NODE)} and {one["how"] for one in flows} == {"kernel"}
    assert flows[1]["packets"] == {"in": 1, "out": 0} and not flows[0]["ended"]
    # the same connection again: not answered, so its packets are asked again, and reported only once
    assert recorded.lab.passes("a", "b", 80, sport=1000) and not recorded.lab.passes("a", "b", 81, sport=1001)

    def denied_twice() -> list[str]:
        found = (one for one in recorded.until(2, port="81") if one["packets"] == {"in": 2, "out": 0})
        return [one["source"]["ip"] for one in found]

    assert until(denied_twice, "both packets are in the flow") == ["10.77.0.1"] and len(recorded.until(4)) == 4
    capsys.readouterr()
    assert recorded.calicoctl("--verdict", "denied", "--last", "1", "--fail-if-denied", "-v") == 3
    said = capsys.readouterr()
    assert "default/a" in said.out and "end of tier default" in said.out and "1 flow" in said.err
    assert "calicoctl policy explain --from default/a --to default/b --protocol udp --port 81" in said.out
    packet = Packet(ip_address("10.77.0.1"), ip_address("10.77.0.2"), 17, 1, 81)
    monkeypatch.setenv("CALICO_RUN_DIR", str(recorded.root / "run"))
    assert re.fullmatch(r"Seen .* hour: 1 denied, last \d\d:\d\d:\d\d\.", describe_seen(packet))
    assert describe_seen(replace(packet, destination_port=82)).endswith("nothing.")
    assert recorded.calicoctl("--aggregate", "--to", "default/b", "-o", "jsonl") == 0
    assert capsys.readouterr().out.count("\n") == 2
    ours, theirs = socket.socketpair()
    with ours, theirs:  # what the page of flows is told
        path = str(recorded.root / "run" / FLOW_SOCKET)
        told = follow_flows(HostFlows(path), "--port 83 --port 81", None, theirs, timeout_s=30, clock=time.monotonic)
        assert [name for name, _ in (next(told), next(told), next(told))] == ["flow", "flow", "ready"]
        assert recorded.lab.passes("a", "b", 83, sport=1001) is False
        assert next(one for name, one in told if name == "flow")["destination"]["port"] == 83


def test_what_is_recorded_is_exported_to_who_looks_on_the_node(recorded: Recorded) -> None:
    """calico-node -flows gets what the recorder sums up each second: both sides of what b lets in, and of what not, and
    what the host itself sends by leave of its host endpoint.
    """
    lab, host = recorded.lab, {"node": NODE, "interfaceName": "card"}
    lab.host.do("link", "add", "card", "type", "veth", "peer", "name", "cable")
    lab.host.do("link", "set", "card", "up")
    lab.host.do("addr", "add", "10.98.0.1/24", "dev", "card")
    lab.put("HostEndpoint", "h", host, it="is-a-host")
    lab.put("GlobalNetworkPolicy", "hosts", {"selector": "it == 'is-a-host'", "egress": [{"action": "Allow"}]})
    lab.until_in_force(policies=2, endpoints=2)
    parsed = parse_felix({"FELIX_FLOWLOGSLOCALREPORTER": "Enabled", "FELIX_FLOWLOGSFLUSHINTERVAL": "1"})
    ExportTeller(NODE, str(recorded.root / "run"), SILENT).use(parsed.settings, recorded.endpoints())
    shown = recorded.root / "shown"
    with shown.open("w") as output:
        looking = subprocess.Popen([*own_command(), "-flows", "9"], env=recorded.environ, stdout=output)
        try:
            until((recorded.root / "run" / FLOWS_SOCKET).exists, "it listens")
            sports = iter(range(3000, 4000))

            def pass_some() -> int | None:
                for port in (80, 81):
                    lab.passes("a", "b", port, sport=next(sports))
                with socket_in(lab.host, socket.AF_INET, socket.SOCK_DGRAM) as out:
                    out.sendto(b"out", ("10.98.0.2", 5353))
                return looking.poll()

            until(lambda: pass_some() is not None, "it has shown nine", pause_s=0.3)
            assert looking.wait() == 0
        finally:
            looking.kill()
            looking.wait()
    text = shown.read_text()
    assert text.count("- Time=") == 9 and "Src={wep(default/a)} Dst={wep(default/b) Svc:-/-} Proto={udp(8" in text
    assert re.search(r"Reporter=Src Action=Allow\n.*\n.*\n  Enforced:\n  - Profile kns.default rule 0 Allow\n", text)
    assert f"Reporter=Src Action=Allow\n  Src={{hep(-/{NODE})}} Dst={{net(-/pvt) Svc:-/-}} Proto={{udp(5353)" in text
    assert "  - GlobalNetworkPolicy hosts tier default rule 0 Allow\n" in text
    assert not (recorded.root / "run" / FLOWS_SOCKET).exists()


def test_a_stopped_and_a_killed_recorder_lose_nothing_that_they_do_not_tell(recorded: Recorded) -> None:
    lab = recorded.lab
    os.kill(recorded.pid, signal.SIGSTOP)
    assert all(lab.passes("a", "b", 8000 + i) for i in range(10))
    os.kill(recorded.pid, signal.SIGCONT)
    assert len(recorded.until(10)) == 10
    first = recorded.pid
    os.kill(first, signal.SIGSTOP)
    assert lab.passes("a", "b", 80, sport=2000)
    os.kill(first, signal.SIGKILL)
    until(lambda: recorded.pid != first, "another one is started")
    found = recorded.until(11)
    assert decided(found[-1]) == ALLOWED_BY and found[-1]["source"]["port"] == 2000  # from the connection's label
    assert lab.passes("a", "b", 80, sport=2001)
    assert len(recorded.until(12)) == 12
    (ending,) = (one for one in recorded.ask() if "end" in one)
    assert [one["why"] for one in ending["lost"]] == ["recorder"]


def test_tcp_icmp_and_a_translated_connection_with_what_they_carried(recorded: Recorded) -> None:
    lab = recorded.lab
    table = "add table ip nat; add chain ip nat p { type nat hook prerouting priority -100; }; add rule ip nat p "
    lab.host.run("nft", f"{table} ip daddr 10.96.0.1 tcp dport 443 dnat to 10.77.0.1:7000")
    lab.host.run("nft", "add rule ip nat p ip daddr 10.96.0.9 tcp dport 30443 dnat to 10.77.0.1:7000")  # a node's
    ports = (ServicePort("https", 6, 443, 30443, 7000),)
    line = render_service(("shop", "api"), ServiceLine((ip_address("10.96.0.1").packed,), ports))
    (recorded.root / "run" / SERVICES).write_bytes(line)
    a, b = lab.workloads["a"], lab.workloads["b"]
    with (
        socket_in(a.ns, socket.AF_INET, socket.SOCK_STREAM) as server,
        socket_in(b.ns, socket.AF_INET, socket.SOCK_STREAM) as direct,
        socket_in(b.ns, socket.AF_INET, socket.SOCK_STREAM) as translated,
        socket_in(b.ns, socket.AF_INET, socket.SOCK_STREAM) as at_node,
        socket_in(b.ns, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as pings,
    ):
        server.bind(("10.77.0.1", 7000))
        server.listen()
        places = ("10.77.0.1", 7000), ("10.96.0.1", 443), ("10.96.0.9", 30443)
        for client, where in zip((direct, translated, at_node), places, strict=True):
            client.settimeout(20)
            client.connect(where)
            client.sendall(b"x" * 100)
        pings.settimeout(20)
        pings.sendto(bytes((8, 0)) + (0xF7F8).to_bytes(2, "big") + bytes((0, 7, 0, 0)), ("10.77.0.1", 0))
        assert pings.recv(100)
        found = recorded.until(4)
        # what is sent, or acknowledged, after the entries are gone would begin them anew
        until(lambda: not any(map(unacknowledged, (direct, translated, at_node))), "all is acknowledged")
        assert not any(one["ended"] for one in found)
        with entered(lab.host), Nfnetlink() as netlink:
            netlink.request(CTNETLINK << 8 | 2, 0, general(""), "flush", Deadline.after(10))
        until(lambda: all(one["ended"] for one in recorded.until(4)), "all have ended")
        found = sorted(recorded.until(4), key=lambda one: (one["protocol"], str(one["destination"]["asked"])))
    ping, straight, through, node_port = found
    assert ping["icmp"] == {"type": 8, "code": 0} and ping["packets"] == {"in": 1, "out": 1}
    assert straight["destination"]["asked"] is None and straight["destination"]["port"] == 7000
    assert through["destination"]["asked"] == {"ip": "10.96.0.1", "port": 443} and through["destination"]["name"] == "a"
    service = {"namespace": "shop", "name": "api", "port": "https"}
    assert [one["destination"].get("service") for one in found] == [None, None, service, service]
    assert node_port["destination"]["asked"] == {"ip": "10.96.0.9", "port": 30443}
    assert recorded.until(2, service="shop/api") and recorded.until(1, service="10.96.0.1")
    assert all(decided(one) == [f"{way}: profile kns.default rule 0" for way in ("egress", "ingress")] for one in found)
    assert all(one["bytes"]["in"] > 100 and one["packets"]["out"] >= 2 for one in (straight, through))


KUBE_PROXY = """
*nat
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SEP-A - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-API - [0:0]
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -j MASQUERADE
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp --dport 443 -j KUBE-SVC-API
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp --dport 444 -j KUBE-MARK-MASQ
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp --dport 444 -j KUBE-SVC-API
-A KUBE-SVC-API -j KUBE-SEP-A
-A KUBE-SEP-A -s 10.77.0.1/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-A -p tcp -j DNAT --to-destination 10.77.0.1:7000
COMMIT
"""  # of a service whose only endpoint is pod a, and of port 444 where everybody is masqueraded


KUBE_PROXY6 = """
table ip6 kube-proxy {
  chain nat-prerouting { type nat hook prerouting priority dstnat; jump services; }
  chain nat-output { type nat hook output priority -100; jump services; }
  chain nat-postrouting {
    type nat hook postrouting priority srcnat;
    mark and 0x4000 != 0 mark set mark xor 0x4000 masquerade fully-random
  }
  chain services {
    ip6 daddr fd00:96::1 tcp dport 443 goto endpoint
    fib daddr type local tcp dport 30443 jump mark-for-masquerade
    fib daddr type local tcp dport 30443 goto endpoint
  }
  chain mark-for-masquerade { mark set mark or 0x4000; }
  chain endpoint {
    ip6 saddr fd00:77::1 jump mark-for-masquerade
    meta l4proto tcp dnat to [fd00:77::1]:7000
  }
}
"""  # the same in IPv6, by nftables; and port 30443 of the node


def by_iptables(lab: Lab, rules: Path) -> None:
    rules.write_text(KUBE_PROXY)
    lab.host.run("iptables-nft-restore", "--noflush", str(rules))


def by_nftables(lab: Lab, rules: Path) -> None:
    rules.write_text(KUBE_PROXY6)
    lab.host.run("nft", "-f", str(rules))


HOST4, HOST6 = "10.99.0.1", "fd00:99::1"
SENT4 = (("a", "10.96.0.1", 443), ("b", "10.96.0.1", 443), ("b", "10.96.0.1", 444))
SENT6 = (("a", "fd00:96::1", 443), ("b", "fd00:96::1", 443), ("b", HOST6, 30443))


@pytest.mark.parametrize(
    ("translate", "family", "host", "sent"),
    [(by_iptables, socket.AF_INET, HOST4, SENT4), (by_nftables, socket.AF_INET6, HOST6, SENT6)],
    ids=("iptables", "nftables-ipv6"),
)
def test_a_pod_that_reaches_itself_by_a_service_and_who_is_masqueraded(
    recorded: Recorded,
    tmp_path: Path,
    translate: Callable[[Lab, Path], None],
    family: int,
    host: str,
    sent: tuple[tuple[str, str, int], ...],
) -> None:
    """By the rules of kube-proxy, beside policies in nftables: whom the server sees is the host, and the flow is still
    one, of the pod that asked, with the rules of both sides and its counters.
    """
    lab, version = recorded.lab, 4 if family == socket.AF_INET else 6
    lab.host.do("addr", "add", f"{host}/{32 if version == 4 else 128}", "dev", "lo")
    translate(lab, tmp_path / "rules")
    at, asking = lab.workloads["a"].address(version), lab.workloads["b"].address(version)
    with socket_in(lab.workloads["a"].ns, family, socket.SOCK_STREAM) as server, ExitStack() as stack:
        server.bind((at, 7000))
        server.listen()
        server.settimeout(20)
        seen, clients = [], []
        for who, address, port in sent:
            client = stack.enter_context(socket_in(lab.workloads[who].ns, family, socket.SOCK_STREAM))
            client.settimeout(20)
            client.connect((address, port))
            client.sendall(b"x" * 100)
            clients.append(client)
            connection, (peer, *_) = server.accept()
            stack.enter_context(connection)
            seen.append(peer)
        assert seen == [host, asking, host]
        until(lambda: not any(map(unacknowledged, clients)), "all is acknowledged")
        recorded.until(3)
        (said,) = recorded.ask(FlowQuery(status=True))  # whatever these sockets send later begins other connections
        with entered(lab.host), Nfnetlink() as netlink:
            netlink.request(CTNETLINK << 8 | 2, 0, general(""), "flush", Deadline.after(10))
        until(lambda: all(one["ended"] for one in recorded.until(3)), "all have ended")
        found = sorted(recorded.until(3), key=lambda one: (one["source"]["name"], one["destination"]["asked"]["port"]))
    asked = [(one["source"]["name"], *one["destination"]["asked"].values()) for one in found]
    assert asked == list(sent)
    for one in found:
        assert (one["destination"]["name"], one["destination"]["ip"], one["destination"]["port"]) == ("a", at, 7000)
        assert decided(one) == [f"{way}: profile kns.default rule 0" for way in ("egress", "ingress")]
        assert one["bytes"]["in"] > 100 and one["packets"]["out"] >= 2
    assert (said["allowed"], said["unknown"], said["lost"]["nflog-allowed"], said["disagreed"]) == (3, 0, 0, 0)


def test_a_restart_of_the_agent_changes_nothing_and_without_recording_nothing_is_left(recorded: Recorded) -> None:
    lab = recorded.lab
    listing = "nft", "list", "ruleset"  # with what the rules have counted
    assert lab.passes("a", "b", 80) and not lab.passes("a", "b", 81)
    before = lab.host.run(*listing).stdout
    assert before.count("group 61790") > 2 and "counter packets 1 " in before
    assert lab.stop() == 0
    lab.start(FELIX_FLOWS="Enabled")
    lab.until_in_force(policies=1, endpoints=2)
    assert lab.host.run(*listing).stdout == before  # the same numbers, and no rule was written again: they count on
    assert lab.stop() == 0
    lab.start(FELIX_FLOWS="Denied")
    lab.until_in_force(policies=1, endpoints=2)
    assert "group 61790" not in lab.ruleset() and "group 61791" in lab.ruleset()
    assert lab.passes("a", "b", 80) and not lab.passes("a", "b", 82, sport=82)
    assert [decided(one) for one in recorded.until(1, port="82")] == [DENIED_BY[1:]]
    assert lab.stop() == 0
    lab.start()
    lab.until_in_force(policies=1, endpoints=2)
    after = lab.ruleset()
    assert "6179" not in after and "connection-by" not in after and lab.passes("a", "b", 80)


def test_legacy_iptables_is_recorded_too(tmp_path: Path) -> None:
    with lab(tmp_path) as made:
        made.put_profile("kns.default")
        made.add("a", "10.77.0.1", app="a")
        made.add("b", "10.77.0.2", app="b")
        made.put("GlobalNetworkPolicy", "to-b", ALLOW_80)
        made.start(FELIX_FLOWS="Enabled", FELIX_NFTABLESMODE="Disabled")
        said = made.until_in_force(policies=1, endpoints=2)
        node = Recorded(made, tmp_path)
        try:
            node.record()
            assert made.passes("a", "b", 80) and not made.passes("a", "b", 81)
            (denied,) = node.until(1, verdict="denied")
            (allowed,) = node.until(1, port="80")
            assert decided(allowed) == ALLOWED_BY and decided(denied) == DENIED_BY
            assert "not recorded" not in str(said)
        finally:
            node.close()


def test_what_is_only_denied_costs_connections_nothing(recorded: Recorded) -> None:
    lab, before = recorded.lab, recorded.pid
    assert lab.stop() == 0
    lab.start(FELIX_FLOWS="Denied")
    lab.until_in_force(policies=1, endpoints=2)
    recorded.keeper.use(WantedRecording("Denied"), recorded.endpoints())
    until(lambda: recorded.pid != before and recorded.ask(FlowQuery(status=True)), "another recorder")
    assert lab.passes("a", "b", 80) and not lab.passes("a", "b", 81)
    (denied,) = recorded.until(1, port="81")
    assert decided(denied) == DENIED_BY[1:] and recorded.until(0, port="80") == []
    (said,) = recorded.ask(FlowQuery(status=True))
    assert (said["allowed"], said["denied"], said["counted"]) == (0, 1, False)
    with entered(lab.host):
        free = DecisionReports(ALLOWED_GROUP, 1 << 16, Deadline.after(10))  # nobody listens to it
    free.close()


def test_it_is_off_again(recorded: Recorded) -> None:
    recorded.keeper.use(WantedRecording("Disabled"), ())
    until(lambda: not (recorded.root / "run" / FLOW_SOCKET).exists(), "the recorder has ended")
    assert recorded.lab.passes("a", "b", 80)
