"""What a process can still do that has become read-only."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from cni_calico.faults import POINTS
from cni_calico.kernel.read_only import READING, parse_mount
from tests.conftest import ROOT

PROGRAM = """
import os, sys
from pathlib import Path
from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel import files, process, read_only, sysctl
read_only.become_read_only([sys.argv[2]])
for write in (
    lambda: Path(sys.argv[1], "made").write_text("x"),
    lambda: Path(sys.argv[1], "there").unlink(),
    lambda: os.mkdir(sys.argv[1] + "/d"),
    lambda: files.Files().write_atomic(sys.argv[2] + "/by-a-door", b"x"),
    lambda: sysctl.write(("ipv4", "ip_forward"), "1"),
    lambda: open("/proc/sys/net/ipv4/ip_forward", "w"),
):
    try:
        write()
        print("written")
    except (OSError, KernelError) as e:
        print(type(e).__name__, e.errno)
Path(sys.argv[2], "kept").write_text("x")
script = f"echo x > {sys.argv[1]}/made || echo refused"
done = process.run(["/bin/sh", "-c", script], env={}, deadline=Deadline.after(20))
print(done.stdout.decode().strip())
"""


@pytest.mark.netns
def test_nothing_can_be_written(tmp_path: Path) -> None:
    sealed, open_ = tmp_path / "sealed", tmp_path / "open"
    sealed.mkdir()
    open_.mkdir()
    (sealed / "there").write_text("x")
    before = os.readlink("/proc/self/ns/mnt")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(sealed), str(open_)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split("\n") == [
        *("OSError 30", "OSError 30", "OSError 30", "RefusedWrite 5", "KernelError 5", "OSError 30"),
        *("refused", ""),
    ], done.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["kept", "open", "sealed", "there"]
    (sealed / "made").write_text("x")  # this process is as it was
    assert os.readlink("/proc/self/ns/mnt") == before


def test_a_mount_s_place_and_flags() -> None:
    line = "36 35 98:0 /m /mnt\\040x/\\303\\244 rw,nosuid,noexec,relatime master:1 - ext3 /dev/root rw"
    assert parse_mount(line) == ("/mnt x/ä", 0x2 | 0x8 | 0x200000)


def test_what_may_be_passed_is_there() -> None:
    stores = ("datastore.etcd.store", "datastore.kubernetes.attempt", "datastore.local.store")
    for name in (*stores, "kernel.lock", "kernel.process", "nodeagent.bgp.bird.control"):
        import_module(f"cni_calico.{name}")
    assert READING <= POINTS
