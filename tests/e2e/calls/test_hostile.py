"""What a configuration may name by mistake or malice, callers that close what they should not, and hosts with no room.

Through the executables' own start, without a server and with one; what is left is read with the system's own tools.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import until
from tests.e2e.host import Node
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace
from tests.netns.policing.lab import socket_in

CANARY = "c4n4ry-D0-n0t-pr1nt"
SERVERS: dict[Path, subprocess.Popen[bytes]] = {}
VERBS = ("ADD", "CHECK", "DEL", "STATUS")


@pytest.fixture(params=["one-shot", "served"])
def hostile_node(request: pytest.FixtureRequest, plain_node: Node) -> Any:
    """A node without a server or with one, which is a process of its own."""
    with ExitStack() as held:
        plain_node.environ.clear()
        if request.param == "served":
            SERVERS[plain_node.root] = held.enter_context(plain_node.server())
            held.callback(SERVERS.pop, plain_node.root)
        yield plain_node


def execute(
    node: Node, command: str, netns: str = "", *, wrap: tuple[str, ...] = (), container: str = "c1", **changes: Any
) -> subprocess.CompletedProcess[bytes]:
    """One call through the executable's module; what it wrote to both outputs is kept apart."""
    environ = {k: v for k, v in node.env(command, container, netns, "eth0", "").items() if v}
    return subprocess.run(
        ["nsenter", f"--net={node.host.path}", *wrap, sys.executable, "-m", "cni_calico.plugin.main"],
        input=json.dumps(node.conf(**changes)).encode(),
        env={**environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        timeout=120,
    )


def answer(done: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    document: dict[str, Any] = json.loads(done.stdout) if done.stdout.strip() else {}
    return document


def a_program_that_hangs(tmp_path: Path) -> tuple[str, Path]:
    """(a kubeconfig whose credentials it gives, the file with the numbers of its process and of a child's)."""
    pid = tmp_path / "program.pid"
    call = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "/bin/sh",
        "args": ["-c", f"sleep 3600 & echo $$ $! > {pid}.new; mv {pid}.new {pid}; wait"],
    }
    document = {
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"exec": call}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(document))
    return str(path), pid


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.parametrize("verb", [pytest.param("ADD", marks=pytest.mark.slow), "DEL", "STATUS"])  # ADD: a minute
def test_a_program_for_credentials_that_hangs_holds_up_neither_the_call_nor_others(
    hostile_node: Node, pod_ns: Namespace, make_pod_ns: MakeNamespace, tmp_path: Path, verb: str
) -> None:
    server = SERVERS.get(hostile_node.root)
    kubeconfig, pid = a_program_that_hangs(tmp_path)
    kubernetes = {"datastore_type": "kubernetes", "kubernetes": {"kubeconfig": kubeconfig}}
    netns = make_pod_ns().path if verb == "ADD" else ""
    environ = {k: v for k, v in hostile_node.env(verb, "c9", netns, "eth0", "").items() if v}
    hanging = subprocess.Popen(
        ["nsenter", f"--net={hostile_node.host.path}", sys.executable, "-m", "cni_calico.plugin.main"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**environ, "PYTHONPATH": os.getcwd()},
    )
    assert hanging.stdin is not None
    hanging.stdin.write(json.dumps(hostile_node.conf(name="other", **kubernetes)).encode())
    hanging.stdin.close()
    until(pid.exists, "the program runs", 60)
    added = answer(execute(hostile_node, "ADD", pod_ns.path))
    assert added["ips"] and hanging.poll() is None, "the call that hangs was not waited for"
    # after an ADD of another network STATUS knows that this node was set up once
    assert hanging.wait(90) == (verb == "ADD")
    assert execute(hostile_node, "DEL", pod_ns.path).returncode == 0
    if server is not None:  # its watches try again and again; what they run ends with it
        server.terminate()
        assert server.wait(60) == 0
    until(lambda: all(map(has_ended, map(int, pid.read_text().split()))), "the program and its child end")


@pytest.mark.parametrize(
    "what", ["nodename_file", "kubeconfig", "token", "authority", "certificate", "etcd_ca_cert_file", "etcd_key_file"]
)
def test_a_fifo_in_the_place_of_a_file_is_an_error_at_once(
    hostile_node: Node, pod_ns: Namespace, tmp_path: Path, what: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    etcd = {"datastore_type": "etcdv3", "etcd_endpoints": "https://127.0.0.1:1"}
    changes: dict[str, Any] = {
        "nodename_file": {"nodename_file": str(tmp_path / "fifo"), "nodename": None},
        "kubeconfig": {"datastore_type": "kubernetes", "kubernetes": {"kubeconfig": str(tmp_path / "fifo")}},
        "token": named_in_kubeconfig(tmp_path, {}, {"tokenFile": "fifo"}),
        "authority": named_in_kubeconfig(tmp_path, {"certificate-authority": "fifo"}, {}),
        "certificate": named_in_kubeconfig(tmp_path, {}, {"client-certificate": "fifo", "client-key": "fifo"}),
        "etcd_ca_cert_file": {**etcd, "etcd_ca_cert_file": str(tmp_path / "fifo")},
        "etcd_key_file": {**etcd, **dict.fromkeys(("etcd_key_file", "etcd_cert_file"), str(tmp_path / "fifo"))},
    }[what]
    for verb in ("ADD", "DEL", "STATUS"):
        document = answer(execute(hostile_node, verb, pod_ns.path if verb == "ADD" else "", **changes))
        assert verb == "DEL" or "not a regular file" in document["msg"], document
    assert pod_ns.link("eth0") is None


def named_in_kubeconfig(directory: Path, cluster: dict[str, str], user: dict[str, str]) -> dict[str, Any]:
    document = {
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1", **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    }
    path = directory / f"kubeconfig-{'-'.join((*cluster, *user))}"
    path.write_text(json.dumps(document))
    return {"datastore_type": "kubernetes", "kubernetes": {"kubeconfig": str(path)}}


@pytest.mark.parametrize("text", ["[" * 50_000, "a: " + "{b: " * 50_000, "- " * 50_000], ids=["[", "{", "-"])
def test_a_deeply_nested_kubeconfig_ends_neither_the_call_nor_the_server(
    hostile_node: Node, pod_ns: Namespace, tmp_path: Path, text: str
) -> None:
    (tmp_path / "deep").write_text(text)
    changes = {"datastore_type": "kubernetes", "kubernetes": {"kubeconfig": str(tmp_path / "deep")}}
    for verb in ("ADD", "DEL", "STATUS"):
        done = execute(hostile_node, verb, pod_ns.path if verb == "ADD" else "", **changes)
        assert done.returncode == (verb != "DEL"), done
        assert verb != "ADD" or "deep" in answer(done)["msg"], (
            done
        )  # STATUS has seconds only, on a busy machine too few
    assert pod_ns.link("eth0") is None
    server = SERVERS.get(hostile_node.root)
    assert server is None or server.poll() is None
    assert answer(execute(hostile_node, "ADD", pod_ns.path))["ips"]
    assert execute(hostile_node, "DEL", pod_ns.path).returncode == 0


def make_named(path: Path, what: str) -> Path:
    """What a configuration could name by mistake, with permissions that nobody else would choose."""
    if what == "directory":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    elif what == "device":
        os.mknod(path, stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero: reading it never ends
    else:
        path.write_text("somebody's notes\n")
    path.chmod(0o754)
    return path


def seen(path: Path) -> tuple[int, int, int]:
    found = os.lstat(path)
    return found.st_mode, found.st_size, found.st_mtime_ns


@pytest.mark.parametrize("what", ["directory", "fifo", "text", "device"])
@pytest.mark.parametrize("verb", VERBS)
def test_what_datastore_path_names_by_mistake_stays_as_it_is(
    hostile_node: Node, pod_ns: Namespace, tmp_path: Path, what: str, verb: str
) -> None:
    named = make_named(tmp_path / "named", what)
    before = seen(named)
    prev = {"prevResult": {"cniVersion": "1.1.0", "interfaces": [], "ips": []}} if verb == "CHECK" else {}
    done = execute(hostile_node, verb, "" if verb == "STATUS" else pod_ns.path, datastore_path=str(named), **prev)
    document = answer(done)
    assert verb == "DEL" or str(named) in document["msg"]
    assert seen(named) == before and stat.S_IMODE(before[0]) == 0o754
    assert not list(tmp_path.glob("named?*"))


@pytest.mark.parametrize("verb", VERBS)
def test_a_datastore_path_that_is_the_root_leaves_it_alone(hostile_node: Node, pod_ns: Namespace, verb: str) -> None:
    before = os.stat("/").st_mode
    prev = {"prevResult": {"cniVersion": "1.1.0", "interfaces": [], "ips": []}} if verb == "CHECK" else {}
    document = answer(execute(hostile_node, verb, "" if verb == "STATUS" else pod_ns.path, datastore_path="/", **prev))
    assert verb == "DEL" or "/" in document["msg"]
    assert os.stat("/").st_mode == before


@contextmanager
def disk(directory: Path) -> Iterator[tuple[Path, Path]]:
    """A small disk: (the block device, the file that has its content)."""
    image = directory / "image"
    image.write_bytes(b"somebody's data\n" * 65536)
    made = subprocess.run(
        ["losetup", "--find", "--show", str(image)], check=True, capture_output=True, text=True
    ).stdout.strip()
    try:
        yield Path(made), image
    finally:
        subprocess.run(["losetup", "--detach", made], check=True)


@pytest.mark.parametrize("field", ["log_file_path", "ipam_lock_file"])
def test_a_disk_that_is_named_by_mistake_keeps_its_content(
    hostile_node: Node, pod_ns: Namespace, tmp_path: Path, field: str
) -> None:
    with disk(tmp_path) as (named, image):
        for verb in ("ADD", "DEL"):
            done = execute(hostile_node, verb, pod_ns.path, log_level="debug", **{field: str(named)})
            assert done.returncode == 0, answer(done)
        subprocess.run(["blockdev", "--flushbufs", str(named)], check=True)
        assert image.read_bytes() == b"somebody's data\n" * 65536
        assert named.read_bytes() == b"somebody's data\n" * 65536
    assert not hostile_node.leftovers()


@pytest.mark.parametrize("field", ["log_file_path", "ipam_lock_file"])
def test_a_pipe_that_somebody_reads_gets_nothing(
    hostile_node: Node, pod_ns: Namespace, tmp_path: Path, field: str
) -> None:
    named = make_named(tmp_path / "named", "fifo")
    reader = os.open(named, os.O_RDONLY | os.O_NONBLOCK)
    try:
        for verb in ("ADD", "DEL"):
            done = execute(hostile_node, verb, pod_ns.path, log_level="debug", **{field: str(named)})
            assert done.returncode == 0, answer(done)
        assert os.read(reader, 65536) == b""
    finally:
        os.close(reader)


@pytest.mark.parametrize("what", ["directory", "fifo", "device"])
@pytest.mark.parametrize("field", ["log_file_path", "ipam_lock_file"])
def test_a_log_or_a_shared_lock_that_is_no_file_holds_up_nothing(
    hostile_node: Node, pod_ns: Namespace, tmp_path: Path, field: str, what: str
) -> None:
    """Neither is needed for a call; what is named there is not written to."""
    named = make_named(tmp_path / "named", what)
    before = seen(named)
    for verb in ("ADD", "DEL"):
        done = execute(hostile_node, verb, pod_ns.path, **{field: str(named)})
        assert done.returncode == 0, answer(done)
    assert seen(named) == before
    assert not hostile_node.leftovers()


def test_a_lost_store_gives_no_address_and_a_del_still_succeeds(
    hostile_node: Node, pod_ns: Namespace, tmp_path: Path
) -> None:
    assert answer(execute(hostile_node, "ADD", pod_ns.path))["ips"]
    for path in tmp_path.glob("datastore.db*"):
        if not path.name.endswith(".was-made"):
            path.unlink()
    for verb, container in (("ADD", "c2"), ("STATUS", "")):
        document = answer(execute(hostile_node, verb, "" if verb == "STATUS" else pod_ns.path, container=container))
        assert document["code"] == (105 if verb == "ADD" else 50)
        assert "calicoctl datastore rebuild" in document["details"]
    assert execute(hostile_node, "DEL", pod_ns.path).returncode == 0
    assert not pod_ns.link("eth0")
    assert not (tmp_path / "datastore.db").exists()


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_numbers_that_are_none_in_json_are_refused(hostile_node: Node, pod_ns: Namespace, number: str) -> None:
    text = json.dumps(hostile_node.conf(dns={"nameservers": "@"})).replace('"@"', number).encode()
    reply = hostile_node.call("ADD", "c1", pod_ns.path, stdin=text)
    assert not reply.ok and reply.document["code"] == 6


@pytest.mark.parametrize("path", ["/a\0b", "/a\ud800/b"])
@pytest.mark.parametrize("field", ["datastore_path", "nodename_file", "log_file_path", "ipam_lock_file"])
def test_names_that_no_file_can_have_are_no_defect(
    hostile_node: Node, pod_ns: Namespace, field: str, path: str
) -> None:
    document = answer(execute(hostile_node, "ADD", pod_ns.path, **{field: path, "log_level": "debug"}))
    assert document.get("code") != 199, document


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (1, 2), (0, 1, 2)])
def test_closed_outputs_cost_nothing_but_the_output(
    hostile_node: Node, pod_ns: Namespace, closed: tuple[int, ...]
) -> None:
    """What is opened next must not take the number: the log's lines went into a lock file."""
    shell = " ".join(f"{fd}{'<' if fd == 0 else '>'}&-" for fd in closed)
    execute(hostile_node, "ADD", pod_ns.path, wrap=("sh", "-c", f'exec "$@" {shell}', "sh"))
    for path in hostile_node.root.rglob("*"):
        if path.is_file() and "lock" in path.name:
            assert path.read_bytes() == b""
    assert bool(pod_ns.link("eth0")) is (0 not in closed)


def test_an_interrupted_add_is_undone_without_a_trace(plain_node: Node, pod_ns: Namespace) -> None:
    """SIGINT while it waits for a gate that takes its request and does not answer."""
    with socket_in(plain_node.host, socket.AF_INET, socket.SOCK_STREAM) as gate:
        gate.bind(("127.0.0.1", 0))
        gate.listen()
        gate.settimeout(60)
        conf = plain_node.conf(readiness_gates=[f"http://127.0.0.1:{gate.getsockname()[1]}/ready"])
        environ = {k: v for k, v in plain_node.env("ADD", "c1", pod_ns.path, "eth0", "").items() if v}
        with subprocess.Popen(
            ["nsenter", f"--net={plain_node.host.path}", sys.executable, "-m", "cni_calico.plugin.main"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environ, "PYTHONPATH": os.getcwd()},
        ) as adding:
            assert adding.stdin is not None
            adding.stdin.write(json.dumps(conf).encode())
            adding.stdin.close()
            asked, _ = gate.accept()
            with asked:
                asked.settimeout(60)
                assert asked.recv(3) == b"GET"
                adding.send_signal(signal.SIGINT)
                code = adding.wait(60)
            assert adding.stderr is not None
            said = adding.stderr.read()
    assert (code, b"Traceback" in said) == (130, False), said
    assert not plain_node.leftovers() and pod_ns.link("eth0") is None


@pytest.mark.parametrize("how", ["read-only", "no inodes"])
def test_status_says_that_nothing_can_be_added_where_nothing_can_be_written(plain_node: Node, how: str) -> None:
    run = plain_node.root / "run"
    mount = {
        "read-only": f"mount -t tmpfs -o ro none {run}",
        "no inodes": f"mount -t tmpfs -o nr_inodes=1 none {run}",
    }[how]
    wrap = ("unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh")
    document = answer(execute(plain_node, "STATUS", wrap=wrap))
    assert document["code"] == 50 and str(run) in document["msg"] + document["details"]
    assert execute(plain_node, "STATUS").returncode == 0


@pytest.mark.parametrize("how", ["read-only", "no inodes"])
def test_a_server_whose_run_directory_cannot_be_written_says_so(plain_node: Node, how: str) -> None:
    run = plain_node.root / "run"
    with mounted(run, "nr_inodes=40"), plain_node.server():
        assert execute(plain_node, "STATUS").returncode == 0
        if how == "read-only":
            subprocess.run(["mount", "-o", "remount,bind,ro", str(run)], check=True)
        else:
            made = fill_inodes(run)
        document = answer(execute(plain_node, "STATUS"))
        assert document["code"] == 50 and str(run) in document["msg"] + document["details"]
        if how == "read-only":
            subprocess.run(["mount", "-o", "remount,bind,rw", str(run)], check=True)
        else:
            for path in made:
                path.unlink()
        assert execute(plain_node, "STATUS").returncode == 0


@contextmanager
def mounted(directory: Path, options: str) -> Iterator[None]:
    directory.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(directory)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def fill_inodes(directory: Path) -> list[Path]:
    made: list[Path] = []
    with pytest.raises(OSError, match="No space"):
        while True:
            path = directory / f"filler-{len(made)}"
            path.touch()
            made.append(path)
    return made


def test_status_says_that_the_stores_disk_is_full(plain_node: Node) -> None:
    directory = plain_node.root / "disk"
    directory.mkdir()
    script = f'mount -t tmpfs -o size=64k none {directory} && exec "$@"'
    wrap = ("unshare", "-m", "sh", "-c", script, "sh")
    document = answer(execute(plain_node, "STATUS", wrap=wrap, datastore_path=f"{directory}/datastore.db"))
    assert document["code"] == 50 and "full" in document["msg"]


WAYS: dict[str, Callable[[str], dict[str, Any]]] = {
    "gate with a user": lambda secret: {"readiness_gates": [f"http://user:{secret}@127.0.0.1:1/ready"]},
    "gate with a query": lambda secret: {"readiness_gates": [f"http://127.0.0.1:1/ready?apikey={secret}"]},
    "gate that is refused": lambda secret: {"readiness_gates": [f"ftp://user:{secret}@127.0.0.1:1/x?token={secret}"]},
    "etcd": lambda secret: {
        "datastore_type": "etcdv3",
        "etcd_endpoints": f"http://user:{secret}@127.0.0.1:1",
        "etcd_username": "user",
        "etcd_password": secret,
    },
    "API server": lambda secret: {
        "datastore_type": "kubernetes",
        "kubernetes": {"k8s_api_root": f"https://user:{secret}@127.0.0.1:1"},
        "policy": {"type": "k8s", "k8s_auth_token": secret},
    },
    "address that cannot be an API server's": lambda secret: {
        "datastore_type": "kubernetes",
        "kubernetes": {"k8s_api_root": f"ftp://user:{secret}@127.0.0.1:1"},
        "policy": {"type": "k8s", "k8s_auth_token": secret},
    },
}


@pytest.mark.parametrize("before", ["", "1/x,'\" y "])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.slow_on("one-shot")  # a served call says the same, and a server's log more
def test_secrets_reach_no_output_log_or_argument(hostile_node: Node, pod_ns: Namespace, way: str, before: str) -> None:
    """Whatever characters are ``before`` the part that is looked for."""
    hostile_node.environ["HTTPS_PROXY"] = f"http://user:{before}{CANARY}@127.0.0.1:1"
    changes, said = WAYS[way](before + CANARY), b""
    for verb in ("STATUS", "DEL", *(("ADD",) if not way.startswith("gate with") else ())):
        done = execute(hostile_node, verb, "" if verb == "STATUS" else pod_ns.path, log_level="debug", **changes)
        answer(done)
        said += done.stdout + done.stderr
    assert CANARY.encode() not in said, re.findall(rb".{90}" + CANARY.encode(), said)
    for path in hostile_node.root.rglob("*"):
        if path.is_file() and not path.is_symlink() and "pending-del" not in str(path):
            assert CANARY.encode() not in path.read_bytes(), path
    for owed in hostile_node.root.rglob("pending-del/*.json"):
        assert stat.S_IMODE(owed.stat().st_mode) == 0o600, "what is owed names the datastore as the caller reached it"


def test_a_lost_store_is_rebuilt_from_what_the_host_shows(
    hostile_node: Node, pod_ns: Namespace, make_pod_ns: Any, tmp_path: Path
) -> None:
    """The next container gets another address than the living one's, and that goes back once it is gone."""
    held = {ip["address"] for ip in answer(execute(hostile_node, "ADD", pod_ns.path))["ips"]}
    for path in tmp_path.glob("datastore.db*"):
        if not path.name.endswith(".was-made"):
            path.unlink()
    pools = tmp_path / "pools.yaml"
    pools.write_text(
        "\n---\n".join(
            json.dumps({"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": {"name": name}, "spec": s})
            for name, s in {
                "pool4": {"cidr": "10.65.0.0/16", "blockSize": 26},
                "pool6": {"cidr": "fd00:65::/112", "blockSize": 122},
            }.items()
        )
    )

    def calicoctl(*argv: str) -> subprocess.CompletedProcess[str]:
        environ = {
            "DATASTORE_TYPE": "local",
            "DATASTORE_PATH": str(tmp_path / "datastore.db"),
            "PYTHONPATH": os.getcwd(),
        }
        return subprocess.run(
            ["nsenter", f"--net={hostile_node.host.path}", sys.executable, "-m", "cni_calico.ctl.main", *argv],
            env={"PATH": os.environ["PATH"], "CALICO_STATE_DIR": str(tmp_path / "state"), **environ},
            capture_output=True,
            text=True,
        )

    refused = calicoctl("get", "ippool")
    assert refused.returncode == 1 and "calicoctl datastore rebuild" in refused.stderr
    asked = calicoctl("datastore", "rebuild", "-f", str(pools), "--node", hostile_node.nodename)
    assert asked.returncode == 1 and all(address.split("/")[0] in asked.stderr for address in held)
    assert not (tmp_path / "datastore.db").exists()
    rebuilt = calicoctl("datastore", "rebuild", "-f", str(pools), "--node", hostile_node.nodename, "--yes")
    assert rebuilt.returncode == 0, rebuilt.stderr
    again = calicoctl("datastore", "rebuild", "--node", hostile_node.nodename, "--yes")
    assert again.returncode == 0 and "Took" not in again.stdout
    other = answer(execute(hostile_node, "ADD", make_pod_ns().path, container="c2"))
    assert other["ips"] and not {ip["address"] for ip in other["ips"]} & held
    assert execute(hostile_node, "DEL", pod_ns.path).returncode == 0
    released = calicoctl("datastore", "rebuild", "--node", hostile_node.nodename, "--yes")
    assert "Released the addresses of" in released.stdout
    assert calicoctl("datastore", "check").stdout.endswith("is in order.\n")
