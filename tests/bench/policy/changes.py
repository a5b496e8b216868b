#!/usr/bin/env python3
"""Policy: how long until a change is in force, what it costs, and what the engine holds; on one machine, in namespaces.

    changes.py [--sizes 10,100,1000] [--repeat 100] [--other COMMAND] [--agent COMMAND] [--only engine,agent] [--all]

Contestants are the engine alone, the whole agent (calico-node -felix, where the engine is a thread), and with
``--other`` another agent's COMMAND, which gets ETCD and NODE in its environment; ``--agent`` is the whole agent's, for
an executable in the place of the sources. ``engine+hosts`` and ``agent+hosts``
(with ``--only``) also have a host endpoint for all interfaces and policies of it for forwarded packets and before NAT,
so ``--only engine+hosts,engine`` shows what those stages cost. Each has a copy of the same cluster
(an etcd on loopback without fsync, one node) in namespaces of its own, and they take turns, block by block, so that all
see the same machine. ``--all`` adds what packets meet (packets.py), and CNI calls while policies change (cni_calls.py).

The cluster: endpoint e has labels app=a{e mod A} and role=r{(e div A) mod 10} and profile kns.default; policy p
(global, tier default, order 100+p, Ingress) selects app a{(p div K) mod A}, K = policies/A, with ten Allow TCP rules r:
source app == a{(a+r+p) mod A} && role == r{r}, ports 8000+r and a range of six. A UDP probe between two pods says when
a change is in force.

Needs root and an etcd (tests/setup/tests.sh). Prints a line for each figure: medians in ms (p99 where it says so), CPU
of an agent and of what it waited for, and the ratio of each contestant to the last one.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from cni_calico.datastore.connect import open_datastore
from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.kernel import netns
from cni_calico.model.access import DatastoreConfig
from cni_calico.model.keys import ResourceKey
from tests.conftest import LAB_CACHE
from tests.netns.namespaces import host_namespace, namespace
from tests.netns.policing.lab import NODE, Lab, socket_in
from tests.unrecorded import UNRECORDED

ROOT = Path(__file__).resolve().parents[3]

ETCD = "http://127.0.0.1:2379"
SIZES = {10: (5, 5, 20), 100: (10, 25, 1000), 1000: (50, 250, 10000)}  # policies -> apps, local, remote endpoints
MEMORY = "/dev/shm"  # in memory, as /var/run/calico is
BURST = 100
HOSTS = "+hosts"  # at the end of a contestant's name
PROBED, JOINING = "10.65.0.1", "10.99.0.1"


def document(kind: str, name: str, spec: dict[str, Any], namespace: str = "", **labels: str) -> Write:
    metadata: dict[str, Any] = {"name": name, "uid": f"{kind}-{name}", "labels": labels}
    if namespace:
        metadata["namespace"] = namespace
    body = {"kind": kind, "apiVersion": "projectcalico.org/v3", "metadata": metadata, "spec": spec}
    return Write.put(ResourceKey(kind, name, namespace), body)


def endpoint(number: int, apps: int, node: str, interface: str, *addresses: str) -> Write:
    spec = {
        "orchestrator": "k8s",
        "node": node,
        "pod": f"p{number}",
        "containerID": "c",
        "endpoint": "eth0",
        "ipNetworks": [f"{address}/32" for address in addresses],
        "profiles": ["kns.default"],
        "interfaceName": interface,
    }
    labels = {
        "projectcalico.org/namespace": "default",
        "projectcalico.org/orchestrator": "k8s",
        "app": f"a{number % apps}",
        "role": f"r{number // apps % 10}",
    }
    return document("WorkloadEndpoint", f"{node}-k8s-p{number}-eth0", spec, "default", **labels)


def policy(number: int, policies: int, apps: int) -> Write:
    app = number // max(1, policies // apps) % apps
    rules = [
        {
            "action": "Allow",
            "protocol": "TCP",
            "source": {"selector": f"app == 'a{(app + r + number) % apps}' && role == 'r{r}'"},
            "destination": {"ports": [8000 + r, f"{9000 + 10 * r}:{9005 + 10 * r}"]},
        }
        for r in range(10)
    ]
    # the probe's own protocol passes, so that a change of one policy can be seen
    rules.append({"action": "Allow", "protocol": "UDP", "destination": {"ports": ["1:999"]}})
    spec = {"tier": "default", "order": 100 + number, "selector": f"app == 'a{app}'", "types": ["Ingress"]}
    return document("GlobalNetworkPolicy", f"p{number}", {**spec, "ingress": rules})


def host_records() -> list[Write]:
    """All that pods' packets pass on their way through a host with a host endpoint, without a verdict of its own."""
    allow, selector = [{"action": "Allow"}], "host == 'yes'"
    both = {"types": ["Ingress", "Egress"], "ingress": allow, "egress": allow}
    deny = [{"action": "Deny", "protocol": "UDP", "destination": {"ports": [1]}}]
    early = {"types": ["Ingress"], "preDNAT": True, "ingress": deny}
    common = {"tier": "default", "order": 1, "selector": selector, "applyOnForward": True}
    return [
        document("HostEndpoint", "all", {"node": NODE, "interfaceName": "*", "profiles": ["open"]}, host="yes"),
        document("Profile", "open", {"ingress": allow, "egress": allow}),
        document("GlobalNetworkPolicy", "forwarded", {**common, **both}),
        document("GlobalNetworkPolicy", "before-nat", {**common, **early}),
    ]


def changed_policy(app: str) -> Write:
    """Ten rules, of which the first denies the probe."""
    rules: list[dict[str, Any]] = [{"action": "Deny", "protocol": "UDP", "destination": {"ports": [80]}}]
    rules += [
        {
            "action": "Allow",
            "protocol": "TCP",
            "source": {"selector": f"new == 'n{r}'"},
            "destination": {"ports": [r + 1]},
        }
        for r in range(9)
    ]
    spec = {"tier": "default", "order": 1, "selector": f"app == '{app}'", "types": ["Ingress"], "ingress": rules}
    return document("GlobalNetworkPolicy", "changed", spec)


class Agent:
    """The process under test."""

    def __init__(self, command: list[str], environ: dict[str, str]) -> None:
        self.process = subprocess.Popen(command, env={**os.environ, **environ}, cwd=ROOT)

    def cpu_ms(self) -> float:
        """Its own and that of the processes it waited for."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return 1000 * sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def resident_mb(self) -> float:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(text.partition("VmRSS:")[2].split()[0]) / 1024

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


class Bench:
    """One contestant's cluster and node. A part adds to ``samples``, by the name of the figure."""

    def __init__(self, lab: Lab, policies: int, command: list[str]) -> None:
        self.lab, self.policies, self.command = lab, policies, command
        self.apps, self.local, self.remote = SIZES[policies]
        self.store = open_datastore(DatastoreConfig("etcdv3", etcd_endpoints=(ETCD,)))
        self.agent: Agent | None = None
        self.pause = threading.Event()  # never set
        self.samples: dict[str, list[float]] = {}

    def add(self, **figures: float) -> None:
        for name, value in figures.items():
            self.samples.setdefault(name.replace("_", " "), []).append(value)

    def write(self, *writes: Write) -> None:
        for at in range(0, len(writes), 50):
            self.store.commit(writes[at : at + 50], Deadline.after(30))

    def fill(self, *, hosts: bool) -> None:
        self.write(*self.records(), *(host_records() if hosts else ()))

    def records(self) -> list[Write]:
        rules = [{"action": "Allow"}]
        writes = [
            document("Tier", "default", {"order": 1000000, "defaultAction": "Deny"}),
            document("Node", NODE, {"bgp": {"ipv4Address": "192.0.2.1/24"}}),
            document("Profile", "kns.default", {"ingress": rules, "egress": rules, "labelsToApply": {}}),
        ]
        writes += [policy(p, self.policies, self.apps) for p in range(self.policies)]
        # the probing pod is endpoint 0 and the probed one endpoint 1
        writes += [
            endpoint(0, self.apps, NODE, "caliprobing", "10.65.0.2"),
            endpoint(1, self.apps, NODE, "caliprobed", PROBED),
        ]
        writes += [endpoint(e, self.apps, NODE, f"cali{e}", f"10.66.{e >> 8}.{e & 255}") for e in range(2, self.local)]
        writes += [
            endpoint(
                self.local + e, self.apps, f"n{2 + e % 40}", "eth0x", f"10.{70 + (e >> 16)}.{e >> 8 & 255}.{e & 255}"
            )
            for e in range(self.remote)
        ]
        return writes

    def start(self, repeat: int) -> None:
        """Until the probe is denied by a policy that is there already."""
        assert self.lab.passes("probing", "probed", 80)
        self.write(changed_policy("a1"))
        begun = time.perf_counter()
        self.agent = Agent(self.command, agent_environment(self.lab.root))
        self.until(False)
        self.add(start_ms=1000 * (time.perf_counter() - begun))
        self.write(Write.remove(ResourceKey("GlobalNetworkPolicy", "changed")))
        self.until(True)
        self.add(start_CPU_ms=self.agent.cpu_ms())

    def until(self, wanted: bool, source: str = "probing", timeout_s: float = 300.0) -> None:
        end = time.monotonic() + timeout_s
        while self.lab.passes(source, "probed", 80) != wanted:
            if time.monotonic() > end:
                raise SystemExit(f"never in force: {source} {'reaches' if wanted else 'does not reach'} the probed pod")

    def timed(self, *steps: tuple[Write, bool, str]) -> tuple[list[float], float]:
        """(ms of each step, CPU ms of the agent for all)."""
        assert self.agent is not None
        before, times = self.agent.cpu_ms(), []
        for write, wanted, source in steps:
            begun = time.perf_counter()
            self.write(write)
            self.until(wanted, source)
            times.append(1000 * (time.perf_counter() - begun))
        self.pause.wait(0.05)
        return times, self.agent.cpu_ms() - before

    def policy(self, repeat: int) -> None:
        """A policy of ten rules comes and goes."""
        key = ResourceKey("GlobalNetworkPolicy", "changed")
        put, removed = (changed_policy("a1"), False, "probing"), (Write.remove(key), True, "probing")
        times, cpu = self.timed(*(step for _ in range(repeat) for step in (put, removed)))
        self._pairs(times, cpu, "policy put ms", "policy deleted ms", "policy CPU ms")

    def _pairs(self, times: list[float], cpu: float, first: str, second: str, cost: str) -> None:
        self.samples.setdefault(first, []).extend(times[::2])
        self.samples.setdefault(second, []).extend(times[1::2])
        self.samples.setdefault(cost, []).append(cpu / len(times))

    def memory(self, repeat: int) -> None:
        assert self.agent is not None
        self.add(resident_MB=self.agent.resident_mb())

    def joins(self, repeat: int) -> None:
        """A record of another node's endpoint that carries a second address of the probing pod."""
        only = {"action": "Allow", "protocol": "UDP", "source": {"selector": "joins == 'yes'"}}
        rules = [only, {"action": "Deny", "protocol": "UDP"}]
        spec = {"tier": "default", "order": 1, "selector": "app == 'a1'", "types": ["Ingress"], "ingress": rules}
        self.write(document("GlobalNetworkPolicy", "joining", spec))
        self.until(False, "second")
        write = endpoint(1, 10**9, "n9", "eth0x", JOINING)
        write.value["metadata"]["labels"]["joins"] = "yes"
        steps = ((write, True, "second"), (Write.remove(write.key), False, "second"))
        times, cpu = self.timed(*(step for _ in range(repeat) for step in steps))
        self._pairs(times, cpu, "remote joins ms", "remote leaves ms", "remote CPU ms")
        self.write(Write.remove(ResourceKey("GlobalNetworkPolicy", "joining")))
        self.until(True)

    def endpoints(self, repeat: int) -> None:
        """A local endpoint whose interface stands ready."""
        write = endpoint(1, self.apps, NODE, "caliprobed", PROBED)
        steps = ((Write.remove(write.key), False, "probing"), (write, True, "probing"))
        times, cpu = self.timed(*(step for _ in range(repeat) for step in steps))
        self._pairs(times, cpu, "local deleted ms", "local put ms", "local CPU ms")

    def burst(self, repeat: int) -> None:
        """From the last of 100 records to the status file of the last endpoint in force."""
        assert self.agent is not None
        with namespace("burst") as pods:
            for number in range(BURST):
                peer = ("peer", "name", f"e{number}", "netns", pods.name)
                self.lab.host.do("link", "add", f"calib{number}", "type", "veth", *peer)
                self.lab.host.do("link", "set", f"calib{number}", "up")
                pods.do("link", "set", f"e{number}", "up")
            writes = [
                endpoint(10**6 + number, self.apps, NODE, f"calib{number}", f"10.67.0.{number}")
                for number in range(BURST)
            ]
            directory = self.lab.root / "endpoint-status"
            before, cpu = len(list(directory.iterdir())), self.agent.cpu_ms()
            self.write(*writes)
            begun = time.perf_counter()
            limit = begun + 300
            while len(list(directory.iterdir())) < before + BURST:
                if time.perf_counter() > limit:
                    raise SystemExit("a burst of endpoints was never in force")
                self.pause.wait(0.001)
            self.add(burst_of_100_ms=1000 * (time.perf_counter() - begun), burst_CPU_ms=self.agent.cpu_ms() - cpu)
            self.write(*(Write.remove(write.key) for write in writes))
            for number in range(BURST):
                self.lab.host.do("link", "delete", f"calib{number}")

    def packets(self, repeat: int) -> None:
        """What a new connection costs more through 20 policies of 10 rules, none of which matches but the last."""
        alone = packet_us(self.lab)
        for number in range(20):
            rules = [
                {
                    "action": "Allow",
                    "protocol": "UDP",
                    "source": {"selector": f"none == 'n{r}'"},
                    "destination": {"ports": [2000 + r, f"{3000 + 10 * r}:{3005 + 10 * r}"]},
                }
                for r in range(10)
            ]
            if number == 19:
                rules.append({"action": "Allow", "protocol": "UDP"})
            spec = {"tier": "default", "order": 1 + number, "selector": "app == 'a1'", "types": ["Ingress"]}
            self.write(document("GlobalNetworkPolicy", f"first{number}", {**spec, "ingress": rules}))
        self.until(True)
        self.pause.wait(1)
        self.add(first_packet_us=packet_us(self.lab), without_policies_us=alone)


def packet_us(node: Lab, count: int = 4000) -> float:
    """The median time of sending a datagram that opens a connection, until the other end's socket has it: the kernel
    does all of it in the sender's system call.
    """
    source, destination = node.workloads["probing"], node.workloads["probed"]
    times = []
    with socket_in(source.ns, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP) as sender:
        for number in range(count):
            ports = (20000 + number % 40000).to_bytes(2, "big") + (80).to_bytes(2, "big")
            datagram = ports + (12).to_bytes(2, "big") + bytes(2) + b"cost"
            begun = time.perf_counter()
            sender.sendto(datagram, (destination.address(), 0))
            times.append(1e6 * (time.perf_counter() - begun))
    return statistics.median(times)


def start_etcd(directory: Path, stack: ExitStack) -> None:
    arguments = [
        "--data-dir",
        str(directory),
        "--unsafe-no-fsync",
        "--log-level",
        "error",
        "--listen-client-urls",
        ETCD,
    ]
    arguments += [
        "--advertise-client-urls",
        ETCD,
        "--listen-peer-urls",
        "http://127.0.0.1:2380",
        "--max-txn-ops",
        "1024",
    ]
    process = subprocess.Popen([str(LAB_CACHE / "bin" / "etcd"), *arguments], stderr=subprocess.DEVNULL)
    stack.callback(process.wait)
    stack.callback(process.terminate)


def agent_environment(root: Path) -> dict[str, str]:
    """For any of them; the whole agent does what policies need, and nothing for BGP."""
    directories = {f"CALICO_{name}_DIR": f"{root}/{name.lower()}" for name in ("RUN", "STATE", "LOG")}
    for directory in directories.values():
        Path(directory).mkdir(exist_ok=True)
    felix = {"ENDPOINTSTATUSPATHPREFIX": str(root), "IPV6SUPPORT": "false", "HEALTHENABLED": "false"}
    felix["REMOVEEXTERNALROUTES"] = "false"  # the probing pod's second address is no endpoint's
    return {
        "ETCD": ETCD, "NODE": NODE, "STATUS": str(root), "NODENAME": NODE,
        "DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": ETCD, "CALICO_NETWORKING_BACKEND": "none",
        "FELIX_LOGSEVERITYSCREEN": "warning", "CALICO_JANITOR": "false",
        **directories, **{f"FELIX_{name}": value for name, value in felix.items()}, **UNRECORDED,
    }  # fmt: skip


def open_lab(
    name: str, stack: ExitStack, interfaces: tuple[str, str] = ("caliprobing", "caliprobed"), *, etcd: bool = True
) -> Lab:
    """A host with an etcd, which this thread enters, and two pods: "probing" and "probed", with these interfaces."""
    root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=name, dir=MEMORY)))
    host = stack.enter_context(host_namespace())
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    netns.enter(os.open(host.path, os.O_RDONLY | os.O_CLOEXEC))
    stack.callback(netns.enter, here)
    if etcd:
        start_etcd(root / "etcd", stack)
    lab = Lab(host, root, stack)
    probing = lab.connect("probing", interfaces[0], "10.65.0.2")
    lab.connect("probed", interfaces[1], PROBED)
    probing.ns.do("addr", "add", f"{JOINING}/32", "dev", "eth0")
    return lab


@contextmanager
def prepared(policies: int, command: list[str], hosts: bool) -> Iterator[Bench]:
    with ExitStack() as stack:
        lab = open_lab("bench-policy", stack)
        host, probing = lab.host, lab.workloads["probing"]
        host.do("route", "add", JOINING, "dev", "caliprobing", "proto", "static")  # the agent takes boot for its own
        lab.workloads["second"] = type(probing)("second", probing.ns, probing.interface, (JOINING,))
        bench = Bench(lab, policies, command)
        stack.callback(bench.store.close)
        bench.fill(hosts=hosts)
        try:
            yield bench
        finally:
            if bench.agent is not None and bench.agent.process.poll() is None:
                bench.agent.stop()


def serve(turns: Connection, policies: int, command: list[str], hosts: bool) -> None:
    """A contestant's process: a part whenever it is its turn, until there is none."""
    with prepared(policies, command, hosts) as bench:
        turns.send({})
        while (part := turns.recv()) is not None:
            name, repeat = part
            bench.samples = {}
            getattr(bench, name)(repeat)
            turns.send(bench.samples)


ENGINE = [sys.executable, "-m", "tests.bench.policy.engine"]
AGENT = [sys.executable, "-c", "from cni_calico.nodeagent.main import main; main()", "-felix"]
# part, how often it is everybody's turn, share of the repetitions in each
PARTS = (("start", 1), ("policy", 5), ("joins", 5), ("endpoints", 5), ("burst", 3), ("packets", 1), ("memory", 1))


def measure(policies: int, repeat: int, contestants: dict[str, list[str]]) -> dict[str, dict[str, list[float]]]:
    """The samples of every figure, by contestant."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in contestants}
    processes, pipes = [], {}
    spawn = get_context("spawn")  # each has threads and sockets of its own namespace
    try:
        for name, command in contestants.items():
            pipes[name], theirs = spawn.Pipe()
            processes.append(spawn.Process(target=serve, args=(theirs, policies, command, name.endswith(HOSTS))))
            processes[-1].start()
            theirs.close()
            pipes[name].recv()
        for part, blocks in PARTS:
            for block in range(blocks):
                names = list(contestants)
                for name in names[block % len(names) :] + names[: block % len(names)]:
                    pipes[name].send((part, max(1, repeat // blocks)))
                    for figure, values in pipes[name].recv().items():
                        found[name].setdefault(figure, []).extend(values)
    finally:
        for pipe in pipes.values():
            with suppress(OSError):
                pipe.send(None)
        for process in processes:
            process.join()
    return found


def rows(found: dict[str, dict[str, list[float]]]) -> dict[str, list[float]]:
    """Figure -> one value for each contestant: the median, and p99 of what has a hundred samples."""
    figures: dict[str, list[float]] = {}
    for figure in next(iter(found.values())):
        samples = [each[figure] for each in found.values()]
        figures[figure] = [statistics.median(one) for one in samples]
        if all(len(one) >= 100 for one in samples):
            figures[f"{figure}, p99"] = [sorted(one)[int(0.99 * len(one))] for one in samples]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="10,100,1000")
    parser.add_argument("--repeat", type=int, default=100)
    parser.add_argument("--only", default="engine,agent", help="which of ours; engine+hosts, agent+hosts: see above")
    parser.add_argument("--other", default="", help="the command of another agent, measured beside ours")
    parser.add_argument("--agent", default=shlex.join(AGENT), help="the command of the whole agent")
    parser.add_argument("--all", action="store_true", help="packets and CNI calls while policies change, too")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    ours = {"engine": ENGINE, "agent": shlex.split(chosen.agent)}
    contestants = {name: ours[name.removesuffix(HOSTS)] for name in chosen.only.split(",")}
    if chosen.other:
        contestants["other"] = shlex.split(chosen.other)
    print(f"load average {os.getloadavg()[0]:.1f}", file=sys.stderr)
    local: dict[int, list[float]] = {}
    for size in map(int, chosen.sizes.split(",")):
        found = measure(size, chosen.repeat, contestants)
        if chosen.json:
            print(json.dumps({"policies": size, **found}), flush=True)
            continue
        apps, here, remote = SIZES[size]
        local[size] = rows(found)["local put ms"]
        print(f"{size} policies, {apps} apps, {here} local and {remote} remote endpoints")
        print(f"  {'':26}" + "".join(f"{name:>10}" for name in contestants) + "   ratios to the last")
        for figure, values in rows(found).items():
            ratios = "".join(f"{value / values[-1]:8.3f}" if values[-1] else "       -" for value in values[:-1])
            print(f"  {figure:26}" + "".join(f"{value:10.1f}" for value in values) + f"   {ratios}", flush=True)
    if len(local) > 1:
        small, large = min(local), max(local)
        growth = "".join(f"{now / then:10.2f}" for now, then in zip(local[large], local[small], strict=True))
        print(f"local put with {large} policies, as a multiple of that with {small}\n  {'':26}{growth}", flush=True)
    if chosen.all:
        programs = [Path(__file__).with_name(name) for name in ("packets.py", "cni_calls.py")]
        sys.exit(max([subprocess.run([sys.executable, str(program)]).returncode for program in programs]))


if __name__ == "__main__":
    main()
