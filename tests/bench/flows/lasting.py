"""A node whose recorder runs for minutes under a steady load, in a process of its own, as the agent starts it.

    nice -n 10 .venv/bin/python -m tests.bench.flows.lasting [SECONDS [CONNECTIONS_PER_SECOND [STAGED [PODS [LIVE]]]]]

Each connection is let through on both sides here and ends ten seconds later, or when the kernel collects what has
ended; a tenth as many packets are denied. At the end all that are left are ended at once, so that the last figure has
the whole of each. At the end: processor time and memory of the recorder, what it lost, and whether its records and the
counters of the rules say the same; the disk that it takes. With STAGED, a number, so many staged policies are judged
too; each would deny one port. With PODS, a number, the connections are from each of so many pods to the next one, by an
interface each. With LIVE, a number, so many are followed (FlowsMaxLive). Ten minutes at 2,000 connections a second:
``600 2000``; an hour of a node with 250 pods: ``3600 2000 0 250``.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cni_calico.daemon.supervisor import own_command
from cni_calico.deadline import Deadline
from cni_calico.directories import FLOW_SOCKET
from cni_calico.flows.client import ask
from cni_calico.flows.deciders import render_line
from cni_calico.flows.limits import USUAL_LIMITS, FlowLimits
from cni_calico.flows.names import ENDS, render_ends
from cni_calico.flows.query import FlowQuery
from cni_calico.kernel.netlink.nfnetlink import CTNETLINK, Nfnetlink, general
from cni_calico.log import Log
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Resource
from cni_calico.nodeagent.policing.tables.numbers import Recording, RuleNumbers
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.recording.rules import RulesTeller
from cni_calico.nodeagent.recording.staged import StagedRules
from cni_calico.policy.graph import Graph
from cni_calico.policy.staged import StagedPolicy
from cni_calico.regular import make_directories
from tests.bench.flows.packets import ALLOWED_PORT, DENIED_PORT, SIDES, documents
from tests.deadlines import until
from tests.netns.namespaces import namespace
from tests.netns.wire import PEER, ROUTER, Wire, entered, frame, open_wire
from tests.unit.policy.cluster import NODE, graph_of

LIVES_S, _TICK_S, _PORTS = 10, 0.02, 60_000


def counted(wire: Wire) -> dict[str, int]:
    """Packets, by the counters of rules that decide: of both sides' allowed ones, and denied ones."""
    command = ["nft", "-j", "list", "ruleset"]
    with entered(wire.host):
        ruleset = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
    found = {"allowed": 0, "denied": 0}
    for one in ruleset["nftables"]:
        parts = {name: part for each in one.get("rule", {}).get("expr", ()) for name, part in each.items()}
        if "counter" in parts and "log" in parts:
            found["denied" if "drop" in parts else "allowed"] += parts["counter"]["packets"]
    return found


def processor_s(pid: int) -> tuple[float, float]:
    """(in the program, in the kernel)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return int(fields[11]) / ticks, int(fields[12]) / ticks


def peak_mib(pid: int) -> float:
    return resident_mib(pid, "VmHWM")


def resident_mib(pid: int, what: str) -> float:
    """``what``: VmHWM for the most there ever was of all, RssAnon or RssFile for a part of what there is."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


@contextmanager
def recorder(
    wire: Wire, root: str, wanted: Any, numbers: RuleNumbers, staged: StagedRules | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    make_directories(f"{root}/state/flows", 0o700)
    Path(f"{root}/state/flows/numbers").write_text("".join(render_line(*one) for one in numbers.take_new()))
    teller = RulesTeller(lambda: None, staged=staged)
    environ = {**os.environ, "CALICO_RUN_DIR": f"{root}/run", "CALICO_STATE_DIR": f"{root}/state"}
    with entered(wire.host), teller.attach() as theirs:
        child = subprocess.Popen([*own_command(), "-flow-recorder"], stdin=theirs, env=environ)
    try:
        teller.tell(None, lambda: wanted)
        until(lambda: os.path.exists(f"{root}/run/{FLOW_SOCKET}") and not teller.go_on(), "the recorder listens")
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait(30)


def pod(number: int) -> tuple[str, str]:
    """(interface, address)."""
    return f"cali{number:04}", f"10.1.{number // 250}.{1 + number % 250}"


def workload(number: int) -> dict[str, Any]:
    interface, address = pod(number)
    spec = {"interfaceName": interface, "node": NODE, "ipNetworks": [f"{address}/32"], "profiles": []}
    return {"metadata": {"name": f"p{number}", "namespace": "a", "labels": {"app": f"p{number % 25}"}}, "spec": spec}


Sender = Callable[[bytes], Any]


@contextmanager
def pods(wire: Wire, count: int) -> Iterator[list[tuple[Sender, str, str]]]:
    """For each of the pods that are to speak: what sends a frame from it, its address, and where it speaks to."""
    if not count:
        incoming, source = SIDES["both sides"]
        yield [(wire.outer[incoming].send, source, "10.0.0.1")]
        return
    with namespace("pods") as far, ExitStack() as stack:
        found, here, there = [], [], []
        for number in range(count):
            interface, address = pod(number)
            peer = f"peer name {interface} address {PEER} netns {far.name}"
            here.append(f"link add {interface} address {ROUTER} type veth {peer}")
            here.append(f"link set {interface} addrgenmode none up")
            here.append(f"route add {address} dev {interface}")
            here.append(f"neigh replace {address} lladdr {PEER} dev {interface}")
            there.append(f"link set {interface} addrgenmode none up")
        wire.host.do_all(*here)
        far.do_all(*there)
        with entered(far):
            for number in range(count):
                out = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
                out.bind((pod(number)[0], 0))  # 0: what comes is not read
                found.append((out.send, pod(number)[1], pod((number + 1) % count)[1]))
        yield found


def send(speaking: Sequence[tuple[Sender, str, str]], seconds: int, rate: int) -> tuple[int, int]:
    """(connections, denied packets). No port is used again while its connection lives, if there are ports enough: more
    than 3,000 connections a second need pods.
    """
    frames, refused = [], []
    count = min(len(speaking) * _PORTS, max(_PORTS, 2 * LIVES_S * rate))
    for i in range(count):
        out, source, destination = speaking[i % len(speaking)]
        packet = {"source": ip_address(source), "destination": ip_address(destination), "protocol": 17, "icmp": (0, 0)}
        packet["sport"] = 1024 + i // len(speaking)
        frames.append((out, frame({**packet, "dport": ALLOWED_PORT}, i)))
        refused.append((out, frame({**packet, "dport": DENIED_PORT}, i)))
    begun, sent, denied = time.monotonic(), 0, 0
    while (passed := time.monotonic() - begun) < seconds:
        while sent < passed * rate:
            out, data = frames[sent % count]
            out(data)
            sent += 1
            if sent % 10 == 0:
                out, data = refused[denied % count]
                out(data)
                denied += 1
        time.sleep(_TICK_S)
    return sent, denied


def staged_rules(graph: Graph, count: int) -> StagedRules | None:
    if not count:
        return None
    rules = StagedRules(NODE, Log("error", stderr=False))
    for number in range(count):
        port = ALLOWED_PORT if number == 0 else 1 + number
        deny = {"action": "Deny", "protocol": "UDP", "destination": {"ports": [port]}}
        spec = {"order": number, "selector": "all()", "types": ["Ingress"], "ingress": [deny]}
        metadata = Metadata(f"staged{number}")
        key = ResourceKey("StagedGlobalNetworkPolicy", metadata.name)
        replaced = ResourceKey("GlobalNetworkPolicy", metadata.name)
        rules.stage(key, StagedPolicy(key, replaced, Resource("GlobalNetworkPolicy", metadata, spec)))
    rules.go_on(anew=True)
    rules.begin(graph.records(), graph.budget)
    return rules


def main(seconds: int, rate: int, staged: int = 0, count: int = 0, live: int = USUAL_LIMITS.live) -> None:
    numbers = RuleNumbers()
    with (
        tempfile.TemporaryDirectory() as root,
        open_wire(FilterSettings(recording=Recording(numbers))) as wire,
        pods(wire, count) as speaking,
    ):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        of_pods = {("WorkloadEndpoint", "a", f"p{number}"): workload(number) for number in range(count)}
        graph = graph_of({**documents(), **of_pods})
        graph.flush()
        wire.apply(graph.wanted())
        wire.route({ip_address("10.0.0.1"): "cali1", ip_address("10.0.0.2"): "calil3"})
        wire.host.set_sysctl("netfilter/nf_conntrack_udp_timeout", str(LIVES_S))
        make_directories(f"{root}/run", 0o755)
        Path(f"{root}/run/{ENDS}").write_bytes(render_ends(NODE, [], limits=FlowLimits(live=live)))
        with recorder(wire, root, graph.wanted(), numbers, staged_rules(graph, staged)) as child:

            def status() -> dict[str, Any]:
                (found,) = ask(f"{root}/run/{FLOW_SOCKET}", FlowQuery(status=True), Deadline.after(30))
                return found

            empty, before = peak_mib(child.pid), processor_s(child.pid)
            sent, denied = send(speaking, seconds, rate)
            program, kernel = (now - then for now, then in zip(processor_s(child.pid), before, strict=True))
            told, lasting = counted(wire), status()["live"]

            def is_over() -> bool:
                found = status()
                return found["allowed"] + found["denied"] + sum(found["lost"].values()) >= sent + denied

            until(is_over, "everything is recorded, or lost", 300)
            found = status()
            print(f"{sent} connections, {denied} denied packets in {seconds} s; recorded {found['allowed']}", end="")
            print(f" and {found['denied']}; rules counted {told['allowed']} on both sides, {told['denied']} denied")
            print(f"lost {found['lost']}; not as the rules say {found['disagreed']}, not judged {found['unjudged']}")
            share, each = (program + kernel) / seconds * 100, (program + kernel) / max(1, sent) * 1e6
            print(f"recorder: {share:.2f} % of a processor, {kernel / seconds * 100:.2f} % in the kernel", end="")
            print(f", {each:.1f} us a connection; {lasting} live, {found['unfollowed']} not followed", flush=True)
            most = peak_mib(child.pid)
            with entered(wire.host), Nfnetlink() as netlink:
                netlink.request(CTNETLINK << 8 | 2, 0, general(""), "end all connections", Deadline.after(10))
            until(lambda: not status()["live"], "all have ended", 300)
            whole = sum(processor_s(child.pid)) - sum(before)
            found = status()
            print(f"when all have ended {whole / max(1, sent) * 1e6:.1f} us a connection; lost {found['lost']}")
            if staged:
                counts = found["staged"].get("StagedGlobalNetworkPolicy staged0")
                print(f"{found['staged_policies']} staged, of which one would: {counts}", end="")
                print(f"; not judged {found['staged_uncounted']}")
            print(f"memory: {empty:.1f} MiB empty, {most:.1f} at most, {peak_mib(child.pid):.1f} when all", end="")
            print(f" have ended at once; of files {resident_mib(child.pid, 'RssFile'):.1f}")
            sizes = {path.name: path.stat().st_blocks // 2048 for path in Path(f"{root}/state/flows").iterdir()}
            print(f"disk, MiB: {sizes}")
    with open("/proc/loadavg") as file:
        print(f"load {file.read().split()[0]}")


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    main(*given, *(60, 1000, 0, 0, USUAL_LIMITS.live)[len(given) :])
