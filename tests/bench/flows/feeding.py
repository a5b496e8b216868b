"""What the recorder's own program needs for a connection, without the kernel: it is fed what the kernel once sent.

    .venv/bin/python -m tests.bench.flows.feeding [SECONDS [CONNECTIONS_PER_SECOND [PODS [profile FILE]]]]

A connection that both sides let through, a denied packet and an end are reported once by the kernel; these messages
are given to the recorder again and again, with other addresses, ports, numbers and times, as many as come in its waits.
Time is counted, not waited for, so that a machine under load reads as much at once as any. Each connection ends ten
seconds after it began, and a tenth as many packets are denied. The figure is processor time of ``Recorder.step`` after
the first ten seconds, when as many end as begin; what makes the messages is left out.
"""

from __future__ import annotations

import cProfile
import gc
import os
import socket
import sys
import tempfile
import time
from collections import deque
from errno import EAGAIN
from ipaddress import ip_address
from pathlib import Path
from struct import Struct
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.flows.judging.encoding import render_whole
from cni_calico.flows.losses import ALLOWED, DENIED
from cni_calico.flows.recorder import Recorder
from cni_calico.kernel.memory import expect_growth, give_back_memory
from cni_calico.kernel.netlink.decisions import IN_DATAGRAM
from cni_calico.kernel.netlink.nfnetlink import CTNETLINK, Nfnetlink, general
from cni_calico.log import Log
from cni_calico.nodeagent.policing.tables.numbers import Recording, RuleNumbers
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from tests.bench.flows.lasting import peak_mib, pod, workload
from tests.bench.flows.packets import ALLOWED_PORT, DENIED_PORT, SIDES, documents
from tests.bench.flows.reading import put_in_force
from tests.netns.wire import Wire, entered, frame, open_wire

_LIVES_S, _PORTS, _PLACE = 10, 60_000, 1024
_SPORT = 40_007  # of what is captured: these bytes are nowhere else in a message
_HEAD, _DONE = Struct("=IH"), 3
_LAST = Struct("=IHHIII").pack(20, _DONE, 0, 0, 0, 0)  # message of a datagram
_PORT, _NUMBER, _TIME = Struct(">H"), Struct(">I"), Struct(">Q")


class Message:
    """As the kernel sent it; ``made`` is one more of its kind."""

    def __init__(self, data: bytes, source: str, target: str) -> None:
        self._data = bytearray(data)
        self._sources = _places(data, ip_address(source).packed)
        self._targets = _places(data, ip_address(target).packed)
        self._sports = _places(data, _PORT.pack(_SPORT))
        self._numbers = [at + 4 for at in _places(data, b"\x08\x00\x0c\x00")]
        self._times = [at + 4 for kind in (1, 2) for at in _places(data, bytes((12, 0, kind, 0)))][-2:]

    def made(self, source: bytes, target: bytes, sport: int, number: int = 0, began: int = 0, ended: int = 0) -> bytes:
        """``number``: of a report; ``began``, ``ended``: nanoseconds since 1970, of an end."""
        data = self._data
        for at in self._sources:
            data[at : at + 4] = source
        for at in self._targets:
            data[at : at + 4] = target
        for at in self._sports:
            _PORT.pack_into(data, at, sport)
        if began:
            for at, when in zip(self._times, (began, ended), strict=True):
                _TIME.pack_into(data, at, when)
        else:
            _NUMBER.pack_into(data, self._numbers[-1], number)
        return bytes(data)


def _places(data: bytes, wanted: bytes) -> list[int]:
    return [at for at in range(len(data)) if data.startswith(wanted, at)]


class FedReports:
    """In the place of a socket that reports come from."""

    def __init__(self, fd: int) -> None:
        self._fd, self._messages, self._gathered = fd, deque[bytes](), list[bytes]()
        self.sent = 0

    def put(self, message: bytes) -> None:
        self._gathered.append(message)
        self.sent += 1
        if len(self._gathered) == IN_DATAGRAM:
            self.flush()

    def flush(self) -> None:
        if self._gathered:
            self._messages.append(b"".join((*self._gathered, _LAST)))
            self._gathered.clear()

    def recv(self, size: int, flags: int) -> bytes:
        if not self._messages:
            raise BlockingIOError(EAGAIN, "nothing more")
        return self._messages.popleft()

    def getsockopt(self, *_: int) -> bytes:
        return sum(map(len, self._messages)).to_bytes(4, "little")

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        pass


class FedEnds:
    """In the place of the datagrams that ends come in."""

    def __init__(self, count: int) -> None:
        self.messages = deque[bytes]()
        self._count = count
        self.data = bytearray(count * _PLACE)

    def receive(self, descriptor: int, most: int) -> list[int]:
        lengths: list[int] = []
        while self.messages and len(lengths) < min(most, self._count):
            message = self.messages.popleft()
            at = len(lengths) * _PLACE
            self.data[at : at + len(message)] = message
            lengths.append(len(message))
        if not lengths:
            raise BlockingIOError(EAGAIN, "nothing more")
        return lengths


class Feeder:
    """``clock`` and ``now`` are the recorder's; they go on where it waits."""

    def __init__(self, rate: int, count: int) -> None:
        self._rate, self._count = rate, count
        addresses = [ip_address(pod(one)[1]).packed for one in range(count)]
        self._pods = [*zip(addresses, addresses[1:] + addresses[:1], strict=True)]
        self.passed, self._begun = 0.0, time.time()
        self.sent = self.ended = self.denied = 0
        self.spent_s = 0.0  # by this program

    def clock(self) -> float:
        return self.passed

    def now(self) -> float:
        return self._begun + self.passed

    def capture(self, recorder: Recorder, wire: Wire) -> None:
        incoming, source = SIDES["both sides"]
        target = "10.0.0.1"
        packet = {"source": ip_address(source), "destination": ip_address(target), "protocol": 17, "icmp": (0, 0)}
        arrivals: Any = recorder._arrivals
        reports: dict[str, Any] = arrivals._reports
        for port in (ALLOWED_PORT, DENIED_PORT):
            wire.outer[incoming].send(frame({**packet, "sport": _SPORT, "dport": port}, 0))
        time.sleep(0.2)
        captured = [reports[one]._socket.recv(1 << 16) for one in (ALLOWED, DENIED)]
        with entered(wire.host), Nfnetlink() as netlink:
            netlink.request(CTNETLINK << 8 | 2, 0, general(""), "flush", Deadline.after(10))
        end = next(one for one in iter(lambda: arrivals._ends._socket.recv(1 << 16), b"") if _PORT.pack(_SPORT) in one)
        said = [[Message(one, source, target) for one in _apart(data)] for data in captured]
        self._allowed, self._denied, self._end = said[0], said[1], Message(end, source, target)
        self._reports = {one: FedReports(reports[one].fileno()) for one in (ALLOWED, DENIED)}
        for name, fed in self._reports.items():
            reports[name]._socket = fed
        self._ends = FedEnds(64)
        arrivals._ends._datagrams = self._ends

    def wait(self, seconds: float) -> None:
        """What comes meanwhile."""
        begun = time.process_time()
        self.passed += seconds
        allowed, denied = self._reports[ALLOWED], self._reports[DENIED]
        while self.ended < self.sent and self.ended < (self.passed - _LIVES_S) * self._rate:
            began = int((self._begun + self.ended / self._rate) * 1e9)
            self._ends.messages.append(self._end.made(*self._place(self.ended), 0, began, began + _LIVES_S * 10**9))
            self.ended += 1
        while self.sent < self.passed * self._rate:
            for one in self._allowed[:2]:
                allowed.put(one.made(*self._place(self.sent), allowed.sent))
            self.sent += 1
            if self.sent % 10 == 0:
                for one in self._allowed[2:]:
                    allowed.put(one.made(*self._place(self.denied), allowed.sent))
                for one in self._denied:
                    denied.put(one.made(*self._place(self.denied), denied.sent))
                self.denied += 1
        allowed.flush()
        denied.flush()
        self.spent_s += time.process_time() - begun

    def _place(self, number: int) -> tuple[bytes, bytes, int]:
        which = number % self._count
        return *self._pods[which], 1024 + number // self._count % _PORTS


def _apart(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        size, kind = _HEAD.unpack_from(data, at)
        if kind == _DONE:
            break
        found.append(data[at : at + size].ljust(size + 3 & ~3, b"\0"))
        at += size + 3 & ~3
    return found


def _begin_peak() -> float:
    """Forget how much memory was used at most; returns what is now, in MiB."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_mib(os.getpid())


def main(seconds: int, rate: int, count: int, profiled: str = "") -> None:
    numbers, feeder = RuleNumbers(), Feeder(rate, count)
    with (
        tempfile.TemporaryDirectory() as root,
        open_wire(FilterSettings(recording=Recording(numbers))) as wire,
    ):
        of_pods = {("WorkloadEndpoint", "a", f"p{number}"): workload(number) for number in range(count)}
        wanted = put_in_force(wire, numbers, root, {**documents(), **of_pods})
        with entered(wire.host):
            ours, theirs = socket.socketpair()
            places = f"{root}/state", f"{root}/run", Log("error")
            recorder = Recorder(*places, now=feeder.now, clock=feeder.clock, agent_fd=theirs.fileno())
            for message in render_whole(wanted):
                ours.sendall(message)
        feeder.capture(recorder, wire)
        server: Any = recorder._server
        server.wait = feeder.wait
        give_back_memory()
        expect_growth()
        empty = _begin_peak()
        profile = cProfile.Profile()

        def run_until(passed: float) -> float:
            begun, fed = time.process_time(), feeder.spent_s
            while feeder.passed < passed:
                recorder.step()
            return time.process_time() - begun - (feeder.spent_s - fed)

        run_until(_LIVES_S)
        before, collected = feeder.sent, [one["collections"] for one in gc.get_stats()]
        if profiled:
            profile.enable()
        spent = run_until(_LIVES_S + seconds)
        profile.disable()
        if profiled:
            profile.dump_stats(profiled)
        made, said = feeder.sent - before, recorder.status()
        print(f"{spent / made * 1e6:.1f} us of the processor for a connection, {spent / seconds * 100:.2f} % of one")
        print(f"{feeder.sent} connections and {feeder.denied} denied, recorded {said['allowed']} and {said['denied']}")
        print(f"lost {said['lost']}; live {said['live']}, not followed {said['unfollowed']}", end="")
        print(f"; not as the rules say {said['disagreed']}")
        now = [one["collections"] - then for one, then in zip(gc.get_stats(), collected, strict=True)]
        print(f"garbage collections {now}; at most {peak_mib(os.getpid()) - empty:.1f} MiB more than empty")
        recorder.close()


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:4]]
    main(*given, *(10, 1000, 8)[len(given) :], *sys.argv[5:6])
