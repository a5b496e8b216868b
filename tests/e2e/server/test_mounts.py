"""The resident server where the file system looks different: what a request names is what its caller sees."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cni_calico.kernel.files import Files
from cni_calico.kernel.openat2 import below
from tests.conftest import LAB_CACHE
from tests.deadlines import until
from tests.e2e.host import Node
from tests.e2e.served import call

pytestmark = pytest.mark.netns


@contextmanager
def elsewhere(*covered: Path) -> Iterator[int]:
    """A descriptor of the root of a process that sees empty directories at ``covered``."""
    script = "".join(f"mount -t tmpfs none {path} && " for path in covered) + "echo ready && exec cat"
    child = subprocess.Popen(["unshare", "-m", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None and child.stdout is not None
    try:
        assert child.stdout.readline() == b"ready\n"
        root = os.open(f"/proc/{child.pid}/root", os.O_PATH)
        try:
            yield root
        finally:
            os.close(root)
    finally:
        child.stdin.close()
        child.wait(10)
        child.stdout.close()


def hidden(node: Node, *covered: Path) -> list[str]:
    """Words before the server's command line that give it mounts of its own."""
    script = "".join(f"mount -t tmpfs none {path} && " for path in covered) + 'exec "$@"'
    return ["unshare", "-m", "sh", "-c", script, "sh"]


def test_files_lie_in_the_callers_root(tmp_path: Path):
    (tmp_path / "ours").write_text("ours")
    with elsewhere(tmp_path) as root:
        files = Files(root)
        assert files.names(str(tmp_path)) == []
        files.make_directory(f"{tmp_path}/deep/er")
        files.write_atomic(f"{tmp_path}/deep/er/file", b"theirs")
        assert files.read_text(f"{tmp_path}/deep/er/file") == "theirs"
        assert not files.exists(f"{tmp_path}/ours")
        files.remove(f"{tmp_path}/deep/er/file")
        assert files.names(f"{tmp_path}/deep/er") == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours"]


def test_links_are_followed_in_the_callers_root_even_into_nothing(tmp_path: Path):
    with elsewhere(tmp_path) as root:
        files = Files(root)
        inside = Path(f"/proc/self/fd/{root}{tmp_path}")
        os.symlink(f"{tmp_path}/later/file", inside / "absolute")
        os.symlink("later/file", inside / "relative")
        os.symlink("loop", inside / "loop")
        files.make_directory(f"{tmp_path}/later")
        for name in ("absolute", "relative"):
            with open(files.path(f"{tmp_path}/{name}"), "w") as f:
                f.write(name)
            assert files.read_text(f"{tmp_path}/later/file") == name
            os.unlink(inside / "later" / "file")
        with pytest.raises(OSError, match="symbolic links"):
            below(root, f"{tmp_path}/loop")
        with pytest.raises(FileNotFoundError):
            below(root, f"{tmp_path}/none/../../etc")
    assert list(tmp_path.iterdir()) == []


def test_a_datastore_that_the_server_cannot_see_is_left_to_the_caller(plain_node: Node, pod_ns, tmp_path: Path):
    """SQLite would resolve the path in the server's own root: another file, and every address given twice."""
    store = tmp_path / "store"
    store.mkdir()
    (tmp_path / "datastore.db").rename(store / "datastore.db")
    for suffix in ("-wal", "-shm"):
        (tmp_path / f"datastore.db{suffix}").unlink(missing_ok=True)
    plain_node.overrides["datastore_path"] = str(store / "datastore.db")
    plain_node.datastore = type(plain_node.datastore)("local", path=str(store / "datastore.db"))
    with plain_node.server(wrap=hidden(plain_node, store)):
        assert call(plain_node, "ADD", "c1", pod_ns.path).ok
        assert len(plain_node.taken()) == 1
        until(lambda: plain_node.metrics()["calico_cni_declined_total"] == 1, "it was left to the caller")
        assert call(plain_node, "DEL", "c1", pod_ns.path).ok
    assert not plain_node.leftovers()


def test_with_mounts_of_its_own_and_the_same_datastore(plain_node: Node, pod_ns, tmp_path: Path):
    """The log, the state and the lock are the caller's; the call is served all the same."""
    logs, state = tmp_path / "logs", tmp_path / "state"
    logs.mkdir()
    state.mkdir()
    plain_node.overrides["log_file_path"] = str(logs / "cni.log")
    plain_node.overrides["nodename"] = None
    plain_node.overrides["nodename_file"] = str(state / "nodename")
    (state / "nodename").write_text("node1\n")
    (state / "mtu").write_text("1400\n")
    plain_node.overrides["mtu"] = None
    plain_node.overrides["log_level"] = "debug"
    with plain_node.server(wrap=hidden(plain_node, logs, state)):
        added = call(plain_node, "ADD", "c1", pod_ns.path)
        assert added.ok and pod_ns.link("eth0")["mtu"] == 1400, added
        failed = call(plain_node, "ADD", "c2", "/var/run/netns/never-was")
        assert not failed.ok and "never-was" in (logs / "cni.log").read_text()
        metrics = plain_node.metrics()
        assert metrics["calico_cni_declined_total"] == 0
        assert metrics['calico_cni_requests_total{verb="ADD",result="ok"}'] == 1
        assert call(plain_node, "DEL", "c1", pod_ns.path).ok
    assert not plain_node.leftovers()


def test_a_delegate_runs_where_its_caller_is(plain_node: Node, pod_ns, tmp_path: Path):
    leases, plugins = tmp_path / "leases", tmp_path / "plugins"
    plugins.mkdir()
    leases.mkdir()
    plugin = plugins / "lease"
    plugin.write_text(
        "#!/bin/sh\ncat >/dev/null\n"
        f"case $CNI_COMMAND in ADD) echo 1 >{leases}/$CNI_CONTAINERID\n"
        """echo '{"cniVersion":"1.0.0","ips":[{"address":"10.9.0.5/24"}]}' ;;\n"""
        f"DEL) rm -f {leases}/$CNI_CONTAINERID ;; esac\n"
    )
    plugin.chmod(0o755)
    ipam = {"ipam": {"type": "lease"}, "environ": {"CNI_PATH": str(plugins)}}
    with plain_node.server(wrap=hidden(plain_node, leases, plugins)):
        added = call(plain_node, "ADD", "c1", pod_ns.path, **ipam)
        assert added.ok and added.document["ips"][0]["address"] == "10.9.0.5/32", added
        assert [path.name for path in leases.iterdir()] == ["c1"]
        assert call(plain_node, "DEL", "c1", pod_ns.path, **ipam).ok
        assert list(leases.iterdir()) == []
        assert plain_node.metrics()["calico_cni_declined_total"] == 2, "the callers ran it themselves"
    assert not plain_node.leftovers()


@pytest.mark.cnitool
def test_host_locals_leases_are_the_callers(plain_node: Node, pod_ns, tmp_path: Path):
    """Else two pods would get one address: one by this server, one by a call without it."""
    leases = tmp_path / "leases"
    leases.mkdir()
    host_local = {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]], "dataDir": str(leases)}
    conf = {"ipam": host_local, "environ": {"CNI_PATH": str(LAB_CACHE / "cni" / "bin")}}

    def taken() -> list[str]:
        return [path.name for path in (leases / "calnet").iterdir() if path.name[0].isdigit()]

    with plain_node.server(wrap=hidden(plain_node, leases)):
        added = call(plain_node, "ADD", "c1", pod_ns.path, **conf)
        assert added.ok and taken() == [added.document["ips"][0]["address"].split("/")[0]], added
        assert call(plain_node, "DEL", "c1", pod_ns.path, **conf).ok
        assert not taken()
    assert not plain_node.leftovers()
