"""Limits of a workload's bandwidth, as the agent brings them into the kernel, beside others who shape its interface."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

from cni_calico.deadline import Deadline
from cni_calico.kernel.interfaces import read_interfaces
from cni_calico.kernel.netlink.socket import Rtnl
from cni_calico.nodeagent.context.felix import parse_felix
from cni_calico.nodeagent.dataplane.bandwidth import desired_bandwidth, device_name
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.parts import bandwidth
from cni_calico.nodeagent.dataplane.parts.bandwidth import Bandwidth
from cni_calico.nodeagent.dataplane.pass_schedule import PassSchedule
from cni_calico.nodeagent.dataplane.passes import Pass
from tests.deadlines import until
from tests.netns.agents import Running, Store, key_of, running
from tests.netns.namespaces import Namespace, namespace
from tests.unit.nodeagent.fabric import NODES, workload

pytestmark = pytest.mark.netns

POD = workload("w", "calia", "10.65.1.5/32")
DEVICE = device_name("calia")
MBIT = 10**6


@pytest.fixture
def limited_pod(host_n1: Namespace) -> Iterator[Namespace]:
    """A pod with its address behind the interface calia of the host, which stands for the CNI plugin's."""
    with namespace("pod") as ns:
        host_n1.do("link", "del", "calia")
        host_n1.do("link", "add", "calia", "mtu", "1450", "type", "veth", "peer", "name", "eth0", "netns", ns.name)
        host_n1.do("addr", "add", "10.65.1.254/32", "dev", "calia")
        host_n1.do("link", "set", "calia", "up")
        ns.do_all("link set eth0 up", "addr add 10.65.1.5/32 dev eth0", "route add 10.65.1.254 dev eth0")
        yield ns


@pytest.fixture
def limits(tmp_path: Path) -> Store:
    store = Store(tmp_path / "store.db")
    store.put(NODES["n1"], POD)
    return store


def ask(store: Store, **controls: int) -> None:
    store.put(replace(POD, qos_controls=controls or None))


def tc(ns: Namespace, command: str) -> str:
    return ns.run("tc", *command.split()).stdout


def qdiscs(ns: Namespace, device: str) -> list[dict[str, Any]]:
    shown = ns.run("tc", "-j", "-s", "qdisc", "show", "dev", device, check=False).stdout
    return json.loads(shown) if shown.strip() else []


def tbf(ns: Namespace, device: str) -> dict[str, Any]:
    """What a device's tbf is told, {} without one."""
    return next((q["options"] for q in qdiscs(ns, device) if q["kind"] == "tbf"), {})


def rates(ns: Namespace) -> tuple[int, int]:
    """(what the pod receives, what it sends) in bits per second, 0: without a limit."""
    return 8 * tbf(ns, "calia").get("rate", 0), 8 * tbf(ns, DEVICE).get("rate", 0)


def redirects(ns: Namespace, name: str = "calia") -> int:
    """How many filters there are on what comes in from the pod."""
    if not any(q["kind"] == "ingress" for q in qdiscs(ns, name)):
        return 0
    return tc(ns, f"filter show dev {name} parent ffff:").count("Redirect to device")


def until_limited(ns: Namespace, received: int, sent: int) -> None:
    until(lambda: rates(ns) == (received, sent), f"limits of {received} and {sent} bit/s", 30)


def _serve(size: int) -> int:
    """In a pod: takes a connection, sends ``size`` bytes, and returns how many it received."""
    with socket.create_server(("10.65.1.5", 5001)) as server:
        connection, _ = server.accept()
        with connection:
            connection.sendall(bytes(size))
            connection.shutdown(socket.SHUT_WR)
            return sum(map(len, iter(lambda: connection.recv(65536), b"")))


def _exchange(size: int) -> int:
    """On the host: how many bytes come from the pod, to which ``size`` are sent."""

    def connect() -> socket.socket | None:
        try:
            return socket.create_connection(("10.65.1.5", 5001), 60)
        except ConnectionRefusedError:
            return None

    found: list[socket.socket] = []
    until(lambda: found.extend(filter(None, [connect()])) or bool(found), "the pod's server", 30)
    with found[0] as connection:
        connection.sendall(bytes(size))
        connection.shutdown(socket.SHUT_WR)
        return sum(map(len, iter(lambda: connection.recv(65536), b"")))


def _receive() -> int:
    """In a pod: takes a connection and returns how many bytes it received."""
    return _serve(0)


def _send(size: int) -> None:
    """On the host: sends so many bytes to the pod."""
    _exchange(size)


def exchange(host: Namespace, pod: Namespace, size: int) -> tuple[int, int]:
    """What the pod and the host received of ``size`` bytes each way, of one connection."""
    received: list[int] = []
    thread = threading.Thread(target=lambda: received.append(pod.call(_serve, size)))
    thread.start()
    there = host.call(_exchange, size)
    thread.join(60)
    return received[0], there


def sent_bytes(ns: Namespace, device: str) -> int:
    return sum(q["bytes"] for q in qdiscs(ns, device) if q["kind"] == "tbf")


def test_limits_come_change_and_go(host_n1: Namespace, limited_pod: Namespace, limits: Store, tmp_path: Path) -> None:
    """All traffic goes through them, and a change is made in place: what has been counted goes on."""
    with running(host_n1, limits, "n1", tmp_path / "n1"):
        assert rates(host_n1) == (0, 0) and host_n1.link(DEVICE) is None
        ask(limits, ingressBandwidth=50 * MBIT, egressBandwidth=80 * MBIT)
        until_limited(host_n1, 50 * MBIT, 80 * MBIT)
        until(lambda: redirects(host_n1) == 1, "what the pod sends goes through its device", 30)
        assert exchange(host_n1, limited_pod, 300_000) == (300_000, 300_000)
        into, out, device = sent_bytes(host_n1, "calia"), sent_bytes(host_n1, DEVICE), host_n1.link(DEVICE)
        assert into > 300_000 and out > 300_000 and device is not None
        ask(limits, ingressBandwidth=200 * MBIT, egressBandwidth=100 * MBIT)
        until_limited(host_n1, 200 * MBIT, 100 * MBIT)
        assert exchange(host_n1, limited_pod, 300_000) == (300_000, 300_000)
        assert sent_bytes(host_n1, "calia") > into + 300_000 and sent_bytes(host_n1, DEVICE) > out + 300_000
        after = host_n1.link(DEVICE)
        assert after is not None and after["ifindex"] == device["ifindex"] and after["mtu"] == 1450
        ask(limits, egressBandwidth=100 * MBIT, egressPeakrate=150 * MBIT)
        until_limited(host_n1, 0, 100 * MBIT)
        until(lambda: "peakrate 150Mbit" in tc(host_n1, f"qdisc show dev {DEVICE}"), "the peak rate", 30)
        ask(limits)
        until(lambda: host_n1.link(DEVICE) is None, "the device is gone", 30)
        assert [q["kind"] for q in qdiscs(host_n1, "calia")] == ["noqueue"]
        assert exchange(host_n1, limited_pod, 300_000) == (300_000, 300_000)


@pytest.mark.parametrize("former", [{"ingressBurst": 8 * 10**6}, {}], ids=["by burst", "by peak rate"])
def test_what_waits_is_not_too_large_for_a_smaller_burst(
    host_n1: Namespace, limited_pod: Namespace, limits: Store, tmp_path: Path, former: dict[str, int]
) -> None:
    """The kernel looks at a packet's size when it comes: one that a smaller burst can never let pass would stay, with
    all that is behind it.
    """
    smaller = {"ingressBurst": 16_000} if former else {"ingressPeakrate": 400 * MBIT}

    def waiting() -> int:
        return sum(q["backlog"] for q in qdiscs(host_n1, "calia") if q["kind"] == "tbf")

    with running(host_n1, limits, "n1", tmp_path / "n1"):
        ask(limits, ingressBandwidth=MBIT if former else 10 * MBIT, **former)
        until(lambda: tbf(host_n1, "calia"), "the first limit", 30)
        received: list[int] = []
        pod = threading.Thread(target=lambda: received.append(limited_pod.call(_receive)))
        host = threading.Thread(target=lambda: host_n1.call(_send, 4_000_000))
        for each in (pod, host):
            each.start()
        until(lambda: waiting() > 65536, "a queue", 30)
        ask(limits, ingressBandwidth=200 * MBIT, **smaller)
        until_limited(host_n1, 200 * MBIT, 0)
        for each in (pod, host):
            each.join(60)
        assert received == [4_000_000]
        assert "qdisc tbf 1: root" in tc(host_n1, "qdisc show dev calia")


_MEASURED = re.compile(r"\] +([0-9.]+)-([0-9.]+) +sec .*?([0-9.]+) Kbits/sec")
_WINDOW = 4  # lines, of a second each


@contextmanager
def receiving(host: Namespace, pod: Namespace, *, into_pod: bool) -> Iterator[Callable[[], float]]:
    """A flow of iperf3's between the host and the pod, and what its receiver gets, in bits per second of the last lines
    that were written since the last time.
    """
    lines: Queue[str] = Queue()
    ends = [["-s", "-1", "-B", "10.65.1.5"], ["-c", "10.65.1.5", "-t", "600", *([] if into_pod else ["-R"])]]

    def begin(ns: Namespace, words: list[str], *, told: bool) -> subprocess.Popen[str]:
        command = ["nsenter", f"--net={ns.path}", "iperf3", "-p", "5201", "-f", "k", "-i", "1", "--forceflush", *words]
        output = subprocess.PIPE if told else subprocess.DEVNULL
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True)
        if process.stdout is not None:
            threading.Thread(target=copy, args=(process.stdout,), daemon=True).start()
        return process

    def copy(output: Iterable[str]) -> None:
        for line in output:
            lines.put(line)

    def rate() -> float:
        """Of _WINDOW lines."""
        bits = seconds = 0.0
        for _ in range(_WINDOW):
            while (found := _MEASURED.search(lines.get(timeout=60))) is None:
                pass
            took = float(found[2]) - float(found[1])
            bits, seconds = bits + float(found[3]) * 1000 * took, seconds + took
        return bits / seconds

    with ExitStack() as undo:
        for ns, words, told in ((pod, ends[0], into_pod), (host, ends[1], not into_pod)):
            if ns is host:
                until(lambda: ":5201" in pod.run("ss", "-ltn").stdout, "the pod's server", 30)
                until(lambda: host.run("ping", "-c1", "-W1", "10.65.1.5", check=False).returncode == 0, "a way", 30)
            process = begin(ns, words, told=told)
            undo.callback(process.wait)
            undo.callback(process.kill)

        def fresh() -> float:
            while not lines.empty():
                lines.get()
            return rate()

        yield fresh


@pytest.mark.slow
@pytest.mark.iperf3
@pytest.mark.parametrize("into_pod", [True, False], ids=["received", "sent"])
def test_a_running_flow(
    host_n1: Namespace, limited_pod: Namespace, limits: Store, tmp_path: Path, into_pod: bool
) -> None:
    """As fast as the limit says, less a tenth at most, of which the headers that are counted take half; it goes on
    through changes, and when the limit goes. A burst may pass at full speed first.
    """
    field = "ingressBandwidth" if into_pod else "egressBandwidth"

    def limited(mbit: int) -> None:
        ask(limits, **{field: mbit * MBIT})
        until_limited(host_n1, *((mbit * MBIT, 0) if into_pod else (0, mbit * MBIT)))

    with running(host_n1, limits, "n1", tmp_path / "n1"):
        limited(20)
        with receiving(host_n1, limited_pod, into_pod=into_pod) as rate:
            for mbit in (20, 5, 50):
                limited(mbit)
                least, most = 0.9 * mbit * MBIT, mbit * MBIT
                until(partial(lambda least, most: least <= rate() <= most, least, most), f"{mbit} Mbit/s", 120)
            ask(limits)
            until_limited(host_n1, 0, 0)
            until(lambda: rate() > 55 * MBIT, "no limit any more", 120)


def test_another_agent_changes_nothing(
    host_n1: Namespace, limited_pod: Namespace, limits: Store, tmp_path: Path
) -> None:
    """And repairs what somebody changed meanwhile; of a pod that is gone nothing stays."""
    ask(limits, ingressBandwidth=50 * MBIT, egressBandwidth=10**15)
    first = Running(host_n1, limits, "n1", tmp_path / "n1").start().until_synced()
    until_limited(host_n1, 50 * MBIT, 10**15)
    exchange(host_n1, limited_pod, 100_000)
    first.stop()
    device, counted = host_n1.link(DEVICE), (sent_bytes(host_n1, "calia"), sent_bytes(host_n1, DEVICE))
    with running(host_n1, limits, "n1", tmp_path / "n1") as second:
        assert host_n1.link(DEVICE) == device and redirects(host_n1) == 1
        assert sent_bytes(host_n1, "calia") >= counted[0] > 0 and sent_bytes(host_n1, DEVICE) >= counted[1] > 0
        assert "limited what" not in second.log().partition("limited what calia sends")[2]
        second.stop()
    tc(host_n1, "qdisc del dev calia root")
    host_n1.do("link", "set", DEVICE, "down")
    with running(host_n1, limits, "n1", tmp_path / "n1"):
        until_limited(host_n1, 50 * MBIT, 10**15)
        assert exchange(host_n1, limited_pod, 100_000) == (100_000, 100_000)
    host_n1.do("link", "del", "calia")
    limits.remove(key_of(POD))
    with running(host_n1, limits, "n1", tmp_path / "n1"):
        until(lambda: host_n1.link(DEVICE) is None, "the device of a pod that is gone", 30)


def test_beside_others_who_shape(host_n1: Namespace, limited_pod: Namespace, limits: Store, tmp_path: Path) -> None:
    """Without a limit of ours theirs stays. With one, ours takes its place, without a moment between the two."""
    host_n1.do("link", "add", "bwp0123456789a", "type", "ifb")
    host_n1.do("link", "set", "bwp0123456789a", "up")
    tc(host_n1, "qdisc add dev calia root handle 1: tbf rate 9mbit burst 20000 latency 25ms")
    tc(host_n1, "qdisc add dev calia handle ffff: ingress")
    match = "filter add dev calia parent ffff: protocol all prio 1 u32 match u32 0 0 flowid 1:1"
    tc(host_n1, f"{match} action mirred egress redirect dev bwp0123456789a")
    with running(host_n1, limits, "n1", tmp_path / "n1"):
        assert rates(host_n1) == (9 * MBIT, 0) and host_n1.link("bwp0123456789a") is not None
        ask(limits, ingressBandwidth=50 * MBIT, egressBandwidth=60 * MBIT)
        until_limited(host_n1, 50 * MBIT, 60 * MBIT)
        until(lambda: host_n1.link("bwp0123456789a") is None and redirects(host_n1) == 1, "only our redirect", 30)
        assert exchange(host_n1, limited_pod, 100_000) == (100_000, 100_000)


def test_clsact_is_somebody_elses(host_n1: Namespace, limited_pod: Namespace, limits: Store, tmp_path: Path) -> None:
    """The kernel has room for one of the two: what the pod receives is limited, and the status says what is not."""
    tc(host_n1, "qdisc add dev calia clsact")
    ask(limits, ingressBandwidth=50 * MBIT, egressBandwidth=60 * MBIT)
    with running(host_n1, limits, "n1", tmp_path / "n1") as agent:
        until_limited(host_n1, 50 * MBIT, 0)
        until(lambda: "cannot limit what calia sends: it has a clsact qdisc" in agent.log(), "its reason", 30)
        tc(host_n1, "qdisc del dev calia clsact")
        ask(limits, ingressBandwidth=51 * MBIT, egressBandwidth=60 * MBIT)
        until_limited(host_n1, 51 * MBIT, 60 * MBIT)


def _requests(pods: int) -> list[tuple[int, int]]:
    """How many requests to the kernel a full comparison takes, and how many answers it reads, and then one changed
    limit, an interface that was made again, and a limit that goes.
    """
    asked = [0, 0]

    def counted(real: Any) -> Any:
        def run(*args: Any, **options: Any) -> Any:
            asked[0] += 1
            answers = real(*args, **options)
            asked[1] += len(answers)
            return answers

        return run

    names, limits = [f"cali{i}" for i in range(pods)], {"ingressBandwidth": MBIT, "egressBandwidth": MBIT}
    present = {name: replace(POD, interface_name=name, qos_controls=limits) for name in names}
    felix, part, found = parse_felix({}).settings, Bandwidth(), []

    def apply(*, full: bool) -> tuple[int, int]:
        wanted, done = desired_bandwidth(present, read_interfaces(Deadline.after(30)))[0], Pass()
        asked[:] = [0, 0]
        part.apply(Desired(bandwidth=wanted), felix, Deadline.after(30), done, full)
        assert not done.failed, done.failed
        return asked[0], asked[1]

    with pytest.MonkeyPatch.context() as patched:
        for name in ("dump", "submit"):
            patched.setattr(Rtnl, name, counted(getattr(Rtnl, name)))
        apply(full=True)
        found.append(apply(full=True))
        present["cali0"] = replace(present["cali0"], qos_controls={**limits, "egressBandwidth": 2 * MBIT})
        found.append(apply(full=False))
        subprocess.run(["ip", "link", "del", "cali1"], check=True)
        subprocess.run(["ip", "link", "add", "cali1", "type", "veth", "peer", "name", "again"], check=True)
        found.append(apply(full=False))
        present["cali1"] = replace(present["cali1"], qos_controls=None)
        found.append(apply(full=False))
    return found


def test_a_change_asks_for_nothing_of_other_workloads() -> None:
    """Each request may have to wait for the kernel's lock of links, which whoever makes or removes some holds."""
    found = []
    for pods in (2, 6):
        with namespace("host") as host:
            host.do_all(*[f"link add cali{i} mtu 1450 type veth peer name peer{i}" for i in range(pods)])
            found.append(host.call(_requests, pods))
            assert redirects(host, "cali0") == 1 and redirects(host, "cali1") == 0
            assert tbf(host, "cali0")["rate"] == MBIT // 8 and tbf(host, device_name("cali0"))["rate"] == MBIT // 4
            assert tbf(host, "cali1") == {} and host.link(device_name("cali1")) is None
    (few, *changes), (many, *changes_of_many) = found
    assert many[0] == few[0] + 4 and changes == changes_of_many and changes[0][0] <= few[0]


def _pieces() -> list[tuple[list[str], int]]:
    """Of each look: the interfaces whose limit it set, and how many it left."""
    known = {"ingressBandwidth": MBIT}
    subprocess.run(["ip", "link", "add", "cali9", "type", "veth", "peer", "name", "peer9"], check=True)
    present, found, part = {"cali9": replace(POD, interface_name="cali9", qos_controls=known)}, [], Bandwidth()

    def look() -> int:
        done = Pass()
        wanted = desired_bandwidth(present, read_interfaces(Deadline.after(30)))[0]
        part.apply(Desired(bandwidth=wanted), parse_felix({}).settings, Deadline.after(30), done, full=False)
        found.append(([text.split()[2] for text in done.changed], done.limits_left))
        return done.limits_left

    look()
    subprocess.run(["ip", "link", "add", "cali8", "type", "veth", "peer", "name", "peer8"], check=True)
    for i in range(5):
        subprocess.run(["ip", "link", "add", f"cali{i}", "type", "veth", "peer", "name", f"peer{i}"], check=True)
        present[f"cali{i}"] = replace(POD, interface_name=f"cali{i}", qos_controls=known)
    look()
    present["cali9"] = replace(present["cali9"], qos_controls={"ingressBandwidth": 2 * MBIT})
    present["cali8"] = replace(present["cali9"], interface_name="cali8")
    while look():
        pass
    look()
    return found


def test_a_changed_limit_comes_before_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """As does a first one of a pod that is older than they are."""
    monkeypatch.setattr(bandwidth, "PIECE", 2)
    with namespace("host") as host:
        found = host.call(_pieces)
    looks = [["cali9"], ["cali0", "cali1"], ["cali9", "cali8"], ["cali2", "cali3"], ["cali4"], []]
    assert found == list(zip(looks, [0, 3, 3, 1, 0, 0], strict=True))


def test_a_changed_limit_waits_for_no_rest(
    host_n1: Namespace, limited_pod: Namespace, limits: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After passes that have worked for long there is a rest; here for good, which another workload's route shows."""
    asked, rests, usual = tmp_path / "asked", tmp_path / "rests", PassSchedule.pause_s

    def pause_s(schedule: PassSchedule, now: float, used_s: float) -> float:
        if not asked.exists():
            return usual(schedule, now, used_s)
        rests.touch()
        return 3600

    monkeypatch.setattr(PassSchedule, "pause_s", pause_s)
    host_n1.do("link", "add", "calib", "type", "veth", "peer", "name", "other")
    host_n1.do("link", "set", "calib", "up")
    with running(host_n1, limits, "n1", tmp_path / "n1"):
        ask(limits, ingressBandwidth=50 * MBIT)
        until_limited(host_n1, 50 * MBIT, 0)
        asked.touch()
        host_n1.do("addr", "add", "192.0.2.7/32", "dev", "lo")  # which is a reason for a pass
        until(rests.exists, "the last pass", 30)
        limits.put(workload("w2", "calib", "10.65.1.6/32"))
        for rate in (60, 70):
            ask(limits, ingressBandwidth=rate * MBIT, egressBandwidth=rate * MBIT)
            until_limited(host_n1, rate * MBIT, rate * MBIT)
        ask(limits)
        until(lambda: host_n1.link(DEVICE) is None and rates(host_n1) == (0, 0), "no limit is left", 30)
        assert not host_n1.ip("route", "show", "10.65.1.6")


FAILURES = "netlink.link-create:after:1:fail,netlink.qdisc-set:after:1:fail,netlink.filter-add:before:1:fail"
REMOVALS = "netlink.qdisc-delete:before:1:fail,netlink.filter-delete:before:1:fail,netlink.link-delete:before:1:fail"


def test_what_fails_is_done_again(host_n1: Namespace, limited_pod: Namespace, limits: Store, tmp_path: Path) -> None:
    ask(limits, ingressBandwidth=50 * MBIT, egressBandwidth=60 * MBIT)
    trace = tmp_path / "trace"
    environ = {"CALICO_FAULT": f"{FAILURES},{REMOVALS}", "CALICO_FAULT_TRACE": str(trace)}
    tc(host_n1, "qdisc add dev calia handle ffff: ingress")
    match = "filter add dev calia parent ffff: protocol all prio 7 u32 match u32 0 0 flowid 1:1"
    tc(host_n1, f"{match} action mirred egress redirect dev eth0")
    with running(host_n1, limits, "n1", tmp_path / "n1", **environ) as agent:
        until_limited(host_n1, 50 * MBIT, 60 * MBIT)
        until(lambda: agent.status().get("failed") == [] and redirects(host_n1) == 1, "nothing fails any more", 30)
        ask(limits)
        until(lambda: host_n1.link(DEVICE) is None and rates(host_n1) == (0, 0), "no limit is left", 30)
    reached = trace.read_text()
    assert all(f"{plan.rpartition(':1:')[0]}\n" in reached for plan in f"{FAILURES},{REMOVALS}".split(","))


def test_the_last_limit_goes_though_that_fails_once(
    host_n1: Namespace, limited_pod: Namespace, limits: Store, tmp_path: Path
) -> None:
    """And what took its place on the interface since is somebody else's."""
    ask(limits, ingressBandwidth=50 * MBIT)
    with running(host_n1, limits, "n1", tmp_path / "n1", CALICO_FAULT="netlink.qdisc-delete:before:1:fail"):
        until_limited(host_n1, 50 * MBIT, 0)
        ask(limits)
        until_limited(host_n1, 0, 0)
        ask(limits, ingressBandwidth=60 * MBIT)
        until_limited(host_n1, 60 * MBIT, 0)
        tc(host_n1, "qdisc replace dev calia root handle 1: tbf rate 9mbit burst 20000 latency 25ms")
        ask(limits, egressBandwidth=70 * MBIT)
        until_limited(host_n1, 9 * MBIT, 70 * MBIT)
