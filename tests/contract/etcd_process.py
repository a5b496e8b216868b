"""Real etcd servers for tests: started on free ports below a temporary directory, ended by pid."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

STARTED = "ready to serve client requests"


def etcd_binary() -> Path | None:
    """The etcd that tests/setup built, or None."""
    cache = os.environ.get("LAB_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cni-lab"
    for directory in (os.environ.get("CNI_LAB_BIN"), Path(cache) / "bin"):
        if directory and (Path(directory) / "etcd").exists():
            return Path(directory) / "etcd"
    return None


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports nobody listens on now, below those the kernel gives to outgoing connections."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(15000, 32000)
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
            try:
                s.bind((host, port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


@dataclass
class Member:
    """One etcd server. ``prefix`` goes before its command (ip netns exec NAME)."""

    name: str
    client_url: str
    peer_url: str
    directory: Path
    arguments: Sequence[str] = ()
    prefix: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def log(self) -> Path:
        return self.directory / f"{self.name}.log"

    def start(self, cluster: str, state: str = "new") -> None:
        binary = etcd_binary()
        assert binary is not None, "run tests/setup/build-go-tools.sh"
        command = [*self.prefix, str(binary), "--name", self.name, "--data-dir", str(self.directory / self.name)]
        command += ["--listen-client-urls", self.client_url, "--advertise-client-urls", self.client_url]
        command += ["--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url]
        command += ["--initial-cluster", cluster, "--initial-cluster-state", state, "--log-level", "info"]
        # what a killed member has written stays; a disk that others keep busy for seconds is no case of a test
        command += ["--unsafe-no-fsync"]
        self.log.unlink(missing_ok=True)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([*command, *self.arguments], stdout=log, stderr=log)

    def wait_serving(self, timeout_s: float = 60) -> None:
        until = time.monotonic() + timeout_s
        while STARTED not in self.log.read_text(errors="replace"):
            assert self.process is not None and self.process.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < until, self.log.read_text()[-2000:]
            try:  # a moment, unless it ends
                self.process.wait(0.02)
            except subprocess.TimeoutExpired:
                pass

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            self.process = None


class Cluster:
    """Members that form one cluster; a context manager."""

    def __init__(self, members: Sequence[Member], directory: Path) -> None:
        self.members = list(members)
        self.directory = directory
        self.initial = ",".join(f"{m.name}={m.peer_url}" for m in members)

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(m.client_url for m in self.members)

    def __enter__(self) -> Cluster:
        try:
            for member in self.members:
                member.start(self.initial)
            for member in self.members:
                member.wait_serving()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for member in self.members:
            member.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


def single(host: str = "127.0.0.1", arguments: Sequence[str] = (), scheme: str = "http") -> Cluster:
    """A cluster of one member on loopback."""
    directory = Path(tempfile.mkdtemp(prefix="cct-etcd-"))
    shown = f"[{host}]" if ":" in host else host
    client, peer = free_ports(2, host)
    member = Member("one", f"{scheme}://{shown}:{client}", f"http://{shown}:{peer}", directory, arguments)
    return Cluster([member], directory)


@contextmanager
def grpc_proxy(endpoint: str) -> Iterator[str]:
    """The URL of an ``etcd grpc-proxy`` before one member."""
    binary, [port] = etcd_binary(), free_ports(1)
    assert binary is not None, "run tests/setup/build-go-tools.sh"
    command = [str(binary), "grpc-proxy", "start", f"--endpoints={endpoint}", f"--listen-addr=127.0.0.1:{port}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + 60
            while True:
                assert process.poll() is None and time.monotonic() < until, "the proxy does not come up"
                with socket.socket() as s:
                    if s.connect_ex(("127.0.0.1", port)) == 0:
                        break
                try:  # a moment, unless it ends
                    process.wait(0.05)
                except subprocess.TimeoutExpired:
                    pass
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
