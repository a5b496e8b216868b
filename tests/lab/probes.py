"""Packets between pods, sent and counted by tests/lab/traffic.py inside their network namespaces.

Rule: a verdict is an answer that came or did not come; nothing is read out of the packet filter.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.deadlines import until
from tests.lab.lab import Lab
from tests.lab.node import Node

SCRIPT = Path(__file__).with_name("traffic.py")


@dataclass
class Probe:
    """A running pod: its node, its address, and how to run a program in its network."""

    name: str
    node: Node
    address: str
    init: str

    def command(self, *arguments: str | int) -> list[str]:
        inside = self.node.inside("nsenter", "-t", self.init, "-n", sys.executable, SCRIPT, *map(str, arguments))
        return [str(word) for word in inside]

    def interface(self) -> str:
        """The node's end of a pod's link."""
        return str(json.loads(self.node.run("ip", "-j", "route", "get", self.address))[0]["dev"])

    def reaches(self, port: int, *addresses: str, protocol: str = "udp") -> set[str]:
        """Those of the addresses that answered."""
        done = subprocess.run(
            self.command("ask", protocol, port, *addresses), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return set(json.loads(done.stdout))

    def resolves(self, name: str, server: str, *, protocol: str = "udp") -> list[str]:
        """The addresses that a name server has for a name; none when it did not answer."""
        done = subprocess.run(
            self.command("resolve", protocol, server, name), capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        found: list[str] = json.loads(done.stdout)
        return found


@dataclass
class Outside(Probe):
    """Beside the API server: on the nodes' network, and no node."""

    lab: Lab

    def command(self, *arguments: str | int) -> list[str]:
        return [str(word) for word in self.lab.plane.inside(sys.executable, SCRIPT, *map(str, arguments))]


def host_probe(node: Node) -> Probe:
    return Probe(node.name, node, node.address, "1")


def probe_of(lab: Lab, pod: dict[str, Any]) -> Probe:
    """For a pod whose sandbox is there."""
    name = pod["metadata"]["name"]
    node = next(node for node in lab.nodes if node.name == pod["spec"]["nodeName"])
    uid = pod["metadata"]["uid"]
    wanted = f'labels."io.kubernetes.pod.uid"=={uid},labels."io.cri-containerd.kind"==sandbox'
    [sandbox] = node.ctr("containers", "ls", "-q", wanted).split()
    found = re.search(rf"(?m)^{sandbox}\s+(\d+)\s+RUNNING", node.ctr("tasks", "ls"))
    assert found, f"no running sandbox of {name}"
    return Probe(name, node, pod["status"]["podIP"], found[1])


def running_pods(lab: Lab, namespace: str, count: int, *, timeout_s: float = 180.0) -> list[dict[str, Any]]:
    """The pods of a namespace, once that many are Running."""

    def running() -> list[dict[str, Any]]:
        found = [
            pod for pod in lab.pods(namespace) if pod["status"]["phase"] == "Running" and pod["status"].get("podIP")
        ]
        return found if len(found) == count else []

    what = f"{count} pods of {namespace} Running"
    found: list[dict[str, Any]] = until(running, what, timeout_s=timeout_s, pause_s=0.3)
    return found


def probes_of(lab: Lab, namespace: str, count: int) -> dict[str, Probe]:
    """The pods of a namespace by name, once that many are Running."""
    return {pod["metadata"]["name"]: probe_of(lab, pod) for pod in running_pods(lab, namespace, count)}


@contextmanager
def serving(probes: Sequence[Probe], *ports: int) -> Iterator[None]:
    """Every probe answers on these ports, UDP and TCP."""
    running = [_start(probe, "serving", "serve", *ports) for probe in probes]
    try:
        yield
    finally:
        for process in running:
            _signal(process, signal.SIGKILL)
            process.communicate()


@contextmanager
def hearing(probe: Probe) -> Iterator[set[str]]:
    """The addresses that have sent a ping so far; complete when the block has ended."""
    heard: set[str] = set()
    process = _start(probe, "hearing", "hear")
    assert process.stdout is not None

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            heard.add(line.strip())

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield heard
    finally:
        _signal(process, signal.SIGKILL)
        reader.join()
        process.communicate()


@dataclass
class Flow:
    """Connections begun to each of two ports, and the answers; known when the block has ended."""

    sent: int = 0
    allowed: int = 0
    forbidden: int = 0


@contextmanager
def flowing(source: Probe, address: str, *, allowed: int, forbidden: int, protocol: str = "udp") -> Iterator[Flow]:
    """New connections to both ports while the block runs."""
    counts = Flow()
    process = _start(source, "sending", "flow", protocol, address, allowed, forbidden)
    try:
        yield counts
        _signal(process, signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
        said = json.loads(out.splitlines()[-1])
        counts.sent, counts.allowed, counts.forbidden = said["sent"], said["allowed"], said["forbidden"]
    finally:
        _signal(process, signal.SIGKILL)
        process.communicate()


def _start(probe: Probe, word: str, *arguments: str | int) -> subprocess.Popen[str]:
    """A program in the pod's network, in a process group of its own, once it has said the word."""
    process = subprocess.Popen(probe.command(*arguments), stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if line != word:
        _signal(process, signal.SIGKILL)
        process.communicate()
        raise AssertionError(f"{probe.name}: {arguments}: {line!r}")
    return process


def _signal(process: subprocess.Popen[str], number: int) -> None:
    """To nsenter and the program in it: nsenter passes nothing on."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
