"""Nodes with their own ``calico-node run``, and pods made on them by the CNI plugin.

Rule: everything is a process as on a real host: the plugin is executed per call, calico-node runs its own children.
Every process is ended, every directory is the test's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

from cni_calico.nodeagent.status.file import read_status, since_boot, why_not_ready
from tests.deadlines import until
from tests.netns.agents import Store
from tests.netns.namespaces import Namespace
from tests.unrecorded import UNRECORDED

ROOT = Path(__file__).parents[2]
_FEWEST = 20  # pings that show something


@dataclass
class Node:
    """A node with its own directories, on a datastore that others may share."""

    ns: Namespace
    name: str
    root: Path
    store: Store
    process: subprocess.Popen[str] | None = None
    more: dict[str, str] = field(default_factory=dict)
    bin_dir: Path | None = None  # frozen executables; None: the modules they are made from

    def environ(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            **self.store.environ(),
            "NODENAME": self.name,
            "IP": "autodetect",
            "CALICO_RUN_DIR": f"{self.root}/run",
            "FELIX_ENDPOINTSTATUSPATHPREFIX": f"{self.root}/run",
            "CALICO_STATE_DIR": f"{self.root}/lib",
            "CALICO_LOG_DIR": f"{self.root}/log",
            "CALICO_NODENAME_FILE": f"{self.root}/lib/nodename",
            "CALICO_BIRD_CONFIG_DIR": f"{self.root}/bird",
            "CALICO_DISABLE_FILE_LOGGING": "true",
            "CALICO_NETWORKING_BACKEND": "vxlan",
            "CALICO_IPV4POOL_CIDR": "10.65.0.0/16",
            "CALICO_IPV4POOL_VXLAN": "Always",
            "CALICO_IPV6POOL_CIDR": "none",
            "FELIX_HEALTHENABLED": "true",
            "FELIX_PROMETHEUSMETRICSENABLED": "true",
            "FELIX_ROUTEREFRESHINTERVAL": "2",
            **UNRECORDED,
            **self.more,
        }

    def calico_node(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """One command of calico-node in here, to its end."""
        argv, environ = self._argv(*arguments), self.environ()
        return subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True, check=check, timeout=60)

    def calicoctl(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """One command of calicoctl in here."""
        argv = [*self._program("calicoctl", "cni_calico.ctl.main"), *arguments]
        environ = self.environ()
        return subprocess.run(argv, cwd=ROOT, env=environ, capture_output=True, text=True, check=check, timeout=60)

    def _argv(self, *arguments: str) -> list[str]:
        return [*self._program("calico-node", "cni_calico.nodeagent.main"), *arguments]

    def _program(self, name: str, module: str) -> list[str]:
        program = [sys.executable, "-m", module] if self.bin_dir is None else [str(self.bin_dir / name)]
        return ["nsenter", f"--net={self.ns.path}", *program]

    def run(self, *flags: str) -> Node:
        """All of calico-node, or the parts of these flags."""
        self.root.mkdir(parents=True, exist_ok=True)
        argv = self._argv(*(flags or ("run",)))
        with open(self.root / "log.txt", "a") as log:
            self.process = subprocess.Popen(argv, cwd=ROOT, env=self.environ(), stderr=log, text=True)
        return self

    def until_ready(self) -> Node:
        """The file says so, then the probe, which is a process each time."""
        self.until_applied()
        until(
            lambda: self.calico_node("-felix-ready", check=False).returncode == 0,
            f"{self.name} is ready",
            60,
            pause_s=0.2,
        )
        return self

    def until_applied(self) -> Node:
        """The agent says so in its file."""
        until(lambda: not why_not_ready(self.status(), since_boot()), f"{self.name} has applied its network", 120)
        return self

    def status(self) -> dict[str, Any]:
        return read_status(f"{self.root}/run")

    def log(self) -> str:
        return (self.root / "log.txt").read_text()

    def stop(self, number: int = signal.SIGTERM, *, patience_s: float = 20) -> tuple[int, float]:
        """(exit status, seconds)"""
        assert self.process is not None
        begun = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(patience_s)
        self.process = None
        return code, time.monotonic() - begun

    def ask_to_end(self) -> None:
        """Without waiting for it."""
        if self.process is not None:
            self.process.terminate()

    def end(self) -> None:
        """Whatever is left of it, however busy the machine is."""
        if self.process is not None:
            self.stop(patience_s=120)

    def intents(self) -> list[str]:
        """The files of DELs that are still to be carried out."""
        return [path.name for path in (self.root / "lib" / "cni" / "pending-del").glob("*.json")]

    # -- pods ---------------------------------------------------------------------------------------------------------

    def cni(self, command: str, pod: Pod, **changes: Any) -> dict[str, Any]:
        """One call of the plugin in here, with ``changes`` of its configuration; its result. Raises RuntimeError."""
        conf = {
            "cniVersion": "1.0.0",
            "name": "calnet",
            "type": "calico",
            **self.store.conf(),
            "nodename_file": f"{self.root}/lib/nodename",
            "log_file_path": f"{self.root}/cni.log",
            "ipam_lock_file": f"{self.root}/run/ipam.lock",
            "ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true" if pod.ipv6 else "false"},
            **changes,
        }
        environ = {
            "PATH": os.environ["PATH"],
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": pod.container,
            "CNI_NETNS": pod.ns.path,
            "CNI_IFNAME": "eth0",
            "CNI_ARGS": pod.arguments,
            "CNI_PATH": str(self.bin_dir or "/opt/cni/bin"),
            "CALICO_RUN_DIR": f"{self.root}/run",
            "CALICO_STATE_DIR": f"{self.root}/lib",
        }
        argv, text = self._program("calico", "cni_calico.plugin.main"), json.dumps(conf)
        done = subprocess.run(argv, input=text, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(f"{command} on {self.name}: {done.stdout}{done.stderr}")
        return json.loads(done.stdout) if done.stdout.strip() else {}

    def add(self, pod: Pod, *, tries: int = 1, **conf: Any) -> Pod:
        result = {}
        for left in reversed(range(tries)):
            try:
                result = self.cni("ADD", pod, **conf)
                break
            except RuntimeError:
                if not left:
                    raise
        pod.addresses = [item["address"].partition("/")[0] for item in result["ips"]]
        return pod


@dataclass
class Pod:
    """A namespace with an address of each family asked for."""

    ns: Namespace
    container: str
    ipv6: bool = False
    arguments: str = ""  # of the runtime
    addresses: list[str] = field(default_factory=list)

    def can_ping(self, other: Pod, *, size: int = 56) -> bool:
        """Every address of the other's; ``size`` bytes that may not be fragmented."""
        for address in other.addresses:
            command = ["ping", "-c1", "-W1", "-Mdo", f"-s{size}", address]
            if self.ns.run(*command, check=False).returncode:
                return False
        return True


def until_all_reach_all(pods: list[Pod], timeout_s: float = 30.0, *, size: int = 56) -> None:
    for one in pods:
        for other in pods:
            if one is not other:
                until(
                    partial(one.can_ping, other, size=size),
                    f"{one.container} reaches {other.container} ({', '.join(other.addresses)})",
                    timeout_s,
                    pause_s=0.2,
                )


@contextmanager
def without_a_lost_ping(source: Pod, *targets: Pod, interval_s: float = 0.05) -> Iterator[None]:
    """Pings all addresses of the targets during the block, and some twenty times at least, and checks that every one
    was answered.
    """
    with ExitStack() as stack:
        running = []

        def lines(said: IO[bytes]) -> list[str]:
            """Without moving the place at which ping writes."""
            return os.pread(said.fileno(), 1 << 26, 0).decode().splitlines()

        for address in (address for target in targets for address in target.addresses):
            argv = ["nsenter", f"--net={source.ns.path}", "ping", "-n", f"-i{interval_s}", "-W1", address]
            said = stack.enter_context(tempfile.TemporaryFile())  # a pipe would be full after a thousand answers
            ping = subprocess.Popen(argv, stdout=said)
            stack.callback(ping.wait)
            stack.callback(ping.kill)
            running.append((address, ping, said))
        yield
        for address, ping, said in running:
            until(lambda said=said: len(lines(said)) > _FEWEST, f"{address} answers", 30)
            ping.send_signal(signal.SIGINT)
            ping.wait(10)
            line = next(line for line in lines(said) if "packets transmitted" in line)
            sent, received = int(line.split()[0]), int(line.split()[3])
            assert sent >= _FEWEST and received >= sent - 1, f"{address}: {line}"  # the last one may be under way
