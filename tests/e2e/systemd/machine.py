"""A machine that systemd runs, in namespaces on an overlay of this host: it starts, and starts again.

Rule: nothing of it stays: its files are the test's, its processes end with its first one.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.deadlines import until
from tests.netns.namespaces import Namespace, namespace

BOOT = Path(__file__).parent / "boot.sh"
_UNSHARED = ("--pid", "--mount", "--net", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child")


@dataclass
class Machine:
    """``outside``: the network namespace at the other end of its network card, 192.0.2.1; it has 192.0.2.10.
    ``bundle``: its /opt/cni/bin, unless it is to get one. ``lower``: the root under its own files.
    """

    root: Path
    bundle: Path | None
    outside: Namespace
    lower: Path = Path("/")
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Returns when its first process runs; systemd is at work then."""
        argv = ["unshare", *_UNSHARED, str(BOOT), str(self.root), str(self.bundle or "")]
        argv += [self.outside.name, str(self.lower)]
        with open(self.root / "console", "ab") as console:
            self.process = subprocess.Popen(argv, stdout=console, stderr=console, stdin=subprocess.DEVNULL)
        until(self._runs_systemd, "systemd runs", 60)

    def until_up(self) -> None:
        """All that is started with the machine has been started."""
        until(self._is_up, "the machine is up", 180, pause_s=0.3)

    def _is_up(self) -> bool:
        return self.run("systemctl", "is-system-running", check=False).stdout.strip() in ("running", "degraded")

    def _runs_systemd(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.root / "console").read_text()
        try:
            return Path(f"/proc/{self._first()}/comm").read_text().strip() == "systemd"
        except (OSError, IndexError):
            return False

    def _first(self) -> int:
        """The number of its first process."""
        assert self.process is not None
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def end(self) -> None:
        """As if its power went."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(60)
            self.process = None

    def run(self, *argv: str, check: bool = True, timeout_s: float = 400) -> subprocess.CompletedProcess[str]:
        """A program in it."""
        command = ["nsenter", "-t", str(self._first()), "-a", "env", "-i", f"PATH={os.environ['PATH']}", *argv]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
        assert not check or done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}\n{self.journal()}"
        return done

    def calicoctl(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self.run("/opt/cni/bin/calicoctl", *arguments, check=check)

    def journal(self, unit: str = "calico-node") -> str:
        command = ["nsenter", "-t", str(self._first()), "-a", "journalctl", "-b", "--no-pager", "-u", unit]
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout

    def write(self, path: str, text: str) -> None:
        command = ["sh", "-c", 'mkdir -p "$(dirname "$1")" && printf %s "$2" >"$1"', "sh", path, text]
        self.run(*command)


@contextmanager
def machine(root: Path, bundle: Path | None, lower: Path = Path("/")) -> Iterator[Machine]:
    """It has not been started."""
    with ExitStack() as stack:
        made = Machine(root, bundle, stack.enter_context(namespace("outside")), lower)
        stack.callback(made.end)
        yield made
