"""A DEL that cannot lock what it is to remove: it removes nothing, says so, and repeating it finishes the work."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.host import Node, added, addresses
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
