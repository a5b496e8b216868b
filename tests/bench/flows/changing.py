"""Policies change while connections are opened as fast as a node may have to record: whether records name what stood.

    .venv/bin/python -m tests.bench.flows.changing [CHANGES [CONNECTIONS_PER_SECOND]]

By default 1,000 changes at 10,000 connections a second between two workloads here, of which each tenth is to a port
that is denied: the changes of tests/bench/policy/packets.py, each in force before the next. One writes the deciding
policy with and without a first rule, so that its other rules have another place, and another number, every four
changes. The recorder is the agent's, beside the engine. Whoever sends notes when, and for each record that is the
moment by which it is judged, exactly: the rule has to be one that stood between the moment before the packet was sent
and the one after. Prints how many connections were opened, recorded and lost, and how many records name another rule
than one that stood, or one that nobody knows. Exits with 1 if any does, if there is not one record for each connection,
if a forbidden packet passed, or an allowed one was lost on its way. Needs root.
"""

from __future__ import annotations

import mmap
import os
import signal
import socket
import statistics
import struct
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.directories import FLOW_SOCKET
from cni_calico.flows.client import ask
from cni_calico.flows.query import FlowQuery
from tests.bench.policy.packets import ALLOWED, FORBIDDEN, Changes, node, told
from tests.netns.flows.test_judging import Judged, beside
from tests.netns.policing.lab import BUFFER, PORTS, RCVBUFFORCE, Lab, socket_in

BLOCK = 40  # changes between two looks at what was recorded: fewer connections than the recorder keeps
LIVES_S = 2  # then a port is a new connection's again
EACH = 10  # of so many packets one is forbidden
TICK_S, MOST = 0.002, 1 << 20
DECIDES = 1, 5  # in the circle of changes: with a rule before the others, and without
HEAD = struct.Struct("QQQd")  # sent, allowed that arrived, forbidden that arrived, until when it sends
TIME = struct.Struct("dd")  # before, after


@dataclass
class Sending:
    """Seen by both processes."""

    memory: mmap.mmap

    def head(self) -> tuple[int, int, int, float]:
        return HEAD.unpack_from(self.memory)

    def times(self, number: int) -> tuple[float, float]:
        return TIME.unpack_from(self.memory, HEAD.size + number * TIME.size)


def port_of(number: int) -> int:
    return FORBIDDEN if number % EACH == EACH - 1 else ALLOWED


@contextmanager
def sending(made: Lab, rate: int) -> Iterator[Sending]:
    """From a process of its own, until the block ends; then what is on its way is waited for."""
    sender, receiver = made.workloads["probing"], made.workloads["probed"]
    shared = Sending(mmap.mmap(-1, HEAD.size + MOST * TIME.size))
    arrived = socket_in(receiver.ns, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    arrived.setsockopt(socket.SOL_SOCKET, RCVBUFFORCE, BUFFER)
    out = socket_in(sender.ns, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP)
    with arrived, out:
        child = os.fork()
        if not child:
            try:
                _send(shared.memory, out, arrived, receiver.address(), rate)
            finally:
                os._exit(0)
        try:
            yield shared
        finally:
            os.kill(child, signal.SIGTERM)
            os.waitpid(child, 0)


def _send(memory: mmap.mmap, out: socket.socket, arrived: socket.socket, address: str, rate: int) -> None:
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ending.append(1))
    counts, sent, begun = Counter[int](), 0, time.monotonic()

    def take() -> None:
        with suppress(BlockingIOError):
            while True:
                data = arrived.recv(2048, socket.MSG_DONTWAIT)
                if data.endswith(b"flow"):
                    counts[int.from_bytes(data[22:24], "big")] += 1

    while not ending and sent < MOST:
        due = min(MOST, int((time.monotonic() - begun) * rate))
        while sent < due and not ending:
            sport, port = 1024 + sent % PORTS, port_of(sent)
            data = sport.to_bytes(2, "big") + port.to_bytes(2, "big") + b"\0\x0c\0\0flow"
            before = time.time()
            out.sendto(data, (address, 0))
            TIME.pack_into(memory, HEAD.size + sent * TIME.size, before, time.time())
            sent += 1
            if sent % 64 == 0:
                take()
        take()
        time.sleep(TICK_S)
    given_up = time.monotonic() + 5
    while counts[ALLOWED] < sent - sent // EACH and time.monotonic() < given_up:
        take()
        time.sleep(TICK_S)
    HEAD.pack_into(memory, 0, sent, counts[ALLOWED], counts[FORBIDDEN], time.monotonic() - begun)


@dataclass
class Stood:
    """``spans``: since when; whether there may have been no rule before the deciding ones; whether there may be one."""

    spans: list[tuple[float, bool, bool]]

    def at(self, before: float, after: float) -> set[bool]:
        """Whether there was one, for a packet that was sent between these moments."""
        ends = [since for since, *_ in self.spans[1:]] + [float("inf")]
        spans = [one for one, end in zip(self.spans, ends, strict=True) if one[0] <= after and before <= end]
        return {there for _, *may in spans for there in (False, True) if may[there]}


def wrong(found: dict[str, Any], shared: Sending, sent: int, stood: Stood) -> str | None:
    """Why a record is not right, "" if it is; None: of what was not sent by that."""
    ends = found.get("source", {}), found.get("destination", {})
    sport, port = (one.get("port") or 0 for one in ends)
    numbers = range(max(0, sport - 1024), sent, PORTS)
    if sport < 1024 or port not in (ALLOWED, FORBIDDEN) or not numbers or port_of(numbers[0]) != port:
        return None
    told = (
        "last" if found["verdict"] == "denied" else "start"
    )  # what is denied again by the same is one flow for a minute
    begun = datetime.fromisoformat(found[told]).timestamp() + 0.001
    if begun < shared.times(0)[0]:
        return None
    sendings = [one for one in map(shared.times, numbers) if one[0] <= begun]
    if not sendings:
        return f"it was told before it was sent: {found}"
    said = [decided["said"] for decided in found["decided"]]
    places = [(1 if port == FORBIDDEN else 2) + there for there in stood.at(*sendings[-1])]
    if said in [["egress: profile kns.default rule 0", f"ingress: decides rule {place}"] for place in places]:
        return ""
    return f"there stood decides rule {places}, sent {sendings[-1]}: {found}"


def run(made: Lab, count: int, rate: int) -> tuple[Counter[str], list[float], list[str]]:
    total, times, faults = Counter[str](), list[float](), list[str]()
    circle, flows = Changes(made), Judged(made, made.root)
    made.start(FELIX_IPV6SUPPORT="false", FELIX_FLOWS="Enabled")
    made.until_in_force()
    flows.until("the recorder knows the rules", lambda found: found.get("judges", False))
    made.until_passes("probing", "probed", FORBIDDEN, wanted=False)
    there = False
    while len(times) < count:
        begun_at = time.time()
        stood = Stood([(0.0, not there, there)])
        with sending(made, rate) as shared:
            for _ in range(min(BLOCK, count - len(times))):
                place, begun = len(times) % len(circle.steps), time.perf_counter()
                if place in DECIDES:
                    stood.spans.append((time.time(), True, True))
                circle.take(len(times))
                times.append(1000 * (time.perf_counter() - begun))
                if place in DECIDES:
                    there = place == DECIDES[0]
                    stood.spans.append((time.time(), not there, there))
        sent, allowed, forbidden, took = shared.head()
        total.update(sent=sent, passed=forbidden, missing=sent - sent // EACH - allowed, ms=int(1000 * took))
        told(flows)
        for found in ask(f"{made.root}/run/{FLOW_SOCKET}", FlowQuery(since=begun_at - 0.1), Deadline.after(120)):
            fault = wrong(found, shared, sent, stood)
            total["records"] += fault is not None
            if fault:
                faults.append(fault)
        print(f"{len(times)} changes: {dict(total)}, {len(faults)} wrong {faults[-1:]}", file=sys.stderr, flush=True)
    total.update({f"recorder: {name}": value for name, value in told(flows).items()})
    return total, times, faults


def main(count: int = 1000, rate: int = 10_000) -> int:
    print(f"load average {os.getloadavg()[0]:.1f}", file=sys.stderr)
    with ExitStack() as stack:
        made = node(stack)
        made.limit_s = 3600
        made.beside = beside(made.root)
        made.host.set_sysctl("netfilter/nf_conntrack_udp_timeout", str(LIVES_S))
        total, times, faults = run(made, count, rate)
    print(f"{len(times)} changes, each in force after {statistics.median(times):.0f} ms (median)")
    print(f"{total['sent']} connections, {1000 * total['sent'] / total['ms']:.0f} a second; {total['records']} records")
    print(f"  that name another rule than one that stood  {len(faults)}")
    print(f"  forbidden that passed                       {total['passed']}")
    print(f"  allowed that were lost                      {total['missing']}")
    print("recorder: " + ", ".join(f"{n} {name[10:]}" for name, n in total.items() if name.startswith("recorder: ")))
    for fault in faults[:5]:
        print(fault)
    unrecorded = total["records"] != total["sent"]
    return 1 if faults or unrecorded or total["passed"] or total["missing"] or total["recorder: unknown"] else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
