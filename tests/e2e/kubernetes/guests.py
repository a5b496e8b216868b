"""A virtual machine's guest without a hypervisor: a network namespace behind a bridge in its pod, as KubeVirt's bridge
binding has it. To migrate is to take its cable out of one pod and put it into another: its kernel, its sockets and its
MAC address come along.

Rule: clocks are CLOCK_MONOTONIC, the same in every process of this machine.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from tests.deadlines import until
from tests.netns.namespaces import Namespace

GATEWAY = "169.254.1.1"
MAC = "52:54:00:12:34:56"

# echoes what arrives by TCP; a line of its stdin has it announce itself, and is answered once something comes by UDP
_GUEST = """
import json, socket, sys, threading, time

def echo(listener):
    there, _ = listener.accept()
    while data := there.recv(65536):
        there.sendall(data)

listener = socket.create_server(("0.0.0.0", 7000))
threading.Thread(target=echo, args=(listener,), daemon=True).start()
arrived = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
arrived.bind(("0.0.0.0", 7001))
arrived.settimeout(60)
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
raw.bind(("eth0", 0))
print("ready", flush=True)

def drain():
    count = 0
    arrived.setblocking(False)
    try:
        while arrived.recv(100):
            count += 1
    except BlockingIOError:
        arrived.settimeout(60)
        return count

for line in sys.stdin:
    kind, address = line.split()
    if kind == "drain":
        print(drain(), flush=True)
        continue
    mac, own = raw.getsockname()[4], socket.inet_aton(address)
    if kind == "arp":
        frame = b"\\xff" * 6 + mac + b"\\x08\\x06" + bytes((0, 1, 8, 0, 6, 4, 0, 1)) + mac + own + bytes(6) + own
    else:
        frame = b"\\xff" * 6 + mac + b"\\x80\\x35" + bytes((0, 1, 8, 0, 6, 4, 0, 3)) + mac + bytes(4) + mac + bytes(4)
    early, begun = drain(), time.monotonic()
    raw.send(frame)
    arrived.recv(100)
    print(json.dumps({"early": early, "gap_s": time.monotonic() - begun}), flush=True)
"""

# one TCP connection on which each number must come back before the next, and datagrams that say when they were sent
_CLIENT = """
import json, socket, sys, threading, time

address, end = sys.argv[1], threading.Event()

def send():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as out:
        while not end.is_set():
            try:
                out.sendto(str(time.monotonic()).encode(), (address, 7001))
            except OSError:
                pass  # "unreachable": an answer to an earlier one
            end.wait(0.002)

connection = socket.create_connection((address, 7000), 60)
connection.settimeout(120)
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
threading.Thread(target=send, daemon=True).start()
lines, echoed = connection.makefile("rb"), 0
threading.Thread(target=lambda: (sys.stdin.readline(), end.set()), daemon=True).start()
print("ready", flush=True)
try:
    while not end.is_set():
        connection.sendall(b"%d\\n" % echoed)
        assert lines.readline() == b"%d\\n" % echoed
        echoed += 1
        end.wait(0.005)
        if echoed % 20 == 0:
            print(json.dumps(dict(echoed=echoed, port=connection.getsockname()[1])), flush=True)
except OSError as e:
    print(json.dumps(dict(error=str(e))), flush=True)
"""


class _Program:
    """A process in a namespace with which one talks line by line."""

    def __init__(self, where: Namespace, source: str, *arguments: str) -> None:
        argv = ["nsenter", f"--net={where.path}", sys.executable, "-c", source, *arguments]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.out.readline() == "ready\n"

    @property
    def out(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def read(self) -> Any:
        return json.loads(self.out.readline())

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


class Guest:
    """``address``: the pod's."""

    def __init__(self, ns: Namespace, address: str) -> None:
        self.ns, self.address = ns, address
        self.pod: Namespace | None = None
        self.program: _Program | None = None

    def move(self, pod: Namespace) -> None:
        """Into this pod, of which only the bridge is left; the machine says nothing yet."""
        pod.do_all(
            "addr flush dev eth0",
            "link add k6t type bridge",
            "link set eth0 master k6t",
            "link set k6t up",
        )
        if self.pod is None:
            pod.do("link", "add", "tap0", "type", "veth", "peer", "name", "eth0", "address", MAC, "netns", self.ns.name)
            self.ns.do_all(
                "link set eth0 up",
                f"addr add {self.address}/32 dev eth0",
                f"route add {GATEWAY} dev eth0 scope link",
                f"route add default via {GATEWAY} dev eth0",
            )
            self.program = _Program(self.ns, _GUEST)
        else:
            self.pod.do("link", "set", "tap0", "netns", pod.name)
            self._ask("drain")
        pod.do_all("link set tap0 master k6t", "link set tap0 up")
        until(lambda: _carries(pod, self.ns), "the cable carries frames")
        self.pod = pod

    def announce(self, kind: str) -> Any:
        """``kind``: arp or rarp. ``gap_s``: from then to the first datagram; ``early``: those that came before."""
        return self._ask(kind)

    def _ask(self, what: str) -> Any:
        assert self.program is not None
        self.program.tell(f"{what} {self.address}")
        return self.program.read()

    def end(self) -> None:
        if self.program is not None:
            self.program.end()


class Client:
    """Has one TCP connection to a guest, and sends it a datagram every two milliseconds."""

    def __init__(self, where: Namespace, address: str) -> None:
        self.program = _Program(where, _CLIENT, address)

    def until_echoed(self, more: int) -> Any:
        """Wait for so many more numbers on the same connection; what it says then. Raises AssertionError."""
        first = None
        while True:
            said = self.program.read()
            assert "error" not in said, said
            first = said["echoed"] if first is None else first
            if said["echoed"] >= first + more:
                return said

    def end(self) -> None:
        self.program.end()


def _carries(pod: Namespace, guest: Namespace) -> bool:
    """What is sent before the kernel has noticed that a link is up is lost."""
    [port], [own] = pod.ip("link", "show", "dev", "tap0"), guest.ip("link", "show", "dev", "eth0")
    state = port["linkinfo"]["info_slave_data"]["state"]
    return state == "forwarding" and port["operstate"] == own["operstate"] == "UP"


@contextmanager
def guest_of(ns: Namespace, address: str) -> Iterator[Guest]:
    guest = Guest(ns, address)
    try:
        yield guest
    finally:
        guest.end()


@contextmanager
def client_of(where: Namespace, address: str) -> Iterator[Client]:
    client = Client(where, address)
    try:
        yield client
    finally:
        client.end()
