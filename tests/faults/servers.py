"""What keeps running on a host: the resident server by itself, or the agent that has one."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from cni_calico.plugin.call import protocol
from tests.faults.places import Host, Lab, agents_environ, environ_of

ROOT = Path(__file__).parents[2]
LAUNCHER = ROOT / "build" / "launch" / "calico-node.py"
OURS = "cni_calico/"  # in every frame of our modules; an interpreter that cannot start at all shows its own alone


class Server:
    """Started again whenever it has ended; ``log`` holds what it wrote to stderr in all its lives."""

    def __init__(self, lab: Lab, host: Host, mode: str) -> None:
        self.host = host
        self.log = host.node.root / "server.log"
        program = [sys.executable, str(LAUNCHER)] if lab.bundle is None else [str(lab.bundle / "calico-node")]
        arguments = ["-cni-server"] if mode == "served" else ["run"]
        self._argv = ["nsenter", f"--net={host.node.host.path}", *program, *arguments]
        self._environ = {**environ_of(host), **agents_environ(host), **lab.clock.environ, "PYTHONPATH": str(ROOT)}
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

    def answers(self) -> bool:
        return answers_at(self.host.node.root / "run" / "cni.sock")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()


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
