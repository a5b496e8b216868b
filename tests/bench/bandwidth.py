"""What limits of bandwidth do and cost: the rate that is reached, how soon a change is in force, a full comparison.

    python tests/bench/bandwidth.py               needs root and iperf3; prints three tables
    python tests/bench/bandwidth.py --changes     only how soon changes are in force

A flow of iperf3 runs for some seconds each way, between the host and a pod in a namespace. The burst passes at full
speed first: the first second is left out of the rate.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from select import select
from threading import Thread
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from cni_calico.deadline import Deadline
from cni_calico.kernel import netns
from cni_calico.kernel.netlink.notifications import listen
from cni_calico.kernel.netlink.qdiscs import RTM_NEWQDISC, decode_qdisc
from cni_calico.kernel.netlink.wire import split_messages
from cni_calico.model.host import HostInterface
from cni_calico.nodeagent.context.felix import parse_felix
from cni_calico.nodeagent.dataplane.bandwidth import desired_bandwidth, device_name
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.parts.bandwidth import Bandwidth
from cni_calico.nodeagent.dataplane.passes import Pass
from tests.deadlines import until
from tests.netns.agent.test_bandwidth import POD, ask, until_limited
from tests.netns.agents import Store, running
from tests.netns.namespaces import Namespace, namespace
from tests.unit.nodeagent.fabric import NODES, workload

RATES = (1_000_000, 20_000_000, 100_000_000, 1_000_000_000)
PORT, SECONDS, PODS = "5201", 5, 250


def measure(host: Namespace, pod: Namespace, *, into_pod: bool) -> float:
    """Bits per second of what the receiver got, by iperf3."""
    inside, outside = (["ip", "netns", "exec", ns.name, "iperf3"] for ns in (pod, host))
    with subprocess.Popen([*inside, "-s", "-1", "-p", PORT], stdout=subprocess.DEVNULL) as server:
        try:
            until(lambda: f":{PORT}" in pod.run("ss", "-ltn").stdout, "the pod's server", 30)
            until(lambda: host.run("ping", "-c1", "-W1", "10.65.1.5", check=False).returncode == 0, "a way to it", 30)
            direction = [] if into_pod else ["-R"]
            asked = [
                *outside,
                "-c",
                "10.65.1.5",
                "-p",
                PORT,
                "-J",
                "-O",
                "1",
                "-t",
                str(SECONDS),
                "-l",
                "8K",
                *direction,
            ]
            said = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=60).stdout
        finally:
            server.kill()
    rate: float = json.loads(said)["end"]["sum_received"]["bits_per_second"]
    return rate


def lab(root: Path) -> tuple[Any, Any, Store]:
    store = Store(root / "store.db")
    store.put(NODES["n1"], POD)
    return namespace("host"), namespace("pod"), store


def bench_flows(host: Namespace, pod: Namespace, store: Store) -> None:
    print("limit Mbit/s   received, of it   sent, of it")
    for rate in RATES:
        ask(store, ingressBandwidth=rate, egressBandwidth=rate)
        until_limited(host, rate, rate)
        into, out = measure(host, pod, into_pod=True), measure(host, pod, into_pod=False)
        print(f"{rate / 1e6:12.0f}   {into / rate:15.3f}   {out / rate:11.3f}")


def heard(host: Namespace) -> socket.socket:
    """The kernel's notifications of limits: who asks for them in turns keeps the agent waiting."""
    made: list[socket.socket] = []

    def open_there() -> None:
        netns.enter(os.open(host.path, os.O_RDONLY))
        made.append(listen(socket.NETLINK_ROUTE, 1 << 3, buffer_bytes=1 << 24))

    thread = Thread(target=open_there)
    thread.start()
    thread.join()
    return made[0]


def until_told(notices: socket.socket, index: int, rate: int) -> None:
    """Until the interface's limit is this one, in bytes per second."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        select([notices], [], [], 1)
        with suppress(BlockingIOError):
            while data := notices.recv(1 << 16):
                for message in split_messages(data):
                    limit = decode_qdisc(message.payload) if message.kind == RTM_NEWQDISC else None
                    if limit is not None and limit.ifindex == index and limit.bucket is not None:
                        if limit.bucket.rate == rate:
                            return
    raise TimeoutError(f"no limit of {rate} bytes per second")


def bench_change(host: Namespace, store: Store, *, apart_s: float) -> None:
    taken = []
    notices, link = heard(host), host.link("calia")
    assert link is not None
    for i in range(21):
        rate = 50_000_000 + i * 8000
        time.sleep(apart_s)
        ask(store, ingressBandwidth=rate, egressBandwidth=rate)
        begun = time.monotonic()  # a busy disk is not the agent's
        until_told(notices, link["ifindex"], rate // 8)
        taken.append((time.monotonic() - begun) * 1000)
    notices.close()
    after = f"{apart_s:.0f} s after the last" if apart_s else "at once after the last"
    print(
        f"a changed limit, {after}, in force: first {taken[0]:.0f} ms, median {statistics.median(taken):.0f} ms, worst "
        f"{max(taken):.0f} ms"
    )


def fill(host: Namespace, pod: Namespace, store: Store) -> None:
    """Give the node PODS further workloads that have both limits."""
    names = [f"cali{i}" for i in range(PODS)]
    host.do_all(*[f"link add {n} mtu 1450 type veth peer name p{n} netns {pod.name}" for n in names])
    host.do_all(*[f"link set {n} up" for n in names])
    pod.do_all(*[f"link set p{n} up" for n in names])
    for i, name in enumerate(names):
        made = workload(f"w{i}", name, f"10.65.2.{i}/32")
        store.put(replace(made, qos_controls={"ingressBandwidth": 10**7, "egressBandwidth": 10**7}))
    until_limited_all(host, {device_name(name) for name in names})


def until_limited_all(host: Namespace, devices: set[str]) -> None:
    def there() -> bool:
        return devices <= {link["ifname"] for link in json.loads(host.run("ip", "-j", "link", "show").stdout)}

    until(there, "limits of all workloads", 60)


def bench_comparison() -> None:
    with namespace("host") as host:
        host.do_all(*[f"link add cali{i} mtu 1450 type veth peer name peer{i}" for i in range(PODS)])
        print(f"{PODS} pods with both limits: {host.call(_compare)}")


def _compare() -> str:
    names = [f"cali{i}" for i in range(PODS)]
    controls = {"ingressBandwidth": 10**7, "egressBandwidth": 10**7}
    present = {name: replace(POD, interface_name=name, qos_controls=controls) for name in names}
    interfaces = [HostInterface(i + 9, name, True, 1450, kind="veth") for i, name in enumerate(names)]
    felix, part = parse_felix({}).settings, Bandwidth()
    desired = Desired(bandwidth=desired_bandwidth(present, interfaces)[0])
    taken = []
    for _ in range(6):
        done, begun = Pass(), time.process_time()
        part.apply(desired, felix, Deadline.after(60), done, True)
        taken.append((time.process_time() - begun) * 1000)
        assert not done.failed, done.failed
    changes = []
    for i in range(21):
        present[names[i]] = replace(present[names[i]], qos_controls={"egressBandwidth": 10**6})
        desired = Desired(bandwidth=desired_bandwidth(present, interfaces)[0])
        done, begun = Pass(), time.process_time()
        part.apply(desired, felix, Deadline.after(60), done, False)
        changes.append((time.process_time() - begun) * 1000)
        assert not done.failed, done.failed
    return (
        f"made in {taken[0]:.0f} ms, a full comparison {statistics.median(taken[1:]):.0f} ms, one changed limit "
        f"{statistics.median(changes):.1f} ms of the processor"
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        made, other, store = lab(Path(root))
        with made as host, other as pod:
            host.do("link", "add", "calia", "mtu", "1450", "type", "veth", "peer", "name", "eth0", "netns", pod.name)
            host.do_all("addr add 10.65.1.254/32 dev calia", "link set calia up")
            pod.do_all("link set eth0 up", "addr add 10.65.1.5/32 dev eth0", "route add 10.65.1.254 dev eth0")
            with running(host, store, "n1", Path(root) / "n1"):
                if "--changes" not in sys.argv:
                    bench_flows(host, pod, store)
                ask(store, ingressBandwidth=RATES[0], egressBandwidth=RATES[0])
                until_limited(host, RATES[0], RATES[0])
                for apart_s in (1, 0):
                    bench_change(host, store, apart_s=apart_s)
                fill(host, pod, store)
                print(f"beside {PODS} workloads that have both limits, of which the last have just been made:")
                for apart_s in (0, 1):
                    bench_change(host, store, apart_s=apart_s)
        if "--changes" not in sys.argv:
            bench_comparison()


if __name__ == "__main__":
    main()
