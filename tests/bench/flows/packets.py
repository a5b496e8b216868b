"""What recording adds to the first packet of a connection, to a denied one, and to later ones.

    unshare -n nice -n -5 .venv/bin/python -m tests.bench.flows.packets [BATCHES]

Hosts in namespaces have the same rules, 3 policies on the way out and 20 on the way in, of 10 rules each, the last of
which decides; one of them records, one only what is denied, on another one the same rules report to nobody: what they
cost themselves; and one is as the first, which does not record: how much the same thing differs by itself. Batches of
40 packets go to them in turn, there and back, on one processor; the 10th percentile of each, and the differences, in
microseconds. What is reported is read between the batches, outside of what is measured, and no connection is forgotten
meanwhile. "again" are packets of a connection that is not answered, which ask the rules again, "later" those of one
that is. What each part of recording costs is asked by ``parts.py``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.flows.deciders import ALLOWED_GROUP, DENIED_GROUP
from cni_calico.kernel import sysctl
from cni_calico.kernel.netlink.decisions import DecisionReports
from cni_calico.kernel.netlink.ended import EndedConnections
from cni_calico.nodeagent.policing.tables.numbers import Recording, RuleNumbers
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from tests.netns.wire import UPLINK, Wire, entered, frame, open_wire
from tests.unit.policy.cluster import NODE, graph_of

BATCH = 40
MOST = 1500  # batches: each packet of them has a source port of its own
SIDES = {"one side": (UPLINK, "10.0.1.1"), "both sides": ("calil3", "10.0.0.2")}
DESTINATION = "10.0.0.1"
ALLOWED_PORT, DENIED_PORT = 53, 54
FIRST_PORT, ONE_PORT = 1024, 1000  # sources


def documents() -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for name, interface, address in (("l1", "cali1", "10.0.0.1"), ("l2", "calil3", "10.0.0.2")):
        spec = {"interfaceName": interface, "node": NODE, "ipNetworks": [f"{address}/32"], "profiles": []}
        found["WorkloadEndpoint", "a", name] = {
            "metadata": {"name": name, "namespace": "a", "labels": {}},
            "spec": spec,
        }
    for direction, count in (("egress", 3), ("ingress", 20)):
        for i in range(count):
            rules: list[dict[str, Any]] = [
                {"action": "Allow", "protocol": "UDP", "source": {"nets": [f"192.0.2.{j}/32"]},
                 "destination": {"ports": [8000 + j]}} for j in range(10)
            ]  # fmt: skip
            if i == count - 1:
                rules.append({"action": "Allow", "protocol": "UDP", "destination": {"ports": [ALLOWED_PORT]}})
                if direction == "egress":
                    rules.append({"action": "Allow"})
            spec = {"selector": "all()", "order": i, "types": [direction.capitalize()], direction: rules}
            found["GlobalNetworkPolicy", "", f"{direction}-{i}"] = {
                "metadata": {"name": f"{direction}-{i}"},
                "spec": spec,
            }
    return found


def packets(source: str, port: int, batch: int) -> list[bytes]:
    """Of as many connections."""
    return [packet(source, FIRST_PORT + batch * BATCH + i, DESTINATION, port) for i in range(BATCH)]


def packet(source: str, source_port: int, destination: str, port: int) -> bytes:
    ends = {"source": ip_address(source), "destination": ip_address(destination)}
    return frame({**ends, "protocol": 17, "sport": source_port, "dport": port}, 0)


class Host:
    """One of them; ``listening``: what reads what is reported, if it records."""

    def __init__(
        self, wire: Wire, stack: ExitStack, groups: Sequence[int] = (), records: dict[Any, Any] | None = None
    ) -> None:
        self.wire = wire
        graph = graph_of(records or documents())
        graph.flush()
        wire.apply(graph.wanted())
        wire.route({ip_address("10.0.0.1"): "cali1", ip_address("10.0.0.2"): "calil3"})
        self.listening: list[DecisionReports | EndedConnections] = []
        with entered(wire.host):
            for group in groups:
                self.listening.append(stack.enter_context(DecisionReports(group, 8 << 20, Deadline.after(10))))
            if ALLOWED_GROUP in groups:
                for name in ("nf_conntrack_acct", "nf_conntrack_timestamp"):
                    sysctl.ensure(("netfilter", name), "1")
                self.listening.append(stack.enter_context(EndedConnections(32 << 20)))

    def open_connection(self, incoming: str, source: str, *, answered: bool) -> bytes:
        """Returns its first packet."""
        first = packet(source, ONE_PORT + answered, DESTINATION, ALLOWED_PORT)
        self.wire.outer[incoming].send(first)
        if answered:
            self.wire.outer["cali1"].send(packet(DESTINATION, ALLOWED_PORT, source, ONE_PORT + answered))
            self.wire.outer[incoming].send(first)
        return first

    def batch_us(self, incoming: str, frames: list[bytes]) -> float:
        """Microseconds of each packet."""
        for one in self.listening:
            one.take(10_000)
        send = self.wire.outer[incoming].send
        begun = time.perf_counter_ns()
        for one_frame in frames:
            send(one_frame)
        return (time.perf_counter_ns() - begun) / len(frames) / 1000


@contextmanager
def hosts() -> Iterator[dict[str, Host]]:
    with ExitStack() as stack:
        found = {name: Host(stack.enter_context(open_wire(FilterSettings())), stack) for name in ("off", "off again")}
        for name, groups in (("unheard", ()), ("denied", (DENIED_GROUP,)), ("on", (ALLOWED_GROUP, DENIED_GROUP))):
            recording = Recording(RuleNumbers(), allowed=name != "denied")
            wire = stack.enter_context(open_wire(FilterSettings(recording=recording)))
            found[name] = Host(wire, stack, groups)
        yield found


def measure(found_hosts: dict[str, Host], what: str, incoming: str, source: str, batches: int) -> dict[str, float]:
    """The 10th percentile of each host."""
    found: dict[str, list[float]] = {name: [] for name in found_hosts}
    frames: list[bytes] = []
    if what in ("again", "later"):
        frames = [host.open_connection(incoming, source, answered=what == "later") for host in found_hosts.values()]
        frames = frames[:1] * BATCH
    port = DENIED_PORT if what == "denied" else ALLOWED_PORT
    for number in range(batches):
        sent = frames or packets(source, port, number)
        for name in [*found_hosts][:: -1 if number % 2 else 1]:
            found[name].append(found_hosts[name].batch_us(incoming, sent))
    return {name: sorted(times)[batches // 10] for name, times in found.items()}


def main(batches: int) -> None:
    with hosts() as found_hosts:
        for what in ("first", "denied", "again", "later"):
            for side, (incoming, source) in SIDES.items():
                us = measure(found_hosts, what, incoming, source, batches)
                added = {name: cost - us["off"] for name, cost in us.items()}
                print(
                    f"{what:7} {side:11} off {us['off']:6.2f}  on {us['on']:6.2f}  added {added['on']:+5.2f} us "
                    f"({added['on'] / us['off']:+.1%}), by the rules alone {added['unheard']:+5.2f}, if only what is "
                    f"denied is recorded {added['denied']:+5.2f}; the same again {added['off again']:+5.2f}"
                )
        with open("/proc/loadavg") as file:
            print(f"load {file.read().split()[0]}")


if __name__ == "__main__":
    main(min(int(sys.argv[1]) if len(sys.argv) > 1 else 300, MOST))
