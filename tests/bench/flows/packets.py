"""What recording adds to the first packet of a connection, to a denied one, and to later ones.

    unshare -n nice -n -5 .venv/bin/python -m tests.bench.flows.packets [BATCHES [parts]]

Four hosts in namespaces have the same rules, 3 policies on the way out and 20 on the way in, of 10 rules each, the
last of which decides; one of them records, one only what is denied, and on another one the same rules report to nobody:
what they cost themselves. Batches of 40 packets go to them in turn, on one processor; the 10th percentile of each, and
the differences, in microseconds. What is reported is read between the batches, outside of what is measured.
"later" are packets of a connection that is not answered, which ask the rules again. With "parts" the hosts have one
expression more each in the rules that let through: counter, label, guard, report.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.flows.deciders import ALLOWED_GROUP, DENIED_GROUP, Decider
from cni_calico.kernel import sysctl
from cni_calico.kernel.netlink.decisions import DecisionReports
from cni_calico.kernel.netlink.ended import EndedConnections
from cni_calico.kernel.netlink.nfnetlink import CTNETLINK, Nfnetlink, general
from cni_calico.netfilter.rules import AcceptKnown, CountPacket, LabelConnection, ReportDecision, RuleAction
from cni_calico.nodeagent.policing.tables.numbers import Recording, RuleNumbers
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from tests.netns.wire import UPLINK, Wire, entered, frame, open_wire
from tests.unit.policy.cluster import NODE, graph_of

BATCH = 40
SIDES = {"one side": (UPLINK, "10.0.1.1"), "both sides": ("calil3", "10.0.0.2")}
ALLOWED_PORT, DENIED_PORT = 53, 54


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


class Host:
    """One of them; ``listening`` reads what is reported, if it records."""

    def __init__(self, wire: Wire, stack: ExitStack, groups: Sequence[int] = ()) -> None:
        self.wire = wire
        graph = graph_of(documents())
        graph.flush()
        wire.apply(graph.wanted())
        wire.route({ip_address("10.0.0.1"): "cali1", ip_address("10.0.0.2"): "calil3"})
        self.listening: list[DecisionReports | EndedConnections] = []
        with entered(wire.host):
            self.netlink = stack.enter_context(Nfnetlink())
            for group in groups:
                self.listening.append(stack.enter_context(DecisionReports(group, 8 << 20, Deadline.after(10))))
            if ALLOWED_GROUP in groups:
                for name in ("nf_conntrack_acct", "nf_conntrack_timestamp"):
                    sysctl.ensure(("netfilter", name), "1")
                self.listening.append(stack.enter_context(EndedConnections(32 << 20)))

    def batch_us(self, incoming: str, source: str, port: int, *, later: bool = False) -> float:
        """Microseconds of each packet."""
        self.netlink.request(CTNETLINK << 8 | 2, 0, general(""), "flush", Deadline.after(10))
        for one in self.listening:
            one.take(10_000)
        packet = {"source": ip_address(source), "destination": ip_address("10.0.0.1"), "protocol": 17, "icmp": (0, 0)}
        frames = [frame({**packet, "sport": 1024 + (0 if later else i), "dport": port}, i) for i in range(BATCH)]
        send = self.wire.outer[incoming].send
        if later:
            send(frames[0])
        begun = time.perf_counter_ns()
        for one in frames:
            send(one)
        return (time.perf_counter_ns() - begun) / BATCH / 1000


@dataclass(frozen=True)
class RecordingInPart(Recording):
    """Rules that let through have only some of what recording adds."""

    parts: tuple[type, ...] = ()

    def before_accept(self, decider: Decider, *, has_connection: bool = True) -> tuple[RuleAction, ...]:
        whole = super().before_accept(decider, has_connection=has_connection)
        return tuple(one for one in whole if isinstance(one, self.parts))


PARTS = {
    "counter": (CountPacket,),
    "and label": (CountPacket, LabelConnection),
    "and guard": (CountPacket, LabelConnection, AcceptKnown),
    "and report": (CountPacket, LabelConnection, AcceptKnown, ReportDecision),
}


@contextmanager
def hosts_in_part() -> Iterator[dict[str, Host]]:
    """What is reported is read, as a recorder does it, on the last one."""
    with ExitStack() as stack:
        found = {"off": Host(stack.enter_context(open_wire(FilterSettings())), stack)}
        for name, parts in PARTS.items():
            recording = RecordingInPart(RuleNumbers(), parts=parts)
            wire = stack.enter_context(open_wire(FilterSettings(recording=recording)))
            found[name] = Host(wire, stack, (ALLOWED_GROUP, DENIED_GROUP) if ReportDecision in parts else ())
        yield found


def compare_parts(batches: int) -> None:
    with hosts_in_part() as found_hosts:
        for side, (incoming, source) in SIDES.items():
            found: dict[str, list[float]] = {name: [] for name in found_hosts}
            for _ in range(batches):
                for name, host in found_hosts.items():
                    found[name].append(host.batch_us(incoming, source, ALLOWED_PORT))
            base, *others = (sorted(times)[batches // 10] for times in found.values())
            added = ", ".join(f"{name} {cost - base:+5.2f}" for name, cost in zip(PARTS, others, strict=True))
            print(f"{side:11} off {base:6.2f} us; {added}")


@contextmanager
def hosts() -> Iterator[dict[str, Host]]:
    with ExitStack() as stack:
        off = stack.enter_context(open_wire(FilterSettings()))
        found = {"off": Host(off, stack)}
        for name, groups in (("unheard", ()), ("denied", (DENIED_GROUP,)), ("on", (ALLOWED_GROUP, DENIED_GROUP))):
            recording = Recording(RuleNumbers(), allowed=name != "denied")
            wire = stack.enter_context(open_wire(FilterSettings(recording=recording)))
            found[name] = Host(wire, stack, groups)
        yield found


def main(batches: int) -> None:
    with hosts() as found_hosts:
        for what, port, later in (
            ("allowed", ALLOWED_PORT, False),
            ("denied", DENIED_PORT, False),
            ("later", 53, True),
        ):
            for side, (incoming, source) in SIDES.items():
                found: dict[str, list[float]] = {name: [] for name in found_hosts}
                for _ in range(batches):
                    for name, host in found_hosts.items():
                        found[name].append(host.batch_us(incoming, source, port, later=later))
                base, rules, denied, cost = (sorted(times)[batches // 10] for times in found.values())
                added = f"added {cost - base:+5.2f} us, by the rules alone {rules - base:+5.2f}"
                added += f", if only what is denied is recorded {denied - base:+5.2f}"
                print(f"{what:8} {side:11} off {base:6.2f}  on {cost:6.2f}  {added}")
        with open("/proc/loadavg") as file:
            print(f"load {file.read().split()[0]}")


if __name__ == "__main__":
    (compare_parts if "parts" in sys.argv else main)(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
