"""A node: its own network, mount, process, host name and IPC namespaces, with containerd and a kubelet inside.

Rule: what a node has on "disk" is below its directory and outlives a power cut (``power_off``), what is in /run does
not; the rest of the file system is this machine's. Programs are kept running as an init system would.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.deadlines import until
from tests.lab.control_plane import API, NET4, NET6, ControlPlane
from tests.lab.host import BIN, CONTAINERD, end, ensure_cgroup, remove_cgroup, run, start
from tests.lab.layouts import KUBEADM, Layout

DNS_SERVICE, DNS_DOMAIN = "10.96.0.10", "cluster.local"
# private to the node, whatever its layout; below its directory
DISK = (
    "/var/lib/containerd",
    "/var/lib/cni",
    "/var/lib/calico",
    "/var/log/calico",
    "/var/log/pods",
    "/var/log/containers",
    "/etc/calico",
)
# process 1 of a node. /sys has to show the node's own network, with the cgroups kept; /run is empty after a boot
_INIT = """set -eu
hostname "$1"; disk=$2; emptied=$3 runtime=$4; shift 4
mkdir -p "$disk/sys"
mount --rbind /sys/fs/cgroup "$disk/sys"
mount -t sysfs sysfs /sys
mount --rbind "$disk/sys" /sys/fs/cgroup
umount -l "$disk/sys"
mount -t bpf bpf /sys/fs/bpf 2>/dev/null || true
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /run/netns
if [ -n "$emptied" ]; then mount -t tmpfs -o mode=755,nosuid,nodev,noexec tmpfs "$emptied"; fi
if [ -n "$runtime" ]; then mount -t tmpfs -o mode=755 tmpfs "$runtime"; fi
for directory; do mkdir -p "$directory" "$disk$directory"; mount --bind "$disk$directory" "$directory"; done
mount --make-rshared /
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
trap 'exit 0' TERM
touch "$disk/booted"
while :; do sleep 3600 & wait $!; done
"""
# runs a program again whenever it ends: log, file for its process number, program ...
_KEEP = """log=$1 pid=$2; shift 2
trap 'kill -TERM $!; wait $!; exit 0' TERM
while :; do
  "$@" >>"$log" 2>&1 </dev/null &
  echo $! >"$pid"
  wait $! || true
  echo "--- ended" >>"$log"
  sleep 1
done
"""
_CONTAINERD = """version = 2
root = "/var/lib/containerd"
state = "@runtime@"
[debug]
  level = "debug"
[grpc]
  address = "@runtime@/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/lab/busybox:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "@bin_dir@"
    conf_dir = "@conf_dir@"
"""
# no privileged pod may load modules then
_WITHOUT_MODULES = ("setpriv", "--inh-caps=-sys_module", "--bounding-set=-sys_module")


class Node:
    """``number`` gives the name and the addresses, ``layout`` the directories."""

    def __init__(
        self, plane: ControlPlane, lab: str, number: int, images: list[Path], layout: Layout = KUBEADM
    ) -> None:
        self.plane = plane
        self.layout = layout
        self.number = number
        self.name = f"node{number}"
        self.netns = f"{lab}-{self.name}"
        self.cgroup = f"{lab}/{self.name}"
        self.directory = plane.directory / self.name
        self.images = images
        self.address = f"{NET4}.{10 + number}"
        self.address6 = f"{NET6}{10 + number}"
        self.addresses = f"{self.address},{self.address6}" if plane.dual else self.address
        self.containerd_log = self.directory / "containerd.log"
        self._machine: subprocess.Popen[bytes] | None = None
        self._kept: dict[str, subprocess.Popen[bytes]] = {}
        self._after_boot: dict[str, Callable[[], None]] = {}
        self._disabled: dict[str, Callable[[], None]] = {}
        self.init_pid = 0
        self._kept_directories = [*DISK, *layout.kept()]
        for path in self._kept_directories:
            self.disk(path).mkdir(parents=True, exist_ok=True)
        self._write_settings()

    def disk(self, path: str) -> Path:
        """Where the node's own ``path`` lies."""
        return self.directory / path.lstrip("/")

    def inside(self, *argv: str | Path) -> list[str | Path]:
        """The command, in all of the node's namespaces."""
        return ["nsenter", "-t", str(self.init_pid), "-m", "-u", "-i", "-n", "-p", "--", *argv]

    def run(self, *argv: str | Path, check: bool = True) -> str:
        return run(*self.inside(*argv), check=check).stdout

    @property
    def socket(self) -> str:
        return f"{self.layout.runtime}/containerd.sock"

    def ctr(self, *argv: str | Path) -> str:
        return self.run(
            "env", f"PATH={CONTAINERD}:/usr/sbin:/usr/bin", "ctr", f"--address={self.socket}", "-n", "k8s.io", *argv
        )

    def enable(self, name: str, *argv: str | Path, **environ: str) -> None:
        """Run a program in the node, now and after every boot."""
        self._after_boot[name] = lambda: self._keep(name, *argv, **environ)
        self._after_boot[name]()

    def _keep(self, name: str, *argv: str | Path, **environ: str) -> None:
        """Again whenever it ends."""
        log, pid = self.directory / f"{name}.log", self.directory / f"{name}.pid"
        settings = [f"PATH={CONTAINERD}:/usr/sbin:/usr/bin:/sbin:/bin", *(f"{k}={v}" for k, v in environ.items())]
        command = self.inside("env", *settings, "bash", "-c", _KEEP, "keep", log, pid, *argv)
        self._kept[name] = start(self.directory / "init.log", *command)

    def disable(self, name: str) -> None:
        """End a program that is kept, as an init system does, until it is wanted again."""
        self._disabled[name] = self._after_boot.pop(name)
        keeper = self._kept.pop(name)
        os.killpg(keeper.pid, signal.SIGTERM)
        keeper.wait()
        pid = (self.directory / f"{name}.pid").read_text().strip()
        until(lambda: not self.is_running(pid), f"{name} of {self.name} ended", timeout_s=30, pause_s=0.1)

    def enable_again(self, name: str) -> None:
        self._after_boot[name] = self._disabled.pop(name)
        self._after_boot[name]()

    def is_running(self, pid: str) -> bool:
        """``pid``: as the node's own processes see it."""
        return run(*self.inside("kill", "-0", pid), check=False).returncode == 0

    def restart(self, name: str) -> None:
        """Kill a program that is kept, not what it has started; it comes back by itself."""
        file = self.directory / f"{name}.pid"
        before = file.read_text()
        self.run("kill", "-9", before.strip())
        until(lambda: file.read_text() not in ("", before), f"{name} of {self.name} back", pause_s=0.1)

    # -- power --------------------------------------------------------------------------------------------------------

    def power_on(self) -> None:
        self._connect()
        ensure_cgroup(self.cgroup)
        self.disk("booted").unlink(missing_ok=True)
        own = [
            "--mount",
            "--propagation",
            "private",
            "--uts",
            "--ipc",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]
        command = ["nsenter", f"--net=/var/run/netns/{self.netns}", "unshare", *own]
        self._machine = start(
            self.directory / "init.log",
            *command,
            "bash",
            "-c",
            _INIT,
            "init",
            self.name,
            self.directory,
            self.layout.emptied,
            self.layout.emptied_runtime(),
            *self._kept_directories,
        )
        until(
            self.disk("booted").exists, f"{self.name} booted; see {self.directory}/init.log", timeout_s=30, pause_s=0.1
        )
        pid = self._machine.pid
        self.init_pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        self._make_volatile()
        rights = () if self.layout.loads_modules else _WITHOUT_MODULES
        self._keep("containerd", *rights, CONTAINERD / "containerd", "--config", self.directory / "containerd.toml")
        until(
            lambda: "Version" in self._answers(), f"containerd of {self.name}; see {self.containerd_log}", pause_s=0.1
        )
        for image in self.images:
            self.ctr("images", "import", image)
        self._keep("kubelet", BIN / "kubelet", f"--config={self.directory}/kubelet.yaml",
                  f"--kubeconfig={self.directory}/kubelet.kubeconfig", f"--hostname-override={self.name}",
                  f"--node-ip={self.addresses}", f"--root-dir={self.layout.kubelet}", "--v=2")  # fmt: skip
        for begin in self._after_boot.values():
            begin()

    def _make_volatile(self) -> None:
        """The directory of configuration, where a boot empties it."""
        if self.layout.conf_dir not in self._kept_directories:
            self.run("mkdir", "-p", self.layout.conf_dir)

    def _answers(self) -> str:
        try:
            return self.ctr("version")
        except RuntimeError:
            return ""

    def power_off(self) -> None:
        """At once: process 1 is killed, and with it everything in the node."""
        if self._machine is not None:
            end(self._machine)
            self._machine = None
            until(lambda: not Path(f"/proc/{self.init_pid}").exists(), f"{self.name} off", pause_s=0.1)
        while self._kept:
            end(self._kept.popitem()[1])
        # a namespace goes a moment after its name
        run("ip", "-n", self.plane.netns, "link", "delete", self.name, check=False)
        run("ip", "netns", "delete", self.netns, check=False)
        remove_cgroup(self.cgroup)

    def _connect(self) -> None:
        """A veth into the control plane's bridge."""
        run("ip", "netns", "add", self.netns)
        cp, ns = ["ip", "-n", self.plane.netns], ["ip", "-n", self.netns]
        run(*ns, "link", "set", "lo", "up")
        run(*cp, "link", "add", self.name, "type", "veth", "peer", "name", "eth0", "netns", self.netns)
        run(*cp, "link", "set", self.name, "master", "br0", "up")
        run(*ns, "addr", "add", f"{self.address}/24", "dev", "eth0")
        run(*ns, "link", "set", "eth0", "up")
        run(*ns, "route", "add", "default", "via", f"{NET4}.1")
        if self.plane.dual:
            run(*ns, "addr", "add", f"{self.address6}/64", "dev", "eth0", "nodad")
            run(*ns, "route", "add", "default", "via", f"{NET6}1")

    def _write_settings(self) -> None:
        pki = self.plane.authority
        pki.issue(self.name, f"/O=system:nodes/CN=system:node:{self.name}", f"IP:{self.address},DNS:{self.name}")
        pki.kubeconfig(self.directory / "kubelet.kubeconfig", API, self.name)
        (self.directory / "containerd.toml").write_text(self.layout.fill(_CONTAINERD))
        kubelet = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"webhook": {"enabled": False}, "x509": {"clientCAFile": str(pki.path("ca.crt"))}},
            "authorization": {"mode": "AlwaysAllow"},
            "tlsCertFile": str(pki.path(f"{self.name}.crt")),
            "tlsPrivateKeyFile": str(pki.path(f"{self.name}.key")),
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "failSwapOn": False,
            "clusterDNS": [DNS_SERVICE],  # without one each pod brings a warning, also where nobody answers there
            "clusterDomain": DNS_DOMAIN,
            "resolvConf": "",
            # the disk is shared with everything else on this machine
            "evictionHard": {"imagefs.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%"},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
        }
        (self.directory / "kubelet.yaml").write_text(json.dumps(kubelet))

    def install_plugins(self, *names: str, source: Path) -> None:
        """Copy CNI plugins of others."""
        for name in names:
            shutil.copy2(source / name, self.disk(self.layout.bin_dir))
