"""A process that makes random CNI calls for containers of its own, as a runtime does, and notes what was answered.

Rule: every decision comes from its own generator, seeded by the run's seed and its number. A call whose outcome is not
known is followed by DEL until one succeeds, as the CNI specification asks of runtimes.
"""

from __future__ import annotations

import json
import os
import pickle
import random
import select
import signal
import subprocess
import time
from dataclasses import asdict, dataclass
from typing import Any

from cni_calico.kernel import netns
from cni_calico.plugin.call.shim import serve_call
from cni_calico.plugin.commands import serve
from tests.e2e.host import Node
from tests.faults.history import Operation
from tests.netns.namespaces import Namespace

PATIENCE_S = 150.0


@dataclass
class Slot:
    """A place for one container at a time."""

    pod: Namespace
    container: str = ""
    addresses: tuple[str, ...] = ()
    unsure: bool = False  # something may be there: only DEL may follow
    result: dict[str, Any] | None = None


class Worker:
    def __init__(self, node: Node, number: int, seed: int, pods: list[Namespace], output: str) -> None:
        self.node = node
        self.random = random.Random(f"{seed}/{number}")
        self.name = f"{seed:x}-{number}"
        self.slots = [Slot(pod) for pod in pods]
        self.count = 0
        self.output = os.open(output, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.faults: dict[str, int] = {}
        self.problems: list[str] = []
        self.result: dict[str, Any] = {}

    def run(self, operations: int) -> None:
        netns.enter(os.open(self.node.host.path, os.O_RDONLY))
        for _ in range(operations):
            self._step(self.random.choice(self.slots))

    def drain(self) -> None:
        """DEL until nothing is left."""
        for slot in self.slots:
            for _ in range(50):
                if not slot.container:
                    break
                self._delete(slot, torment=False)
            else:
                self.problems.append(f"DEL of {slot.container} never succeeded")

    def _step(self, slot: Slot) -> None:
        chance = self.random.random()
        if chance < 0.02:
            self._call("STATUS", "", "")
        elif not slot.container:
            self._add(slot)
        elif slot.unsure or chance < 0.7:
            self._delete(slot)
        elif chance < 0.74:
            self._break(slot)
        elif chance < 0.82:
            self._call("CHECK", slot.container, slot.pod.path, result=slot.result)
        else:
            self._look(slot)

    def _add(self, slot: Slot) -> None:
        self.count += 1
        slot.container, slot.unsure = f"{self.name}-{self.count}", False
        done = self._call("ADD", slot.container, slot.pod.path)
        slot.unsure, slot.addresses, slot.result = done.rc != 0, done.addresses, self.result

    def _delete(self, slot: Slot, *, torment: bool = True) -> None:
        path = "" if self.random.random() < 0.2 else slot.pod.path
        done = self._call("DEL", slot.container, path, torment=torment)
        slot.unsure = True
        if done.rc == 0:
            if self.random.random() < 0.1:  # runtimes repeat them
                self._call("DEL", slot.container, slot.pod.path, torment=torment)
            slot.container, slot.addresses, slot.unsure = "", (), False
            if path == "":  # a runtime ends the namespace too
                self._renew(slot)

    def _look(self, slot: Slot) -> None:
        """A container that lives has its network: told by ``ip``."""
        found = subprocess.run(
            ["ip", "-n", slot.pod.name, "-o", "addr", "show", "dev", "eth0"], capture_output=True, text=True
        ).stdout
        for address in slot.addresses:
            if address.split("/")[0] not in found:
                self.problems.append(f"{slot.container} lives and has lost {address}")

    def _break(self, slot: Slot) -> None:
        """The interface or the whole namespace goes away under a container."""
        if self.random.random() < 0.5:
            self._count("interface removed")
            subprocess.run(["ip", "-n", slot.pod.name, "link", "del", "eth0"], capture_output=True)
        else:
            self._count("namespace removed")
            self._renew(slot)
        slot.unsure = True

    def _renew(self, slot: Slot) -> None:
        subprocess.run(["ip", "netns", "del", slot.pod.name], capture_output=True)
        subprocess.run(["ip", "netns", "add", slot.pod.name], capture_output=True)

    def _count(self, fault: str) -> None:
        self.faults[fault] = self.faults.get(fault, 0) + 1

    # -- one call ------------------------------------------------------------------------------------------------

    def _call(
        self, command: str, container: str, path: str, *, torment: bool = True, result: dict[str, Any] | None = None
    ) -> Operation:
        environ = {k: v for k, v in self.node.env(command, container, path, "eth0", "").items() if v}
        stdin = json.dumps(self.node.conf(**({"prevResult": result} if result else {}))).encode()
        reading, writing = os.pipe()
        began = time.monotonic()
        pid = os.fork()
        if not pid:
            os.close(reading)
            _serve(environ, stdin, writing)
        os.close(writing)
        if torment:
            self._torment(pid, reading)
        data = _read(reading, pid, PATIENCE_S)
        _, status = os.waitpid(pid, 0)
        ended = time.monotonic()
        rc, out = pickle.loads(data) if data and os.WIFEXITED(status) else (None, b"")
        if ended - began > PATIENCE_S - 1:
            self.problems.append(f"{command} of {container} took {ended - began:.0f} s")
        document: dict[str, Any] = json.loads(out) if out.strip() else {}
        self.result = document
        addresses = tuple(ip["address"] for ip in document.get("ips", ()))
        operation = Operation(began, ended, command, container, rc, addresses, int(document.get("code") or 0))
        os.write(self.output, json.dumps(asdict(operation)).encode() + b"\n")
        return operation

    def _torment(self, pid: int, reading: int) -> None:
        chance = self.random.random()
        if chance > 0.10:
            return
        if select.select([reading], [], [], self.random.uniform(0.0, 0.08))[0]:
            return  # it has answered already
        if chance < 0.06:
            self._count("plugin killed")
            os.kill(pid, signal.SIGKILL)
        else:
            self._count("plugin stopped")
            os.kill(pid, signal.SIGSTOP)
            select.select([], [], [], self.random.uniform(0.05, 0.5))
            os.kill(pid, signal.SIGCONT)


def _read(fd: int, pid: int, patience_s: float) -> bytes:
    until, data = time.monotonic() + patience_s, b""
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([fd], [], [], left)[0]:
            os.kill(pid, signal.SIGKILL)
            break
        part = os.read(fd, 65536)
        if not part:
            break
        data += part
    os.close(fd)
    return data


def _serve(environ: dict[str, str], stdin: bytes, writing: int) -> None:
    """In the child; never returns."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 2)
        data = pickle.dumps(serve_call("calico", lambda: serve, environ, stdin))
        while data:
            data = data[os.write(writing, data) :]
        os._exit(0)
    except BaseException:
        os._exit(99)
