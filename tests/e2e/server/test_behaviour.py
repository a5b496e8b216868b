"""The resident server with callers that are not what it expects, and callers with a server that is not."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

from cni_calico.deadline import Deadline
from cni_calico.kernel.lock import attachment_lock
from cni_calico.log import Log
from cni_calico.plugin.call import client, protocol
from cni_calico.server import run as server_module
from cni_calico.server.run import CniServer
from tests.deadlines import until
from tests.e2e.host import Node
from tests.e2e.served import call, connect, descriptors, receive, request_frame, socket_of

pytestmark = pytest.mark.netns
QUICK = {"environ": {"CALICO_CNI_PATIENCE_S": "1"}}


@pytest.fixture
def behaving_server(plain_node: Node):
    with plain_node.server() as process:
        yield plain_node, process


# -- the socket -------------------------------------------------------------------------------------------------------


def test_a_leftover_socket_of_a_dead_server_is_passed_by_and_replaced(plain_node: Node, pod_ns):
    with plain_node.server() as process:
        process.kill()
        process.wait()
    assert Path(socket_of(plain_node)).is_socket()
    assert call(plain_node, "ADD", "c1", pod_ns.path).ok
    with plain_node.server():
        assert call(plain_node, "DEL", "c1", pod_ns.path).ok
        assert plain_node.metrics()['calico_cni_requests_total{verb="DEL",result="ok"}'] == 1
    assert not plain_node.leftovers()


def test_each_call_that_succeeded_is_a_line_in_the_log(plain_node: Node, pod_ns):
    """Served or not: with the pod's addresses and the time; what failed is told as before."""

    def lines():
        text = (plain_node.root / "cni.log").read_text() if (plain_node.root / "cni.log").exists() else ""
        return [line.partition("] ")[2] for line in text.splitlines() if re.search(r" in [0-9.]+ ms$", line)]

    for expected, serving in ((2, False), (4, True)):
        with plain_node.server() if serving else nullcontext():
            added = call(plain_node, "ADD", "c1", pod_ns.path)
            assert added.ok and call(plain_node, "DEL", "c1", pod_ns.path).ok
            until(lambda expected=expected: len(lines()) == expected, "both lines are written")
        first, second = lines()[-2:]
        addresses = ", ".join(ip["address"] for ip in added.document["ips"])
        assert re.fullmatch(rf"ADD c1 eth0: (\S+/\S+ )?{re.escape(addresses)} in [0-9.]+ ms", first)
        assert re.fullmatch(r"DEL c1 eth0: (\S+/\S+ )?removed in [0-9.]+ ms", second)


def test_an_add_that_failed_is_one_line_in_the_servers_log(behaving_server, pod_ns):
    """With container name, code and message, whatever the network configuration logs."""
    node, _ = behaving_server
    config = {"log_level": "none", "ipam": {"type": "calico-ipam", "ipv4_pools": ["192.0.2.0/24"]}}
    failed = call(node, "ADD", "c1", pod_ns.path, args="K8S_POD_NAME=web", **config)
    assert not failed.ok
    expected = f"ADD c1 eth0: web failed with code {failed.document['code']}: {failed.document['msg']}"
    log = node.root / "server.log"
    until(lambda: expected in log.read_text(), "the line is written")
    assert call(node, "ADD", "c1", pod_ns.path).ok and call(node, "DEL", "c1", pod_ns.path).ok
    assert log.read_text().count("failed with code") == 1


def test_a_server_that_ends_does_not_take_its_successors_socket_away(plain_node: Node, pod_ns):
    with plain_node.server() as first:
        inode = os.stat(socket_of(plain_node)).st_ino
        with plain_node.server():
            until(lambda: os.stat(socket_of(plain_node)).st_ino != inode, "the second one listens")
            first.send_signal(signal.SIGTERM)
            first.wait(10)
            assert call(plain_node, "ADD", "c1", pod_ns.path).ok
            assert plain_node.metrics()['calico_cni_requests_total{verb="ADD",result="ok"}'] == 1


def test_only_root_may_connect():
    directory = tempfile.mkdtemp(prefix="cct-")  # below pytest's own nobody else may look
    os.chmod(directory, 0o755)
    server = CniServer(f"{directory}/cni.sock", Log("none"), workers=1)
    server.start()
    try:
        status = os.stat(server.path)
        assert (status.st_mode & 0o777, status.st_uid) == (0o600, 0)
        assert as_nobody(server.path) == "refused by the file"
        os.chmod(server.path, 0o666)
        assert as_nobody(server.path) == "no answer"
        answer = client.call_server(server.path, "metrics", {}, b"")
        assert answer is not None and b"calico_cni_refused_total 1" in answer[1]
    finally:
        server.stop()
        shutil.rmtree(directory)


def as_nobody(path: str) -> str:
    """What user 65534 gets for a request at the socket."""
    program = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
try:
    connection.connect(sys.argv[1])
except PermissionError:
    sys.exit("refused by the file")
try:
    connection.sendall(bytes.fromhex(sys.argv[2]))
    sys.exit("answered" if connection.recv(1) else "no answer")
except (ConnectionResetError, BrokenPipeError):
    sys.exit("no answer")
"""
    frame = protocol.frame(protocol.request_fields("metrics", [], b"", []))
    argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3", "-c", program]
    return subprocess.run([*argv, path, frame.hex()], capture_output=True, text=True).stderr.strip()


# -- callers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"ccn",
        b"GET / HTTP/1.1\r\n\r\n",
        b"ccn\x01\xff\xff\xff\xff",
        protocol.MAGIC + bytes((protocol.VERSION,)) + (9).to_bytes(4, "big") + b"\xff\xff\xff\xffabcde",
        protocol.frame([b"calico"]),
        protocol.frame([b"calico", b"", b"{}", b"netns,root"]),
    ],
)
def test_nonsense_costs_its_sender_the_connection_and_nobody_else_anything(behaving_server, pod_ns, garbage):
    node, process = behaving_server
    with connect(node) as connection:
        connection.sendall(garbage)
        connection.shutdown(socket.SHUT_WR)
        assert receive(connection) is None
    assert call(node, "ADD", "c1", pod_ns.path).ok and call(node, "DEL", "c1", pod_ns.path).ok
    assert process.poll() is None


def test_a_body_over_the_limit_is_refused_and_its_caller_serves_itself(behaving_server, pod_ns, monkeypatch):
    node, _ = behaving_server
    big = {"environ": {"CNI_ARGS": "X=" + "y" * protocol.BODY_MAX}, "by_python": True}
    assert call(node, "ADD", "c1", pod_ns.path, **big).ok
    before = node.metrics()["calico_cni_refused_total"]
    with connect(node) as connection:
        connection.sendall(protocol.MAGIC + bytes((protocol.VERSION,)) + (protocol.BODY_MAX + 1).to_bytes(4, "big"))
        answer = receive(connection)
    assert answer is None or answer[0] != 0
    assert node.metrics()["calico_cni_refused_total"] == before + 1
    assert call(node, "DEL", "c1", pod_ns.path).ok and not node.leftovers()


def test_slow_senders_cost_one_bounded_wait(tmp_path, monkeypatch):
    """As many as there are workers, each sending a byte now and then: a call gets its turn all the same."""
    monkeypatch.setattr(server_module, "read_request", lambda c, read=server_module.read_request: read(c, 0.3))
    server = CniServer(str(tmp_path / "cni.sock"), Log("none"), workers=2)
    server.start()
    stop = threading.Event()

    def drip(connection: socket.socket) -> None:
        try:
            for byte in protocol.frame([b"x" * 1000]):
                connection.send(bytes((byte,)))
                if stop.wait(0.05):
                    return
        except OSError:
            return

    slow = [socket.socket(socket.AF_UNIX) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for connection in slow:
            connection.connect(server.path)
            pool.submit(drip, connection)
        answer = client.call_server(server.path, "metrics", {}, b"")
        stop.set()
    assert answer is not None and b"calico_cni_refused_total" in answer[1]
    for connection in slow:
        connection.close()
    server.stop()


@pytest.mark.parametrize("version", [protocol.VERSION - 1, protocol.VERSION])
def test_this_version_and_the_one_before_are_served(behaving_server, pod_ns, version):
    node, _ = behaving_server
    with connect(node) as connection:
        connection.sendall(request_frame(node, "ADD", "c1", pod_ns.path, version=version))
        answered, exit_code, document = receive(connection)
    assert (answered, exit_code) == (version, 0) and document["ips"]
    assert call(node, "DEL", "c1", pod_ns.path).ok


@pytest.mark.parametrize("version", [protocol.VERSION + 1, protocol.VERSION + 2, 255])
def test_other_versions_are_refused_with_the_servers_own(behaving_server, pod_ns, version):
    node, _ = behaving_server
    with connect(node) as connection:
        connection.sendall(request_frame(node, "ADD", "c1", pod_ns.path, version=version))
        answered, exit_code, document = receive(connection)
    assert (answered, exit_code, document["code"]) == (protocol.VERSION, 1, 134)
    assert not node.leftovers()


@pytest.mark.parametrize(("newer", "served_by"), [(1, "itself"), (2, "nobody")])
def test_an_executable_newer_than_the_server(behaving_server, pod_ns, monkeypatch, newer, served_by):
    """One version apart it serves itself, which is what it can know to be right; two apart it says so."""
    node, _ = behaving_server
    monkeypatch.setattr(protocol, "VERSION", protocol.VERSION + newer)
    monkeypatch.setattr(protocol.frame, "__defaults__", (protocol.VERSION,))
    reply = call(node, "ADD", "c1", pod_ns.path, by_python=True)
    assert reply.ok == (served_by == "itself"), reply
    assert reply.ok or reply.document["code"] == 134
    assert call(node, "DEL", "c1", pod_ns.path, by_python=True).ok == reply.ok


def test_an_exception_in_a_worker_is_an_answer_and_the_worker_lives(tmp_path, monkeypatch):
    def broken(call, services):
        raise {"ADD": KeyError, "DEL": SystemExit}[call.command]("secret of the trace")

    monkeypatch.setitem(server_module.SERVES, "calico", broken)
    server = CniServer(str(tmp_path / "cni.sock"), Log("none"), workers=1)
    server.start()
    environ = {"CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0", "CNI_NETNS": "/var/run/netns/none", "CNI_PATH": "/x"}
    for command in ("ADD", "DEL", "ADD", "DEL"):
        answer = client.call_server(server.path, "calico", {**environ, "CNI_COMMAND": command}, b"{}")
        assert answer is not None and answer[0] == 1 and b'"code":199' in answer[1].replace(b" ", b""), answer
        assert b"Traceback" not in answer[1] and b"secret" not in answer[1]
    server.stop()


# -- callers that go --------------------------------------------------------------------------------------------------


def test_a_call_whose_caller_has_gone_is_not_carried_out(behaving_server, pod_ns):
    """Its runtime has gone on: an ADD after the DEL would be a pod's network without a pod."""
    node, _ = behaving_server
    lock = attachment_lock(str(node.root / "run" / "cni-locks"), "calnet/c1/eth0", Deadline.after(20))
    with lock, connect(node) as connection:
        connection.sendall(request_frame(node, "ADD", "c1", pod_ns.path))
        until(lambda: is_serving(node), "the server waits for the lock")
    count = 'calico_cni_requests_total{verb="ADD",result="error"}'
    until(lambda: node.metrics().get(count) == 1, "it is given up")
    assert not node.leftovers() and pod_ns.link("eth0") is None


def is_serving(node: Node) -> bool:
    return node.metrics()["calico_cni_in_flight"] == 1


# -- servers that go --------------------------------------------------------------------------------------------------


def test_sigterm_answers_what_is_under_way(behaving_server, pod_ns):
    node, process = behaving_server
    with attachment_lock(str(node.root / "run" / "cni-locks"), "calnet/c1/eth0", Deadline.after(5)):
        connection = connect(node)
        connection.sendall(request_frame(node, "ADD", "c1", pod_ns.path))
        until(lambda: is_serving(node), "the server waits for the lock")
        process.terminate()
        until(lambda: not accepts(node), "it does not accept any more")
    with connection:
        answer = receive(connection)
    assert answer is not None and answer[1] == 0
    assert process.wait(10) == 0
    assert call(node, "DEL", "c1", pod_ns.path).ok and not node.leftovers()


def accepts(node: Node) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(socket_of(node)) == 0


def test_a_server_that_hangs_before_it_does_anything(behaving_server, pod_ns):
    """The caller loses patience and serves itself; what the server finds later is nobody's call any more."""
    node, process = behaving_server
    os.kill(process.pid, signal.SIGSTOP)
    try:
        added = call(node, "ADD", "c1", pod_ns.path, **QUICK)
        assert added.ok and call(node, "DEL", "c1", pod_ns.path, **QUICK).ok
        assert not node.leftovers()
    finally:
        os.kill(process.pid, signal.SIGCONT)
    assert call(node, "ADD", "c2", pod_ns.path).ok and call(node, "DEL", "c2", pod_ns.path).ok
    assert not node.leftovers() and pod_ns.link("eth0") is None


@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_a_server_that_hangs_in_the_middle_holding_the_lock(behaving_server, pod_ns, verb):
    """Nobody goes on without the lock: the answer is "try again", a DEL leaves word that it is owed."""
    node, process = behaving_server
    assert verb == "ADD" or call(node, "ADD", "c1", pod_ns.path).ok
    lock = attachment_lock(str(node.root / "run" / "cni-locks"), "calnet/c1/eth0", Deadline.after(5))
    lock.__enter__()
    try:
        os.kill(process.pid, signal.SIGSTOP)
        reply = call(node, verb, "c1", pod_ns.path, **QUICK)
    finally:
        lock.__exit__(None, None, None)
        os.kill(process.pid, signal.SIGCONT)
    assert not reply.ok and reply.document["code"] == 11, reply
    assert len(node.intents()) == (verb == "DEL")
    assert call(node, "DEL", "c1", pod_ns.path).ok
    assert not node.leftovers() and pod_ns.link("eth0") is None


# -- what is left of many calls ---------------------------------------------------------------------------------------


def test_no_descriptor_is_left_of_a_thousand_calls(behaving_server):
    node, process = behaving_server
    environ = {"CNI_CONTAINERID": "c", "CNI_IFNAME": "eth0", "CNI_PATH": "/x", "CALICO_RUN_DIR": str(node.root / "run")}
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).resolve().parents[3])!r})
from cni_calico.plugin.call.client import call_server
environ, path = {environ!r}, {socket_of(node)!r}
for i in range(250):
    for netns in ("", "/proc/self/ns/net", "/etc/hostname"):
        assert call_server(path, "calico", {{**environ, "CNI_COMMAND": "ADD", "CNI_NETNS": netns}}, b"not json")
    assert call_server(path, "nobody", environ, b"")
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    before = descriptors(process.pid)
    subprocess.run([sys.executable, "-c", program], check=True)
    until(lambda: descriptors(process.pid) <= before, "everything is closed")
