"""What keeps running: on a host the resident server by itself, or the agent that has one; on Kubernetes, where nothing
else has a janitor, the controllers.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cni_calico.plugin.call import protocol
from tests.faults.places import Host, Lab, agents_environ, environ_of

ROOT = Path(__file__).parents[2]
LAUNCHERS = ROOT / "build" / "launch"
OURS = "cni_calico/"  # in every frame of our modules; an interpreter that cannot start at all shows its own alone


class Program:
    """Started again whenever it has ended; ``log`` holds what it wrote to stderr in all its lives."""

    def __init__(self, lab: Lab, log: Path, name: str, arguments: Sequence[str], **how: Any) -> None:
        """``how``: the network namespace it is in (``netns``), and what it is told beside its directories
        (``environ``).
        """
        self.log = log
        program = [sys.executable, str(LAUNCHERS / f"{name}.py")] if lab.bundle is None else [str(lab.bundle / name)]
        prefix = ["nsenter", f"--net={how['netns']}"] if "netns" in how else []
        self._argv = [*prefix, *program, *arguments]
        self._environ = {**how["environ"], **lab.clock.environ, "PYTHONPATH": str(ROOT)}
        self.process = self._start(())

    def _start(self, limits: tuple[str, ...]) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*limits, *self._argv], env=self._environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def start(self, *limits: str) -> None:
        """``limits``: words of prlimit(1)."""
        self.process = self._start(("prlimit", *limits) if limits else ())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def limit(self, *options: str) -> None:
        subprocess.run(["prlimit", "--pid", str(self.process.pid), *options], capture_output=True)

    def revive(self) -> None:
        if self.process.poll() is not None:
            self.start()

    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()


class Server(Program):
    def __init__(self, lab: Lab, host: Host, mode: str) -> None:
        self.host = host
        environ = {**environ_of(host), **agents_environ(host)}
        arguments = ["-cni-server"] if mode == "served" else ["run"]
        log = host.node.root / "server.log"
        super().__init__(lab, log, "calico-node", arguments, netns=host.node.host.path, environ=environ)

    def answers(self) -> bool:
        return answers_at(self.host.node.root / "run" / "cni.sock")


class Controllers(Program):
    """calico-kube-controllers with the janitor alone."""

    def __init__(self, lab: Lab) -> None:
        assert lab.kube is not None
        keep = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        own = {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": lab.kube.kubeconfig(), "ENABLED_CONTROLLERS": "node"}
        status = f"-status-file={lab.root}/controllers.json"
        super().__init__(
            lab, lab.root / "controllers.log", "calico-kube-controllers", [status], environ={**keep, **own}
        )

    def handles(self) -> int:
        """How many handles without addresses it has removed."""
        return self.log.read_text(errors="replace").count("released handle ")


def answers_at(path: Path) -> bool:
    """Whether a server answers a request for its numbers within some seconds."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(5)
        try:
            asking.connect(str(path))
            asking.sendall(protocol.frame(protocol.request_fields("metrics", [], b"", [])))
            return len(asking.recv(protocol.HEADER_BYTES)) > 0
        except OSError:
            return False


def traces_in(log: Path) -> list[str]:
    """What no program may ever write."""
    text = log.read_text(errors="replace") if log.exists() else ""
    traces = [trace[:3000] for trace in text.split("Traceback (most recent call last)")[1:]]
    return [trace for trace in traces if OURS in trace]
