"""A DEL that cannot lock what it is to remove: it removes nothing, says so, and repeating it finishes the work."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.host import EtcdNode, Node, added, addresses
from tests.netns.namespaces import Namespace

INCOMPLETE = 133


@contextmanager
def nothing_to_write(directory: Path, options: str) -> Iterator[None]:
    directory.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(directory)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


@pytest.mark.netns
@pytest.mark.parametrize("plugin", ["calico", "calico-ipam"])
@pytest.mark.parametrize("options", ["ro", "nr_inodes=1"], ids=["read-only", "full"])
def test_a_del_without_a_lock_says_that_nothing_is_removed(
    any_node: Node, pod_ns: Namespace, plugin: str, options: str
) -> None:
    [address, *_] = addresses(added(any_node, "c1", pod_ns, plugin=plugin))
    run = any_node.root / "run"
    with nothing_to_write(run / "cni-locks", options):
        reply = any_node.call("DEL", "c1", pod_ns.path, plugin=plugin)
    assert reply.rc == 1 and reply.document["code"] == INCOMPLETE, reply
    assert "cannot begin to delete" in reply.document["msg"] and f"make {run} writable" in reply.document["details"]
    assert address.partition("/")[0] in any_node.taken()
    assert any_node.call("DEL", "c1", pod_ns.path, plugin=plugin).ok
    assert not any_node.leftovers()


@pytest.mark.etcd
@pytest.mark.netns
@pytest.mark.parametrize("options", ["size=8k", "nr_inodes=1", "ro"])
def test_a_del_that_cannot_record_what_it_owes_says_so_and_leaves_no_part(
    on_etcd: EtcdNode, pod_ns: Namespace, options: str
) -> None:
    """The datastore is away, and there is no room for the record of what is still to be released."""
    node = on_etcd
    [address, *_] = addresses(added(node, "c1", pod_ns))
    pending = node.root / "state" / "cni" / "pending-del"
    pending.parent.mkdir(parents=True, exist_ok=True)
    node.stop_etcd()
    with nothing_to_write(pending, options):
        if "size" in options:
            with (pending / "filler").open("wb", buffering=0) as filler, pytest.raises(OSError, match="No space"):
                while True:
                    filler.write(b"x" * 4096)
        reply = node.call("DEL", "c1", pod_ns.path)
        assert reply.rc == 1 and reply.document["code"] == INCOMPLETE, reply
        assert set(os.listdir(pending)) <= {"filler"}
    node.start_etcd()
    assert address.partition("/")[0] in node.taken()
    assert node.call("DEL", "c1", pod_ns.path).ok
    assert not node.leftovers()
