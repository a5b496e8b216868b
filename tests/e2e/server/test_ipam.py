"""``calico-ipam`` on its own, as the delegate of somebody else's plugin: one execution for a container at a time."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cni_calico.deadline import Deadline
from cni_calico.kernel.lock import attachment_lock
from tests.deadlines import until
from tests.e2e.host import Node, Reply
from tests.e2e.served import call

pytestmark = pytest.mark.netns
AT_ONCE = 8
LABEL = "calico-ipam calnet.c1"


@pytest.fixture(params=["one-shot", "served", "etcd served"])
def ipam_node(request: pytest.FixtureRequest) -> Iterator[Node]:
    made: Node = request.getfixturevalue("etcd_node" if request.param.startswith("etcd") else "plain_node")
    if request.param == "one-shot":
        yield made
        return
    with made.server():
        yield made


def ipam(node: Node, command: str, container: str = "c1", **more: object) -> Reply:
    return call(node, command, container, node.host.path, plugin="calico-ipam", **more)


def at_once(node: Node, commands: list[str]) -> list[Reply]:
    with ThreadPoolExecutor(len(commands)) as pool:
        return list(pool.map(lambda command: ipam(node, command), commands))


def lock_of(node: Node):
    return attachment_lock(str(node.root / "run" / "cni-locks"), LABEL, Deadline.after(20))


def test_duplicates_at_once_hold_one_address(ipam_node: Node):
    replies = at_once(ipam_node, ["ADD"] * AT_ONCE)
    assert all(reply.ok for reply in replies), replies
    assert len({str(reply.document["ips"]) for reply in replies}) == 1
    assert list(ipam_node.taken().values()) == ["calnet.c1"]
    assert all(reply.ok for reply in at_once(ipam_node, ["DEL"] * AT_ONCE))
    assert not ipam_node.leftovers()


def test_adds_and_dels_at_once_end_with_what_the_last_one_said(ipam_node: Node):
    for _ in range(2):
        assert all(reply.ok for reply in at_once(ipam_node, ["ADD", "DEL"] * 4))
        assert len(ipam_node.taken()) <= 1 and len(ipam_node.handles()) == len(ipam_node.taken())
        assert ipam(ipam_node, "ADD").ok and len(ipam_node.taken()) == 1 and ipam(ipam_node, "CHECK").ok
        assert ipam(ipam_node, "DEL").ok and not ipam_node.leftovers()


def test_no_endpoint_has_to_have_a_name(plain_node: Node):
    """What no endpoint could be called is no concern of a plugin that writes none."""
    named = {"args": "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod-"}
    assert not call(plain_node, "ADD", "c1", plain_node.host.path, **named).ok
    assert all(ipam(plain_node, verb, **named).ok for verb in ("ADD", "CHECK", "DEL"))
    assert not plain_node.leftovers()


@pytest.mark.parametrize("verb", ["ADD", "DEL", "CHECK"])
def test_nothing_happens_while_another_execution_holds_the_container(ipam_node: Node, verb: str):
    assert verb == "ADD" or ipam(ipam_node, "ADD").ok
    before = ipam_node.taken()
    replies: list[Reply] = []
    thread = threading.Thread(target=lambda: replies.append(ipam(ipam_node, verb)))
    with lock_of(ipam_node):
        other = ipam(ipam_node, "ADD", "c2")
        assert other.ok and ipam(ipam_node, "DEL", "c2").ok, "other containers do not wait"
        thread.start()
        thread.join(0.5)  # a call takes a tenth of that
        assert thread.is_alive() and ipam_node.taken() == before
    thread.join()
    assert replies[0].ok, replies
    assert ipam(ipam_node, "DEL").ok and not ipam_node.leftovers()


def test_a_lock_that_is_never_let_go_is_told(plain_node: Node, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cni_calico.plugin.call.serve.CALL_TIMEOUT_S", 0.3)
    monkeypatch.setattr("cni_calico.plugin.call.serve.run_call.__kwdefaults__", {"timeout_s": 0.3})
    with lock_of(plain_node):
        reply = ipam(plain_node, "ADD", by_python=True)
    assert not reply.ok and reply.document["code"] == 11, reply
    assert not plain_node.leftovers()


WRAPPER = """#!/bin/sh
sed 's/"type": *"wrapper"/"type": "calico-ipam"/' | {environ} PYTHONPATH={root} {python} -m cni_calico.plugin.ipam.main
"""


def test_a_plugin_that_holds_its_own_lock_may_run_it(ipam_node: Node, pod_ns, tmp_path: Path):
    """calico with an IPAM plugin of somebody's that runs calico-ipam: nobody waits for himself."""
    plugin = tmp_path / "wrapper"
    root = Path(__file__).parents[3]
    environ = f"env CALICO_RUN_DIR={ipam_node.root}/run CALICO_STATE_DIR={ipam_node.root}/state"
    plugin.write_text(WRAPPER.format(environ=environ, root=root, python=sys.executable))
    plugin.chmod(0o755)
    more = {"ipam": {"type": "wrapper"}, "environ": {"CNI_PATH": str(tmp_path)}}
    added = call(ipam_node, "ADD", "c1", pod_ns.path, **more)
    assert added.ok and list(ipam_node.taken().values()) == ["calnet.c1"], added
    assert call(ipam_node, "DEL", "c1", pod_ns.path, **more).ok
    until(lambda: not os.listdir(ipam_node.root / "run" / "cni-locks"), "every lock is gone")
    assert not ipam_node.leftovers()
