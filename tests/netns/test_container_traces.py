"""What a host shows of a container: by its ID in runtimes' state, by its address in routes and namespaces."""

from __future__ import annotations

import subprocess
import sys
from ipaddress import ip_address
from pathlib import Path

import pytest

from cni_calico.deadline import Deadline
from cni_calico.kernel.container_traces import find_trace, runs_here
from tests.conftest import ROOT
from tests.netns.namespaces import host_namespace, namespace

pytestmark = pytest.mark.netns

ID, OTHER = "c0ffee" + 58 * "0", "ab" * 32


def look(root: str, address: str = "10.65.0.7") -> str:
    return find_trace(ID, ip_address(address), Deadline.after(20), root)


@pytest.fixture
def shown_root(tmp_path: Path) -> Path:
    """A host whose runtimes know another container."""
    results = tmp_path / "var/lib/cni/results"
    results.mkdir(parents=True)
    (results / f"calnet-{OTHER}-eth0").write_text("{}")
    return tmp_path


@pytest.mark.parametrize(
    ("place", "runs"),
    [
        (f"run/crun/{ID}", True),
        (f"run/containers/storage/overlay-containers/{ID}", True),
        (f"var/lib/containers/storage/overlay-containers/{ID}", False),
        (f"run/crun/{OTHER}", False),
    ],
)
def test_only_what_this_kernel_has_runs_here(shown_root: Path, place: str, runs: bool) -> None:
    """A file system may be several hosts', and stays when a container has moved."""
    assert not runs_here(ID, str(shown_root))
    (shown_root / place).mkdir(parents=True)
    assert runs_here(ID, str(shown_root)) is runs
    processes = shown_root / "proc/77"
    processes.mkdir(parents=True)
    (processes / "cgroup").write_text(f"0::/machine.slice/libpod-{ID}.scope\n")
    assert runs_here(ID, str(shown_root))


def test_where_runtimes_are_not_visible_nothing_can_be_said(tmp_path: Path) -> None:
    assert "not visible" in look(str(tmp_path))


def test_other_directories_than_the_first_process_sees(tmp_path: Path) -> None:
    """An agent in a container that has the host's processes but not its mounts: nothing can be said."""
    script = """
from cni_calico.kernel.container_traces import what_is_hidden
print(what_is_hidden(), flush=True)
"""
    results, others = tmp_path / "results", tmp_path / "others"
    for made in (results, others):
        made.mkdir()
    # the first process is the shell, which keeps its own mounts; each look has those of a namespace more
    commands = """
mount -t tmpfs none /var/lib && mount -t tmpfs none /run && mkdir -p /var/lib/cni /run/netns
mkdir -p "/var/lib/cni/$4"
export python="$0" script="$1"
look() { unshare -m sh -c "$1"'; exec "$python" -c "$script"'; }
look true
look "mount --bind $2 /run/netns"
look "mount --bind $3 /var/lib/cni; mkdir -p /var/lib/cni/results"
look "umount /run"
"""
    for name in ("results", "cache/results"):
        argv = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"]
        more = [sys.executable, script, str(results), str(others), name]
        done = subprocess.run(
            [*argv, commands, *more], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT
        )
        visible, namespaces, state, run = done.stdout.splitlines()
        assert visible == ""
        assert "/run/netns here is another" in namespaces
        assert "/var/lib/cni" in state and "not visible" in state
        assert "/run/netns" in run and "not visible" in run


@pytest.mark.parametrize(
    "place",
    [
        f"var/lib/cni/cache/results/calnet-{ID}-eth0",
        f"var/lib/cni/results/calnet-{ID}-eth0",
        f"var/lib/containers/storage/overlay-containers/{ID}/userdata",
        f"run/containers/storage/vfs-containers/{ID}/state",
        f"run/containerd/io.containerd.runtime.v2.task/default/{ID}/init.pid",
        f"run/containerd/io.containerd.grpc.v1.cri/sandboxes/{ID}/shm",
        f"var/lib/nerdctl/1935db59/containers/default/{ID}/resolv.conf",
        f"var/lib/docker/containers/{ID}/config.v2.json",
        f"run/runc/{ID}/state.json",
    ],
)
def test_what_runtimes_keep(shown_root: Path, place: str) -> None:
    with host_namespace() as ns:
        assert ns.call(look, str(shown_root)) == ""
        (shown_root / place).parent.mkdir(parents=True, exist_ok=True)
        (shown_root / place).touch()
        assert ID in ns.call(look, str(shown_root))


@pytest.mark.parametrize("place", ["var/lib/cni/networks/calnet/10.65.0.7", "proc/17/cgroup"])
def test_what_files_say(shown_root: Path, place: str) -> None:
    (shown_root / place).parent.mkdir(parents=True)
    with host_namespace() as ns:
        (shown_root / place).write_text(f"0::/system.slice/libpod-{OTHER}.scope\n")
        assert ns.call(look, str(shown_root)) == ""
        (shown_root / place).write_text(f"0::/system.slice/libpod-{ID}.scope\n")
        assert ns.call(look, str(shown_root)) == str(shown_root / place)


@pytest.mark.parametrize(("address", "near"), [("10.65.0.7", "10.65.0.8"), ("fd00:65::7", "fd00:65::8")])
def test_what_the_kernel_has(shown_root: Path, address: str, near: str) -> None:
    length = 32 if ":" not in address else 128
    with host_namespace() as ns, namespace("pod") as pod:
        ns.do("link", "add", "cali1", "type", "veth", "peer", "name", "cali2")
        ns.do("link", "set", "cali1", "up")
        ns.do("route", "add", f"{near}/{length}", "dev", "cali1")
        assert ns.call(look, str(shown_root), address) == ""
        ns.do("route", "add", f"{address}/{length}", "dev", "cali1")
        assert ns.call(look, str(shown_root), address) == f"a route to {address}"
        ns.do("route", "del", f"{address}/{length}", "dev", "cali1")
        ns.do("neigh", "add", address, "lladdr", "02:00:00:00:00:07", "dev", "cali1")
        assert ns.call(look, str(shown_root), address) == f"a neighbour {address}"
        ns.do("neigh", "del", address, "dev", "cali1")
        assert ns.call(look, str(shown_root), address) == ""
        names = shown_root / "run/netns"
        names.mkdir(parents=True)
        (names / "cni-1").symlink_to(pod.path)
        assert ns.call(look, str(shown_root), address) == ""
        pod.do("addr", "add", f"{address}/{length}", "dev", "lo")
        assert ns.call(look, str(shown_root), address) == str(names / "cni-1")
        assert ns.call(look, str(shown_root), near) == f"a route to {near}", "the thread that looked has come home"
