"""The frozen executables as client and server: the server is there, has gone, hangs, dies, is of another version."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cni_calico.deadline import Deadline
from cni_calico.kernel.lock import attachment_lock
from cni_calico.plugin.call import protocol
from tests.deadlines import until
from tests.e2e.host import Node, Reply
from tests.e2e.served import socket_of
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.netns, pytest.mark.bundle]


@pytest.fixture
def frozen(plain_node: Node, bundle: Path) -> Node:
    plain_node.bin_dir = bundle
    return plain_node


@contextmanager
def server_of(node: Node) -> Iterator[subprocess.Popen[bytes]]:
    """``calico-node -cni-server`` of the bundle, in the host's namespace."""
    argv = ["nsenter", f"--net={node.host.path}", str(node.bin_dir / "calico-node"), "-cni-server"]
    environ = {"PATH": os.environ["PATH"], "CALICO_RUN_DIR": str(node.root / "run")}
    with open(node.root / "server.log", "ab") as log:
        process = subprocess.Popen(argv, env=environ, stderr=log, stdin=subprocess.DEVNULL)
    try:
        node.await_server(process)
        yield process
    finally:
        process.kill()
        process.wait()


def served(node: Node, verb: str) -> float:
    return node.metrics().get(f'calico_cni_requests_total{{verb="{verb}",result="ok"}}', 0)


def in_background(undo: ExitStack, node: Node, *arguments: Any) -> list[Reply]:
    """A call on a thread; its reply is there when ``undo`` is done."""
    replies: list[Reply] = []
    thread = threading.Thread(target=lambda: replies.append(node.call(*arguments)))
    thread.start()
    undo.callback(thread.join)
    return replies


def test_served(frozen: Node, pod_ns: Namespace):
    with server_of(frozen) as process:
        added = frozen.call("ADD", "c1", pod_ns.path)
        assert added.ok and pod_ns.addresses("eth0") == {added.document["ips"][0]["address"]}, added
        alone = frozen.call("ADD", "c2", pod_ns.path, plugin="calico-ipam")
        assert alone.ok and frozen.call("DEL", "c2", plugin="calico-ipam").ok
        assert frozen.call("DEL", "c1", pod_ns.path).ok
        assert (served(frozen, "ADD"), served(frozen, "DEL")) == (2, 2)
        process.terminate()
        assert process.wait(10) == 0
    assert not frozen.leftovers()


def test_a_leftover_socket(frozen: Node, pod_ns: Namespace):
    with server_of(frozen):
        pass  # killed
    assert Path(socket_of(frozen)).is_socket()
    assert frozen.call("ADD", "c1", pod_ns.path).ok and frozen.call("DEL", "c1", pod_ns.path).ok
    assert not frozen.leftovers()


def test_a_server_that_hangs(frozen: Node, pod_ns: Namespace):
    frozen.environ["CALICO_CNI_PATIENCE_S"] = "1"
    with server_of(frozen) as process:
        os.kill(process.pid, signal.SIGSTOP)
        assert frozen.call("ADD", "c1", pod_ns.path).ok and frozen.call("DEL", "c1", pod_ns.path).ok
    assert not frozen.leftovers()


@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_a_server_that_dies_in_the_middle(frozen: Node, pod_ns: Namespace, verb: str):
    """It has the request and waits for the lock; its caller goes on by itself."""
    assert verb == "ADD" or frozen.call("ADD", "c1", pod_ns.path).ok
    lock = attachment_lock(str(frozen.root / "run" / "cni-locks"), "calnet/c1/eth0", Deadline.after(20))
    with server_of(frozen) as process, ExitStack() as undo, lock:
        replies = in_background(undo, frozen, verb, "c1", pod_ns.path)
        until(lambda: frozen.metrics()["calico_cni_in_flight"] == 1, "the server has the call")
        process.kill()
        process.wait()
    assert replies[0].ok, replies
    assert len(frozen.taken()) == (verb == "ADD")
    assert frozen.call("DEL", "c1", pod_ns.path).ok and not frozen.leftovers()


@contextmanager
def pretender(node: Node, version: int, exit_code: int, document: Any) -> Iterator[None]:
    """A server of another version, that answers one request."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(socket_of(node))
        listener.listen(1)
        thread = threading.Thread(target=_pretend, args=(listener, version, exit_code, json.dumps(document).encode()))
        thread.start()
        yield
        thread.join()
    os.unlink(socket_of(node))


def _pretend(listener: socket.socket, version: int, exit_code: int, stdout: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        _, length = protocol.parse_header(connection.recv(protocol.HEADER_BYTES, socket.MSG_WAITALL))
        connection.recv(length, socket.MSG_WAITALL)
        connection.sendall(protocol.frame(protocol.answer_fields(exit_code, stdout), version))


REFUSAL = {"cniVersion": "1.1.0", "code": 134, "msg": "cannot serve: the plugin speaks protocol 1, the server another"}


@pytest.mark.parametrize(("apart", "serves_itself"), [(-1, True), (0, False), (1, False), (-2, False)])
def test_a_server_of_another_version(frozen: Node, pod_ns: Namespace, apart: int, serves_itself: bool):
    """One older refuses what it cannot know, and the plugin does it; who is further away says so."""
    version = (protocol.VERSION + apart) % 256
    with pretender(frozen, version, 1, REFUSAL):
        reply = frozen.call("ADD", "c1", pod_ns.path)
    assert reply.ok == serves_itself, reply
    assert reply.ok or reply.document == REFUSAL
    assert frozen.call("DEL", "c1", pod_ns.path).ok and not frozen.leftovers()


def test_a_caller_that_is_not_root(frozen: Node, tmp_path: Path):
    """The socket is not for it; what it may not do itself it says as CNI wants it said."""
    conf = frozen.conf(log_file_path=None, datastore_path="/var/lib/cct-none/datastore.db")
    environ = {**frozen.env("ADD", "c1", "/proc/self/ns/net", "eth0", ""), "CALICO_RUN_DIR": str(tmp_path / "run")}
    with server_of(frozen):
        argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", str(frozen.bin_dir / "calico")]
        done = subprocess.run(argv, input=json.dumps(conf), env=environ, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1 and json.loads(done.stdout)["code"], done
        metrics = frozen.metrics()
        assert not any(name.startswith("calico_cni_requests_total") for name in metrics), metrics
    assert not frozen.leftovers()
