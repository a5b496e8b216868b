"""A host with Docker: dockerd of Debian and our driver, in mount, process and network namespaces of their own.

Rule: its state (Docker's data, ours, the datastore) is below one directory and outlives ``power_off``; everything else
ends with the first process of its namespace. The image is a tree of busybox, which needs nothing from a registry.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cni_calico.model.keys import ResourceKey
from tests.conftest import LAB_CACHE, ROOT
from tests.deadlines import until
from tests.netns.namespaces import Namespace
from tests.netns.policing.lab import NODE, Lab, lab

OLDEST = "20.10"
IMAGE = "box"
APPLETS = ("sh", "nc", "sleep", "ip", "cat", "true")
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
NAMESPACE = "libnetwork"
# the first process: it reaps what others leave
FIRST = """
import os, signal
signal.signal(signal.SIGCHLD, lambda *_: None)
os.write(1, b"up")
os.close(1)
while True:
    try:
        os.wait()
    except ChildProcessError:
        signal.pause()
"""
MOUNTS = """
set -e
mount --make-rprivate /
mount -t proc proc /proc
mount -t tmpfs docker /run/docker 2>/dev/null || { mkdir -p /run/docker; mount -t tmpfs docker /run/docker; }
mkdir -p /run/docker/plugins
mount --bind "$1" /proc/sys/kernel/random/boot_id
exec "$2" -c "$3"
"""


class BareHost:
    """In the place of a lab, where calico-node itself runs."""

    def __init__(self, host: Namespace) -> None:
        self.host = host

    def stop(self, number: int) -> None:
        """Whoever has started calico-node ends it."""


class Machine:
    """``docker`` runs a command of Docker's client; ``lab`` is the node's datastore and policy engine."""

    lab: Any

    def __init__(self, root: Path, made: Lab | BareHost, release: str = OLDEST) -> None:
        self.root, self.lab, self.release = root, made, release
        tree = LAB_CACHE / f"docker-{OLDEST if release == OLDEST else '28'}"
        dockerd = f"{LAB_CACHE}/docker-29:" if release == "29" else ""
        # the runc that is built for it has no seccomp
        self.docker_options = ("--seccomp-profile", "unconfined") if dockerd else ()
        self.path = f"{dockerd}{tree}/usr/sbin:{tree}/usr/bin:{PATH}"
        self.plugin_dir = tree / "usr/libexec/docker/cli-plugins"
        self.boots = 0
        self.first: subprocess.Popen[bytes] | None = None
        self.pid = 0  # of the first process, as the host sees it
        self._programs: dict[str, subprocess.Popen[bytes]] = {}
        self.driver_environ: dict[str, str] = {}
        self.driver: tuple[str, ...] = (sys.executable, "-m", "cni_calico.docker.main")
        self.containers_cgroup = f"cct-{os.getpid()}-{root.name}"
        for name in ("run", "state", "log"):
            (root / name).mkdir(exist_ok=True)

    # -- power --------------------------------------------------------------------------------------------------------

    def power_on(self) -> None:
        self.boots += 1
        boot_id = self.root / "boot-id"
        boot_id.write_text(f"{self.boots:08}-0000-4000-8000-000000000000\n")
        unshare = ("unshare", "-m", "-p", "-f", "--kill-child", "sh", "-c", MOUNTS, "sh")
        argv = ["nsenter", f"--net={self.lab.host.path}", *unshare, str(boot_id), sys.executable, FIRST]
        self.first = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert self.first.stdout is not None
        assert self.first.stdout.read(2) == b"up"
        children = Path(f"/proc/{self.first.pid}/task/{self.first.pid}/children")
        self.pid = int(children.read_text().split()[0])

    def power_off(self) -> None:
        """As if the power failed: every process ends at once, and what was in the kernel is gone."""
        if self.first is None:
            return
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.first.wait()
        for program in self._programs.values():
            program.wait()
        self._programs.clear()
        self.first = None
        self.lab.stop(signal.SIGKILL)
        until(lambda: not self.veths(), "the interfaces are gone with the containers")
        self.lab.host.run("nft", "flush", "ruleset")
        self.lab.host.run("ip", "link", "delete", "docker0", check=False)
        shutil.rmtree(self.root / "run")
        (self.root / "run").mkdir()
        shutil.rmtree(self.root / "exec", ignore_errors=True)
        for name in ("pid", "docker.sock", "endpoint-status"):
            path = self.root / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def start(self, name: str, *argv: str, environ: dict[str, str] | None = None) -> None:
        """A program in the machine; its output is log/NAME."""
        with open(self.root / "log" / name, "ab") as log:
            self._programs[name] = subprocess.Popen(
                [*self._enter, *argv],
                stdout=log, stderr=log,
                env={"PATH": self.path, "TMPDIR": str(self.root), "PYTHONPATH": str(ROOT), **(environ or {})},
            )  # fmt: skip

    def end(self, name: str, with_signal: signal.Signals = signal.SIGTERM) -> int:
        """End one of them; its exit status. nsenter has the program as its child."""
        pid = self.pid_of(name)
        os.kill(pid, with_signal)
        return self._programs.pop(name).wait()

    def pid_of(self, name: str) -> int:
        """As this host sees it."""
        program = self._programs[name]
        children = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
        return int(next(iter(children), program.pid))

    def is_running(self, name: str) -> bool:
        program = self._programs.get(name)
        return program is not None and program.poll() is None

    def log(self, name: str = "driver") -> str:
        path = self.root / "log" / name
        return path.read_text() if path.exists() else ""

    @property
    def _enter(self) -> tuple[str, ...]:
        return ("nsenter", "-t", str(self.pid), "-m", "-p", "-n")

    @property
    def plugins(self) -> Path:
        """Where Docker looks for drivers, as the host sees it."""
        return Path("/proc", str(self.pid), "root", "run", "docker", "plugins")

    # -- programs -----------------------------------------------------------------------------------------------------

    def _driver_environ(self) -> dict[str, str]:
        return {
            "DATASTORE_TYPE": "local",
            "DATASTORE_PATH": str(self.root / "store.db"),
            "NODENAME": NODE,
            "CALICO_RUN_DIR": str(self.root / "run"),
            "CALICO_STATE_DIR": str(self.root / "state"),
            "CALICO_NODENAME_FILE": str(self.root / "state" / "nodename"),
            "CALICO_DOCKER_SOCKET": str(self.root / "docker.sock"),
            **self.driver_environ,
        }

    def start_driver(self, *, activated: bool = False, may_end: bool = False, **environ: str) -> None:
        """``activated``: its sockets are held for it, and the first call starts it. ``may_end``: in its start, too."""
        given = {**self._driver_environ(), **environ}
        before, command = self.log(), self.driver
        if activated:
            sockets = (f"--listen=/run/docker/plugins/{name}.sock" for name in ("calico", "calico-ipam"))
            variables = (f"{name}={value}" for name, value in {**given, "PYTHONPATH": str(ROOT)}.items())
            self.start("driver", "systemd-socket-activate", *sockets, "env", *variables, *command)
            held = self.plugins / "calico-ipam.sock"
            until(held.exists, "the sockets are held")
            return
        self.start("driver", *command, environ=given)
        until(lambda: "serving" in self.log()[len(before) :] or not self.is_running("driver"), "the driver serves")
        assert may_end or self.is_running("driver"), self.log()

    def status(self) -> str:
        """What ``calico-docker -status`` prints, also to stderr."""
        environ = {**self._environ, **self._driver_environ(), "PYTHONPATH": str(ROOT)}
        argv = [*self._enter, sys.executable, "-m", "cni_calico.docker.main", "-status"]
        done = subprocess.run(argv, capture_output=True, text=True, env=environ)
        return done.stdout + done.stderr

    def ask(self, name: str, call: str, **fields: Any) -> dict[str, Any]:
        """A call to one of the driver's sockets, as dockerd would make it; the answer."""
        body = json.dumps(fields).encode()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.plugins / f"{name}.sock"))
            client.sendall(f"POST /{call} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = b"".join(iter(lambda: client.recv(4096), b""))
        return dict(json.loads(answer.partition(b"\r\n\r\n")[2]))

    def age(self, *kinds: str) -> None:
        """Everything of these kinds that the driver, which does not run, has made is an hour older."""
        for kind in kinds:
            for path in (self.root / "state" / "docker" / kind).glob("*.json"):
                document = json.loads(path.read_text())
                path.write_text(json.dumps({**document, "made_s": document["made_s"] - 3600}))

    def start_docker(self, *options: str, wait: bool = True) -> None:
        base = str(self.root)
        self.start(
            "dockerd", "dockerd", "--data-root", f"{base}/data", "--exec-root", f"{base}/exec",
            "--pidfile", f"{base}/pid", "-H", f"unix://{base}/docker.sock",
            "--cgroup-parent", f"/{self.containers_cgroup}", *self.docker_options, *options,
        )  # fmt: skip
        if wait:
            self.until_docker_serves()

    def until_docker_serves(self) -> None:
        try:
            until(lambda: self.docker("version", check=False).returncode == 0, "dockerd serves", pause_s=0.1)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.log('dockerd')[-2000:]}") from None

    def kill_docker(self) -> None:
        """dockerd and its containerd; the containers stay, as their parents are of their own."""
        self.end("dockerd", signal.SIGKILL)
        pidfile = self.root / "exec" / "containerd" / "containerd.pid"
        with suppress(OSError, ValueError):
            self.in_machine("kill", "-9", pidfile.read_text().strip(), check=False)
        (self.root / "pid").unlink(missing_ok=True)

    def in_machine(self, *argv: str, check: bool = True, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        command = [*self._enter, *argv]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=self._environ)
        if check and done.returncode:
            raise AssertionError(f"{argv}: {done.stderr}{done.stdout}\n{self.log()[-3000:]}")
        return done

    @property
    def _environ(self) -> dict[str, str]:
        return {"PATH": self.path, "DOCKER_HOST": f"unix://{self.root}/docker.sock", "HOME": str(self.root)}

    def docker(self, *arguments: str, check: bool = True, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
        return self.in_machine("docker", *arguments, check=check, timeout_s=timeout_s)

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """A command that is not waited for."""
        command = [*self._enter, "docker", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self._environ)

    def refused(self, *arguments: str) -> str:
        """What Docker's client says of a command that fails."""
        done = self.docker(*arguments, check=False)
        assert done.returncode, f"{arguments} succeeded"
        return done.stderr

    def inspect(self, name: str) -> dict[str, Any]:
        (found,) = json.loads(self.docker("inspect", name).stdout)
        return dict(found)

    def network(self, name: str, *arguments: str) -> None:
        self.docker("network", "create", "--driver", "calico", "--ipam-driver", "calico-ipam", *arguments, name)

    def run(self, name: str, network: str, *arguments: str, command: tuple[str, ...] = ("sleep", "1000")) -> str:
        """A container; its IPv4 address there."""
        self.docker("run", "-d", "--init=false", "--name", name, "--network", network, *arguments, IMAGE, *command)
        return self.address(name, network)

    def address(self, name: str, network: str) -> str:
        return str(self.inspect(name)["NetworkSettings"]["Networks"][network]["IPAddress"])

    def begin_all(self) -> None:
        self.start_driver()
        self.start_docker()
        self.import_image()

    def import_image(self) -> None:
        archive = self.root / "image.tar"
        with tarfile.open(archive, "w") as tar:
            tar.add("/usr/bin/busybox", "bin/busybox")
            for name in APPLETS:
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
        self.docker("import", str(archive), IMAGE)
        archive.unlink()

    def make_well(self) -> None:
        """Both programs run again, whatever a test has done to them."""
        if self.first is None:
            self.power_on()
        if not self.is_running("driver"):
            self.start_driver()
        if not self.is_running("dockerd"):
            self.start_docker()

    def remove_everything(self) -> None:
        """Containers, networks, policies; and nothing of them may be left."""
        if containers := self.docker("ps", "-aq").stdout.split():
            self.docker("rm", "-f", *containers)
        networks = self.docker("network", "ls", "-q", "--filter", "driver=calico").stdout.split()
        if networks:
            self.docker("network", "rm", *networks)
        for kind in ("GlobalNetworkPolicy", "Profile"):
            for document in self.lab.documents(kind):
                self.lab.remove(kind, document["metadata"]["name"])
        until(self.is_clean, "nothing is left")
        for name in ("run/policy-decision", "state/nodename"):
            (self.root / name).unlink(missing_ok=True)

    # -- what is there ------------------------------------------------------------------------------------------------

    def veths(self) -> list[str]:
        return sorted(link["ifname"] for link in self.lab.host.ip("link", "show") if link["ifname"].startswith("cali"))

    def records(self) -> dict[str, dict[str, Any]]:
        """The documents of Docker's containers, by the name in their labels, or their endpoint's ID."""
        found = {}
        for document in self.lab.documents("WorkloadEndpoint", NAMESPACE):
            labels = document["metadata"]["labels"]
            found[labels.get("cni-calico.io/container") or document["spec"]["endpoint"]] = document
        return found

    def record_key(self, name: str) -> ResourceKey:
        return ResourceKey("WorkloadEndpoint", name, NAMESPACE)

    def handles(self) -> list[str]:
        return self.lab.handles()

    def files(self, kind: str) -> list[dict[str, Any]]:
        """The driver's own."""
        paths = sorted((self.root / "state" / "docker" / kind).glob("*.json"))
        return [json.loads(path.read_text()) for path in paths]

    def is_clean(self) -> bool:
        """Whether nothing of any container is left."""
        return not (
            self.veths() or self.records() or self.handles() or self.files("endpoints") or self.files("addresses")
        )


@contextmanager
def docker_machine(root: Path, release: str = OLDEST, **driver_environ: str) -> Iterator[Machine]:
    """A machine with an IP pool, dockerd and the driver; nothing of calico-node until the lab's engine starts."""
    with bare_machine(root, release, **driver_environ) as machine:
        machine.begin_all()
        yield machine


@contextmanager
def bare_machine(root: Path, release: str = OLDEST, **driver_environ: str) -> Iterator[Machine]:
    """Only the IP pool is there."""
    with lab(root) as made:
        made.host.set_sysctl("ipv4/ip_forward", "1")  # so that Docker leaves the policy of FORWARD alone
        made.host.do("neigh", "add", "192.0.2.1", "lladdr", "02:00:00:00:00:01", "dev", "uplink")
        made.put("IPPool", "pool", {"cidr": "10.65.0.0/24", "blockSize": 28, "nodeSelector": "all()"})
        made.put("Tier", "default", {"order": 1000000, "defaultAction": "Deny"})
        machine = Machine(root, made, release)
        machine.driver_environ = driver_environ
        with _powered(machine):
            yield machine


@contextmanager
def running(machine: Machine) -> Iterator[None]:
    """The driver, dockerd and the image."""
    with _powered(machine):
        machine.begin_all()
        yield


@contextmanager
def _powered(machine: Machine) -> Iterator[None]:
    try:
        machine.power_on()
        yield
    finally:
        machine.power_off()
        _remove_cgroups(machine.containers_cgroup)


def _remove_cgroups(name: str) -> None:
    for tree in Path("/sys/fs/cgroup").glob(f"*/{name}"):
        for directory, _, _ in os.walk(tree, topdown=False):
            with suppress(OSError):
                os.rmdir(directory)
