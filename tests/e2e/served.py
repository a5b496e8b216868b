"""Calls through the plugin executable's own start (server first, else this process), and a server to torment."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from cni_calico import faults
from cni_calico.kernel import netns
from cni_calico.plugin.call import protocol
from cni_calico.plugin.call.shim import serve_call
from cni_calico.plugin.commands import serve as serve_plugin
from cni_calico.plugin.ipam.commands import serve as serve_ipam
from cni_calico.server.run import run_server
from tests.deadlines import until
from tests.e2e import front
from tests.e2e.host import Node, Reply

Step = tuple[str, str, int]  # fault point, before or after, how many times so far
SERVES = {"calico": serve_plugin, "calico-ipam": serve_ipam}


def call(
    node: Node,
    command: str,
    container: str,
    netns: str = "",
    *,
    plugin: str = "calico",
    ifname: str = "eth0",
    args: str = "",
    environ: Mapping[str, str] | None = None,
    by_python: bool = False,
    **changes: Any,
) -> Reply:
    """One call of the executable; ``by_python``: as the package without the native front makes it, in a fork of us."""
    environ = {**node.env(command, container, netns, ifname, args), **(environ or {})}
    data = json.dumps(node.conf(**changes)).encode()
    if by_python:
        rc, out = node.host.call(_serve, plugin, environ, data, timeout_s=node.timeout_s)
    else:
        path = (node.bin_dir or front.executables()) / plugin
        rc, out = node.host.call(_execute, path, environ, data, timeout_s=node.timeout_s)
    return Reply(rc, json.loads(out) if out.strip() else None)


def _execute(path: Path, environ: Mapping[str, str], stdin: bytes) -> tuple[int, str]:
    done = subprocess.run([path], input=stdin, env=environ, stdout=subprocess.PIPE)
    if done.returncode < 0:
        os.kill(os.getpid(), -done.returncode)
    return done.returncode, done.stdout.decode()


def _serve(plugin: str, environ: Mapping[str, str], stdin: bytes) -> tuple[int, str]:
    faults.install_from_environment(environ)
    exit_code, stdout = serve_call(plugin, lambda: SERVES[plugin], environ, stdin)
    return exit_code, stdout.decode()


def call_all(node: Node, calls: list[tuple[str, str, str]], at_once: int = 8) -> list[Reply]:
    """(command, container, netns) of each; so many of them at a time."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda one: call(node, *one), calls))


def socket_of(node: Node) -> str:
    return str(node.root / "run" / "cni.sock")


def connect(node: Node) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(20)
    connection.connect(socket_of(node))
    return connection


def request_frame(
    node: Node,
    command: str,
    container: str,
    netns: str = "",
    *,
    version: int = protocol.VERSION,
    plugin: str = "calico",
) -> bytes:
    """What the executable sends, without descriptors."""
    environ = list(node.env(command, container, netns, "eth0", "").items())
    fields = protocol.request_fields(plugin, environ, json.dumps(node.conf()).encode(), [])
    return protocol.frame(fields, version)


def receive(connection: socket.socket) -> tuple[int, int, Any] | None:
    """(protocol version, exit status, document) of an answer; None when the connection ends without one."""
    data = b""
    try:
        while chunk := connection.recv(65536):
            data += chunk
    except ConnectionResetError:
        return None
    if not data:
        return None
    version, length = protocol.parse_header(data[:8])
    assert len(data) == 8 + length
    exit_code, stdout = protocol.parse_answer(protocol.parse_fields(data[8:]))
    return version, exit_code, json.loads(stdout) if stdout.strip() else None


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


def _hide(directory: Path, file: Path) -> None:
    """From this process, which gets a mount namespace of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    private, bind = 0x40000 | 0x4000, 0x1000  # MS_PRIVATE | MS_REC, MS_BIND
    directory.mkdir(exist_ok=True)
    file.touch()
    for failed in (
        libc.unshare(0x20000),  # CLONE_NEWNS
        libc.mount(b"none", b"/", None, private, None),
        libc.mount(b"none", bytes(directory), b"tmpfs", 0, None),
        libc.mount(b"/dev/null", bytes(file), None, bind, None),
    ):
        if failed:
            raise OSError(ctypes.get_errno(), "cannot hide what is the callers'")


class ForkedServer:
    """A resident server forked from this process, which has everything imported, in the node's host namespace.

    ``arm`` installs a fault plan (the syntax of CALICO_FAULT) in it from now on; the counting starts again.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.pid = 0
        self._plan = node.root / "plan"
        self._armed = node.root / "armed"
        self._number = 0
        self._installed = ""

    def start(self) -> None:
        """Return when it accepts connections."""
        pid = os.fork()
        if pid == 0:
            self._run()
        self.pid = pid
        until(self._accepts, "the forked server accepts connections", 20)

    def _accepts(self) -> bool:
        assert self.alive(), (self.node.root / "server.log").read_text()
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(socket_of(self.node)) == 0

    def _run(self) -> None:
        """Never returns."""
        status = 99
        try:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it does not outlive the tests
            log = os.open(self.node.root / "server.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 2)
            netns.enter(os.open(self.node.host.path, os.O_RDONLY))
            if self.node.apart:
                _hide(self.node.root / "state", self.node.root / "cni.log")
            signal.signal(signal.SIGUSR1, lambda *_: self._install())
            faults.install(None)
            status = run_server({"CALICO_RUN_DIR": str(self.node.root / "run")})
        finally:
            os._exit(status)

    def _install(self) -> None:
        number, text, trace = self._plan.read_text().split("\n")
        if number == self._installed:
            return
        self._installed = number
        faults.install(faults.FaultPlan(text, trace=trace) if text or trace else None)
        self._armed.touch()

    def arm(self, plan: str, trace: str = "") -> bool:
        """False for a server that is dead, or dying of what was armed before."""
        self._armed.unlink(missing_ok=True)
        self._number += 1
        self._plan.write_text(f"{self._number}\n{plan}\n{trace}")
        until(self._is_armed, "the plan is installed")
        return self.alive()

    def _is_armed(self) -> bool:
        """Ask again and again: a signal between two waits of Python's main thread is only seen with the next one."""
        if self.alive() and not self._armed.exists():
            os.kill(self.pid, signal.SIGUSR1)
            return False
        return True

    def alive(self) -> bool:
        if not self.pid:
            return False
        ended, _ = os.waitpid(self.pid, os.WNOHANG)
        if ended:
            self.pid = 0
        return not ended

    def kill(self) -> None:
        if self.alive():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        self.pid = 0

    def steps(self, serve: Callable[[], Reply], plan: str = "") -> list[Step]:
        """Everything the server passes during a call that succeeds."""
        trace = self.node.root / "trace"
        trace.touch()
        self.arm(plan, str(trace))
        assert serve().ok
        self.arm("")
        seen: Counter[str] = Counter()
        steps = []
        for line in trace.read_text().split():
            seen[line] += 1
            point, when = line.rsplit(":", 1)
            steps.append((point, when, seen[line]))
        trace.unlink()
        return steps

    def __enter__(self) -> ForkedServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
