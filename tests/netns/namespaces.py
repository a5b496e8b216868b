"""Network namespaces for tests: a machine of one's own to be the "host", and the pods' beside it.

Rule: names begin with "cct-" and the process's number, so that runs side by side do not meet; ``ip -j`` is the judge of
what is in them. Code under test runs in a forked child, so that nothing it does to its thread or process reaches the
tests.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fcntl import ioctl
from functools import partial
from pathlib import Path
from typing import Any

from cni_calico import faults
from cni_calico.kernel import netns
from tests.deadlines import until

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8913, 0x8914, 0x1, 0x40
_numbers = itertools.count()


class Killed(Exception):
    """The child was ended by a signal."""


class Namespace:
    """One named network namespace."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = f"/var/run/netns/{name}"

    def ip(self, *arguments: str) -> Any:
        """What ``ip -j -d`` says in here, parsed; [] for no output."""
        with self._entered():  # "ip -n" makes a mount namespace of its own each time
            text = _checked(["ip", "-j", "-d", *arguments])
        # ip 6.1 answers an empty table with "[{}]" in places
        return [entry for entry in json.loads(text or "[]") if entry]

    def do(self, *arguments: str) -> None:
        """An ``ip`` command that changes something."""
        with self._entered():
            _checked(["ip", *arguments])

    def do_all(self, *commands: str) -> None:
        """Such commands, one after the other, by one process."""
        with self._entered():
            _checked(["ip", "-batch", "-"], "\n".join(commands))

    def run(self, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """A program in here; the file system, and with it /sys, stays the tests' own."""
        command = ["nsenter", f"--net={self.path}", *argv]
        return subprocess.run(command, capture_output=True, text=True, check=check, timeout=60)

    def sysctl(self, name: str) -> str:
        """``name`` with "/" between its parts, below /proc/sys/net."""
        with self._entered():
            return Path(f"/proc/sys/net/{name}").read_text().strip()

    def set_sysctl(self, name: str, value: str) -> None:
        with self._entered():
            Path(f"/proc/sys/net/{name}").write_text(value)

    @contextmanager
    def _entered(self) -> Iterator[None]:
        """This thread, and what it starts, is in here; it may have been before."""
        try:
            there = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as e:
            raise RuntimeError(f"no namespace {self.name}: {e}") from None
        try:
            with netns.inside(there):
                yield
        finally:
            os.close(there)

    def _start_loopback(self) -> None:
        with self._entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP))

    def is_running(self, name: str) -> bool:
        """True when the kernel has noticed that the interface is up and has a carrier (its operstate is "UP")."""
        with self._entered(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            answer = ioctl(any_socket, _SIOCGIFFLAGS, struct.pack("16sH22x", name.encode(), 0))
        return bool(struct.unpack("16sH22x", answer)[1] & _IFF_RUNNING)

    def link_names(self) -> set[str]:
        """As the C library is told them: tests ask for them thousands of times, and a program takes 2 ms."""
        with self._entered():
            return {name for _, name in socket.if_nameindex()}

    def link(self, name: str) -> dict[str, Any] | None:
        if name not in self.link_names():
            return None
        found = [entry for entry in self.ip("link", "show") if entry["ifname"] == name]
        return found[0] if found else None

    def addresses(self, name: str) -> set[str]:
        """Global addresses of an interface, with their prefix length."""
        return {
            f"{info['local']}/{info['prefixlen']}"
            for entry in self.ip("addr", "show", "dev", name)
            for info in entry["addr_info"]
            if info["scope"] == "global"
        }

    def routes(self, version: int = 4) -> list[dict[str, Any]]:
        routes: list[dict[str, Any]] = self.ip(f"-{version}", "route", "show")
        return routes

    def call(self, function: Callable[..., Any], *arguments: Any, fault: str = "", timeout_s: int = 60) -> Any:
        """``function(*arguments)`` in a child process in here: its value, its exception, or Killed.

        ``fault`` is a plan in the syntax of CALICO_FAULT.
        """
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            _child(self.path, write, function, arguments, fault, timeout_s)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            data = pipe.read()
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            raise Killed(f"signal {os.WTERMSIG(status)}")
        ok, value = pickle.loads(data)
        if not ok:
            raise value
        return value


def _child(
    path: str, pipe: int, function: Callable[..., Any], arguments: Sequence[Any], fault: str, timeout_s: int
) -> None:
    """Never returns."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(timeout_s)
        netns.enter(os.open(path, os.O_RDONLY))
        faults.install(faults.FaultPlan(fault) if fault else None)
        try:
            answer = (True, function(*arguments))
        except Exception as e:
            e.add_note("".join(traceback.format_exception(e)))
            answer = (False, e)
        os.write(pipe, pickle.dumps(answer))
        os._exit(0)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        os._exit(99)


def _checked(argv: list[str], stdin: str | None = None) -> str:
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def namespace(label: str) -> Iterator[Namespace]:
    """A new namespace with its loopback up; removed at the end."""
    name = f"cct-{os.getpid()}-{next(_numbers)}-{label}"
    _checked(["ip", "netns", "add", name])
    try:
        made = Namespace(name)
        made._start_loopback()
        # a new namespace starts with the machine's own setting, which is none of the tests' business
        made.set_sysctl("ipv4/ip_forward", "0")
        yield made
    finally:
        _checked(["ip", "netns", "del", name])


@contextmanager
def host_namespace() -> Iterator[Namespace]:
    """A namespace that looks like a node: it forwards, has an uplink with addresses and default routes.

    The unused interfaces shift the numbers of later ones: when both ends of a veth have the same number the kernel may
    take a second to notice that the link is up. It notices in a thread of its own, so the uplink is waited for: a test
    that compares the interfaces with those of the beginning would see it come up meanwhile.
    """
    with namespace("host") as host:
        for name in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
            host.set_sysctl(name, "1")
        host.do_all(
            *(f"link add unused{i} type veth peer name unused{i}b" for i in range(8)),
            "link add uplink type veth peer name wire",
            # no link-local addresses, which come and settle in their own time
            *(f"link set {end} {what}" for end in ("wire", "uplink") for what in ("addrgenmode none", "up")),
            "addr add 192.0.2.10/24 dev uplink",
            "addr add 2001:db8::10/64 dev uplink nodad",
            "route add default via 192.0.2.1",
            "route add ::/0 via 2001:db8::1",
        )
        for end in ("wire", "uplink"):
            until(partial(host.is_running, end), f"{end} is up", pause_s=0.001)
        yield host
